"""Seeds and counters of a training pass, which are made together."""

from __future__ import annotations

import pytest
import torch

from transduce.nn.pass_buffers import COUNT, counters, dropout_seed, pass_buffers

CPU = torch.device("cpu")


def test_alone_a_seed_is_drawn_at_each_call_and_kernels_make_their_own_counters() -> None:
    torch.manual_seed(1)
    found = [dropout_seed(CPU) for _ in range(3)]
    torch.manual_seed(1)
    assert [int(one) for one in found] == [int(torch.randint(2**31, (1,))) for _ in range(3)]
    assert counters(10, CPU) is None


def test_within_a_pass_seeds_differ_and_are_those_of_torchs_generator() -> None:
    def draw() -> list[int]:
        torch.manual_seed(1)
        with pass_buffers():
            return [int(dropout_seed(CPU)) for _ in range(100)]

    found = draw()
    assert len(set(found)) == 100
    assert found == draw()
    with pass_buffers():  # the next pass has others
        assert int(dropout_seed(CPU)) not in found


def test_what_is_taken_is_aligned_and_shared_with_nobody() -> None:
    with pass_buffers():
        seeds = [dropout_seed(CPU) for _ in range(5)]
        zeros = [counters(count, CPU) for count in (1, 3, 4, 9, 1)]
    places = set()
    for one in [*seeds, *zeros]:
        assert one is not None
        assert one.data_ptr() % 16 == 0
        own = {one.data_ptr() + n for n in range(one.nbytes)}
        assert not own & places
        places |= own
    assert [len(one) for one in zeros if one is not None] == [1, 3, 4, 9, 1]
    assert not any(one.any() for one in zeros if one is not None)


@pytest.mark.parametrize("count", [COUNT - 3, COUNT, COUNT + 5])
def test_there_are_as_many_as_are_asked_for(count: int) -> None:
    with pass_buffers():
        first, second = counters(count, CPU), counters(count, CPU)
        assert first is not None
        assert second is not None
        assert len(first) == len(second) == count
        first += 1
        assert not second.any()


def test_after_a_pass_nothing_is_shared() -> None:
    with pytest.raises(KeyError), pass_buffers():
        raise KeyError
    assert counters(1, CPU) is None
