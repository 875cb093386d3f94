"""Too little memory: the same gradient in smaller pieces, and nothing else is swallowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.batches.batch import Batch, collate
from transduce.memory import out_of_memory
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.nn.loss import Loss
from transduce.recipe import Train
from transduce.recipe.presets import PRESETS
from transduce.training.optimizer import build_optimizer
from transduce.training.out_of_memory import BatchSplitter, size
from transduce.training.update import Update

SETTINGS = Train(clip_norm=0.0)
LENGTHS = [(3, 2), (1, 5), (6, 1), (2, 2), (4, 4), (5, 3), (1, 1), (2, 6)]


def batch(*rows: int) -> Batch:
    rows = rows or tuple(range(len(LENGTHS)))
    sources = [[4 + (row + n) % 8 for n in range(LENGTHS[row][0])] for row in rows]
    targets = [[4 + (3 * row + n) % 8 for n in range(LENGTHS[row][1])] for row in rows]
    return collate(sources, targets, [row + 1 for row in rows])


def update() -> Update:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": 16, "dropout": 0.0}
    made = build(recipe.Model.model_validate(shape), Vocabulary(12, 12)).double()
    return Update(made, build_optimizer(made, SETTINGS), SETTINGS, torch.float32)


def found(one: Update, batches: list[Batch]) -> list[Tensor]:
    loss, norm, _, _ = one(batches)
    assert float(one.skip) == 0.0
    return [loss, norm, *(p.grad for p in one.network.parameters() if p.grad is not None)]


class Full(torch.autograd.Function):
    """Passes values on; on the way back there is no memory left."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:  # type: ignore[override]
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], list[int]]:
    """Let no batch of more than so many rows through, forwards or in the middle of backwards."""

    def limit(rows: int, way: str) -> list[int]:
        real = EncoderDecoder.loss
        encode = EncoderDecoder.encode
        tried: list[int] = []

        def encoding(self: EncoderDecoder, source_BS: Tensor, *rest: Tensor) -> object:
            memory = encode(self, source_BS, *rest)
            if len(source_BS) > rows and way == "backwards":
                memory.states_BSD = Full.apply(memory.states_BSD)
            return memory

        def loss(self: EncoderDecoder, source_BS: Tensor, *rest: Tensor) -> Loss:
            tried.append(len(source_BS))
            if len(source_BS) > rows and way == "forwards":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return real(self, source_BS, *rest)

        monkeypatch.setattr(EncoderDecoder, "loss", loss)
        monkeypatch.setattr(EncoderDecoder, "encode", encoding)
        return tried

    return limit


@pytest.mark.parametrize("way", ["forwards", "backwards"])
@pytest.mark.parametrize("rows", [5, 3, 1])
def test_halves_give_the_gradient_of_the_whole(
    limited: Callable[[int, str], list[int]], way: str, rows: int
) -> None:
    batches = [batch(0, 3), batch(), batch(5, 2, 1)]
    expected = found(update(), batches)
    tried = limited(rows, way)
    one = update()
    for mine, theirs in zip(found(one, batches), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert max(tried) == 8
    assert one.splitter.split
    assert not one.splitter.left_out


def test_as_large_batches_are_split_beforehand(limited: Callable[[int, str], list[int]]) -> None:
    tried = limited(4, "forwards")
    one = update()
    one([batch()])
    assert tried == [8, 4, 4]
    one.zero_gradients()
    tried.clear()
    one([batch(), batch(0, 1)])
    assert tried == [4, 4, 2]
    split, left_out = one.splitter.take_counts()
    assert [len(whole) for whole in split] == [8, 8]
    assert not left_out
    assert one.splitter.take_counts() == ([], [])


def test_a_pair_that_never_fits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is divided by its own number of tokens, as if the pair were not in the corpus."""
    expected = found(update(), [batch(0, 1, 3, 4), batch(5)])
    real = EncoderDecoder.loss

    def loss(self: EncoderDecoder, source_BS: Tensor, *rest: Tensor) -> Loss:
        if source_BS.shape[1] > 6:
            raise MemoryError
        return real(self, source_BS, *rest)

    monkeypatch.setattr(EncoderDecoder, "loss", loss)
    one = update()
    for mine, theirs in zip(found(one, [batch(0, 1, 2, 3, 4), batch(5)]), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert [pair.lines for pair in one.splitter.left_out] == [[3]]


def test_an_update_of_nothing_changes_nothing(limited: Callable[[int, str], list[int]]) -> None:
    limited(0, "forwards")
    one = update()
    before = [p.detach().clone() for p in one.network.parameters()]
    loss, _, _, _ = one([batch(0, 1)])
    one.apply()
    assert float(one.skip) == 1.0
    assert not torch.isfinite(loss)
    assert all(torch.equal(p, q) for p, q in zip(one.network.parameters(), before, strict=True))
    assert sorted(pair.lines[0] for pair in one.splitter.left_out) == [1, 2]


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(*_: object) -> Loss:
        raise RuntimeError("expected scalar type Float but found Half")

    monkeypatch.setattr(EncoderDecoder, "loss", loss)
    with pytest.raises(RuntimeError, match="scalar type"):
        update()([batch()])


def test_how_memory_errors_are_told_apart() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)  # as the CPU's allocator itself puts it
    assert out_of_memory(caught.value)
    assert out_of_memory(MemoryError())
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not out_of_memory(ValueError("out of memory"))
    closing = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert not out_of_memory(closing)
    closing.__context__ = torch.OutOfMemoryError("CUDA out of memory.")
    assert out_of_memory(closing)


def test_the_limit_is_the_smallest_that_failed() -> None:
    splitter = BatchSplitter()
    whole, half = batch(), batch(0, 1, 2, 3)
    splitter.failed(whole)
    assert splitter.limit == size(whole)
    assert [len(piece) for piece in splitter.failed(half)] == [2, 2]
    assert splitter.limit == size(half)
    splitter.failed(batch(6))
    assert splitter.limit == size(half)  # a single pair sets none
    assert all(size(piece) < size(half) for piece in splitter.split_in_advance([whole]))
