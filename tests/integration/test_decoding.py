"""Trained models in float32: the same hypotheses whatever stands beside a source in its batch."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lives import Command
from slow_params import some_slow
from transduce import Transducer, load
from transduce.corpora.generated import cmudict
from transduce.decoding.batch import decode
from transduce.decoding.source_limit import MIN_GENERATE
from transduce.recipe import load_recipe
from transduce.tasks.transduce import Output
from transduce.training import train

COMMON = [
    "data.train.limit=5000",
    "data.valid.limit=200",
    "train.steps=100",
    "train.batch_tokens=512",
    "train.lr=4e-3",
    "train.warmup=50",
    "train.minutes=null",
    "train.device=cpu",
    "validation.every=100",
    "validation.limit=20",
]
FAMILIES = {
    "transformer": ["model.preset=transformer-tiny", "model.width=48"],
    "recurrent": ["model.preset=gru-attention", "model.width=48"],
    "convolutional": ["model.preset=convolutional-small", "model.width=48"],
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 4},
    "sample": {"sample": True, "nbest": 3},
    "shaped": {
        "beam": 3,
        "nbest": 3,
        "coverage_penalty": 0.2,
        "no_repeat_ngram": 3,
        "include": ["AH"],
    },
}


@pytest.fixture(scope="module", params=some_slow(FAMILIES, ["transformer"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transducer:
    folder: Path = tmp_path_factory.mktemp("runs") / request.param
    train(load_recipe("pronounce", [*COMMON, *FAMILIES[request.param]]), folder)
    return load(folder)


@pytest.fixture(scope="module")
def words() -> list[str]:
    return list(dict.fromkeys(word for word, _ in cmudict("test")))[:50]


def lists(outputs: list[Output]) -> list[list[list[str]]]:
    return [[h.tokens for h in output.alternatives or [output]] for output in outputs]


@pytest.mark.parametrize("way", some_slow(WAYS, ["shaped"]))
def test_neighbours_order_and_padding_change_no_hypothesis(
    model: Transducer, words: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words[:15]
    expected = lists([model.run([word], **WAYS[way])[0] for word in words])
    compared = 0
    for budget in (1 << 16, 1000):
        monkeypatch.setattr(decode, "PLACES_ON_CPU", budget)
        # A very long neighbour pads all others of its batch; the order decides who they are.
        order = random.Random(budget).sample(range(len(words)), len(words))
        shuffled = [words[i] for i in order]
        found = lists(model.run([*shuffled, "supercalifragilistic" * 2], **WAYS[way]))
        for place, index in enumerate(order):
            assert found[place] == expected[index], words[index]
            compared += len(expected[index])
    assert compared >= 2 * len(words)


def test_hypotheses_are_worth_what_scoring_says(model: Transducer, words: list[str]) -> None:
    outputs = model.run(words, beam=4, nbest=4, unknown=False)
    pairs = [(w, o) for w, out in zip(words, outputs, strict=True) for o in out.alternatives]
    scores = model.score([word for word, _ in pairs], [o.text for _, o in pairs])
    assert len(pairs) >= 4 * len(words) - 4
    for (_, output), score in zip(pairs, scores, strict=True):
        assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)


def test_a_line_of_ten_thousand_tokens_among_short_ones(
    model: Transducer, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it writes for so long a word is nonsense: a hundred tokens of it will do.
    short = model.recipe.decode.model_copy(update={"max_ratio": 0.01})
    monkeypatch.setattr(model, "recipe", model.recipe.model_copy(update={"decode": short}))
    some = words[:20]
    outputs = model.run([*some[:10], "a" * 10_000, *some[10:]], beam=2)
    assert model.recipe.data.max_length < MIN_GENERATE
    assert len(outputs[10].source_tokens) == MIN_GENERATE + 1
    assert f"and reads {MIN_GENERATE}; it was truncated" in outputs[10].warning
    assert 0 < len(outputs[10].tokens) <= 121
    expected = model.run(some, beam=2)
    assert lists(outputs[:10] + outputs[11:]) == lists(expected)


def test_a_better_model_finds_phrases_a_better_place(model: Transducer, words: list[str]) -> None:
    """Included at little cost where they belong: what is asked for is what was written anyway."""
    outputs = model.run(words, beam=4)
    asked = [[" ".join(o.tokens[1:3])] if len(o.tokens) > 3 else [] for o in outputs]
    asked = [[] if "<unk>" in " ".join(phrases) else phrases for phrases in asked]
    again = model.run(words, beam=4, include=asked)
    same = sum(a.text == b.text for a, b in zip(outputs, again, strict=True))
    assert same / len(words) > 0.8
    for output, phrases in zip(again, asked, strict=True):
        assert all(phrase in output.text for phrase in phrases)


def test_the_examples_of_the_page_run(
    command: Command, model: Transducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "decoding.md").read_text("utf-8")
    python = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"^transduce (.*)$", page, re.MULTILINE)
    assert (len(python), len(commands)) == (9, 7)
    model.save(tmp_path / "runs" / "demo")
    (tmp_path / "words.txt").write_text("knight\nuncle\n")
    (tmp_path / "names.txt").write_text("F IY\nN AY T\n")
    (tmp_path / "terms.tsv").write_text("knight\tN AY T\n")
    (tmp_path / "asked.jsonl").write_text(re.findall(r"`(\{.*\})`", page)[0] + "\n")
    (tmp_path / "pairs.tsv").write_text("knight\tN AY T\nuncle\tAH NG K AH L\n")
    monkeypatch.chdir(tmp_path)
    exec("\n".join(python), {})
    assert (tmp_path / "knight.png").stat().st_size > 1000
    for line in commands:
        ended = command(*shlex.split(line, comments=True))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout


def test_processes_that_share_a_file_print_the_same(command: Command, tmp_path: Path) -> None:
    """On the command line, which sees to it that no thread was ever started."""
    folder = tmp_path / "model"
    small = ["data.train.limit=500", "data.valid.limit=20", "validation.every=20"]
    train(load_recipe("copy", ["train.steps=20", "train.batch_tokens=512", *small]), folder)
    lines = tmp_path / "lines.txt"
    words = ["abc", "defg", "h", "", "ijklmno"]
    lines.write_text("".join(f"{words[n % 5]}{words[n % 3]}\n" for n in range(150)))
    printed = []
    for workers in ("1", "3"):
        asked = ["--beam", "2", "--scores", "--workers", workers]
        done = command("run", folder, "-i", lines, *asked)
        assert done.returncode == 0, done.stderr
        printed.append([line.split("\t") for line in done.stdout.splitlines()])
    assert len(printed[0]) == 150
    assert [row[1:] for row in printed[0]] == [row[1:] for row in printed[1]]
    for one, other in zip(*printed, strict=True):
        assert float(one[0]) == pytest.approx(float(other[0]), abs=2e-3)
