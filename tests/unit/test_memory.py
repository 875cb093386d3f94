"""How much memory is free."""

from __future__ import annotations

import pytest
import torch

from transduce import memory
from transduce.memory import free_memory

MIB = 2**20


def test_free_memory_is_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_memory(torch.device("cpu"))
    assert MIB < free < 2**50
    monkeypatch.setattr(memory, "_control_groups", lambda: [5 * MIB])
    assert free_memory(torch.device("cpu")) == 5 * MIB
    monkeypatch.setattr(memory, "_address_space", lambda: -1)
    assert free_memory(torch.device("cpu")) == 0
