"""The cache against plain concatenation."""

from __future__ import annotations

import pytest
import torch

from transduce.nn.attention.kv_cache import KVCache


def test_it_holds_all_that_was_appended() -> None:
    torch.manual_seed(0)
    cache = KVCache()
    steps = [torch.randn(2, 3, T, 4) for T in (5, 1, 1, 20, 1, 40, 1)]
    for i, step in enumerate(steps):
        keys_BHSK, values_BHSK = cache.append(step, -step)
        expected_BHSK = torch.cat(steps[: i + 1], dim=2)
        assert torch.equal(keys_BHSK, expected_BHSK)
        assert torch.equal(values_BHSK, -expected_BHSK)
        assert cache.length == expected_BHSK.shape[2]


def test_it_moves_to_a_new_store_rarely() -> None:
    cache = KVCache()
    stores = set()
    for _ in range(1000):
        keys_BHSK, _ = cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        stores.add(keys_BHSK.untyped_storage().data_ptr())
    assert len(stores) <= 8


def test_reorder_follows_the_beams() -> None:
    torch.manual_seed(0)
    cache = KVCache()
    step_BHTK = torch.randn(3, 2, 4, 5)
    cache.append(step_BHTK, 2 * step_BHTK)
    for index in ([2, 2, 0], [0], [0, 0, 0, 0]):
        index_B = torch.tensor(index)
        cache.reorder(index_B)
        step_BHTK = step_BHTK[index_B]
        new_BHTK = torch.randn(len(index), 2, 1, 5)
        keys_BHSK, values_BHSK = cache.append(new_BHTK, 2 * new_BHTK)
        step_BHTK = torch.cat((step_BHTK, new_BHTK), dim=2)
        assert torch.equal(keys_BHSK, step_BHTK)
        assert torch.equal(values_BHSK, 2 * step_BHTK)


def test_an_empty_cache_reorders_to_an_empty_cache() -> None:
    cache = KVCache()
    cache.reorder(torch.tensor([0, 0]))
    assert cache.length == 0


def test_keys_and_values_may_differ_in_width_and_keep_their_dtype() -> None:
    cache = KVCache()
    keys_BHSK, values_BHSK = cache.append(
        torch.ones(1, 1, 2, 4, dtype=torch.bfloat16), torch.ones(1, 1, 2, 6, dtype=torch.bfloat16)
    )
    assert keys_BHSK.shape == (1, 1, 2, 4)
    assert values_BHSK.shape == (1, 1, 2, 6)
    assert keys_BHSK.dtype == torch.bfloat16


def test_another_batch_size_is_refused_and_leaves_the_cache_as_it_was() -> None:
    cache = KVCache()
    cache.append(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2))
    with pytest.raises(ValueError, match=r"holds 2 sequences, but the step has 3.*reorder"):
        cache.append(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))
    assert cache.length == 1
