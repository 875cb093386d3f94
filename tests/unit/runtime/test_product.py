"""Products in 8 bits are sums of whole numbers: every kernel gives the same ones, to the bit."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import forked
from transduce.runtime import Product, library, why_not
from transduce.runtime.c_library import FILE, open_variants
from transduce.runtime.packed_weight import quantize_weight
from transduce.runtime.structures import Kernel

KERNELS = [kernel for kernel in Kernel if kernel is not Kernel.BEST]
SHAPES = [(1, 1), (5, 7), (16, 4), (17, 63), (48, 64), (70, 130), (129, 65), (33, 300)]
ROWS = [*range(1, 41), 64, 65]


def made() -> ctypes.CDLL:
    found = library()
    if found is None:
        pytest.skip(f"no library: {why_not()}")
    return found


def with_kernel(kernel: Kernel) -> ctypes.CDLL:
    if not made().has_kernel(kernel):
        pytest.skip(f"this CPU, or what compiled for it, has no {kernel.name}")
    return made()


def weight(outputs: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(outputs * inputs)
    levels_FD = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    return levels_FD, torch.rand(outputs) + 0.5, torch.randn(outputs)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_sums_of_whole_numbers_are_exact(kernel: Kernel) -> None:
    found = with_kernel(kernel)
    for outputs, inputs in SHAPES:
        levels_FD, _, _ = weight(outputs, inputs)
        product = Product.int8(found, levels_FD, torch.ones(outputs), None, kernel)
        for rows in ROWS:
            x_RD = torch.randint(-127, 128, (rows, inputs)).float()
            x_RD[:, rows % inputs] = 127.0  # so that a level is a whole number
            expected_RF = x_RD.long() @ levels_FD.long().T
            assert torch.equal(product(x_RD).long(), expected_RF), (rows, outputs, inputs)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_largest_levels_do_not_overflow(kernel: Kernel) -> None:
    levels_FD = torch.full((40, 4096), -127, dtype=torch.int8)
    levels_FD[::2] = 127
    product = Product.int8(with_kernel(kernel), levels_FD, torch.ones(40), None, kernel)
    x_RD = torch.full((33, 4096), 127.0)
    x_RD[::3] = -127.0
    # Beyond 2^24 a float has gaps.
    torch.testing.assert_close(
        product(x_RD).double(), x_RD.double() @ levels_FD.double().T, rtol=1e-7, atol=0.0
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_every_kernel_finds_is_the_same_to_the_bit(kernel: Kernel) -> None:
    parts = weight(70, 130)
    x_RD, added_RF = torch.randn(37, 130), torch.randn(37, 70)
    plain = Product.int8(made(), *parts, Kernel.PLAIN)
    other = Product.int8(with_kernel(kernel), *parts, kernel)
    for relu, added in [(False, None), (True, None), (False, added_RF)]:
        assert torch.equal(other(x_RD, relu, added), plain(x_RD, relu, added))


def test_a_product_and_what_follows_it() -> None:
    levels_FD, scale_F, bias_F = weight(70, 130)
    x_BTD, added_BTF = torch.randn(3, 5, 130), torch.randn(3, 5, 70)
    x_BTD[1, 2] = 0.0
    max_BT1 = x_BTD.double().abs().amax(dim=-1, keepdim=True)
    levels_BTD = (x_BTD.double() * 127 / max_BT1.clamp(min=1e-9)).round()
    expected_BTF = (levels_BTD @ levels_FD.double().T) * (max_BT1 / 127) * scale_F + bias_F
    product = Product.int8(made(), levels_FD, scale_F, bias_F)
    for found, expected in [
        (product(x_BTD), expected_BTF),
        (product(x_BTD, True), expected_BTF.relu()),
        (product(x_BTD, False, added_BTF), expected_BTF + added_BTF),
    ]:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kernel", [Kernel.BEST, *KERNELS], ids=lambda kernel: kernel.name)
def test_a_row_is_the_same_alone_and_among_others(kernel: Kernel) -> None:
    found = made() if kernel is Kernel.BEST else with_kernel(kernel)
    product = Product.int8(found, *weight(70, 130), kernel)
    x_RD = torch.randn(37, 130) * torch.logspace(-3, 3, 37)[:, None]
    together_RF = product(x_RD)
    for row in range(37):
        assert torch.equal(product(x_RD[row : row + 1]), together_RF[row : row + 1])
    assert torch.equal(product(x_RD[5:29]), together_RF[5:29])


# More rows than are taken together, and more inputs than are read at a time.
@pytest.mark.parametrize(
    ("inputs", "rows"), [(3, 1100), (130, 15), (512, 8), (1100, 26), (2100, 130)]
)
@torch.inference_mode()
def test_a_float32_row_is_the_same_alone_and_among_others(inputs: int, rows: int) -> None:
    torch.manual_seed(3)
    weight_FD, bias_F = torch.randn(150, inputs), torch.randn(150)
    x_RD, added_RF = torch.randn(rows, inputs), torch.randn(rows, 150)
    expected_RF = x_RD.double() @ weight_FD.double().T + bias_F
    made()
    for variant in open_variants(FILE):
        product = Product.float32(variant, weight_FD, bias_F, threads=1)
        alone_RF = torch.cat([product(x_RD[row : row + 1]) for row in range(rows)])
        torch.testing.assert_close(alone_RF.double(), expected_RF, rtol=1e-5, atol=1e-3)
        assert torch.equal(product(x_RD), alone_RF)
        assert torch.equal(product(x_RD, True), alone_RF.relu())
        assert torch.equal(product(x_RD, False, added_RF), alone_RF + added_RF)
        for some in (0, 2, 5, 6, 7, 8, 13):
            assert torch.equal(product(x_RD[:some]), alone_RF[:some])


def shared_product(threads: int) -> tuple[Product, Tensor]:
    torch.manual_seed(5)
    made = library()
    if made is None:
        pytest.skip(f"no library: {why_not()}")
    weight_FD, bias_F, x_RD = torch.randn(1000, 300), torch.randn(1000), torch.randn(7, 300)
    return Product.float32(made, weight_FD, bias_F, threads), x_RD


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("threads", [2, 3, 16, 99])
def test_threads_that_share_a_product_change_no_bit(threads: int, rows: int) -> None:
    (alone, x_RD), (shared, _) = shared_product(1), shared_product(threads)
    expected_RF = alone(x_RD[:rows])
    for _ in range(50):  # whichever thread is first, awake or asleep
        assert torch.equal(shared(x_RD[:rows]), expected_RF)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_threads_that_share_an_int8_product_change_no_bit(rows: int) -> None:
    made = library()
    if made is None:
        pytest.skip(f"no library: {why_not()}")
    torch.manual_seed(2)
    weight_FD, x_RD = torch.randn(1000, 300), torch.randn(rows, 300)
    levels = quantize_weight(weight_FD)
    alone, shared = (Product.int8(made, *levels, None, threads=count) for count in (1, 3))
    for _ in range(10):
        assert torch.equal(shared(x_RD), alone(x_RD))


def test_callers_at_the_same_time_do_not_mix() -> None:
    shared, x_RD = shared_product(2)
    inputs = [x_RD * scale for scale in (1.0, 2.0, 3.0, 4.0)]
    expected = [shared(x) for x in inputs]

    def call(place: int) -> bool:
        return all(torch.equal(shared(inputs[place]), expected[place]) for _ in range(100))

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(call, range(4)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_starts_its_own_threads() -> None:
    shared, x_RD = shared_product(2)
    expected_RF = shared(x_RD)  # the threads of this process are started
    x, y = x_RD.contiguous(), torch.empty_like(expected_RF)
    child = os.fork()
    if not child:  # only the library: torch itself may not be used after a fork with threads
        signal.alarm(20)
        address = ctypes.addressof(shared.weight)
        shared._library.multiply(address, x.data_ptr(), 7, 0, None, y.data_ptr(), None, -1)
        os._exit(0 if y.numpy().tobytes() == expected_RF.numpy().tobytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_callers_that_share_the_cores_start_no_threads() -> None:
    """Two threads may share a product; with two callers there is one for each."""
    code = (
        "import os, torch; torch.set_num_threads(1); "
        "from transduce.runtime import Product, library, share_threads; "
        "product = Product.float32(library(), torch.ones(512, 512), None, threads=2); "
        "count = lambda: len(os.listdir('/proc/self/task')); "
        "x = torch.ones(256, 512); before = count(); "
        "share_threads(2); one = product(x); shared = count(); "
        "share_threads(1); two = product(x); "
        "print(shared - before, count() - before, torch.equal(one, two))"
    )
    found = forked.run([sys.executable, "-c", code])
    assert found.stdout == "0 1 True\n", found.stderr
