"""Mean and variance, of one utterance and of a corpus that comes in parts."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.nn.speech.feature_norm import GlobalNorm, Statistics, normalise_utterances

M = 5


def ragged(*lengths: int, offset: float = 0.0) -> tuple[Tensor, Tensor, list[Tensor]]:
    rows = [3 * torch.randn(length, M) + offset for length in lengths]
    batch_BTM = torch.full((len(rows), max(lengths), M), 1e4)
    for b, row in enumerate(rows):
        batch_BTM[b, : len(row)] = row
    return batch_BTM, torch.tensor(lengths), rows


def test_each_utterance_has_mean_zero_and_variance_one() -> None:
    batch_BTM, frames_B, rows = ragged(7, 3, 12)
    normal_BTM = normalise_utterances(batch_BTM, frames_B)
    centred_BTM = normalise_utterances(batch_BTM, frames_B, variance=False)
    for b, row in enumerate(rows):
        centred_TM = row - row.mean(dim=0)
        expected_TM = centred_TM / row.std(dim=0, correction=0)
        torch.testing.assert_close(normal_BTM[b, : len(row)], expected_TM, rtol=0, atol=1e-5)
        torch.testing.assert_close(centred_BTM[b, : len(row)], centred_TM, rtol=0, atol=1e-5)
        assert not normal_BTM[b, len(row) :].any()
        assert not centred_BTM[b, len(row) :].any()


def test_silence_and_single_frames_give_zeros() -> None:
    silence_BTM = torch.full((2, 4, M), -15.9)
    normal_BTM = normalise_utterances(silence_BTM, torch.tensor([4, 1]))
    assert normal_BTM.abs().max() < 0.5
    assert not normalise_utterances(torch.randn(1, 4, M), torch.tensor([1])).any()
    assert not normalise_utterances(torch.randn(1, 4, M), torch.tensor([0])).any()


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    """Also where the mean is large against the deviation, which a sum of squares would not bear."""
    torch.manual_seed(0)
    statistics, elsewhere = Statistics.empty(M), Statistics.empty(M)
    everything = []
    for turn, lengths in enumerate([(7, 3, 12), (1,), (0, 4), (30, 2)]):
        batch_BTM, frames_B, rows = ragged(*lengths, offset=3e3)
        (elsewhere if turn % 2 else statistics).update(batch_BTM, frames_B)
        everything += rows
    statistics.merge(elsewhere)
    whole_NM = torch.cat(everything).double()
    assert statistics.count == len(whole_NM)
    torch.testing.assert_close(statistics.mean_M, whole_NM.mean(dim=0), rtol=1e-12, atol=0)
    deviation_M = whole_NM.std(dim=0, correction=0)
    torch.testing.assert_close(statistics.deviation_M, deviation_M, rtol=1e-9, atol=0)


def test_the_norm_of_a_corpus_is_kept_with_the_weights() -> None:
    batch_BTM, frames_B, rows = ragged(7, 3, 12, offset=-9.0)
    statistics = Statistics.empty(M)
    statistics.update(batch_BTM, frames_B)
    norm = GlobalNorm(M)
    norm.set(statistics)
    again = GlobalNorm(M)
    again.load_state_dict(norm.state_dict())
    normal_BTM = again(batch_BTM, frames_B)
    everything_NM = torch.cat([normal_BTM[b, : len(row)] for b, row in enumerate(rows)])
    torch.testing.assert_close(everything_NM.mean(dim=0), torch.zeros(M), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        everything_NM.std(dim=0, correction=0), torch.ones(M), rtol=0, atol=1e-5
    )
    assert not normal_BTM[1, 3:].any()


def test_a_band_that_never_changes_stays_finite() -> None:
    statistics = Statistics.empty(M)
    statistics.update(torch.full((1, 4, M), -15.9), torch.tensor([4]))
    norm = GlobalNorm(M)
    norm.set(statistics)
    assert norm(torch.full((1, 4, M), -15.9), torch.tensor([4])).isfinite().all()
