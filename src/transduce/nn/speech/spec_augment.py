"""SpecAugment: random time masks and frequency masks on log-mel features.

Park et al. 2019, https://arxiv.org/abs/1904.08779. Its time warping is left out: the authors found
that it helps least and costs most.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SpecAugment(nn.Module):
    """SpecAugment (Park et al. 2019): masks random spans of time and frequency in training.

    Masks differ from utterance to utterance. Masked values are zero, the mean of normalized
    features: normalize first.

    Args:
        time_masks: number of time masks.
        time_mask_frames: the most frames that a time mask covers.
        time_mask_share: the most that it covers as a share of the utterance, so that short
            utterances keep their words.
        frequency_masks: number of frequency masks.
        frequency_mask_bands: the most mel bands that a frequency mask covers.
    """

    def __init__(
        self,
        time_masks: int = 2,
        time_mask_frames: int = 100,
        time_mask_share: float = 0.2,
        frequency_masks: int = 2,
        frequency_mask_bands: int = 27,
    ) -> None:
        super().__init__()
        if not 0 <= time_mask_share <= 1:
            raise ValueError(f"time_mask_share must be between 0 and 1, not {time_mask_share}.")
        self.time_masks = time_masks
        self.time_mask_frames = time_mask_frames
        self.time_mask_share = time_mask_share
        self.frequency_masks = frequency_masks
        self.frequency_mask_bands = frequency_mask_bands

    def forward(
        self,
        mel_BTM: Tensor,
        frames_B: Tensor,
        generator: torch.Generator | None = None,
        time_mask_ratio: float = 1.0,
    ) -> Tensor:
        """Features [B, T, M] with masks; `generator` must be on the features' device.

        time_mask_ratio: so many times as many time masks.
        """
        if not self.training:
            return mel_BTM
        T, M = mel_BTM.shape[1:]
        longest_B = (frames_B * self.time_mask_share).long().clamp(max=self.time_mask_frames)
        bands_B = torch.full_like(frames_B, M)
        widest_B = torch.full_like(frames_B, min(self.frequency_mask_bands, M))
        time_masks = round(self.time_masks * time_mask_ratio)
        hidden_BT = _spans(T, time_masks, longest_B, frames_B, generator)
        hidden_BM = _spans(M, self.frequency_masks, widest_B, bands_B, generator)
        return mel_BTM.masked_fill(hidden_BT[:, :, None] | hidden_BM[:, None, :], 0.0)


def _spans(
    size: int, count: int, longest_B: Tensor, end_B: Tensor, generator: torch.Generator | None
) -> Tensor:
    """bool [B, size]: `count` random spans of 0 … longest_B elements, each wholly before end_B."""
    draws = torch.rand(2, len(end_B), count, 1, generator=generator, device=end_B.device)
    widths = (draws[0] * (longest_B[:, None, None] + 1)).long()
    starts = (draws[1] * (end_B[:, None, None] - widths + 1)).long()
    places = torch.arange(size, device=end_B.device)
    hidden = (starts <= places) & (places < starts + widths)
    return hidden.any(dim=1)
