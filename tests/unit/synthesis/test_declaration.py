"""The spoken Declaration: its splits, the same bytes each time, gone on with, whole or not."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tiny_declaration import write_declaration
from transduce.corpora import check_named
from transduce.data.audio.read import parse_place
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.recipe import Named
from transduce.synthesis.declaration import speak
from transduce.synthesis.show import speak_and_print

pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_declaration(tmp_path)
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path))
    return tmp_path


def quietly(code: str, done: int, total: int) -> None:
    pass


def rows(folder: Path, split: str) -> list[dict[str, str]]:
    head, *lines = (folder / f"{split}.tsv").read_text("utf-8").splitlines()
    return [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]


def sums(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def test_articles_and_voices_are_held_out(shelf: Path) -> None:
    ((folder, new),) = speak(["eng"], 2, None, 2, quietly)
    assert new
    assert folder == shelf / "udhr-spoken" / "eng"
    tables = {s: rows(folder, s) for s in ("train", "valid", "test-articles", "test-voices")}
    assert {split: len(table) for split, table in tables.items()} == {
        "train": 4,
        "valid": 2,
        "test-articles": 4,
        "test-voices": 8,
    }
    known = {row["voice"] for row in tables["train"]}
    assert {row["voice"] for row in tables["test-articles"]} == known
    assert not {row["voice"] for row in tables["test-voices"]} & known
    heard = {row["text"] for row in tables["train"]}
    for split in ("valid", "test-articles", "test-voices"):
        assert not {row["text"] for row in tables[split]} & heard
    first = tables["train"][0]
    assert first["phones"] == "n aʊ ð eə f ɔː"
    assert first["segment"] == "a00.1.1"
    assert first["language"] == "eng"
    recipe = Named(name="udhr-spoken", split="test-voices", language="eng")
    check_named(recipe)
    pairs = list(read_pairs(recipe, None))
    assert all(parse_place(pair.source)[0].is_file() for pair in pairs)
    assert {pair.target for pair in pairs} == {row["phones"] for row in tables["test-voices"]}
    assert speak(["eng"], 2, None, 2, quietly) == [(folder, False)]


@pytest.mark.usefixtures("shelf")
def test_it_goes_on_where_it_was_and_says_the_same(tmp_path: Path) -> None:
    ((whole, _),) = speak(["eng"], 1, tmp_path / "whole", 2, quietly)

    def watch(code: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speak(["eng"], 1, tmp_path / "halves", 1, watch)
    shelf = tmp_path / "halves" / "udhr-spoken"
    assert not (shelf / "eng").exists()
    there = len(list((shelf / ".eng.part" / "readings").glob("*.json")))
    assert there >= 2
    seen: list[int] = []
    ((halves, new),) = speak(["eng"], 1, tmp_path / "halves", 1, lambda c, d, t: seen.append(d))
    assert new
    assert seen[0] >= 2
    assert sums(halves) == sums(whole)
    # Another plan begins anew.
    ((more, new),) = speak(["eng"], 2, tmp_path / "halves", 2, quietly)
    assert new
    assert len(rows(more, "train")) == 4


def test_all_languages_are_one_corpus(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speak_and_print(["eng", "deu_1996"], 1, None, 2)
    reported = capsys.readouterr().out
    assert "eng: train 2, valid 1, test-articles 2, test-voices 8 recordings" in reported
    pairs = list(read_pairs(Named(name="udhr-spoken", split="train", language="all"), None))
    assert len(pairs) == 4
    with pytest.raises(DataError, match="udhr-spoken has no language fra"):
        check_named(Named(name="udhr-spoken", split="train", language="fra"))


@pytest.mark.parametrize(
    ("languages", "sentence"),
    [
        (["tlh"], r"espeak does not know the language of tlh \(Unheard\): leave it out"),
        (["jpn"], r"espeak cannot read jpn \(Japanese\) in this script, only spell it"),
        (["eng", "deu"], "udhr has no deu; there are deu_1996"),
        ([], "there is no language to read"),
    ],
)
def test_what_cannot_be_read(shelf: Path, languages: list[str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        speak(languages, 1, None, 1, quietly)
    assert not (shelf / "udhr-spoken").exists()


def test_without_texts_or_with_other_files(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shelf / "udhr-spoken" / "eng").mkdir(parents=True)
    (shelf / "udhr-spoken" / "eng" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other files"):
        speak(["eng"], 1, None, 1, quietly)
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="udhr is not on this machine: `transduce corpus get udhr`"):
        speak(["eng"], 1, None, 1, quietly)
    with pytest.raises(DataError, match="`transduce corpus udhr` makes it"):
        check_named(Named(name="udhr-spoken", split="train", language="eng"))
