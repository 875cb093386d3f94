"""Chunk sizes are drawn by the state of torch's generator alone; masks show whole chunks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from transduce.models.encoders import ConformerEncoder, TransformerEncoder
from transduce.nn.chunks import ChunkSizes, visible_chunks

SIZES = ChunkSizes(minimum=2, maximum=5, left_chunks=1, whole=0.25)


def test_sizes_are_drawn_evenly_and_some_batches_are_whole() -> None:
    drawn = Counter(SIZES.draw(torch.Generator().manual_seed(seed)) for seed in range(2000))
    assert set(drawn) == {None, 2, 3, 4, 5}
    assert drawn[None] == pytest.approx(500, abs=80)
    assert all(drawn[size] == pytest.approx(375, abs=70) for size in range(2, 6))


def test_a_state_sees_its_chunk_and_those_before_it() -> None:
    shown = visible_chunks(5, 2, 1)[0].int().tolist()
    assert shown == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


@pytest.mark.parametrize("kind", [ConformerEncoder, TransformerEncoder])
def test_training_draws_a_size_for_each_batch_and_repeats_itself_from_the_same_state(
    kind: type[ConformerEncoder | TransformerEncoder],
) -> None:
    torch.manual_seed(1)
    encoder = kind(8, 2, 16, 1, chunk_sizes=SIZES)
    x_BSD, lengths_B = torch.randn(1, 12, 8), torch.tensor([12])
    found = []
    for seed in (1, 2, 3, 4, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(encoder.train()(x_BSD, lengths_B, None).states_BSD)
        torch.set_rng_state(before)
        size = SIZES.draw()
        again = encoder.eval()(x_BSD, lengths_B, None, size)
        assert torch.equal(again.states_BSD, found[-1])
    assert torch.equal(found[0], found[-1])
    assert len({states_BSD.sum().item() for states_BSD in found}) > 1


def test_only_what_was_built_for_chunks_reads_in_chunks() -> None:
    with pytest.raises(ValueError, match="not built for chunks"):
        TransformerEncoder(8, 2, 16, 1)(torch.randn(1, 4, 8), torch.tensor([4]), None, 2)
    with pytest.raises(ValueError, match="not possible"):
        ChunkSizes(3, 2, 1)
