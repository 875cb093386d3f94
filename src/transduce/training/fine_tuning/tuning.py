"""What a run trains of a model: all of it, all but frozen parts, or an adapter beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transduce.adapters import AdaptedNetwork, AdapterState, adaptable
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TrainingError
from transduce.models import TrainableNetwork
from transduce.models.weights import no_weights, set_weights, weights_of
from transduce.recipe import Recipe
from transduce.recipe import Tokens as TokensSection
from transduce.tasks.adapter_folder import base_of, is_adapter, read_adapter, write_adapter
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.model import Model
from transduce.tasks.transduce import kind_of
from transduce.terminal import aligned
from transduce.training.fine_tuning.load import load_start
from transduce.training.fine_tuning.patterns import freeze, matching, names_of, rate_factors
from transduce.training.fine_tuning.start import StartModel


class Tuning:
    """The network that is trained, and how its weights become those of the model.

    Without train.start it is the model's own network, and nothing here does anything.
    """

    def __init__(self, model: Model, start: StartModel | None) -> None:
        """start: None without train.start, and to resume: a checkpoint has all weights."""
        self.model, settings = model, model.recipe.train
        self.metadata: dict[str, Any] = {}
        if start is not None:
            text = load_start(model, start)
            self.metadata = text.metadata(start)
            if settings.adapter is not None:
                _check_whole(start, text.left_out)
        self.adapted: AdaptedNetwork | None = None
        if settings.adapter is not None:
            self.adapted = _with_adapter(model)
        else:
            freeze(model.network, settings)
        self._merged: AdapterState | None = None
        self._own: dict[str, Tensor] = {}
        self.factors = rate_factors(self.network, settings)

    @property
    def network(self) -> TrainableNetwork:
        """The network to train."""
        return self.model.network if self.adapted is None else self.adapted

    # --------------------------------------------------------------------------- messages

    def rows(self) -> list[Row]:
        """The table of parts; empty without train.start."""
        return table(self.network, self.metadata, self.factors) if self.metadata else []

    def about(self) -> list[str]:
        return lines(self.rows(), self.metadata) if self.metadata else []

    def report(self) -> dict[str, Any]:
        """What metrics.json and the model card say of it."""
        if not self.metadata:
            return {}
        kept = {key: self.metadata[key] for key in ("from", "name", "fingerprint")}
        adapter = self.model.recipe.train.adapter
        kind = {} if adapter is None else {"adapter": adapter.kind}
        trained = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        rows = [row._asdict() for row in self.rows()]
        return {"start": {**kept, **kind, "trained_parameters": trained, "parts": rows}}

    # ------------------------------------------------------------ an adapter, in the model

    def merge(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Merge the adapter into the model's weights, to decode and to save; with weights of the
        trained network, such as their moving average, by these.
        """
        if self.adapted is None:
            return
        whole = None if weights is None else {**weights_of(self.adapted), **weights}
        state = self.adapted.state(whole)
        self._merged = deepcopy(state)  # training goes on to change these very tensors
        self._merge(state)

    def _merge(self, state: AdapterState) -> None:
        network = self.model.network
        own = dict(network.named_parameters())
        merged = state.merged(weights_of(network), adaptable(network))
        self._own = {name: own[name].detach().clone() for name in merged}
        _put(own, merged)
        self.model._weights_changed()

    def unmerge(self) -> None:
        """Undo `merge`: the model beneath the adapter has its own weights again, bit for bit."""
        if self._own:
            _put(dict(self.model.network.named_parameters()), self._own)
            self._own = {}
            self.model._weights_changed()

    def kept(self, weights: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """What a checkpoint for averaging holds: the model's weights, of an adapter its own."""
        if self.adapted is None:
            return weights_of(self.model.network)
        found = weights_of(self.adapted) if weights is None else dict(weights)
        free = {name for name, p in self.adapted.named_parameters() if p.requires_grad}
        return {name: value for name, value in found.items() if name in free}

    def load_mean(self, mean: dict[str, Tensor], folder: Path) -> None:
        """Put the mean of kept checkpoints into the model."""
        if self.adapted is None:
            set_weights(self.model.network, mean, folder)
        else:
            device = self.model.device
            self.merge({name: value.to(device) for name, value in mean.items()})

    def load_best(self, folder: Path) -> None:
        """Put the best weights, those in the folder, into the model, to stay there."""
        self.unmerge()
        if self.adapted is None:
            self.model.load_weights(folder / WEIGHTS)
            return
        self._merge(read_adapter(folder).state)
        self._own = {}

    def save_weights(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Write the model's weights, or the adapter's that was shown last."""
        if self.adapted is None:
            self.model.save_weights(folder, metadata)
            return
        assert self._merged is not None
        base = base_of(folder, Path(self.metadata["folder"]), self.metadata["fingerprint"])
        write_adapter(folder, self._merged, base, {**self.model.metadata(), **metadata})


def check_patterns(recipe: Recipe) -> None:
    """Raise TrainingError for a pattern that names no parameter, before any work.

    The network is built on the meta device, with a vocabulary of bytes: only names matter.
    """
    tokens = Tokens.train(TokensSection(level="byte"), [])
    with no_weights():
        network = kind_of(recipe).build(recipe, tokens, tokens)
    names, start, adapter = names_of(network), recipe.train.start, recipe.train.adapter
    if start is not None:
        parts = [part.partition("=")[0] for part in start.parts or []]
        matching(names, parts, "train.start.parts")
        matching(names, start.freeze, "train.start.freeze")
    if adapter is not None:
        targets = {name: [name] for name in adaptable(network)}
        matching(targets, adapter.parts, "train.adapter.parts")
        matching(names, adapter.unfreeze, "train.adapter.unfreeze")
    elif start is not None:
        rate_factors(network, recipe.train)


def _with_adapter(model: Model) -> AdaptedNetwork:
    settings = model.recipe.train.adapter
    assert settings is not None
    targets = adaptable(model.network)
    if not targets:
        raise TrainingError(
            "train.adapter: this network has no linear layers that take an adapter; fine-tune it "
            "with train.start alone"
        )
    chosen = matching({name: [name] for name in targets}, settings.parts, "train.adapter.parts")
    whole = matching(names_of(model.network), settings.unfreeze, "train.adapter.unfreeze")
    return AdaptedNetwork(
        model.network,
        [targets[name] for name in chosen],
        rank=settings.rank,
        alpha=settings.alpha,
        magnitude=settings.kind == "dora",
        dropout=settings.dropout,
        whole=whole,
    )


def _check_whole(start: StartModel, left_out: Mapping[str, str]) -> None:
    """Raise TrainingError where the model beneath an adapter is not the start model as it is."""
    if is_adapter(start.folder):
        raise TrainingError(
            f"{start.folder} is an adapter itself; merge it first (`transduce merge "
            f"{start.folder} --output FOLDER`) and start from that folder"
        )
    for name, why in left_out.items():
        raise TrainingError(
            f"an adapter needs the network of {start.folder} as it is, but {name} differs ({why}); "
            f"leave out the model section of the recipe"
        )


@torch.no_grad()
def _put(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        own[name].copy_(value)


# ----------------------------------------------------------------------------------------------
# What fine-tuning starts from and what it trains, as a short table.

HEAD = ("part", "parameters", "loaded", "trained")


class Row(NamedTuple):
    part: str
    parameters: str
    loaded: str
    trained: str


def part_of(name: str) -> str:
    """The part that a parameter is shown with."""
    if name.startswith("low_rank."):
        return "adapter"
    plain = name.removeprefix("network.")
    top = plain.split(".")[0]
    return "decoder.embedding" if plain.startswith("decoder.embedding.") else top


def table(
    network: nn.Module, metadata: Mapping[str, Any], factors: Mapping[str, float]
) -> list[Row]:
    """A row for each part: how much of it was loaded, and how it is trained."""
    parts: dict[str, list[tuple[str, nn.Parameter]]] = {}
    names = names_of(network)
    for name, parameter in network.named_parameters():
        tied = dict.fromkeys(part_of(one) for one in names[name])  # "front = head": one table
        parts.setdefault(" = ".join(tied), []).append((name, parameter))
    rows = []
    for part, members in parts.items():
        count = sum(parameter.numel() for _, parameter in members)
        plain = [name.removeprefix("network.") for name, _ in members]
        loaded = "new" if part == "adapter" else _loaded(plain, metadata)
        rows.append(Row(part, f"{count:,}", loaded, _trained(members, factors)))
    return rows


def _loaded(names: Sequence[str], metadata: Mapping[str, Any]) -> str:
    found = [name for name in names if name in metadata["loaded"]]
    notes = [metadata["loaded"][name] for name in found if metadata["loaded"][name]]
    reasons = [metadata["left_out"][name] for name in names if name in metadata["left_out"]]
    text = dict.fromkeys([*_short(notes), *_short(reasons)])
    many = "all" if len(found) == len(names) else f"{len(found)} of {len(names)} tensors"
    if not found:
        many = "nothing"
    return f"{many} ({'; '.join(text)})" if text else many


def _short(notes: Sequence[str]) -> list[str]:
    """The first of the notes; where parameters come from other parts, these alone."""
    plain = [f"from {part_of(n.removeprefix('from '))}" if n[:5] == "from " else n for n in notes]
    return list(dict.fromkeys(plain))[:1]


def _trained(members: Sequence[tuple[str, nn.Parameter]], factors: Mapping[str, float]) -> str:
    free = [name for name, parameter in members if parameter.requires_grad]
    if not free:
        return "frozen"
    rates = sorted({factors.get(name, 1.0) for name in free})
    text = [] if rates == [1.0] else [f"learning rate x {', '.join(f'{r:g}' for r in rates)}"]
    if len(free) < len(members):
        text.insert(0, f"{len(free)} of {len(members)} tensors")
    return "; ".join(text) or "yes"


def lines(rows: Sequence[Row], metadata: Mapping[str, Any]) -> list[str]:
    """The table as text, with what the start model has besides."""
    text = [f"Starting from {metadata['from']} (fingerprint {metadata['fingerprint'][:12]}):"]
    text += [f"  {row}" for row in aligned([HEAD, *rows], (True, False, True, True))]
    unused = list(dict.fromkeys(part_of(name) for name in metadata["unused"]))
    if unused:
        text.append(f"  not used of the start model: {', '.join(unused)}")
    return text
