"""A cache that is too large loses what was not used for longest, and says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from transduce import recipe
from transduce.data.cache import eviction
from transduce.data.cache.eviction import DAY, evict
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError

MB = 10**6


def put(folder: Path, name: str, size: int, days: float) -> Path:
    """A file of the cache, last used so many days ago."""
    path = folder / name
    path.write_bytes(b"")
    os.truncate(path, size)
    used = time.time() - days * DAY
    os.utime(path, (used, used))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_copy_for_streaming_goes_with_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, days in (("old", 3), ("new", 0.1)):
        put(tmp_path, f"{name}.blocks", 2 * MB, days)
        put(tmp_path, f"{name}.index.safetensors", 1000, days)
    monkeypatch.setenv("TRANSDUCE_CACHE_GB", "0.001")
    evict(tmp_path)
    assert names(tmp_path) == {"new.blocks", "new.index.safetensors"}


@pytest.mark.parametrize(
    ("maximum", "left"),
    [
        ("0.010", {"a", "b", "c", "d"}),
        ("0.009", {"a", "b", "c"}),
        ("0.007", {"a", "b", "c"}),
        ("0.005", {"a", "b"}),
        ("0.003", {"a"}),
        ("0", {"a"}),  # used today
    ],
)
def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maximum: str, left: set[str]
) -> None:
    sizes = {"a": (3, 0.5), "b": (2, 2), "c": (2, 3), "d": (3, 4)}
    for name, (size, days) in sizes.items():
        put(tmp_path, f"{name}.safetensors", size * MB, days)
    monkeypatch.setenv("TRANSDUCE_CACHE_GB", maximum)
    reported = evict(tmp_path)
    assert names(tmp_path) == {f"{name}.safetensors" for name in left}
    if len(left) == 4:
        assert reported == []
    else:
        (sentence,) = reported
        assert sentence.startswith(f"{4 - len(left)} least recently used corp")
        assert "TRANSDUCE_CACHE_GB" in sentence


def test_sound_goes_with_its_metadata_and_nothing_else_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "native").mkdir()
    for name in ("a.samples", "a.sounds.json", "b.samples", "b.sounds.json", "library.so"):
        put(tmp_path, name, MB, 2 if name[0] == "b" else 9)
    monkeypatch.setenv("TRANSDUCE_CACHE_GB", "0.001")
    (sentence,) = evict(tmp_path)
    assert names(tmp_path) == {"b.samples", "b.sounds.json", "library.so", "native"}
    assert sentence.startswith("1 least recently used corpus (0.0 GB)")


def test_to_use_is_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens.train(recipe.Tokens(level="character"), ["ab"])
    kept = tmp_path / "kept"

    def use(name: str) -> list[str]:
        (tmp_path / f"{name}.tsv").write_text(f"{name}\tab\n")
        corpus = recipe.Columns(file=f"{name}.tsv")
        data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus)
        return encode_corpus(corpus, data, tokens, tokens, kept)[1].warnings

    assert use("a") == use("b") == []
    old = time.time() - 3 * DAY
    for path in kept.iterdir():
        os.utime(path, (old, old))
    before = names(kept)
    assert use("a") == []
    monkeypatch.setenv("TRANSDUCE_CACHE_GB", "0")
    assert "1 least recently used corpus" in use("c")[0]
    assert len(before - names(kept)) == 1
    assert use("a") == []  # still there
    assert len(names(kept)) == 2
    monkeypatch.setattr(eviction, "DAY", 10 * DAY)
    use("b")
    assert names(kept) >= before


@pytest.mark.parametrize("given", ["many", "-1", "nan", "inf"])
def test_no_number_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("TRANSDUCE_CACHE_GB", given)
    with pytest.raises(DataError, match=f"TRANSDUCE_CACHE_GB is {given}, which is not a number"):
        evict(tmp_path)
