"""Every change of a network is seen; what stays the same assuming that the text is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from transduce.nn.conformer import MaskedBatchNorm
from transduce.nn.positions import Sinusoidal
from transduce.runtime.fingerprint import Fingerprint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(30, 16)
        self.layer = nn.Linear(16, 24)
        self.convolution = nn.Conv1d(8, 8, 3)
        self.norm = MaskedBatchNorm(16)
        self.waves = Sinusoidal(16)
        self.coarse = nn.Parameter(torch.randn(4, 4).bfloat16())


def test_what_is_the_same_fits() -> None:
    net = Net()
    taken = Fingerprint(net)
    assert taken.fits(net)
    net.train()
    net.eval()
    net.waves(100)  # a table that is computed may grow
    with torch.inference_mode():
        assert taken.fits(net)


def replaced(net: Net) -> None:
    net.layer = nn.Linear(16, 24)


def same_numbers_elsewhere(net: Net) -> None:
    net.layer.weight = nn.Parameter(net.layer.weight.detach().clone())


def added(net: Net) -> None:
    net.more = nn.Linear(2, 2)


def statistics(net: Net) -> None:
    net.norm.running_mean_D += 1


def nearly_nothing(net: Net) -> None:
    net.layer.weight.data[7, 7] *= 1 + 1e-4


def last_bit_of_a_bias(net: Net) -> None:
    net.layer.bias.data[3] = torch.nextafter(net.layer.bias.data[3], torch.tensor(9.0))


def signs(net: Net) -> None:
    net.table.weight.data.neg_()


def kernel(net: Net) -> None:
    net.convolution.weight.data[2, 3] = net.convolution.weight.data[2, 3].flip(0)


def half(net: Net) -> None:
    net.coarse.data[0, 0] *= 1.01


def fused(net: Net) -> None:
    net.layer.weight.grad = torch.ones_like(net.layer.weight)
    before = net.layer.weight._version
    torch.optim.AdamW([net.layer.weight], lr=1e-4, fused=True).step()
    assert net.layer.weight._version == before  # why versions are not asked


CHANGES = [
    replaced, same_numbers_elsewhere, added, statistics, nearly_nothing, last_bit_of_a_bias, signs,
    kernel, half, fused,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_has_changed_does_not_fit(change: Callable[[Net], None]) -> None:
    net = Net()
    taken = Fingerprint(net)
    change(net)
    assert not taken.fits(net)
    assert Fingerprint(net).fits(net)


def test_numbers_that_are_none_never_fit() -> None:
    net = Net()
    net.layer.weight.data[0, 0] = torch.nan
    assert not Fingerprint(net).fits(net)
