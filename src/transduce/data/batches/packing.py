"""Sequence packing: the sequences of each side one after the other in a single row, without
padding.

Rows are filled up to round sizes, so that few different shapes occur: a CUDA graph is captured for
each shape. They are filled with sequences of PAD, in which nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches.batch import Batch, round_up
from transduce.data.tokens.tokenizer import PAD

ROUND = 128  # the number of tokens in a row is a multiple of this
COARSE = 512  # few tokens are rounded up to at most this


class Shape(NamedTuple):
    source: int
    target: int
    sequences: int
    longest: int


@dataclass(frozen=True)
class Packed:
    """Ids and offsets as parts of one int32 tensor, so that one copy transfers all to a device."""

    flat: Tensor
    shape: Shape

    def tensors(self) -> dict[str, Tensor]:
        return {"flat": self.flat}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Packed:
        return replace(self, flat=tensors["flat"])

    @property
    def source_1S(self) -> Tensor:
        return self._part(0)[None]

    @property
    def target_1T(self) -> Tensor:
        """The decoder's input: starts with BEGIN."""
        return self._part(1)[None]

    @property
    def labels_1T(self) -> Tensor:
        """The tokens to predict: they end with END; PAD where nothing is predicted."""
        return self._part(2)[None]

    @property
    def source_offsets(self) -> Tensor:
        return self._part(3)

    @property
    def target_offsets(self) -> Tensor:
        return self._part(4)

    def _part(self, number: int) -> Tensor:
        sizes = _sizes(self.shape)
        return torch.split(self.flat, [*map(_aligned, sizes)])[number][: sizes[number]]


def _sizes(shape: Shape) -> list[int]:
    offsets = shape.sequences + 1
    return [shape.source, shape.target, shape.target, offsets, offsets]


def _aligned(size: int) -> int:
    """Each part begins at a multiple of 16 bytes: kernels are compiled once more for others."""
    return _round(size, 4)


def packed_padding(batch: Batch) -> float:
    """The share of padding that is left after packing."""
    real = int(batch.source_lengths_B.sum()), batch.target_tokens
    return 1.0 - sum(real) / sum(map(_round_tokens, real))


def pack(batch: Batch, copies: int = 1) -> Packed:
    """Pack a batch: its tokens in the same order, without padding; `copies` times (R-Drop).

    Each copy is a whole, including its filling.
    """
    assert batch.target_BT is not None
    assert batch.target_lengths_B is not None
    source_lengths = batch.source_lengths_B.numpy()
    target_lengths = batch.target_lengths_B.numpy()
    longest = _class_of_length(int(max(source_lengths.max(), target_lengths.max())))
    sources, targets = (_round_tokens(int(n.sum())) for n in (source_lengths, target_lengths))
    source_offsets = _offsets(source_lengths, sources)
    target_offsets = _offsets(target_lengths, targets)
    sequences = round_up(max(len(source_offsets), len(target_offsets)) - 1, 3)
    target_BT = batch.target_BT.numpy()
    parts = [
        np.tile(_joined(batch.source_BS.numpy(), source_lengths, sources), copies),
        np.tile(_joined(target_BT[:, :-1], target_lengths, targets), copies),
        np.tile(_joined(target_BT[:, 1:], target_lengths, targets), copies),
        _repeated(_filled(source_offsets, sequences), copies),
        _repeated(_filled(target_offsets, sequences), copies),
    ]
    flat = np.concatenate([np.pad(part, (0, _aligned(len(part)) - len(part))) for part in parts])
    sizes = (copies * sources, copies * targets, copies * sequences)
    return Packed(torch.from_numpy(flat), Shape(*sizes, longest))


def _repeated(offsets: NDArray[np.int32], copies: int) -> NDArray[np.int32]:
    further = [offsets[1:] + copy * offsets[-1] for copy in range(1, copies)]
    return np.concatenate([offsets, *further])


def _joined(
    ids_BT: NDArray[np.int64], lengths_B: NDArray[np.int64], size: int
) -> NDArray[np.int32]:
    row = np.full(size, PAD, np.int32)
    real = np.arange(ids_BT.shape[1]) < lengths_B[:, None]
    row[: lengths_B.sum()] = ids_BT[real]
    return row


def _offsets(lengths_B: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Start of each sequence and end of the last; the rest of the row as sequences of its own.

    These are no longer than the longest of the others: a model may have learned positions for no
    more.
    """
    end, longest = int(lengths_B.sum()), int(lengths_B.max())
    starts = np.concatenate([[0], np.cumsum(lengths_B)])
    return np.concatenate([starts, np.arange(end + longest, size, longest), [size][: size - end]])


def _filled(offsets: NDArray[np.int64], sequences: int) -> NDArray[np.int32]:
    """Offsets padded with empty sequences up to the number asked for."""
    return np.pad(offsets, (0, sequences + 1 - len(offsets)), mode="edge").astype(np.int32)


def _class_of_length(length: int) -> int:
    return next((limit for limit in (16, 32, 64) if length <= limit), _round(length, 128))


def _round_tokens(count: int) -> int:
    """A graph is captured for each size: of many tokens at most a thirty-second is added, and of
    few, which do not keep a GPU busy, up to a quarter."""
    bits = count.bit_length()
    step = max(1 << max(bits - 6, 0), min(1 << max(bits - 3, 0), COARSE), ROUND)
    return _round(count, step)


def _round(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
