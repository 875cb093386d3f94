"""The page on words: its recipes and commands, tried on sets made up here."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import product
from pathlib import Path

import pytest

from transduce import load
from transduce.cli import main as cli
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.tasks.folder import read_metrics

pytestmark = pytest.mark.slow  # tags, features and levels have quicker tests of their own
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "words.md"
LEADS = {
    "나": "na",
    "무": "mu",
    "가": "ga",
    "도": "do",
    "시": "si",
    "모": "mo",
    "두": "du",
    "기": "gi",
}


def write_sets(folder: Path) -> None:
    """Two languages that say j and z otherwise; verbs and nouns; syllables."""
    words = ["".join(letters) for letters in product("jz", "aio", "jzt", "aio")]
    sounds = {"spanish": {"j": "x", "z": "θ"}, "german": {"j": "j", "z": "ts"}}
    for language, phones in sounds.items():
        lines = [f"{word}\t{' '.join(phones.get(a, a) for a in word)}\n" for word in words]
        (folder / f"{language}.tsv").write_text("".join(lines), "utf-8")
    endings = {"V;PRS;3;SG": "t", "V;PST;3;SG": "te", "N;PL": "en"}
    stems = ["lach", "mach", "wein", "zeig", "koch", "hol", "leb", "lieb", "rauch", "such"]
    forms = [f"{stem}\t{stem}{end}\t{tags}\n" for stem in stems for tags, end in endings.items()]
    (folder / "forms.tsv").write_text("".join(forms), "utf-8")
    pairs = [f"{a}{b}\t{LEADS[a]}{LEADS[b]}\n" for a, b in product(LEADS, LEADS)]
    (folder / "hangul.tsv").write_text("".join(pairs), "utf-8")


def halved(found: re.Match[str]) -> str:
    return f"train: {{device: cpu, steps: {int(found[1]) // 2}"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """What each command of the page prints."""
    folder = tmp_path_factory.mktemp("words")
    text = PAGE.read_text("utf-8")
    write_sets(folder)
    for name, body in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.DOTALL):
        # The sets made up here are smaller than those of the page: half as many updates will do.
        body, count = re.subn(r"train: {steps: (\d+)", halved, body)
        assert count == 1
        (folder / name).write_text(body, "utf-8")
    commands = re.findall(r"^transduce (.*)$", text, re.MULTILINE)
    assert len(commands) == 19
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    printed = {}
    try:
        for command in commands:
            printed[command] = run(patch, shlex.split(command), folder / "out")
    finally:
        patch.undo()
    return folder, printed


def run(patch: pytest.MonkeyPatch, typed: list[str], out: Path) -> str:
    with out.open("w+", encoding="utf-8") as file:
        patch.setattr(sys, "argv", ["transduce", *typed])
        patch.setattr(sys, "stdout", file)
        with pytest.raises(SystemExit) as end:
            cli.main()
        patch.setattr(sys, "stdout", sys.__stdout__)
        file.flush()
    assert end.value.code == 0, typed
    return out.read_text("utf-8")


def test_one_model_two_languages(said: tuple[Path, dict[str, str]]) -> None:
    folder, printed = said
    assert printed["run runs/languages --tag spa jazi"] == "x a θ i\n"
    assert printed['run runs/languages "<deu> jazi" "<spa> jazi"'] == "j a ts i\nx a θ i\n"
    scores = printed["evaluate runs/languages"]
    assert re.search(r"^deu +20 +100\.00 +0\.00$", scores, re.MULTILINE), scores
    assert re.search(r"^mean +100\.00 +0\.00$", scores, re.MULTILINE)
    found = read_metrics(folder / "runs" / "languages")["test"]
    assert set(found["groups"]) == {"spa", "deu"}
    assert found["mean"]["exact"]["value"] == 100.0


def test_features_of_an_inflection(said: tuple[Path, dict[str, str]]) -> None:
    folder, printed = said
    command = 'run runs/inflect --tag "V;PST;3;SG" lach'
    assert printed[command] == "lachte\n"
    assert re.search(r"^N +\d+ +100\.00", printed["evaluate runs/inflect"], re.MULTILINE)
    model = load(folder / "runs" / "inflect")
    assert model("<N> <PL> lach") == "lachen"
    assert model.source_tokens.pieces(model.source_tokens.encode("<N> <PL> la")) == [
        "<N>",
        "<PL>",
        "l",
        "a",
    ]


def test_letters_taken_apart(said: tuple[Path, dict[str, str]]) -> None:
    folder, printed = said
    assert printed["run runs/romanise 나무"] == "namu\n"
    model = load(folder / "runs" / "romanise")
    assert len(model.source_tokens.encode("나무")) == 4
    # No syllable of the set is nu or ma; their letters are all there.
    assert UNKNOWN not in model.source_tokens.encode("누마")


def test_a_tag_that_was_not_learnt(
    said: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = said
    for model, sentence in (
        ("languages", "has no tag spam; did you mean spa?"),
        ("romanise", "was trained without tags, so spam is unknown; leave it out"),
    ):
        typed = ["run", str(folder / "runs" / model), "--tag", "spam", "jazi"]
        monkeypatch.setattr(sys, "argv", ["transduce", *typed])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err


def test_several_models_together(said: tuple[Path, dict[str, str]]) -> None:
    from transduce.evaluation.evaluate import evaluate_folder

    folder, _ = said
    place = folder / "runs" / "inflect"
    one, other = load(place), load(place)
    alone = evaluate_folder(one, place, split="valid")
    both = evaluate_folder(one, place, split="valid", ensemble=[other])
    assert both.name == "valid-2-models"
    assert both.metrics["exact"].value == alone.metrics["exact"].value
    found = read_metrics(place)
    assert found["valid-2-models"]["models"] == 2
    assert "models" not in found["valid"]
