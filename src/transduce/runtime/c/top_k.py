"""The highest of many scores, several times as fast as torch finds them on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.runtime.c.compile import library_if_open


def best_places(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Each row's highest scores_RC and their places_RC, the highest first, of equals the first.

    None where torch has to find them. Nothing is compiled for it.
    """
    on_cpu = scores_RX.device.type == "cpu" and scores_RX.dtype == torch.float32
    made = library_if_open() if on_cpu and scores_RX.is_contiguous() else None
    if made is None:
        return None
    R, X = scores_RX.shape
    found_RC = scores_RX.new_empty(R, count)
    places_RC = scores_RX.new_empty(R, count, dtype=torch.int64)
    made.find_best(scores_RX.data_ptr(), R, X, count, found_RC.data_ptr(), places_RC.data_ptr())
    return found_RC, places_RC
