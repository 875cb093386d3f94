"""Waveforms of different lengths as one batch."""

from __future__ import annotations

import numpy as np
import torch

from transduce.data.batches.batch import pad_waves, scattered


def test_rows_are_padded_with_zeros() -> None:
    sizes = (5, 0, 12, 1)
    waves = [np.arange(1, size + 1, dtype=np.int16) * (n + 1) for n, size in enumerate(sizes)]
    source_BW, lengths_B = pad_waves(waves, torch.device("cpu"))
    assert lengths_B.tolist() == list(sizes)
    assert source_BW.shape == (4, 12)
    assert source_BW.dtype == torch.int16
    for row, wave in zip(source_BW.tolist(), waves, strict=True):
        assert row == [*wave.tolist(), *[0] * (12 - len(wave))]
    flat_N = torch.from_numpy(np.concatenate(waves))
    assert torch.equal(scattered(flat_N, lengths_B, 12), source_BW)  # what a GPU does
