"""Positions against their formulas, and the properties that make them useful."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce.nn.positions import Fourier, Learned, Positioned, Rotary, Sinusoidal, Sinusoids


def test_sinusoidal_is_the_formula() -> None:
    d = 6
    table_TD = Sinusoidal(d).double()(50)
    for t in range(50):
        for k in range(d // 2):
            angle = t / 10000 ** (2 * k / d)
            assert table_TD[t, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table_TD[t, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_fourier_is_the_formula() -> None:
    T, D = 20, 8
    table_TD = Fourier(D, T).double()(30)
    for t in range(30):
        for k in range(1, D // 2 + 1):
            angle = math.pi * k * t / T
            assert table_TD[t, 2 * k - 2].item() == pytest.approx(math.cos(angle), abs=1e-12)
            assert table_TD[t, 2 * k - 1].item() == pytest.approx(math.sin(angle), abs=1e-12)


@given(t=st.integers(0, 60), steps=st.integers(-30, 30), pairs=st.integers(1, 6))
def test_a_shift_in_time_is_a_matrix(t: int, steps: int, pairs: int) -> None:
    t = max(t, -steps)
    fourier = Fourier(2 * pairs, period_length=40).double()
    table_TD = fourier(t + max(steps, 0) + 1)
    torch.testing.assert_close(table_TD[t] @ fourier.shift_matrix(steps), table_TD[t + steps])


@pytest.mark.parametrize("positions", [Sinusoidal(8), Fourier(8, 30), Rotary(8), Learned(8, 100)])
def test_a_start_continues_the_same_table(positions: Sinusoids | Learned) -> None:
    whole_TD = positions(40)
    assert whole_TD.shape == (40, 8)
    torch.testing.assert_close(positions(3, start=37), whole_TD[37:])
    torch.testing.assert_close(positions(10, start=50)[0], positions(60)[50])


@pytest.mark.parametrize("build", [Sinusoidal, lambda width: Fourier(width, 30), Rotary])
def test_tables_follow_the_dtype_and_are_not_saved(build: type[Sinusoidal]) -> None:
    positions = build(8)
    assert positions.state_dict() == {}
    positions.bfloat16()
    assert positions(20).dtype == torch.bfloat16
    # Grown in bfloat16, then converted: it must not keep bfloat16's rounding.
    torch.testing.assert_close(positions.double()(20), build(8).double()(20), rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [Sinusoidal, lambda width: Fourier(width, 9), Rotary])
def test_odd_widths_are_refused(build: type[Sinusoidal]) -> None:
    with pytest.raises(ValueError, match="width 7 is odd"):
        build(7)


def test_learned_says_where_it_ends() -> None:
    learned = Learned(4, 10)
    assert learned(4, start=6).shape == (4, 4)
    assert learned(10).requires_grad
    with pytest.raises(ValueError, match=r"learned 10 positions.* is 11 long.*max_length"):
        learned(1, start=10)


@given(t=st.integers(0, 500), tau=st.integers(0, 500), shift=st.integers(1, 500))
def test_rotary_products_depend_on_distance_alone(t: int, tau: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=generator)
    rotary = Rotary(16).double()
    here = (rotary.rotate(query, t) * rotary.rotate(key, tau)).sum()
    there = (rotary.rotate(query, t + shift) * rotary.rotate(key, tau + shift)).sum()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)


def test_rotary_turns_each_pair_by_its_angle() -> None:
    x_BHTK = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    turned_BHTK = Rotary(6).double().rotate(x_BHTK, start=4)
    for t in range(7):
        for i in range(3):
            angle = torch.tensor((4 + t) * 10000 ** (-2 * i / 6), dtype=torch.float64)
            pair = torch.complex(x_BHTK[:, :, t, 2 * i], x_BHTK[:, :, t, 2 * i + 1])
            expected = torch.view_as_real(pair * torch.exp(1j * angle))
            torch.testing.assert_close(turned_BHTK[:, :, t, 2 * i : 2 * i + 2], expected)


def test_rotary_tells_distances_apart() -> None:
    rotary = Rotary(8).double()
    x = torch.ones(1, 1, 1, 8, dtype=torch.float64)
    products = [(rotary.rotate(x, 0) * rotary.rotate(x, t)).sum().item() for t in (0, 1, 2, 5)]
    assert len({round(product, 6) for product in products}) == 4


def test_rotary_keeps_the_dtype_of_what_it_turns() -> None:
    assert Rotary(8).rotate(torch.ones(1, 1, 3, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_table_made_while_decoding_serves_training() -> None:
    rotary = Rotary(8)
    with torch.inference_mode():
        rotary.rotate(torch.randn(1, 1, 30, 8))
    x_BHTK = torch.randn(1, 1, 30, 8, requires_grad=True)
    rotary.rotate(x_BHTK).sum().backward()
    assert x_BHTK.grad is not None


def test_positioned_adds() -> None:
    sinusoidal = Sinusoidal(8)
    positioned = Positioned(sinusoidal, "add")
    x_BTD = torch.randn(2, 5, 8)
    torch.testing.assert_close(positioned(x_BTD, start=3), x_BTD + sinusoidal(5, 3))
    assert positioned.output_width(8) == 8
    with pytest.raises(ValueError, match="width 8 cannot be added to vectors of width 6"):
        positioned(torch.randn(2, 5, 6))


def test_positioned_concatenates() -> None:
    learned = Learned(4, 20)
    positioned = Positioned(learned, "concatenate")
    x_BTD = torch.randn(2, 5, 8)
    joined_BTD = positioned(x_BTD, start=3)
    assert joined_BTD.shape[-1] == positioned.output_width(8) == 12
    assert torch.equal(joined_BTD[..., :8], x_BTD)
    assert torch.equal(joined_BTD[1, :, 8:], learned(5, 3))


def test_positioned_knows_two_ways() -> None:
    with pytest.raises(ValueError, match=r'"add" or "concatenate", not "multiply"'):
        Positioned(Sinusoidal(4), "multiply")
