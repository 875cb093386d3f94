"""Weights of other toolkits, put into our modules: shapes are checked, and nothing is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.transformer import FeedForward


class Linear(NamedTuple):
    """A weight [out, in] and a bias; None: there is none."""

    weight: Tensor
    bias: Tensor | None = None


class Weights:
    """Tensors by name; each one that is asked for is ticked off."""

    def __init__(self, tensors: Mapping[str, Tensor], where: object) -> None:
        self._tensors, self._where, self._used = tensors, where, set[str]()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterable[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> Tensor:
        """In float32. Raises ModelError where it is missing."""
        if name not in self._tensors:
            raise ModelError(f"{self._where} has no {name}, which a model of its kind needs")
        self._used.add(name)
        return self._tensors[name].float()

    @property
    def size(self) -> int:
        """The bytes of all of them, as they are stored."""
        return byte_count(self._tensors)

    def linear(self, name: str) -> Linear:
        """`name`.weight, and `name`.bias where there is one."""
        return Linear(self[f"{name}.weight"], self.get(f"{name}.bias"))

    def get(self, name: str) -> Tensor | None:
        """None where there is none."""
        return self[name] if name in self else None  # noqa: SIM401

    def ignore(self, *names: str) -> None:
        """What is there for nothing, such as a mask."""
        self._used.update(name for name in names if name in self._tensors)

    def check_all_used(self) -> None:
        """Raise ModelError where something has not been used: the model is of another kind."""
        left = sorted(set(self._tensors) - self._used)
        if left:
            raise ModelError(
                f"{self._where} has {left[0]} ({len(left)} such weights), which transduce has no "
                f"place for, so it would be another model"
            )


def byte_count(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@torch.no_grad()
def fill(parameter: Tensor, values: Tensor, what: str) -> None:
    """Copy values into a parameter of the same shape. Raises ModelError for another shape."""
    if parameter.shape != values.shape:
        raise ModelError(f"{what} is {list(values.shape)}, and not {list(parameter.shape)}")
    parameter.copy_(values)


def fill_linear(layer: nn.Linear, linear: Linear, what: str) -> None:
    """A missing bias is zeros."""
    fill(layer.weight, linear.weight, f"the weight of {what}")
    bias = layer.bias.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
    fill(layer.bias, bias, f"the bias of {what}")


def fill_norm(norm: nn.Module, linear: Linear, what: str) -> None:
    """LayerNorm or RMSNorm, which has no bias."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    fill(norm.weight, linear.weight, f"the weight of {what}")
    if isinstance(norm, nn.LayerNorm):
        bias = torch.zeros_like(norm.weight) if linear.bias is None else linear.bias
        fill(norm.bias, bias, f"the bias of {what}")
    elif linear.bias is not None:
        raise ModelError(f"{what} is an RMSNorm with a bias, which transduce has not")


def fill_attention(
    attention: MultiHeadAttention, into: Iterable[Linear], out_of: Linear, what: str
) -> None:
    """`into`: queries, keys and values, apart or together."""
    fill_linear(attention.in_projection, joined(into), what)
    fill_linear(attention.out_projection, out_of, f"the output of {what}")


def fill_feed_forward(
    layer: FeedForward, into: Iterable[Linear], out_of: Linear, what: str
) -> None:
    """`into`: of a gated layer the gate, then the value."""
    parts = list(into)
    if len(parts) != 1 + ACTIVATIONS[layer.activation].gated:
        raise ModelError(f"{what} has {len(parts)} products, which do not fit {layer.activation}")
    fill_linear(layer.expand, joined(parts), what)
    fill_linear(layer.contract, out_of, f"the output of {what}")


def joined(parts: Iterable[Linear]) -> Linear:
    """One below the other; a missing bias is zeros."""
    some = list(parts)
    if all(part.bias is None for part in some):
        return Linear(torch.cat([part.weight for part in some]))
    biases = [
        part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in some
    ]
    return Linear(torch.cat([part.weight for part in some]), torch.cat(biases))


def halves_to_pairs(linear: Linear, heads: int) -> Linear:
    """Rows of queries or keys for rotary positions: theirs pair feature i of a head with i + K/2,
    ours are neighbours.
    """
    width = len(linear.weight) // heads
    order = torch.arange(width).view(2, -1).t().flatten()
    rows = (torch.arange(heads)[:, None] * width + order).flatten()
    return Linear(linear.weight[rows], None if linear.bias is None else linear.bias[rows])


def repeated_heads(linear: Linear, heads: int, times: int) -> Linear:
    """Keys or values that groups of query heads share, repeated for each head of a group."""

    def repeat(x: Tensor) -> Tensor:
        return x.view(heads, -1, *x.shape[1:]).repeat_interleave(times, dim=0).flatten(0, 1)

    return Linear(repeat(linear.weight), None if linear.bias is None else repeat(linear.bias))
