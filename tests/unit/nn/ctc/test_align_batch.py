"""Alignment of many sequences at a time is that of each by itself."""

from __future__ import annotations

import numpy as np
import torch

from transduce.nn.ctc.align_batch import Emissions, align_batch
from transduce.nn.ctc.alignment import align


def test_it_finds_the_same_path_as_one_by_one() -> None:
    torch.manual_seed(1)
    cases = [
        (30, [1, 2, 2, 3]),
        (9, [4, 4, 4, 4, 4]),
        (1, [2]),
        (12, []),
        (5, [1, 1, 1, 1]),
        (7, [3]),
    ]
    sequences, expected = [], []
    for S, labels in cases:
        log_probs_SV = torch.log_softmax(2 * torch.randn(S, 5), dim=-1)
        tokens_U = torch.tensor(labels, dtype=torch.int64)
        repeats_U = np.array([i > 0 and labels[i] == labels[i - 1] for i in range(len(labels))])
        labels_SU, blank_S = log_probs_SV[:, tokens_U].numpy(), log_probs_SV[:, 0].numpy()
        sequences.append(Emissions(labels_SU, blank_S, repeats_U.astype(bool)))
        fits = len(labels) + repeats_U.sum() <= S
        expected.append(align(log_probs_SV, tokens_U, 0) if fits else None)
    assert [one is None for one in expected] == [False] * 4 + [True, False]
    for ours, theirs in zip(align_batch(sequences), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            np.testing.assert_array_equal(ours.first_U, theirs.first_U.numpy())
            np.testing.assert_array_equal(ours.last_U, theirs.last_U.numpy())
            np.testing.assert_allclose(ours.confidence_U, theirs.confidence_U.numpy(), rtol=1e-5)
    assert align_batch([]) == []
