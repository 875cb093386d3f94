"""The tokenised corpus: what is in it, what is kept on disk, and what happens when that fails."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from transduce import recipe
from transduce.corpora.location import metadata_of
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache import tokenised as cache
from transduce.data.cache.tokenised import Encoded, Report, content_key, encode_corpus
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.storage import write_json

CHARACTERS = Tokens.train(recipe.Tokens(level="character"), ["abcdef"])
PAIRS = [("abc", "cba"), ("", "a"), ("abcdef", "f"), ("a", "xb"), ("b", "fedcba")]


def data_in(folder: Path, pairs: list[tuple[str, str]] = PAIRS, **keys: object) -> recipe.Data:
    (folder / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    corpus = recipe.Columns(file="a.tsv")
    return recipe.Data(folder=str(folder), train=corpus, valid=corpus, **keys)


def encode(data: recipe.Data, kept: Path | None = None) -> tuple[Encoded, Report]:
    return encode_corpus(data.train, data, CHARACTERS, CHARACTERS, kept)


def rows(encoded: Encoded) -> list[tuple[list[int], list[int]]]:
    return [(encoded.source(i).tolist(), encoded.target(i).tolist()) for i in range(len(encoded))]


def same(one: Encoded, other: Encoded) -> bool:
    return all(
        np.array_equal(array, getattr(other, name)) and array.dtype == getattr(other, name).dtype
        for name, array in vars(one).items()
    )


def test_pairs_become_ids_without_specials(tmp_path: Path) -> None:
    encoded, report = encode(data_in(tmp_path))
    texts = [(s, t) for s, t in PAIRS if s]
    assert rows(encoded) == [(CHARACTERS.encode(s), CHARACTERS.encode(t)) for s, t in texts]
    assert encoded.lines.tolist() == [1, 3, 4, 5]
    assert encoded.numbers.tolist() == [0, 1, 2, 3]
    assert [lengths.tolist() for lengths in encoded.lengths] == [[3, 6, 1, 1], [3, 1, 2, 6]]
    assert (report.source_tokens, report.target_unknown, report.counts.pairs) == (11, 1, 4)
    assert report.sentences() == [
        "1 pair with an empty source skipped (a.tsv:2)",
        "1 target tokens are unknown (8.33% of them)",
    ]


def test_overlong_pairs_are_skipped_or_cut(tmp_path: Path) -> None:
    skipped, report = encode(data_in(tmp_path, max_length=3))
    assert (skipped.lines.tolist(), skipped.numbers.tolist()) == ([1, 4], [0, 2])
    assert (report.overlong, report.overlong_examples) == (2, ["a.tsv:3", "a.tsv:5"])
    assert "2 pairs longer than 3 tokens skipped (a.tsv:3, a.tsv:5)" in report.sentences()
    cut, report = encode(data_in(tmp_path, max_length=3, overlong="truncate"))
    assert cut.lines.tolist() == [1, 3, 4, 5]
    assert rows(cut)[1] == (CHARACTERS.encode("abc"), CHARACTERS.encode("f"))
    assert rows(cut)[3] == (CHARACTERS.encode("b"), CHARACTERS.encode("fed"))
    assert "2 pairs longer than 3 tokens cut (a.tsv:3, a.tsv:5)" in report.sentences()


def test_nothing_left_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"no pair of a\.tsv is left to use: .*, or set data\.overlong=truncate$",
    ):
        encode(data_in(tmp_path, [("ab", "ab")], max_length=1))


def test_the_second_run_maps_what_the_first_kept(tmp_path: Path, monkeypatch) -> None:
    data, kept = data_in(tmp_path, max_length=3), tmp_path / "kept"
    first, reported = encode(data, kept)
    assert [path.suffix for path in kept.iterdir()] == [".safetensors"]
    monkeypatch.setattr(cache, "encode_pairs", lambda *_, **__: pytest.fail("tokenised again"))
    second, reported_again = encode(data, kept)
    assert same(first, second)
    assert reported_again == reported


def test_anything_that_matters_makes_another_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    changes: list[recipe.Data] = [
        data_in(tmp_path),
        data_in(tmp_path, max_length=4),
        data_in(tmp_path, max_length=4, overlong="truncate"),
    ]
    for data in changes:
        encode(data, kept)
    data = data_in(tmp_path)
    limited = data.train.model_copy(update={"limit": 2})
    swapped = data.train.model_copy(update={"source": 1, "target": 0})
    for corpus in (limited, swapped):
        encode_corpus(corpus, data, CHARACTERS, CHARACTERS, kept)
    others = Tokens.train(recipe.Tokens(level="character"), ["abcdefx"])
    encode_corpus(data.train, data, CHARACTERS, others, kept)
    encode_corpus(data.train, data, others, CHARACTERS, kept)
    encode(data_in(tmp_path, [*PAIRS, ("a", "a")]), kept)
    assert len(list(kept.iterdir())) == 8
    encode(data_in(tmp_path, [*PAIRS, ("a", "a")]), kept)
    assert len(list(kept.iterdir())) == 8


def test_what_killed_runs_have_left_goes_after_a_day(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for name, days in ((".old.part", 2), (".young.part", 0.5)):
        (kept / name).mkdir(parents=True)
        used = time.time() - days * 24 * 60 * 60
        os.utime(kept / name, (used, used))
    encode(data_in(tmp_path), kept)
    assert sorted(path.name for path in kept.glob(".*")) == [".young.part"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_was_made_is_mapped_too(tmp_path: Path) -> None:
    """Memory holds no corpus, not even the first time; without a cache there is no other way."""
    made, report = encode(data_in(tmp_path), tmp_path / "kept")
    (path,) = (tmp_path / "kept").iterdir()
    assert str(path) in Path("/proc/self/maps").read_text()
    held, reported = encode(data_in(tmp_path))
    assert same(made, held)
    assert report == reported


def test_a_file_of_another_name_is_told_of_by_that_name(tmp_path: Path) -> None:
    data, kept = data_in(tmp_path, max_length=3), tmp_path / "kept"
    encode(data, kept)
    (tmp_path / "a.tsv").rename(tmp_path / "b.tsv")
    renamed = data.train.model_copy(update={"file": "b.tsv"})
    _, report = encode_corpus(renamed, data, CHARACTERS, CHARACTERS, kept)
    assert "2 pairs longer than 3 tokens skipped (b.tsv:3, b.tsv:5)" in report.sentences()


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "ids"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    data, kept = data_in(tmp_path), tmp_path / "kept"
    mapped, _ = encode(data, kept)
    first = Encoded(**{name: array.copy() for name, array in vars(mapped).items()})
    (path,) = kept.iterdir()
    raw = path.read_bytes()
    ids = raw.replace(first.source_ids.tobytes(), b"\xff" * first.source_ids.nbytes)
    assert ids != raw
    damaged = {"cut": raw[:-5], "empty": b"", "garbage": b"x" * len(raw), "ids": ids}
    path.write_bytes(damaged[damage])
    again, report = encode(data, kept)
    assert same(first, again)
    assert not report.warnings
    assert path.read_bytes() == raw


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch) -> None:
    data = data_in(tmp_path)
    (tmp_path / "file").write_text("in the way")
    encoded, report = encode(data, tmp_path / "file" / "kept")
    assert len(encoded) == 4
    assert "could not be cached" in report.sentences()[-1]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_arrays", full)
    _, report = encode(data, tmp_path / "kept")
    assert "No space left on device" in report.sentences()[-1]
    assert list((tmp_path / "kept").iterdir()) == []


def test_named_corpora_are_kept_too(tmp_path: Path) -> None:
    corpus = recipe.Named(name="copy", split="valid", limit=50)
    data = recipe.Data(train=corpus, valid=corpus)
    first, _ = encode_corpus(corpus, data, CHARACTERS, CHARACTERS, tmp_path)
    second, _ = encode_corpus(corpus, data, CHARACTERS, CHARACTERS, tmp_path)
    assert same(first, second)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_downloaded_corpus_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path))
    folder = tmp_path / "imdb"
    folder.mkdir()
    keys = set()
    for row in ("a good film\tpos\n", "a bad film\tneg\n"):
        for split in ("train", "valid"):
            (folder / f"{split}.tsv").write_text(row)
        write_json(folder / "corpus.json", metadata_of(folder))
        for split, limit in (("train", None), ("train", 1), ("valid", None), ("valid", 1)):
            corpus = recipe.Named(name="imdb", split=split, limit=limit)
            keys.add(content_key(corpus, None))
            assert content_key(corpus, None) in keys
    assert len(keys) == 8


def test_pairs_that_are_to_be_aligned_and_are_not_are_skipped_and_reported(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a b\tX Y\na b\tX\nc\tZ Z\nd e f\tX Y Z\n")
    corpus = recipe.Columns(file="a.tsv")
    data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus, max_length=2)
    symbols = Tokens.train(recipe.Tokens(level="symbol"), ["a b c d e f X Y Z"])
    for _ in range(2):  # made, and then found
        encoded, report = encode_corpus(corpus, data, symbols, symbols, tmp_path / "kept", True)
        assert encoded.lines.tolist() == [1]
        assert report.sentences() == [
            "2 pairs with another number of labels than of words skipped (a.tsv:2, a.tsv:3)",
            "1 pair longer than 2 tokens skipped (a.tsv:4)",
        ]
    others, _ = encode_corpus(corpus, data, symbols, symbols, tmp_path / "kept")
    assert others.lines.tolist() == [1, 2, 3]
    stream = StreamingDataset(corpus, data, symbols, symbols, aligned=True)
    assert [encoded.lines.tolist() for encoded, _ in stream.pools(0)] == [[1]]
