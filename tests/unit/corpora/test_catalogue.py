"""Corpora by name: what a recipe may ask for, and what it is told when there is no such thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from transduce.corpora import FETCHED, MADE, check_named, get, listing_of
from transduce.corpora.entry import Listing, checksum, megabytes
from transduce.corpora.location import corpora_folder
from transduce.corpora.text import SIGMORPHON_LANGUAGES
from transduce.data.text.pairs import (
    check_files,
    check_kind,
    corpus_name,
    is_running,
    read_pairs,
    tags_of,
)
from transduce.errors import DataError
from transduce.recipe import Named, Recipe
from transduce.storage import write_json


def sentence(**keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        check_named(Named(**keys))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError) as caught_again:
        list(read_pairs(Named(**keys), None))
    assert str(caught_again.value) == str(caught.value)
    return str(caught.value)


def put(shelf: Path, name: str, **files: str) -> None:
    """A corpus as if it had been fetched."""
    (shelf / name).mkdir(parents=True)
    for file, text in files.items():
        (shelf / name / file.replace("__", ".")).write_text(text, "utf-8")
    sums = {file.replace("__", "."): "" for file in files}
    write_json(shelf / name / "corpus.json", {"format": 1, "files": sums})


def test_where_corpora_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_DATA", "~/corpora")
    monkeypatch.setenv("HOME", "/home/me")
    assert corpora_folder() == Path("/home/me/corpora")
    monkeypatch.setenv("TRANSDUCE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert corpora_folder() == Path("/cache/transduce/corpora")


@pytest.mark.parametrize("listing", FETCHED.values(), ids=FETCHED.keys())
def test_listings_are_complete(listing: Listing) -> None:
    assert bool(listing.command) != bool(listing.forms)
    for file in listing.forms[0].files if listing.forms else ():
        known = checksum(listing.name, file.name)
        assert len(known.sha256) == 64
        if listing.public:
            assert file.address.startswith("https://")
            assert known.download > 0
    assert (0 < listing.download < 100_000_000) == listing.public
    assert set(listing.splits) <= set(get_args(Named.model_fields["split"].annotation))
    assert bool(listing.key) == bool(listing.example)


def test_the_page_of_corpora_names_them_all() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "corpora.md").read_text("utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if "|" in line}
    for name, listing in FETCHED.items():
        fetched = megabytes(listing.download) if listing.public else "with `--from`"
        fetched = f"`{listing.command}`" if listing.command else fetched
        assert f"| {fetched} | {listing.licence} |" in rows[name]
        for split, count in listing.splits.items():
            assert (split if listing.command else f" {count:,}") in rows[name]
        assert listing.home.rstrip("/") in page.replace("/)", ")")
    assert all(f"`{name}`" in page for name in MADE)


def test_names_that_are_not_there() -> None:
    assert sentence(name="revers", split="train") == (
        "there is no corpus named revers; did you mean reverse?"
    )
    assert sentence(name="xyz", split="train") == (
        "there is no corpus named xyz; there are announcements, asterisk, cmudict, cmudict-0.7b, "
        "copy, ewt, imdb, mboshi, multi30k, reverse, sigmorphon2020, spoken-digits, "
        "tiny-shakespeare, udhr, udhr-spoken"
    )
    assert sentence(name="copy", split="test-2017") == (
        "copy has no split test-2017; did you mean test?"
    )
    assert sentence(name="copy", split="train", pair="en-de") == (
        "copy takes no pair (here en-de); leave it out"
    )
    assert all(listing_of(name) is None for name in MADE)


@pytest.mark.usefixtures("shelf")
def test_a_corpus_that_is_not_here_yet() -> None:
    assert sentence(name="multi30k", split="train", pair="en-de") == (
        "multi30k is not on this machine: `transduce corpus get multi30k` downloads it "
        "(2.0 MB, research use)"
    )
    assert "(84 MB, research use)" in sentence(name="imdb", split="train")


def test_pairs_and_splits(shelf: Path) -> None:
    files = {
        f"{split}__{code}": f"{code} {split}\n"
        for split in ("train", "test-2017", "test")
        for code in ("en", "de", "fr")
    }
    put(shelf, "multi30k", **files)
    (pair,) = read_pairs(Named(name="multi30k", split="test-2017", pair="fr-en"), None)
    assert (pair.source, pair.target) == ("fr test-2017", "en test-2017")
    assert (pair.file, pair.line) == ("multi30k/test-2017.fr", 1)
    assert sentence(name="multi30k", split="train") == (
        "multi30k needs a pair, such as pair: en-de, of en, de, fr"
    )
    assert sentence(name="multi30k", split="train", language="en") == (
        "multi30k takes no language (here en); it takes pair"
    )
    assert sentence(name="multi30k", split="train", pair="en-it") == (
        "multi30k has no language it; there are en, de, fr"
    )
    assert sentence(name="multi30k", split="train", pair="english") == (
        "english is not a pair of multi30k; write it as in pair: en-de"
    )
    (shelf / "multi30k" / "train.fr").unlink()
    assert sentence(name="multi30k", split="train", pair="en-de") == (
        f"{shelf}/multi30k/train.fr is missing: `transduce corpus get multi30k` restores it"
    )


def test_a_language_of_many(shelf: Path) -> None:
    codes = ["deu_1901", "deu_1996", "eng", "fra"]
    rows = ["\t".join(codes), "Alle", "\t".join(["Alle", "Alle", "All", "Tous"]), "x\t\ty\tz"]
    put(
        shelf,
        "udhr",
        train__tsv="\n".join([rows[0], rows[2], rows[3]]) + "\n",
        languages__tsv="code\tname\n" + "".join(f"{code}\tname\n" for code in codes),
    )
    pairs = read_pairs(Named(name="udhr", split="train", pair="eng-deu_1996"), None)
    assert [(pair.source, pair.target) for pair in pairs] == [("All", "Alle")]
    assert sentence(name="udhr", split="train", pair="eng-deu") == (
        "udhr has no deu; there are deu_1901, deu_1996"
    )
    assert "did you mean fra?" in sentence(name="udhr", split="train", pair="eng-fre")


def test_fifteen_languages_or_all(shelf: Path) -> None:
    words = {
        f"train__{language}__tsv": f"{language}\ta\nb\tb\n" for language in SIGMORPHON_LANGUAGES
    }
    put(shelf, "sigmorphon2020", **words)
    one, _ = read_pairs(Named(name="sigmorphon2020", split="train", language="fre"), None)
    assert (one.source, one.tags) == ("fre", ())
    everything = Named(name="sigmorphon2020", split="train", language="all")
    in_turn = [pair.source for pair in read_pairs(everything, None)]
    assert in_turn[:2] == ["<ady> ady", "<arm> arm"]
    assert in_turn[15:] == [f"<{language}> b" for language in SIGMORPHON_LANGUAGES]
    assert tags_of(everything, None) == sorted(SIGMORPHON_LANGUAGES)
    assert len(list(read_pairs(everything.model_copy(update={"limit": 7}), None))) == 7
    assert "such as language: fre, of ady, arm" in sentence(name="sigmorphon2020", split="train")


def test_running_text(shelf: Path) -> None:
    corpus = Named(name="tiny-shakespeare", split="train")
    assert is_running(corpus)  # a trained model knows it where the text is not
    assert "is not on this machine" in sentence(name="tiny-shakespeare", split="train")
    put(shelf, "tiny-shakespeare", train__txt="To be\n\nor\n", valid__txt="not\n")
    assert [pair.target for pair in read_pairs(corpus, "/elsewhere")] == ["To be\n", "\n", "or\n"]
    first = corpus.model_copy(update={"limit": 2})
    assert [pair.target for pair in read_pairs(first, None)] == ["To be\n", "\n"]
    assert "has no split test; there are train, valid" in sentence(
        name="tiny-shakespeare", split="test"
    )
    assert not any(
        is_running(Named(name=name, split="train")) for name in {*FETCHED, *MADE} - {corpus.name}
    )


def test_corpora_of_another_kind_than_the_task_learns_from() -> None:
    def reported(task: str, train: dict[str, str], valid: dict[str, str]) -> str:
        keys = {"task": task, "data": {"train": train, "valid": valid}}
        if task == "language_modeling":
            keys["data"]["tokens"] = {"both": {"level": "character"}}
        recipe = Recipe.model_validate(keys)
        check_kind(recipe.data.train, recipe)
        with pytest.raises(DataError) as caught:
            check_kind(recipe.data.valid, recipe)
        return str(caught.value)

    text, pairs = ({"name": name, "split": "valid"} for name in ("tiny-shakespeare", "copy"))
    assert reported("transduce", pairs, text) == (
        "tiny-shakespeare (valid) is text alone, but task: transduce learns from sources and "
        "targets"
    )
    assert reported("language_modeling", text, pairs) == (
        "copy (valid) has sources and targets, but task: language_modeling learns from text alone"
    )
    assert reported("language_modeling", {"text": "a.txt", "lines": "apart"}, text) == (
        "tiny-shakespeare (valid) has its lines joined, but task: language_modeling needs them "
        "as in data.train"
    )


def test_a_fetched_corpus_is_read_by_its_name(tiny: Listing, shelf: Path) -> None:
    named = Named(name="tiny", split="train", pair="en-de", limit=3)
    with pytest.raises(DataError, match="tiny is not on this machine"):
        check_files(named, "/elsewhere")
    get(tiny, shelf, None, lambda file, there: None)
    check_files(named, "/elsewhere")
    pairs = [(pair.source, pair.target) for pair in read_pairs(named, "/elsewhere")]
    assert pairs == [
        (f"{n} dogs and {n * n} cats", f"{n} Hunde und {n * n} Kätzchen") for n in range(3)
    ]


def test_how_corpora_are_called() -> None:
    named = {
        "copy (train)": Named(name="copy", split="train"),
        "multi30k en-de (test-2017)": Named(name="multi30k", split="test-2017", pair="en-de"),
        "sigmorphon2020 fre (valid)": Named(name="sigmorphon2020", split="valid", language="fre"),
    }
    assert {name: corpus_name(corpus) for name, corpus in named.items()} == {n: n for n in named}
