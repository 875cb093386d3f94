"""Top-k of a row of scores on a CPU, several times as fast as torch.topk."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.runtime.c_library import library


def top_k_scores(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Each row's highest scores_RC and their indices_RC, best first; of equal scores the first.

    None where torch has to do it: on a GPU, for other types than float32, and without the C
    library.
    """
    on_cpu = scores_RX.device.type == "cpu" and scores_RX.dtype == torch.float32
    in_c = library() if on_cpu and scores_RX.is_contiguous() else None
    if in_c is None:
        return None
    R, X = scores_RX.shape
    found_RC = scores_RX.new_empty(R, count)
    indices_RC = scores_RX.new_empty(R, count, dtype=torch.int64)
    in_c.find_best(scores_RX.data_ptr(), R, X, count, found_RC.data_ptr(), indices_RC.data_ptr())
    return found_RC, indices_RC
