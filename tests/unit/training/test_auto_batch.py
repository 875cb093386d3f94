"""The budget of a batch: found by trying, without leaving a trace."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.models.build import Vocabulary, build
from transduce.recipe import Train
from transduce.recipe.presets import PRESETS
from transduce.training import auto_batch as budget
from transduce.training.auto_batch import fitting_budget, largest
from transduce.training.optimizer import build_optimizer
from transduce.training.update import CapturedUpdate, Update

MIB = 2**20


def update() -> Update:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": 64, "dropout": 0.1}
    made = build(recipe.Model.model_validate(shape), Vocabulary(50, 50))
    return Update(made, build_optimizer(made, Train()), Train(), torch.float32)


# ---------------------------------------------------------------------------- where it fits


@pytest.mark.parametrize("start", [0, 5 * MIB])
@pytest.mark.parametrize("slope", [1000.0, 3333.3])
@pytest.mark.parametrize("capacity", [2 * MIB, 7 * MIB, 30 * MIB, 900 * MIB])
def test_on_a_line_it_is_where_the_line_ends(start: int, slope: float, capacity: int) -> None:
    def cost(tokens: int) -> float:
        return start + slope * tokens

    found = largest(cost, capacity, 65_536)
    exact = int((capacity - start) / slope) // 256 * 256
    if exact >= 1024:
        assert found == min(exact, 65_536)
    else:  # below what is tried first it is careful
        assert 256 <= found <= max(exact, 256)


def test_off_the_line_it_still_fits_and_is_not_far_off() -> None:
    def bending(tokens: int) -> float:
        return 4000 * min(tokens, 3000) + 1500 * max(tokens - 3000, 0)  # logits come in chunks

    def rising(tokens: int) -> float:
        return 1000 * tokens + 0.05 * tokens**2

    for cost in (bending, rising):
        for capacity in (5e6, 2e7, 5e7):
            found = largest(cost, int(capacity), 65_536)
            assert cost(found) <= capacity
            assert cost(int(1.3 * found) + 256) > capacity


def test_a_pass_that_fails_is_no_end() -> None:
    """The device runs out at half of what it promised."""

    def cost(tokens: int) -> float:
        return 1000.0 * tokens if tokens <= 10_000 else math.inf

    found = largest(cost, 20_000_000, 65_536)
    assert 6_000 <= found <= 10_000
    assert found % 256 == 0


def test_where_nothing_fits_it_is_the_smallest() -> None:
    assert largest(lambda tokens: math.inf, 10**9, 65_536) == 256
    assert largest(lambda tokens: 1e6 * tokens, 10**6, 65_536) == 256
    assert largest(lambda tokens: 1e6 * tokens, -5, 65_536) == 256


# ------------------------------------------------------------------------------- on a network


def test_it_follows_the_memory_there_is() -> None:
    one = update()
    found = [fitting_budget(one, (30, 20), free * MIB) for free in (1, 40, 60, 100_000)]
    assert found[0] == 256
    assert found[-1] == 4096  # a CPU is given no more
    assert found == sorted(found)
    assert 256 < found[1] < found[2] < 4096
    assert all(tokens % 256 == 0 for tokens in found)


@pytest.mark.parametrize("longest", [(30, 20), (5, 60)])
def test_a_fifth_of_the_memory_stays_free(
    longest: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients, both moments and the worst batch of the budget together take four fifths."""
    one = update()
    weights = sum(p.numel() * p.element_size() for p in one.network.parameters())
    free = 100 * MIB
    found = fitting_budget(one, longest, free)
    batches = []
    for source, target in (longest, (min(longest[0], 6), min(longest[1], 6))):
        rows = found // max(source + 1, target + 2)
        batches.append(collate([[1] * source] * rows, [[1] * target] * rows))
    passed = max(budget._saved(one, batch) for batch in batches)
    assert 0.7 * free < 3 * weights + passed <= 0.8 * free
    monkeypatch.setattr(budget, "free_memory", lambda device: free)
    assert fitting_budget(one, longest) == found


def test_pairs_longer_than_the_first_tries_do_not_mislead() -> None:
    one = update()
    usual, long = (fitting_budget(one, (size, size), 60 * MIB) for size in (40, 2000))
    assert 256 < long <= usual < 4096


def test_nothing_is_left_of_the_tries() -> None:
    one = update()
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]])
    one([batch])
    one.apply()
    one.network.eval()
    weights = [p.detach().clone() for p in one.network.parameters()]
    moments = [
        value.clone() for p in one.network.parameters() for value in one.optimizer.state[p].values()
    ]
    generators = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    fitting_budget(one, (10, 10), 100 * MIB)
    after = [value for p in one.network.parameters() for value in one.optimizer.state[p].values()]
    assert all(torch.equal(p, q) for p, q in zip(one.network.parameters(), weights, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(after, moments, strict=True))
    assert all(p.grad is None for p in one.network.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), str(np.random.get_state())) == generators[1:]
    assert not one.network.training


def test_the_longest_pair_of_a_corpus(tmp_path: Path) -> None:
    from transduce.data.cache.tokenised import Encoded

    offsets = np.array([0, 3, 10, 11]), np.array([0, 1, 2, 6])
    ids = np.zeros(11, np.int32)
    rows = np.arange(3)
    corpus = Encoded(ids, offsets[0], ids[:6], offsets[1], rows, rows)
    assert budget.longest_pair(corpus, 256) == (7, 4)


# ---------------------------------------------------------------------------------- on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kind", [Update, CapturedUpdate])
def test_on_a_gpu_the_budget_fits_and_leaves_no_trace(kind: type[Update]) -> None:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": 256, "dropout": 0.1}
    made = build(recipe.Model.model_validate(shape), Vocabulary(8000, 8000)).cuda()
    fresh = copy.deepcopy(made)
    one = kind(made, build_optimizer(made, Train()), Train(), torch.bfloat16)
    before = torch.cuda.get_rng_state(), [p.detach().clone() for p in made.parameters()]
    small, large = (fitting_budget(one, (100, 100), free * MIB) for free in (600, 4000))
    assert 256 <= small < large <= 65_536
    assert torch.equal(torch.cuda.get_rng_state(), before[0])
    assert all(torch.equal(p, q) for p, q in zip(made.parameters(), before[1], strict=True))
    two = kind(fresh, build_optimizer(fresh, Train()), Train(), torch.bfloat16)
    for each in (one, two):
        torch.manual_seed(2)
        each.gradients(collate([[5, 7, 9]] * 20, [[6, 8]] * 20))
    for p, q in zip(made.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    one.free()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    rows = large // 102
    Update.gradients(one, collate([[5] * 100] * rows, [[6] * 100] * rows))
    assert torch.cuda.max_memory_allocated() - start <= 4000 * MIB


def test_what_runs_out_of_memory_does_not_fit_and_other_errors_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = ""

    def fails(*_: object) -> float:
        raise RuntimeError(message)

    monkeypatch.setattr(budget, "_saved", fails)
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    assert fitting_budget(update(), (10, 10), 2**30) == 256
    message = "mat1 and mat2 shapes cannot be multiplied"
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fitting_budget(update(), (10, 10), 2**30)
