"""Running text: joined to the letter, cut into blocks without padding, never twice alike."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from one_by_one import one_by_one
from transduce import recipe
from transduce.data.batches.batch import Batch
from transduce.data.batches.blocks import cut, cut_anywhere
from transduce.data.batches.bucketing import Batches, Position, ordered
from transduce.data.batches.packing import pack
from transduce.data.batches.streaming_dataset import RankShard, StreamingDataset
from transduce.data.cache.tokenised import Encoded, encode_corpus
from transduce.data.text.pairs import ReadingCounts, read_pairs
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, Tokens

TEXT = "ROMEO:\nBut soft,  what light\n\nthrough yonder window breaks?\n It is\nthe east"


def data_of(folder: Path, text: str = TEXT, **keys: object) -> recipe.Data:
    (folder / "a.txt").write_bytes(text.encode())
    corpus = recipe.Text(text="a.txt")
    tokens = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    return recipe.Data(
        **{"folder": str(folder), "train": corpus, "valid": corpus, "tokens": tokens, **keys}
    )


def running(size: int) -> Encoded:
    """A text of so many tokens, each of its own, in lines of seven."""
    ends = np.append(np.arange(0, size, 7), size) if size else np.zeros(1, np.int64)
    lines = np.arange(len(ends) - 1)
    nothing = np.zeros(len(ends), np.int64)
    ids = np.arange(10, 10 + size, dtype=np.int32)
    return Encoded(np.zeros(0, np.int32), nothing, ids, ends, lines + 1, lines)


def blocks_of(batches: list[Batch]) -> list[list[int]]:
    found = []
    for batch in batches:
        assert batch.target_BT is not None
        assert batch.target_lengths_B is not None
        for row, length in zip(batch.target_BT.tolist(), batch.target_lengths_B, strict=True):
            assert row[0] == BEGIN
            assert set(row[1 + length :]) <= {PAD}
            found.append(row[1 : 1 + length])
    return found


def epoch(batches: Batches, number: int) -> list[Batch]:
    found = []
    for batch, following in one_by_one(batches, Position(number)):
        found.append(batch)
        if following.epoch > number:
            return found
    raise AssertionError("batches are endless")


def test_lines_of_running_text_keep_their_breaks_and_the_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\n  \ntwo")
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(b"\xef\xbb\xbfthree\n")
    counts = ReadingCounts()
    corpus = recipe.Text(text=["a.txt", "b.*"])
    pairs = list(read_pairs(corpus, str(tmp_path), counts))
    assert "".join(pair.target for pair in pairs) == "one\n\n  \ntwothree\n"
    assert [(pair.source, pair.file, pair.line) for pair in pairs][-2:] == [
        ("", "a.txt", 4),
        ("", "b.txt.gz", 1),
    ]
    assert counts.sentences() == []
    apart = list(read_pairs(corpus.model_copy(update={"lines": "apart"}), str(tmp_path), counts))
    assert [pair.target for pair in apart] == ["one", "two", "three"]
    assert counts.empty_target == 2


@pytest.mark.parametrize("level", ["character", "byte", "subword", "word"])
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_lines_give_the_tokens_of_the_whole_text(
    tmp_path: Path, level: str, algorithm: str
) -> None:
    settings = recipe.Tokens(level=level, algorithm=algorithm, size=300)
    data = data_of(tmp_path, tokens=recipe.TokensOfSides(both=settings))
    tokens, _ = train_tokens(data)
    encoded, report = encode_corpus(data.train, data, tokens, tokens, None)
    assert encoded.target_ids.tolist() == tokens.encode(TEXT)
    assert report.overlong == 0
    if level != "word":
        assert tokens.decode(encoded.target_ids) == TEXT


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_no_subword_reaches_across_a_line_break(tmp_path: Path, algorithm: str) -> None:
    """Else lines would be cut in other ways alone than together."""
    text = "to be\nor not\n" * 50
    settings = recipe.Tokens(algorithm=algorithm, size=60)
    data = data_of(tmp_path, text, tokens=recipe.TokensOfSides(both=settings))
    tokens = Tokens.train(settings, [text])
    encoded, _ = encode_corpus(data.train, data, tokens, tokens, None)
    assert encoded.target_ids.tolist() == tokens.encode(text)
    assert [name for name in tokens.names() if "\n" in name] == ["\n"]


def test_a_second_file_begins_as_a_text_does(tmp_path: Path) -> None:
    data = data_of(tmp_path, "a b\nc")
    (tmp_path / "b.txt").write_text("d e\n")
    corpus = recipe.Text(text=["a.txt", "b.txt"])
    tokens = Tokens.train(recipe.Tokens(size=40), ["a b c d e\n"])
    encoded, _ = encode_corpus(corpus, data, tokens, tokens, None)
    assert encoded.target_ids.tolist() == tokens.encode("a b\nc") + tokens.encode("d e\n")


def test_a_cached_text_is_the_text(tmp_path: Path) -> None:
    data = data_of(tmp_path)
    tokens, _ = train_tokens(data)
    made, _ = encode_corpus(data.train, data, tokens, tokens, tmp_path / "cache")
    kept, _ = encode_corpus(data.train, data, tokens, tokens, tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1
    assert all(np.array_equal(array, getattr(kept, name)) for name, array in vars(made).items())


@given(st.integers(0, 80), st.integers(1, 20))
def test_cut_has_every_token_once_in_order(size: int, length: int) -> None:
    text = running(size)
    blocks = cut(text, length)
    rows = [blocks.target(row).tolist() for row in range(len(blocks))]
    assert [token for row in rows for token in row] == text.target_ids.tolist()
    assert all(len(row) == length for row in rows[:-1])
    # The line in which a block begins.
    assert blocks.lines.tolist() == [1 + (row[0] - 10) // 7 for row in rows]


@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 5))
def test_blocks_of_an_epoch_are_whole_and_apart(size: int, length: int, seed: int) -> None:
    blocks = cut_anywhere(running(size), length, np.random.default_rng(seed))
    rows = [blocks.target(row).tolist() for row in range(len(blocks))]
    flat = [token for row in rows for token in row]
    assert flat == list(range(flat[0], flat[0] + len(flat)))
    if size < length:
        assert len(flat) == size
    else:
        assert {len(row) for row in rows} == {length}
        assert flat[0] - 10 < length
        assert size - (flat[-1] - 9) < length


def test_epochs_are_cut_at_different_places_and_reach_all_of_the_text() -> None:
    batches = Batches(running(100), tokens=40, seed=1, block=10)
    firsts = set()
    seen: set[int] = set()
    for number in range(40):
        blocks = blocks_of(epoch(batches, number))
        firsts.add(min(block[0] for block in blocks))
        seen |= {token for block in blocks for token in block}
    assert firsts == set(range(10, 20))
    assert seen == set(range(10, 110))


def test_a_budget_is_filled_to_the_last_token() -> None:
    for batch in epoch(Batches(running(643), tokens=160, block=16), 0)[:-1]:
        assert batch.target_BT is not None
        assert batch.target_BT.shape == (10, 17) or len(batch) < 10
        assert batch.target_tokens == 16 * len(batch)
    sizes = [len(batch) for batch in epoch(Batches(running(643), tokens=160, block=16), 0)]
    assert max(sizes) == 10
    assert sum(sizes) in (39, 40)


def test_resuming_goes_on_to_the_letter() -> None:
    def flow(start: Position | None = None) -> list[tuple[Batch, Position]]:
        return list(islice(one_by_one(Batches(running(200), 30, seed=5, block=10), start), 40))

    whole = flow()
    for number in (0, 3, 11, 24):
        kept = Position(**json.loads(json.dumps(asdict(whole[number][1]))))
        for (one, _), (other, _) in zip(whole[number + 1 :], flow(kept), strict=False):
            assert torch.equal(one.target_BT, other.target_BT)
            assert one.lines == other.lines


def test_processes_share_an_update_as_one_would_do_it() -> None:
    def portions(rank: int, count: int) -> list[tuple[list[list[int]], int]]:
        batches = Batches(running(200), 30, seed=5, block=10)
        return [
            (blocks_of(portion.batches), portion.tokens)
            for portion in islice(batches.updates(4, None, rank, count), 12)
        ]

    alone, shared = portions(0, 1), [portions(rank, 2) for rank in range(2)]
    for number, (blocks, tokens) in enumerate(alone):
        parts = [block for rank in shared for block in rank[number][0]]
        assert sorted(parts) == sorted(blocks)
        assert {rank[number][1] for rank in shared} == {tokens} == {sum(map(len, blocks))}


def test_a_streamed_text_is_cut_pool_by_pool(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a long text\n" for number in range(60))
    data = data_of(tmp_path, text, streaming=True, shuffle_buffer=20)
    tokens, _ = train_tokens(data)
    batches = Batches(StreamingDataset(data.train, data, tokens, tokens, RankShard()), 64, block=16)
    pools: dict[int, list[str]] = {}
    for batch, following in islice(one_by_one(batches), 1000):
        pool = (following.pool - 1) % 3 if following.batch == 0 else following.pool
        pools.setdefault(pool, []).extend(tokens.decode(row) for row in blocks_of([batch]))
        if following.epoch:
            break
    assert len(pools) == 3
    assert all(block in text for blocks in pools.values() for block in blocks)
    assert all(len(block) == 16 for blocks in pools.values() for block in blocks)


def test_validation_reads_every_token_and_an_end_only_where_there_is_one() -> None:
    blocks = blocks_of(list(ordered(cut(running(45), 10), tokens=30)))
    assert sorted(token for block in blocks for token in block) == list(range(10, 55))
    whole = blocks_of(list(ordered(running(45), tokens=30)))
    assert sum(block.count(END) for block in whole) == 7


def test_packed_blocks_have_no_padding_but_to_round_sizes() -> None:
    (batch,) = ordered(cut(running(128), 32), tokens=128)
    packed = pack(batch)
    assert packed.shape.target == 128
    ids = list(range(10, 138))
    assert packed.labels_1T[0].tolist() == ids
    shifted = [BEGIN if place % 32 == 0 else ids[place - 1] for place in range(128)]
    assert packed.target_1T[0].tolist() == shifted
    assert packed.target_offsets.tolist()[:5] == [0, 32, 64, 96, 128]
