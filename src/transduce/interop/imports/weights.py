"""What readers of several formats share: vocabularies, weights, and a model before its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError, RecipeError
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.transformer import Block, DecoderBlock, EncoderBlock
from transduce.recipe import Recipe, read_recipe
from transduce.tasks.model import Model
from transduce.tasks.model_size import check_weights
from transduce.tasks.transduce import create, kind_of

# ----------------------------------------------------------------------------------------------
# Vocabularies of other toolkits in our order: the four special tokens first.

BANNED_BIAS = -1e9  # the bias of a token that is never written: its probability is 0


@dataclass(frozen=True)
class Layout:
    """Which of their rows each of our tokens has; None where they have none."""

    rows: tuple[int | None, ...]
    names: tuple[str, ...]
    """Of our tokens after the special ones."""
    size: int
    """How many rows they have."""
    unwritten: frozenset[int]
    """Our tokens that are copies or new, and so are never written."""

    def embeddings(self, table_VD: Tensor) -> Tensor:
        """Their rows in our order; zeros where they have none."""
        padded_VD = torch.cat([table_VD, table_VD.new_zeros(1, table_VD.shape[1])])
        return padded_VD[self._places(len(table_VD))]

    def bias(self, bias_V: Tensor) -> Tensor:
        """Of the output layer: what is never written has the probability 0."""
        found_V = torch.cat([bias_V, bias_V.new_zeros(1)])[self._places(len(bias_V))]
        found_V[list(self.unwritten)] = BANNED_BIAS
        return found_V

    def _places(self, missing: int) -> Tensor:
        return torch.tensor([missing if row is None else row for row in self.rows])


def arrange(names: Sequence[str], specials: Sequence[str | None]) -> Layout:
    """A vocabulary in our order; `specials` are their names of PAD, UNKNOWN, BEGIN and END.

    A special token that they have not, or use for two things (as a BEGIN that is their END), gets
    a row of its own, which is never written.
    """
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        first.setdefault(name, row)
    found = [None if name is None else first.get(name) for name in specials]
    owner: dict[int, int] = {}
    for special in (END, UNKNOWN, PAD, BEGIN):  # which of two keeps a row
        place = found[special]
        if place is not None:
            owner.setdefault(place, special)
    kept = set(owner.values())
    others = [row for row in range(len(names)) if row not in owner]
    used, fresh = set(SPECIALS), []
    for row in others:
        name = names[row]
        while name in used:
            name += "_"  # such as an <s> that begins nothing
        used.add(name)
        fresh.append(name)
    unwritten = frozenset(range(len(SPECIALS))) - kept
    return Layout((*found, *others), tuple(fresh), len(names), unwritten)


# ----------------------------------------------------------------------------------------------
# Weights of other toolkits, put into our modules: shapes are checked, and nothing is left out.


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


class Parts(NamedTuple):
    """The weights of a sublayer: its products, as many as there are, and its norm."""

    into: Sequence[Linear]
    """Queries, keys and values, apart or together; of a gated layer the gate, then the value."""
    out_of: Linear
    norm: Linear


def fill_block(block: Block, parts: Callable[[str], Parts], what: str) -> None:
    """Fill each sublayer: self_attention, cross_attention, feed_forward."""
    assert isinstance(block, EncoderBlock | DecoderBlock)
    for sublayer in block.sublayers:
        into, out_of, norm = parts(sublayer.kind)
        where = f"{what}, {sublayer.kind}"
        if sublayer.kind == "feed_forward":
            layer = sublayer.feed_forward
            if len(into) != 1 + ACTIVATIONS[layer.activation].gated:
                raise ModelError(
                    f"{where} has {len(into)} products, which do not fit {layer.activation}"
                )
            first, last = layer.expand, layer.contract
        else:
            first, last = sublayer.attention.in_projection, sublayer.attention.out_projection
        fill_linear(first, joined(into), where)
        fill_linear(last, out_of, f"the output of {where}")
        fill_norm(sublayer.residual.norm, norm, f"the norm of {where}")


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


# ----------------------------------------------------------------------------------------------
# An imported model before its weights: its recipe, which says nothing of how it was trained, and
# its network, whose size is compared with that of the weights before it is made.

# Corpora that are valid for any task and are not there: to train further, name others.
NO_DATA = {split: {"name": "any", "split": split} for split in ("train", "valid")}


def imported_recipe(
    name: str,
    model: Mapping[str, Any],
    tokens: tuple[Tokens, Tokens],
    *,
    task: str = "transduce",
    max_length: int | None = None,
    **sections: Any,
) -> Recipe:
    """A recipe with this `model` section and further `sections`.

    Raises ModelError where the sizes do not fit together: then the files are damaged.
    """
    source, target = tokens
    sides = {"both": _tokens(target)} if source is target else None
    sides = sides or {"source": _tokens(source), "target": _tokens(target)}
    data: dict[str, Any] = {**NO_DATA, "tokens": sides}
    if max_length is not None:
        data["max_length"] = max_length
    whole = {"name": _plain(name), "task": task, "data": data, "model": dict(model), **sections}
    try:
        return read_recipe(whole)
    except RecipeError as error:
        raise ModelError(f"the settings of {name} do not fit together: {error}") from None


def create_model(recipe: Recipe, tokens: tuple[Tokens, Tokens], size: int, where: object) -> Model:
    """The model of a recipe, still without the weights that were read, which are `size` bytes.

    Raises ModelError where the recipe is of a model far larger than these weights, or than memory.
    """
    check_weights(kind_of(recipe), recipe, *tokens, size, of=f"the configuration of {where}")
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced
        return create(recipe, *tokens)


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"level": tokens.level, "size": max(len(tokens), 1)}


def _plain(name: str) -> str:
    """A name that can be one of a run."""
    kept = "".join(sign for sign in name if sign.isprintable() and sign not in "/\\").strip(" .")
    return kept or "imported"
