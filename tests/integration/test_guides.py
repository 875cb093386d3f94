"""The commands of the short guides and of the first hour, run on small sets, reduced."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from served import serving
from transduce import load
from transduce.cli import main as cli

DOCS = Path(__file__).parents[2] / "docs" / "guides"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = b"\x89PNG"


def blocks(name: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / f"{name}.md").read_text("utf-8"))


def typed(name: str) -> list[list[str]]:
    """The commands of a page, in order."""
    lines = [
        line.removeprefix("$ ").removeprefix("transduce ")
        for kind, text in blocks(name)
        if kind in ("", "sh")
        for line in text.splitlines()
        if line.removeprefix("$ ").startswith("transduce ")
    ]
    return [shlex.split(line, comments=True) for line in lines]


def run(words: list[str], patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command prints; a file that the shell would write is written."""
    words, file = (words[:-2], words[-1]) if ">" in words else (words, None)
    patch.setattr(sys, "argv", ["transduce", *words])
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capfd.readouterr()
    assert end.value.code == 0, (words, printed.err)
    if file:
        Path(file).write_text(printed.out, "utf-8")
    return printed.out


def write_recipes(name: str, folder: Path, **replaced: str) -> None:
    for kind, text in blocks(name):
        if kind == "yaml" and (title := re.match(r"# (\S+)\n", text)):
            for old, new in replaced.items():
                text, count = re.subn(old, new, text)
                assert count, old
            (folder / title[1]).write_text(text, "utf-8")


def split(folder: Path, stem: str, lines: list[str]) -> None:
    (folder / f"{stem}.train.tsv").write_text("".join(lines[:-20]), "utf-8")
    (folder / f"{stem}.valid.tsv").write_text("".join(lines[-20:]), "utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_classification(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    reported = {"sport": ["match", "goal", "team"], "weather": ["rain", "storm", "sun"]}
    pairs = [(draw.choice(reported[label]), label) for label in draw.choices(list(reported), k=200)]
    split(place, "topics", [f"a {word} in the news\t{label}\n" for word, label in pairs])
    write_recipes("classification", place)
    printed = [run(words, monkeypatch, capfd) for words in typed("classification")[:3]]
    assert "accuracy" in printed[1].lower()
    assert {line.split("\t")[-1] for line in printed[2].splitlines()} == set(reported)


@pytest.mark.slow
def test_tagging(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(1)
    words = {"DET": ["the", "a"], "NOUN": ["dog", "cat", "tree"], "VERB": ["sleeps", "runs"]}
    lines = [
        " ".join(draw.choice(some) for some in words.values()) + "\tDET NOUN VERB\n"
        for _ in range(200)
    ]
    split(place, "tags", lines)
    write_recipes("tagging", place)
    printed = [run(words, monkeypatch, capfd) for words in typed("tagging")[:3]]
    assert printed[2] == "the/DET dog/NOUN sleeps/VERB\n"


@pytest.mark.slow
def test_translation(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = {"A dog runs.": "Ein Hund rennt.", "A cat sleeps.": "Eine Katze schläft."}
    for stem in ("train", "valid", "test"):
        for ending, sentences in (("en", pairs), ("de", pairs.values())):
            (place / f"{stem}.{ending}").write_text("\n".join([*sentences] * 30) + "\n", "utf-8")
    (place / "news.en").write_text("A cat runs.\n")
    write_recipes("translation", place, **{"transformer-small": "transformer-tiny", "20000": "2"})
    printed = [run(words, monkeypatch, capfd) for words in typed("translation")]
    assert "BLEU" in printed[2]
    assert len((place / "news.de").read_text("utf-8").splitlines()) == 1
    assert (place / "look.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_hour(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (script,) = (text for kind, text in blocks("first-hour") if kind == "python")
    (place / "make.py").write_text(script, "utf-8")
    shell = next(text for kind, text in blocks("first-hour") if kind == "sh")
    shell = shell.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    subprocess.run(["sh", "-ec", shell], check=True)
    write_recipes("first-hour", place, **{"steps: 800": "steps: 400"})
    check, train, evaluate, use, picture, page, serve = typed("first-hour")
    shown = {text for _, text in blocks("first-hour")}

    said = run(check, monkeypatch, capfd)
    expected = next(text for text in shown if text.startswith("$ transduce check"))
    for line in expected.splitlines()[1:]:
        assert line == "..." or line in said, line
    run(train, monkeypatch, capfd)
    assert run(evaluate, monkeypatch, capfd).startswith("exact match ")
    found = run(use, monkeypatch, capfd).splitlines()
    assert len(found) == 3
    assert all(line.startswith("1\t-") for line in found)
    run(picture, monkeypatch, capfd)
    assert (place / "attention.png").read_bytes()[:4] == PICTURE
    run(page, monkeypatch, capfd)
    assert serve[:2] == ["serve", "numbers=runs/numbers"]
    with serving({"numbers": load("runs/numbers")}) as server:
        (output,) = server.run(input="nine hundred and ninety", nbest=2)
        assert set(output) >= {"text", "score", "tokens", "nbest"}
