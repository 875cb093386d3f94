"""Packed batches: every token there once, in order, and the loss the same as with padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.batches.packing import ROUND, pack, packed_padding
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.build import Vocabulary, build

sentences = st.lists(st.integers(4, 11), max_size=70)
pairs = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=12)


@given(pairs)
def test_every_token_is_there_once(made: list[tuple[list[int], list[int]]]) -> None:
    sources, targets = [s for s, _ in made], [t for _, t in made]
    batch = collate(sources, targets)
    packed = pack(batch)
    source, read = packed.source_1S[0].tolist(), packed.target_1T[0].tolist()
    said, shape = packed.labels_1T[0].tolist(), packed.shape
    assert source == _filled([[*s, END] for s in sources], shape.source)
    assert read == _filled([[BEGIN, *t] for t in targets], shape.target)
    assert said == _filled([[*t, END] for t in targets], shape.target)
    assert shape.source % ROUND == shape.target % ROUND == 0
    real = sum(map(len, sources)) + sum(map(len, targets)) + 2 * len(made)
    assert packed_padding(batch) == pytest.approx(1 - real / (shape.source + shape.target))
    for offsets, size, rows in (
        (packed.source_offsets, shape.source, sources),
        (packed.target_offsets, shape.target, targets),
    ):
        lengths = offsets.diff().tolist()
        assert len(lengths) == shape.sequences
        assert lengths[: len(made)] == [len(row) + 1 for row in rows]
        assert offsets[0] == 0
        assert offsets[-1] == size
        assert min(lengths) >= 0
        assert max(lengths) == max(len(row) + 1 for row in rows) <= shape.longest


def _filled(rows: list[list[int]], size: int) -> list[int]:
    flat = [token for row in rows for token in row]
    return flat + [PAD] * (size - len(flat))


def test_as_many_learned_positions_as_there_are() -> None:
    """What fills a row up has positions too."""
    side = {"layers": 1, "heads": 2, "feed_forward": 16, "positions": "learned"}
    encoder, decoder = {**side, "max_positions": 21}, {**side, "max_positions": 5}
    shape = {"width": 16, "dropout": 0.0, "encoder": encoder, "decoder": decoder}
    made = build(recipe.Model.model_validate(shape), Vocabulary(12, 12))
    made.packed_loss(pack(collate([[5] * 20, [6]], [[7] * 4, [8]]))).total.backward()


def test_few_shapes_come_of_many_batches() -> None:
    shapes = {pack(collate([[5] * 9] * rows, [[6] * 9] * rows)).shape for rows in range(90, 100)}
    assert len(shapes) <= 2


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "fourier", "none"])
@pytest.mark.parametrize("encoder", ["pre", "post", "conformer"])
def test_the_loss_and_its_gradients_are_those_of_the_padded_batch(
    positions: str, encoder: str
) -> None:
    side = {"layers": 2, "heads": 2, "feed_forward": 32, "positions": positions}
    reads = {**side, "norm_position": encoder}
    writes = reads
    if encoder == "conformer":
        if positions not in ("sinusoidal", "rotary", "none"):
            pytest.skip("a Conformer has no such positions")
        reads, writes = {**side, "kind": "conformer", "kernel": 5}, side
    shape = {"width": 16, "dropout": 0.0, "encoder": reads, "decoder": writes}
    torch.manual_seed(1)
    network = build(recipe.Model.model_validate(shape), Vocabulary(12, 12)).double()
    batch = collate([[5, 6, 7], [6], [9, 9, 4, 5, 7, 8], []], [[8, 9], [7, 8, 9, 10, 4], [], [4]])
    assert batch.target_BT is not None
    assert network.packs(8)
    found = []
    for loss in (
        network.loss(batch.source_BS, batch.source_lengths_B, batch.target_BT, 0.1),
        network.packed_loss(pack(batch), 0.1),
    ):
        network.zero_grad()
        loss.total.backward()
        found.append([*loss, *(p.grad.clone() for p in network.parameters() if p.grad is not None)])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-12)


@given(pairs)
def test_copies_follow_each_other_as_wholes(made: list[tuple[list[int], list[int]]]) -> None:
    batch = collate([s for s, _ in made], [t for _, t in made])
    one, two = pack(batch), pack(batch, copies=2)
    assert two.shape == (*(2 * size for size in one.shape[:3]), one.shape.longest)
    for name in ("source_1S", "target_1T", "labels_1T"):
        assert torch.equal(getattr(two, name), getattr(one, name).repeat(1, 2))
    for name in ("source_offsets", "target_offsets"):
        once, twice = getattr(one, name), getattr(two, name)
        count = len(once)
        assert torch.equal(twice[:count], once)
        assert torch.equal(twice[count - 1 :] - once[-1], once)


def test_many_tokens_are_filled_up_by_few() -> None:
    """By at most a thirty-second, also where they are just above a round number."""
    many = [[4] * 10] * 1862  # 20,482 tokens with END
    assert 0 < packed_padding(collate(many, many)) < 1 / 32
