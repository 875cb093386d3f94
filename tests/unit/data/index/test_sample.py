"""The sample of a streamed corpus that tokens are learned from, drawn by position."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from transduce import recipe
from transduce.data.cache.learned_tokens import learned_tokens
from transduce.data.index.corpus import CorpusIndex, index_stream
from transduce.data.index.sample import draw_sample
from transduce.data.tokens.sides import SampledPairs, train_tokens

ROWS = 6000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def sorted_file(tmp_path: Path) -> str:
    """A file whose words tell their lines."""
    table = "".join(f"w{n:05d} a\tW{n:05d} b\n" for n in range(ROWS))
    (tmp_path / "a.tsv").write_text(table)
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(table.encode()))
    return table


def data_of(folder: Path, train: Any = None, tokens: Any = None, **keys: Any) -> recipe.Data:
    return recipe.Data.model_validate(
        {
            "folder": str(folder),
            "train": train or {"file": "a.tsv"},
            "valid": {"file": "valid.tsv"},
            "tokens": tokens or {"both": {"level": "word", "size": 99_999}},
            "streaming": True,
            # Blocks of 16 rows.
            "shuffle_buffer": 4096,
            **keys,
        }
    )


def index_of(data: recipe.Data, cache: Path) -> CorpusIndex:
    return index_stream(data.train, data, cache, lambda sentence: None)


def lines_of(data: recipe.Data, cache: Path, size: int) -> list[int]:
    sample = draw_sample(index_of(data, cache), data, size)
    assert sample is not None
    assert [pair.line for pair in sample] == [pair.line for pair in sample]
    return [pair.line for pair in sample]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
@pytest.mark.parametrize("size", [300, 2000, 5000])
def test_a_sample_is_from_all_over_the_file(
    tmp_path: Path, cache: Path, name: str, size: int
) -> None:
    data = data_of(tmp_path, {"file": name})
    found = lines_of(data, cache, size)
    assert len(found) == len(set(found)) == size
    for tenth in range(10):
        inside = sum(tenth * ROWS <= 10 * (line - 1) < (tenth + 1) * ROWS for line in found)
        assert 0.5 * size < 10 * inside < 1.5 * size
    # Other draws, and another index, change nothing.
    lines_of(data, cache, 100)
    assert lines_of(data, tmp_path / "elsewhere", size) == found


def test_a_small_sample_is_of_more_than_a_few_places(tmp_path: Path, cache: Path) -> None:
    found = lines_of(data_of(tmp_path), cache, 256)
    assert len({(line - 1) // 16 for line in found}) > 200


def test_no_sample_is_drawn_of_a_corpus_that_is_no_larger(tmp_path: Path, cache: Path) -> None:
    data = data_of(tmp_path)
    assert draw_sample(index_of(data, cache), data, ROWS) is None
    assert draw_sample(index_of(data, cache), data, ROWS - 1) is not None
    tokens = {"both": {"level": "word", "size": 99_999, "sample": ROWS}}
    every, _ = train_tokens(data_of(tmp_path, tokens=tokens), lambda line: pytest.fail(line))
    assert len(every) == 4 + 2 * ROWS + 2


@pytest.mark.parametrize("size", [500, 1000])
def test_rows_that_are_skipped_do_not_count(tmp_path: Path, cache: Path, size: int) -> None:
    """A part of a file is drawn from as a whole one: the hash that cuts it is met while reading."""
    data = data_of(tmp_path, {"file": "a.tsv", "split": "0-20%"})
    found = lines_of(data, cache, size)
    assert len(found) == len(set(found)) == size


def test_where_too_many_rows_are_skipped_all_others_are_used(tmp_path: Path, cache: Path) -> None:
    data = data_of(tmp_path, {"file": "a.tsv", "split": "0-5%"})
    found = lines_of(data, cache, 1000)
    assert 200 < len(found) == len(set(found)) < 400


@pytest.mark.parametrize(
    ("weight", "temperature", "size", "small"),
    [(1.0, 1.0, 1100, 100), (5.0, 1.0, 1500, 500), (1.0, 1e9, 1400, 600)],
)
def test_each_corpus_of_a_list_has_the_share_that_is_drawn_of_it(
    tmp_path: Path, cache: Path, weight: float, temperature: float, size: int, small: int
) -> None:
    """But no pair comes twice: of the small one there are 600."""
    (tmp_path / "small.tsv").write_text("".join(f"s{n} a\tS{n} b\n" for n in range(600)))
    both = [{"file": "a.tsv"}, {"file": "small.tsv", "weight": weight}]
    data = data_of(tmp_path, both, temperature=temperature)
    sample = draw_sample(index_of(data, cache), data, size)
    assert sample is not None
    found = [pair.source for pair in sample if pair.file == "small.tsv"]
    assert len(found) == len(set(found)) == small
    assert len(list(sample)) == len(sample)


@pytest.mark.parametrize(
    ("level", "what"),
    [
        ("subword", "Subwords"),
        ("word", "Words"),
        ("character", "Characters"),
        ("symbol", "Symbols"),
    ],
)
def test_every_level_is_learned_from_the_sample_and_says_so(
    tmp_path: Path, cache: Path, level: str, what: str
) -> None:
    both = {"both": {"level": level, "size": 99_999, "sample": 1000}}
    data, said = data_of(tmp_path, tokens=both), []
    tokens, _ = learned_tokens(data, said.append, cache)
    assert said == [
        f"{what} are learned from a sample of at most 1,000 of the 6,000 training rows; the key "
        "sample of data.tokens sets it."
    ]
    if level in ("word", "symbol"):
        assert len(tokens) == 4 + 2 * 1000 + 2
    again, _ = learned_tokens(data, said.append, cache)
    assert again.to_json() == tokens.to_json()
    assert said[0] == said[1]


def test_a_vocabulary_is_extended_by_the_sample_of_a_stream(tmp_path: Path) -> None:
    """As it is started from; where nothing is learned, nothing is indexed or said."""
    settings, said = recipe.Tokens(sample=500), []
    for streaming, count in ((True, 500), (False, ROWS)):
        data = data_of(tmp_path, streaming=streaming)
        pairs = SampledPairs(data, said.append).streamed(settings)
        assert said == []
        assert len(list(pairs)) == len(list(pairs)) == count
        assert len(said) == streaming
        said.clear()


def test_labels_are_learned_from_all_rows(tmp_path: Path) -> None:
    tokens = {
        "source": {"level": "word", "size": 99_999, "sample": 50},
        "target": {"level": "label", "size": 99_999, "sample": 50},
    }
    source, target = train_tokens(data_of(tmp_path, tokens=tokens))
    assert (len(source), len(target)) == (4 + 50 + 1, 4 + ROWS)


def test_tags_are_no_text_of_a_sample(tmp_path: Path) -> None:
    """Of the rows, of the corpus, and of the list; in a copy of the cache too (limit)."""
    rows = "".join(f"w{n}\tW{n}\tT{n % 2}\n" for n in range(300))
    (tmp_path / "tags.tsv").write_text(rows)
    of_rows = {"file": "tags.tsv", "tags": 2, "tag": "c"}
    tokens = {"source": {"level": "word", "sample": 100}, "target": {"level": "word"}}
    for train in ([of_rows], [of_rows | {"limit": 250}]):
        source, _ = train_tokens(data_of(tmp_path, train, tokens))
        assert set(source.tags) == {"T0", "T1", "c"}
        assert len(source) == 4 + 100 + 3


@pytest.mark.parametrize("split", [None, "0-90%"])
def test_lines_of_running_text_are_drawn_too(tmp_path: Path, cache: Path, split: Any) -> None:
    """Of a part of it too, which is copied into the cache."""
    (tmp_path / "a.txt").write_text("".join(f"w{n:05d}\n\n" for n in range(1000)))
    data = data_of(tmp_path, {"text": "a.txt", "split": split})
    sample = draw_sample(index_of(data, cache), data, 400)
    assert sample is not None
    found = [pair.target for pair in sample]
    assert len(found) == 400
    assert max(found) > "w00850"
    assert set(map(len, found)) == {1, 7}  # with their line breaks


def test_cached_tokens_of_a_stream_are_of_its_files_and_shares(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.tsv").write_text("".join(f"s{n} a\tS{n} b\n" for n in range(600)))
    tokens = {"both": {"level": "word", "size": 99_999, "sample": 1000}}

    def small(temperature: float) -> int:
        both = [{"file": "a.tsv"}, {"file": "small.tsv"}]
        data = data_of(tmp_path, both, tokens, temperature=temperature)
        names = learned_tokens(data, lambda line: None, cache)[0].names()
        return sum(name.startswith("s") for name in names)

    assert (small(1.0), small(1e9)) == (91, 500)
    (tmp_path / "small.tsv").write_text("".join(f"t{n} a\tS{n} b\n" for n in range(600)))
    assert small(1e9) == 0
    assert json.loads(next(cache.glob("*.tokens.json")).read_text("utf-8"))["said"]


def test_a_sample_reads_no_more_blocks_than_it_needs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(tmp_path, shuffle_buffer=1024)  # blocks of 4 rows
    index, read = index_of(data, cache), []
    real = CorpusIndex.pairs
    monkeypatch.setattr(
        CorpusIndex,
        "pairs",
        lambda self, block, counts: read.append(block) or real(self, block, counts),
    )
    sample = draw_sample(index, data, 1200)
    assert sample is not None
    assert len(list(sample)) == 1200
    assert len(read) == len(set(read)) == 300
