"""Ranks check that they agree: on the recipe and the data at the start, on the weights ever after.

Every rank computes all that is not sharded by itself, from the same numbers. If one of them starts
from others, or has a broken memory, they would train different models and average nonsense.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce import __version__
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.errors import TrainingError
from transduce.recipe import Recipe
from transduce.training.distributed.processes import Processes

PIECES, PIECE = 1024, 65_536  # of an array that is too large to be read at once, in bytes


def check_start(ranks: Processes, recipe: Recipe, options: Mapping[str, Any]) -> None:
    """Raise TrainingError where a rank was started with another recipe, option or version.

    `data.folder` may differ: what is in it is compared by `check_data`.
    """
    own = {
        **dict(_flat(recipe.model_dump(mode="json", exclude={"data": {"folder"}}))),
        **options,
        "the version of transduce": __version__,
        "the version of torch": torch.__version__,
    }
    first, *others = ranks.all_gather(own)
    for rank, other in enumerate(others, 1):
        for key in {**first, **other}:
            mine, theirs = (found.get(key) for found in (first, other))
            if mine != theirs:
                raise TrainingError(
                    f"{key} is {theirs} on {ranks.name(rank)}, but {mine} on {ranks.name(0)}: "
                    f"start all processes with the same recipe and options"
                )


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(inner, f"{key}.{name}" if key else name)


def check_data(ranks: Processes, train: Encoded | StreamingDataset, valid: Encoded) -> None:
    """Raise TrainingError where a rank reads other training or validation data."""
    if not ranks.grouped:
        return
    own = {"training": _checksums(train), "validation": _checksums(valid)}
    first, *others = ranks.all_gather(own)
    for rank, other in enumerate(others, 1):
        for name in own:
            if first[name] != other[name]:
                raise TrainingError(
                    f"the {name} data of {ranks.name(rank)} differ from those of {ranks.name(0)}: "
                    f"all machines need the same files, and the same order of their lines"
                )


def _checksums(corpus: Encoded | StreamingDataset) -> list[int]:
    """The size and a checksum of each array of a corpus in memory, or of the index of a stream."""
    if isinstance(corpus, StreamingDataset):
        sections = corpus.reader.index.sections
        arrays = [file.places for section in sections for file in section.files]
    else:
        arrays = [value for value in vars(corpus).values() if isinstance(value, np.ndarray)]
    return [number for array in arrays for number in (array.nbytes, _checksum(array))]


def _checksum(array: NDArray[Any]) -> int:
    """CRC-32; of a large array, of pieces that lie at equal distances."""
    data = np.ascontiguousarray(array).data.cast("B")
    if data.nbytes <= PIECES * PIECE:
        return zlib.crc32(data)
    found = 0
    for start in np.linspace(0, data.nbytes - PIECE, PIECES, dtype=np.int64):
        found = zlib.crc32(data[start : start + PIECE], found)
    return found


@torch.no_grad()
def check_weights(ranks: Processes, weights: Mapping[str, Tensor], step: int) -> None:
    """Raise TrainingError where the weights of a rank differ in a single bit.

    All ranks apply the same sum of gradients to the same weights, so that nothing may differ. Of
    three ranks or more, those that differ from most others are named.
    """
    if not ranks.grouped:
        return
    sums = torch.stack([_sum_of_bits(weight) for weight in weights.values()]).tolist()
    found = ranks.all_gather(zlib.crc32(repr(sums).encode()))
    if len(set(found)) == 1:
        return
    most = max(found, key=found.count)  # of equally many, that of the lowest rank
    others = [rank for rank, value in enumerate(found) if value != most]
    every = ranks.all_gather(sums)
    usual = every[found.index(most)]
    broken = [n for n, name in enumerate(weights) if every[others[0]][n] != usual[n]]
    where = list(weights)[broken[0]]
    names = " and ".join(ranks.name(rank) for rank in others)
    unsure = f", or {ranks.name(found.index(most))}," if 2 * found.count(most) <= len(found) else ""
    raise TrainingError(
        f"the weights of {names}{unsure} are wrong at update {step}, first in {where}: ranks "
        f"compute the same weights, so a GPU or memory is faulty, or its machine has other GPUs, "
        f"processors or software; the last checkpoint is intact: start again with --resume, "
        f"without that machine"
    )


def _sum_of_bits(weight: Tensor) -> Tensor:
    """The sum of the bits as whole numbers: exact, in whatever order."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = weight.detach().contiguous().view(kinds[weight.element_size()])
    return bits.sum(dtype=torch.int64)
