"""Filters: the same pairs are left out in memory and in a stream, by any number of processes."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce import recipe
from transduce.data.batches import streaming_dataset
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded, encode_corpus
from transduce.data.filters import repetitions
from transduce.data.filters.repetitions import Repetitions
from transduce.data.filters.rules import PairRules, Reason, hashes_of, judge, rules_of
from transduce.data.text.pairs import PairColumns
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
PAIRS = [
    ("a small house stands here", "ein kleines Haus steht hier", Reason.KEPT),
    ("x", "ein kleines Haus", Reason.SHORT),
    ("the same text", "the same text", Reason.COPY),
    ("a house", "ein sehr langer Satz ueber etwas ganz anderes als das", Reason.RATIO),
    (
        "le gouvernement a décidé que la réunion aurait lieu demain matin",
        "Die Regierung hat beschlossen, dass die Sitzung morgen stattfindet",
        Reason.LANGUAGE,
    ),
    ("a small house stands here", "ein kleines Haus steht hier", Reason.DUPLICATE),
    ("a small house stands here", "ein kleines Haus steht dort", Reason.KEPT),
    ("x", "ein kleines Haus", Reason.SHORT),
    ("three dogs are running in the garden", "drei Hunde laufen im Garten", Reason.KEPT),
    ("12 34 56", "12-34-56", Reason.KEPT),
]
FILTERS = {
    "min_length": 2,
    "length_ratio": 3,
    "copies": True,
    "language": 0.95,
    "duplicates": True,
}


def data_of(folder: Path, filters: dict[str, Any] | None = None, **keys: Any) -> recipe.Data:
    values = {
        "folder": str(folder),
        "train": {"source": "a.en", "target": "a.de"},
        "valid": {"source": "a.en", "target": "a.de"},
        "languages": {"source": "en", "target": "de-DE"},
        "filters": FILTERS if filters is None else filters,
        **keys,
    }
    return recipe.Data.model_validate(values)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.en").write_text("".join(f"{source}\n" for source, _, _ in PAIRS))
    (tmp_path / "a.de").write_text("".join(f"{target}\n" for _, target, _ in PAIRS))
    return tmp_path


def columns(pairs: list[tuple[str, str]]) -> PairColumns:
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    return PairColumns(sources, targets, ["a"] * len(pairs), list(range(1, len(pairs) + 1)))


def rules(**filters: Any) -> PairRules:
    languages = recipe.Languages(source="en", target="de")
    return PairRules(recipe.Filters(**filters), languages, tagged=False)


def lines(pools: list[Encoded]) -> list[int]:
    return sorted(line for pool in pools for line in pool.lines.tolist())


KEPT = [line for line, (_, _, reason) in enumerate(PAIRS, start=1) if reason == Reason.KEPT]


def test_each_pair_has_its_first_reason() -> None:
    pairs = columns([(source, target) for source, target, _ in PAIRS])
    reasons, dropped = judge([pairs.kept(range(4)), pairs.kept(range(4, 10))], rules(**FILTERS))
    assert [Reason(reason) for reason in reasons] == [reason for _, _, reason in PAIRS]
    assert dropped.counts == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}
    said = dropped.sentences(rules(**FILTERS))
    assert said[0] == "2 pairs with a side of fewer than 2 characters left out (a:2, a:8)"
    assert said[3] == "1 pair not in en and de left out (a:5)"
    assert said[-1] == "data.filters left out 6 of 10 pairs (60.0%)"


def test_without_a_rule_nothing_is_left_out() -> None:
    pairs = columns([(source, target) for source, target, _ in PAIRS])
    reasons, dropped = judge([pairs], rules())
    assert not reasons.any()
    assert dropped.sentences(rules()) == []


def test_a_pair_of_just_the_ratio_stays() -> None:
    found = rules(length_ratio=3).reasons(columns([("ab", "abcdef"), ("ab", "abcdefg")]))
    assert found.tolist() == [Reason.KEPT, Reason.RATIO]


def test_pairs_that_are_cut_elsewhere_are_no_repetitions() -> None:
    reasons, _ = judge([columns([("ab", "c"), ("a", "bc"), ("ab", "c")])], rules(duplicates=True))
    assert reasons.tolist() == [Reason.KEPT, Reason.KEPT, Reason.DUPLICATE]


def test_rows_that_are_skipped_move_nothing_of_what_is_left_out(folder: Path) -> None:
    texts = ["", "one", "two", "one", "", "three", "two"]
    for name in ("a.en", "a.de"):
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
    data = data_of(folder, {"duplicates": True}, shuffle_buffer=4)
    stream = StreamingDataset(data.train, data, BYTES, BYTES)
    assert lines([pool for pool, _ in stream.pools(0)]) == [2, 3, 6]


def test_tags_before_a_source_are_no_text() -> None:
    tagged = PairRules(recipe.Filters(copies=True, min_length=3), None, tagged=True)
    reasons = tagged.reasons(columns([("<fre> <b> abc", "abc"), ("<fre> ab", "abc")]))
    assert reasons.tolist() == [Reason.COPY, Reason.SHORT]


def test_memory_and_stream_leave_out_the_same_pairs(folder: Path) -> None:
    data = data_of(folder)
    encoded, report = encode_corpus(data.train, data, BYTES, BYTES, None, rules=rules_of(data))
    assert encoded.lines.tolist() == KEPT
    assert encoded.numbers.tolist() == [line - 1 for line in KEPT]
    stream = StreamingDataset(data.train, data_of(folder, shuffle_buffer=4), BYTES, BYTES)
    said: list[str] = []
    stream.open(said.append)
    for epoch in range(2):
        assert lines([pool for pool, _ in stream.pools(0, epoch)]) == KEPT
    assert said[1:] == report.sentences()


def test_the_cache_of_another_filter_is_not_used(folder: Path) -> None:
    cache = folder / "cache"
    found = []
    for filters in (FILTERS, {"duplicates": True}, {}):
        data = data_of(folder, filters)
        how = (BYTES, BYTES, cache)
        encoded, _ = encode_corpus(data.train, data, *how, rules=rules_of(data))
        stream = StreamingDataset(data.train, data, BYTES, BYTES)
        assert lines([pool for pool, _ in stream.pools(0)]) == encoded.lines.tolist()
        found.append(len(encoded))
    assert found == [len(KEPT), len(PAIRS) - 2, len(PAIRS)]


def test_of_a_changed_file_it_is_decided_anew(folder: Path) -> None:
    """Also where it has as many lines as before."""
    data = data_of(folder, {"copies": True})

    def kept() -> list[int]:
        stream = StreamingDataset(data.train, data, BYTES, BYTES)
        return lines([pool for pool, _ in stream.pools(0)])

    assert 3 not in kept()
    (folder / "a.en").write_text("".join(f"{source}s\n" for source, _, _ in PAIRS))
    assert kept() == list(range(1, len(PAIRS) + 1))


def test_of_a_language_the_probability_is_the_recipes() -> None:
    """What is more probably French than German, but far from surely."""
    [probability] = [
        found.probability
        for found in rules(language=0.9)._detector.detect("Restaurant Berlin")
        if found.language == "de"
    ]
    assert 0.02 < probability < 0.98
    text = [("a house in the garden", "Restaurant Berlin")]
    below, above = (
        rules(language=1 - probability + step).reasons(columns(text)).tolist()
        for step in (-0.01, 0.01)
    )
    assert (below, above) == ([Reason.LANGUAGE], [Reason.KEPT])


def test_what_is_left_out_is_decided_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, said = data_of(folder), list[str]()
    StreamingDataset(data.train, data, BYTES, BYTES).open(said.append)
    again = list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(streaming_dataset, "make_filtered", None)
        StreamingDataset(data.train, data, BYTES, BYTES).open(again.append)
    assert again == said[1:]
    (path,) = folder.rglob("*.filters.npy")
    os.utime(path, (0, 0))
    StreamingDataset(data.train, data, BYTES, BYTES).open()
    assert path.stat().st_mtime > 0  # what is used is not removed from the cache
    shorter = io.BytesIO()
    np.save(shorter, np.zeros(3, np.int8))
    for damaged in (path.read_bytes()[:20], shorter.getvalue()):
        path.write_bytes(damaged)  # it is made again
        made = list[str]()
        stream = StreamingDataset(data.train, data, BYTES, BYTES)
        stream.open(made.append)
        assert made == said
        assert lines([pool for pool, _ in stream.pools(0)]) == KEPT


def test_a_language_without_a_profile_is_refused() -> None:
    unknown = PairRules(
        recipe.Filters(language=0.9), recipe.Languages(source="en", target="xx"), tagged=False
    )
    with pytest.raises(DataError, match=r"cannot tell xx \(data.languages.target\)"):
        unknown.check()


def test_repetitions_in_files_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, 3000, np.uint64)
    hashes = np.concatenate([hashes, hashes[:500], hashes[:200]])
    seen, expected = set[int](), []
    for place, one in enumerate(hashes.tolist()):
        if one in seen:
            expected.append(place)
        seen.add(one)
    for held in (10**6, 700):
        monkeypatch.setattr(repetitions, "HELD", held)
        with Repetitions() as found:
            for part in np.array_split(hashes, 9):
                found.add(part)
            places = np.concatenate(list(found.find()))
        assert sorted(places.tolist()) == expected


def test_as_many_pairs_are_dropped_falsely_as_is_said() -> None:
    """n² / 2^(bits + 1) of n different pairs; here of the first 20 bits, as 64 would show none."""
    pairs = columns([(f"source {number}", f"target {number}") for number in range(20_000)])
    with Repetitions() as found:
        found.add(hashes_of(pairs) >> np.uint64(44))
        falsely = sum(map(len, found.find()))
    expected = 20_000**2 / 2**21
    assert abs(falsely - expected) < 4 * expected**0.5


def test_shares_of_corpora_are_of_the_pairs_that_are_left(folder: Path) -> None:
    (folder / "a.tsv").write_text("".join(f"x\tA{n}\n" for n in range(20)) + "same\tsame\n" * 180)
    (folder / "b.tsv").write_text("".join(f"x\tB{n}\n" for n in range(200)))
    parts = [{"file": "a.tsv", "weight": 10.0}, {"file": "b.tsv"}]
    asked: dict[str, Any] = {"train": {"of": parts}, "temperature": 1.0, "shuffle_buffer": 256}
    data = data_of(folder, {"copies": True}, **asked)
    stream, said = StreamingDataset(data.train, data, BYTES, BYTES), list[str]()
    stream.open(said.append)
    assert said[-2:] == [
        "a.tsv: 20 pairs, 9.1% of all, drawn 50.0% of the time (each pair 5.5 times per epoch)",
        "b.tsv: 200 pairs, 90.9% of all, drawn 50.0% of the time (each pair 0.55 times per epoch)",
    ]
    drawn = [
        chr(pool.target_ids[start] - BYTES.encode("A")[0] + ord("A"))
        for epoch in range(4)
        for pool, _ in stream.pools(0, epoch)
        for start in pool.target_offsets[:-1]
    ]
    assert [drawn.count(name) for name in "AB"] == pytest.approx([440, 440], abs=1)
    none = data_of(folder, {"min_length": 5}, **asked)
    (folder / "b.tsv").write_text("longer\tlonger still\n")
    with pytest.raises(DataError, match=r"no pair of a\.tsv is left to draw.*data\.filters"):
        StreamingDataset(none.train, none, BYTES, BYTES).open()


def test_where_no_pair_is_left_the_filters_are_named(folder: Path) -> None:
    data = data_of(folder, {"min_length": 500})
    said = r"no pair is left to use: 10 pairs with a side of fewer than 500 .* leave some filters"
    with pytest.raises(DataError, match=said):
        encode_corpus(data.train, data, BYTES, BYTES, None, rules=rules_of(data))
    with pytest.raises(DataError, match=said):
        StreamingDataset(data.train, data, BYTES, BYTES).open()


def test_a_region_of_a_language_changes_nothing() -> None:
    """de-CH has the profile of German, which is no other language than German."""
    texts = [(source, target) for source, target, _ in PAIRS] + [("the garden", "drei Hunde")]
    for share in (0.65, 0.7, 0.95):
        found = [
            PairRules(
                recipe.Filters(language=share),
                recipe.Languages(source=source, target=target),
                tagged=False,
            ).reasons(columns(texts))
            for source, target in (("en", "de"), ("en-GB", "de-CH"))
        ]
        assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize(
    "train",
    [
        {"name": "tiny-shakespeare", "split": "train"},
        {"name": "mboshi", "split": "train"},
        [{"file": "a.tsv", "audio": "path", "target": "text"}],
    ],
)
def test_what_has_no_pairs_of_texts_has_no_filters(folder: Path, train: Any) -> None:
    """The first two would lose every line, or compare transcripts with the names of files."""
    with pytest.raises(DataError, match=r"data\.filters is for pairs of texts, and .* has none"):
        rules_of(data_of(folder, {"copies": True}, train=train, valid=train))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="Linux has it")
def test_a_full_disk_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is mapped into memory: without its room, writing to it is a bus error."""

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    data = data_of(folder)
    with pytest.raises(DataError, match=r"cannot be written .*No space left.*make room there"):
        StreamingDataset(data.train, data, BYTES, BYTES).open()
