"""Heads removed for good: a model whose projections are smaller."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.inspection.ablation.measure import Head, heads_of
from transduce.inspection.model_card import write_card
from transduce.models.lens import attentions
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.recipe import ConformerEncoder, Recipe, TransformerDecoder, TransformerEncoder
from transduce.storage import replaced_folder
from transduce.tasks.folder import WEIGHTS, holds_run, update_metrics
from transduce.tasks.transduce import Model

ROUNDS = 3
TIMED = 100  # sources


def pruned(model: Model, off: Collection[Head]) -> Model:
    """The model without these heads: rows of its queries, keys and values and columns of its output
    projections are gone. What it computes is what the model computes with these heads off.

    Every attention must keep a head. Raises ModelError otherwise.
    """
    if model.changed or model.engine is not None:
        raise ModelError("a network that was changed in Python, or is exported, cannot be pruned")
    kept = _kept(model, off)
    recipe = _pruned_recipe(model, kept)
    smaller = type(model).create(recipe, model.source_tokens, model.target_tokens)
    weights = dict(model.network.state_dict())
    for name, heads in kept.items():
        part = attentions(model.network)[name]
        assert isinstance(part, MultiHeadAttention)
        _cut(weights, name, part, heads)
    smaller.network.load_state_dict(weights)
    smaller.set_metadata(model.metadata())
    smaller.network.train(model.network.training)
    return smaller.to(model.device).compute_in(model.precision)


def _kept(model: Model, off: Collection[Head]) -> dict[str, list[int]]:
    gone = set(off)
    kept: dict[str, list[int]] = {}
    for head in heads_of(model):
        kept.setdefault(head.part, [])
        if head not in gone:
            kept[head.part].append(head.head)
    for name, heads in kept.items():
        if not heads:
            raise ModelError(f"{name} would have no head left: keep one of each attention")
    return kept


def _pruned_recipe(model: Model, kept: dict[str, list[int]]) -> Recipe:
    """The recipe with the heads that each layer has left, where some are gone."""
    parts = {}
    for side in ("encoder", "decoder"):
        part = model.recipe.model.parts.get(side)
        if not isinstance(part, TransformerEncoder | ConformerEncoder | TransformerDecoder):
            continue
        changed = {}
        for key, attention in (
            ("layer_heads", "self_attention"),
            ("cross_heads", "cross_attention"),
        ):
            names = [f"{side}.blocks.{layer}.{attention}" for layer in range(part.layers)]
            counts = [len(kept[name]) for name in names if name in kept]
            if len(counts) == part.layers and counts != [part.heads] * part.layers:
                changed[key] = counts
        parts[side] = part.model_copy(update=changed)
    shape = model.recipe.model.model_copy(update=parts)
    return model.recipe.model_copy(update={"model": shape})


def _cut(
    weights: dict[str, Tensor], name: str, part: MultiHeadAttention, heads: Sequence[int]
) -> None:
    """Of an attention, what belongs to the heads that stay."""
    if part.relative is not None and len(heads) < part.heads:
        raise ModelError(
            "heads cannot be pruned where positions are relative: all layers share a bias for each "
            "head"
        )
    K = part.head_width
    columns = torch.cat([torch.arange(head * K, (head + 1) * K) for head in heads])
    rows = torch.cat([columns + third * part.inner for third in range(3)])
    device = part.out_projection.weight.device
    chosen = {
        "in_projection.weight": (0, rows),
        "in_projection.bias": (0, rows),
        "out_projection.weight": (1, columns),
        "distance_projection.weight": (0, columns),
        "content_bias_HK": (0, torch.tensor(heads)),
        "distance_bias_HK": (0, torch.tensor(heads)),
    }
    for key, (dimension, index) in chosen.items():
        whole = f"{name}.{key}"
        if whole in weights:
            weights[whole] = weights[whole].index_select(dimension, index.to(device))


@dataclass(frozen=True)
class Saved:
    """A pruned model beside the one that it was made from."""

    parameters: tuple[int, int]
    bytes: tuple[int, int]
    seconds: tuple[float, float]
    """To run the same sources, the fastest of several rounds."""
    sources: int


def save_pruned(
    model: Model, folder: Path, off: Collection[Head], sources: Sequence[str], output: Path
) -> Saved:
    """Write the pruned model into a folder of its own, and measure both."""
    if output.exists() and (holds_run(output) or any(output.iterdir())):
        raise ModelError(f"{output} is not empty: give another --output for the pruned model")
    smaller = pruned(model, off)
    with replaced_folder(output) as new:
        smaller.save(new)
    some = list(sources[:TIMED])
    seconds = _fastest([model, smaller], some)
    found = Saved(
        (_parameters(model), _parameters(smaller)),
        ((folder / WEIGHTS).stat().st_size, (output / WEIGHTS).stat().st_size),
        (seconds[0], seconds[1]),
        len(some),
    )
    update_metrics(
        output,
        "pruning",
        {
            "from": str(folder.resolve()),
            "removed": [[head.part, head.head] for head in sorted(off)],
            "parameters": list(found.parameters),
            "bytes": list(found.bytes),
            "seconds": [round(one, 4) for one in found.seconds],
            "sources": found.sources,
        },
    )
    write_card(smaller, output)
    return found


def _fastest(models: Sequence[Model], sources: list[str]) -> list[float]:
    """Seconds of each for all sources, by turns: what else the machine does hits all alike."""
    best = [float("inf")] * len(models)
    for round_number in range(ROUNDS + 1):
        for place, model in enumerate(models):
            start = time.perf_counter()
            model.run(sources)
            if round_number:  # the first warms up
                best[place] = min(best[place], time.perf_counter() - start)
    return best


def _parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())
