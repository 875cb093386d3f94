"""What SpecAugment wipes, how much of it, and the same again with the same seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from transduce.nn.speech.spec_augment import SpecAugment


def runs(hidden: Tensor) -> list[int]:
    return [len(list(run)) for value, run in itertools.groupby(hidden.tolist()) if value]


def test_stretches_and_bands_are_wiped_and_nothing_else() -> None:
    torch.manual_seed(0)
    part = SpecAugment(
        time_masks=1,
        time_mask_frames=10,
        time_mask_share=1.0,
        frequency_masks=1,
        frequency_mask_bands=5,
    )
    frames_B = torch.full((400,), 50)
    mel_BTM = torch.rand(400, 50, 20) + 1
    made_BTM = part(mel_BTM, frames_B)
    hidden_BTM = made_BTM == 0
    assert torch.equal(made_BTM[~hidden_BTM], mel_BTM[~hidden_BTM])
    lengths, widths = set(), set()
    for hidden_TM in hidden_BTM:
        hidden_T, hidden_M = hidden_TM.all(dim=1), hidden_TM.all(dim=0)
        assert torch.equal(hidden_TM, hidden_T[:, None] | hidden_M)
        assert len(runs(hidden_T)) <= 1
        assert len(runs(hidden_M)) <= 1
        lengths.add(sum(runs(hidden_T)))
        widths.add(sum(runs(hidden_M)))
    assert lengths == set(range(11))
    assert widths == set(range(6))
    # Every frame and band can be hit, the first and the last too.
    assert hidden_BTM.all(dim=2).any(dim=0).all()
    assert hidden_BTM.all(dim=1).any(dim=0).all()


def test_short_utterances_lose_no_more_than_their_share() -> None:
    torch.manual_seed(0)
    part = SpecAugment(time_masks=1, time_mask_frames=100, time_mask_share=0.2, frequency_masks=0)
    frames_B = torch.tensor([4, 10, 50] * 200)
    hidden_BT = (part(torch.ones(600, 60, 8), frames_B) == 0).all(dim=2)
    for frames, maximum in [(4, 0), (10, 2), (50, 10)]:
        rows_BT = hidden_BT[frames_B == frames]
        assert rows_BT.sum(dim=1).max() == maximum
        assert not rows_BT[:, frames:].any()


def test_the_same_seed_gives_the_same_masks_and_goes_on_where_it_stood() -> None:
    part, frames_B, mel_BTM = SpecAugment(), torch.tensor([200, 120]), torch.ones(2, 200, 80)
    generator = torch.Generator().manual_seed(7)
    first = part(mel_BTM, frames_B, generator)
    state = generator.get_state()
    second = part(mel_BTM, frames_B, generator)
    assert not torch.equal(first, second)
    assert torch.equal(part(mel_BTM, frames_B, torch.Generator().manual_seed(7)), first)
    generator.set_state(state)
    assert torch.equal(part(mel_BTM, frames_B, generator), second)


def test_each_utterance_has_its_own() -> None:
    made_BTM = SpecAugment()(torch.ones(2, 200, 80), torch.tensor([200, 200]))
    assert not torch.equal(made_BTM[0], made_BTM[1])


def test_outside_training_nothing_is_wiped() -> None:
    mel_BTM = torch.ones(2, 50, 80)
    assert torch.equal(SpecAugment().eval()(mel_BTM, torch.tensor([50, 50])), mel_BTM)


def test_odd_sizes() -> None:
    part = SpecAugment(frequency_mask_bands=27)
    assert part(torch.ones(1, 3, 8), torch.tensor([0])).shape == (1, 3, 8)
    with pytest.raises(ValueError, match="between 0 and 1"):
        SpecAugment(time_mask_share=1.5)


def test_a_ratio_means_so_many_times_the_time_masks_and_no_more_of_others() -> None:
    augment = SpecAugment(
        time_masks=2,
        time_mask_frames=3,
        time_mask_share=1.0,
        frequency_masks=1,
        frequency_mask_bands=4,
    ).train()
    mel_BTM, frames_B = torch.ones(300, 400, 8), torch.full((300,), 400)
    shares = []
    for ratio in (1.0, 2.5):
        generator = torch.Generator().manual_seed(1)
        masked_BTM = augment(mel_BTM, frames_B, generator, time_mask_ratio=ratio)
        hidden_BTM = masked_BTM == 0
        shares.append((hidden_BTM.all(dim=2).float().mean(), hidden_BTM.all(dim=1).float().mean()))
    (time, bands), (more, as_many) = shares
    assert float(more / time) == pytest.approx(2.5, abs=0.2)
    assert float(as_many / bands) == pytest.approx(1.0, abs=0.15)
