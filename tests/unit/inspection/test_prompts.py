"""Prompts side by side: divergences by their definition, and a page that nothing breaks out of."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from language import language_model
from tiny_models import tiny
from transduce.errors import DataError, ModelError
from transduce.inspection.prompts import (
    compare,
    compare_folder,
    jensen_shannon,
    print_comparison,
    write_prompts,
)
from transduce.tasks import LanguageModel

PROMPTS = ["tea", "", "uncle iroh made a cup of", "<script>alert(1)</script>&amp;\u2028"]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model()


def entropy(p: np.ndarray) -> float:
    return -sum(x * math.log2(x) for x in p.tolist() if x > 0)


@given(arrays(np.float64, (2, 1, 5), elements=st.floats(0, 1)))
def test_the_divergence_is_that_of_the_entropies(weights: np.ndarray) -> None:
    p_21V = weights + np.where(weights.sum(axis=2, keepdims=True) == 0, 1.0, 0.0)
    p_21V = p_21V / p_21V.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        found = jensen_shannon(np.log(p_21V))[0]
    p, q = p_21V[:, 0]
    expected = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    assert found[0, 1] == found[1, 0] == pytest.approx(expected, abs=1e-9)
    assert found[0, 0] == found[1, 1] == 0.0


def test_its_ends_are_nothing_and_one_bit() -> None:
    with np.errstate(divide="ignore"):
        log_p = np.log([[[0.5, 0.5, 0, 0]], [[0, 0, 0.2, 0.8]], [[0.5, 0.5, 0, 0]]])
    found = jensen_shannon(log_p)[0]
    assert found[0, 1] == pytest.approx(1.0)
    assert found[0, 2] == pytest.approx(0.0)


def test_continuations_and_what_each_prompt_thinks_of_them(model: LanguageModel) -> None:
    made = compare(model, PROMPTS, max_length=12)
    outputs = model.run(PROMPTS, max_length=12)
    for number, (prompt, said, output) in enumerate(
        zip(PROMPTS, made.continuations, outputs, strict=True)
    ):
        assert prompt + said.text == output.text
        assert len(said.tokens) == len(said.texts) == 12
        assert said.log_probability == output.log_probability
        own = made.scored[number]
        assert math.fsum(np.log(own.probabilities_PK[number])) == pytest.approx(
            said.log_probability, abs=1e-5
        )
        for other, theirs in enumerate(PROMPTS):
            (score,) = model.score([theirs], [said.text])
            values = np.exp(score.token_log_probabilities)
            assert own.probabilities_PK[other] == pytest.approx(values, abs=1e-6)


def test_the_likeliest_are_the_likeliest(model: LanguageModel) -> None:
    made = compare(model, ["tea", "zuko"], max_length=3)
    assert made.how == "greedy"
    for step, token in enumerate(made.scored[0].tokens):
        likely = made.scored[0].top[0][step]
        assert likely[0][0] == token  # greedy search took it
        assert likely == sorted(likely, key=lambda one: -one[1])
        assert len(likely) == 8
    assert made.scored[0].mean_PP[0, 1] == pytest.approx(
        made.scored[0].divergence_KPP[:, 0, 1].mean()
    )


def test_the_same_prompt_twice_is_no_different(model: LanguageModel) -> None:
    made = compare(model, ["tea", "tea", "cup"], max_length=5)
    assert made.scored[0].mean_PP[0, 1] == pytest.approx(0.0, abs=1e-12)
    assert made.scored[0].mean_PP[0, 2] > 1e-4


@pytest.mark.parametrize("level", ["subword", "byte", "word"])
def test_texts_of_tokens_join_whatever_they_are(level: str) -> None:
    model = language_model(level)
    made = compare(model, ["a cup", "é"], sample=True, max_length=10, seed=3, temperature=0.5)
    for said, output in zip(
        made.continuations,
        model.run(["a cup", "é"], sample=True, max_length=10, seed=3, temperature=0.5),
        strict=True,
    ):
        assert said.prompt + said.text == output.text
    assert made.how == "drawn, temperature 0.5, seed 3"


def test_a_page_holds_its_data_and_nothing_breaks_out(model: LanguageModel, tmp_path: Path) -> None:
    made = compare(model, PROMPTS, max_length=4)
    write_prompts(made, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<script") == page.count("</script") == 2
    assert "alert(1)</" not in page
    assert "\u2028" not in page
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", page)
    (raw,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page)
    data = json.loads(raw)
    assert [one["prompt"] for one in data["continuations"]] == PROMPTS
    first = data["continuations"][0]
    assert np.shape(first["probabilities"]) == (4, 4)
    assert np.shape(first["divergence"]) == (4, 4, 4)
    assert first["divergence"][2][0][1] == pytest.approx(
        made.scored[0].divergence_KPP[2, 0, 1], rel=1e-3
    )


def test_nothing_written_is_shown_as_nothing(tmp_path: Path) -> None:
    """Texts that end may end at once."""
    model = language_model(lines="apart")
    model.network.head.bias.data[3] = 50.0
    made = compare(model, ["tea", "cup"], max_length=4)
    assert [one.tokens for one in made.continuations] == [[], []]
    write_prompts(made, tmp_path / "page.html")
    print_comparison(made)


def test_a_table_for_a_terminal_of_any_width(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, count in ((60, 4), (80, 2), (200, 4), (40, 1), (64, 2)):
        monkeypatch.setenv("COLUMNS", str(width))
        print_comparison(compare(model, PROMPTS[:count], max_length=3))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= max(width, 76)  # the one sentence is longer
        assert any(line.strip().startswith("3 ") for line in lines)


def test_six_prompts_in_a_narrow_terminal_are_read_one_below_the_other(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = compare(model, [*PROMPTS[:3], "cup of", "uncle", "made"], max_length=3)
    monkeypatch.setenv("COLUMNS", "80")
    print_comparison(made)
    narrow = capsys.readouterr().out
    steps = narrow.partition("most probable next tokens\n")[2].partition("mean bits")[0]
    assert "…  " not in steps, "no number and no token is cut"
    scored = made.scored[0]
    for step in range(3):
        for number in range(6):
            token, probability = scored.top[number][step][0]
            assert f"{token} {probability:.2f}" in steps
            if number:
                assert f"{scored.divergence_KPP[step][0, number]:.2f}" in steps
    monkeypatch.setenv("COLUMNS", "300")
    print_comparison(made)
    assert "bits 1–2/3/4/5/6" in capsys.readouterr().out


def test_spaces_of_tokens_are_shown_and_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = language_model()
    model.network.head.bias.data[model.target_tokens.encode(" ")[0]] = 50.0
    print_comparison(compare(model, ["tea"], max_length=2))
    shown = capsys.readouterr().out
    assert "␣ 1.00" in shown
    assert "␣ is a space." in shown
    assert "▁" not in shown


def test_what_is_no_language_model_is_told_so(tmp_path: Path, model: LanguageModel) -> None:
    tiny().save(tmp_path)
    with pytest.raises(
        ModelError, match="is a model of the task transduce; prompts need a language"
    ):
        compare_folder(tmp_path, ["a"], "cpu", "auto")
    with pytest.raises(DataError, match="there is no prompt"):
        compare(model, [])
