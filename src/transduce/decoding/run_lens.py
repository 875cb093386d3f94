"""A lens around runs: what a model computed for each output that it returned, with labels.

Search drops, copies and reorders its hypotheses, and on a CPU or a GPU works on packed copies that
have nothing to show. So it is left alone. Its outputs are then given to the network in one pass,
which computes again what led to them; to look changes no output and slows no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from html import escape
from typing import Self

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.lens import Gates, Part, is_to_source, matches, parts_of, side_of

TOP = 5

Numbers = NDArray[np.float32]
Readings = dict[str, Numbers]
"""By the name of a part: [heads, queries, keys], or [positions, width]."""


@dataclass(frozen=True)
class NextTokens:
    """What else might have come at each step: the likeliest tokens, the likeliest first."""

    tokens: list[list[str]]
    ids: NDArray[np.int64]
    """[steps, top]"""
    probabilities: Numbers
    """[steps, top]"""
    entropy: Numbers
    """[steps], in nats: 0 where only one token is possible."""


@dataclass(frozen=True)
class Labels:
    """What the positions of one output are called."""

    source_tokens: list[str]
    """As the encoder reads them, END included; empty where the source is audio."""
    target_tokens: list[str]
    """What was predicted, step by step; of a language model the prompt too, of labels the label."""
    prefix_tokens: list[str] = field(default_factory=list)
    """What the decoder read at each step: one token later than `target_tokens`."""
    source_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Of audio: the second of the recording at which each position of the source begins."""


@dataclass(frozen=True)
class LensEntry:
    """One output that a model returned, and what it computed for it."""

    source: str
    output: Output
    weights: Readings
    """Attention by the name of its part: [heads, queries, keys]."""
    states: Readings = field(default_factory=dict)
    """Hidden vectors by the name of their part: [positions, width]."""
    gates: Readings = field(default_factory=dict)
    """Of recurrent cells, from 0 to 1: [positions, width]; how much was copied: [steps, 1]."""
    logits: Numbers | None = None
    """[steps, vocabulary], where they were asked for."""
    next_tokens: NextTokens | None = None
    """Where next_token was asked for."""
    named: Labels = field(default_factory=lambda: Labels([], []))

    def __getitem__(self, name: str) -> Numbers:
        """What was recorded of a part, whatever its kind."""
        for found in (self.weights, self.states, self.gates):
            if name in found:
                return found[name]
        raise KeyError(name)

    @property
    def source_tokens(self) -> list[str]:
        return self.named.source_tokens

    @property
    def target_tokens(self) -> list[str]:
        return self.named.target_tokens

    @property
    def prefix_tokens(self) -> list[str]:
        return self.named.prefix_tokens

    @property
    def times(self) -> list[float]:
        return self.named.times

    def labels(self, name: str) -> tuple[list[str], list[str]]:
        """What the rows of a part's numbers are of, and where it is attention its columns.

        A row of the decoder is the step that predicts a token; it attends to source tokens, or to
        what the decoder has read. Positions of audio are called by their times.
        """
        source = self.source_tokens or [f"{second:.2f}" for second in self.times]
        rows = source if side_of(name) == "source" else self.target_tokens
        if name not in self.weights:
            return rows, []
        if side_of(name) == "source" or is_to_source(name):
            return rows, source
        return rows, self.prefix_tokens

    def _repr_html_(self) -> str:
        return entry_table(self)


_ACTIVE: ContextVar[tuple[RunLens, ...]] = ContextVar("lenses", default=())
"""The lenses that this thread, or asyncio task, has entered."""


def lenses_on(model: object) -> list[RunLens]:
    """The lenses on a model that this thread has entered."""
    return [lens for lens in _ACTIVE.get() if lens.model is model]


class RunLens(Gates):
    """Collects, while it is entered, what each `run` and `score` of a model computes in its thread.

        with model.lens("decoder.*.cross") as seen:
            model.run(sources, beam=5)
        seen[0].weights["decoder.blocks.0.cross_attention"]     # [heads, target, source]

    An entry for each output, source by source, in the order of the sources; of several hypotheses
    of one source (nbest) the best first. A source that nothing was written for has none. Gates that
    are set on it act until it is left.
    """

    def __init__(
        self,
        model: object,
        network: TrainableNetwork,
        patterns: Sequence[str],
        heads: Sequence[int] | None = None,
        top: int = TOP,
    ) -> None:
        """`network` is that of the model."""
        super().__init__(network)
        there = parts_of(network)
        if patterns:
            self.parts = [part for part in there if matches(part.name, patterns)]
        else:
            self.parts = [part for part in there if part.kind == "attention"]
        if not self.parts:
            raise ModelError(_nothing_called(patterns, there))
        for part in self.parts:
            if heads is not None and part.kind == "attention":
                _check_heads(part, heads)
        if top < 1:
            raise ModelError(f"top is {top}; it must be 1 or more")
        self.heads = None if heads is None else list(heads)
        self.top = top
        self.entries: list[LensEntry] = []
        self.model = model

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.parts]

    def add(
        self,
        source: str,
        output: Output,
        found: Readings,
        next_tokens: NextTokens | None,
        of: Labels,
    ) -> None:
        """What was read for one output, of the parts that any lens asked for."""
        kinds: dict[str, Readings] = {"attention": {}, "state": {}, "gate": {}, "logits": {}}
        for part in self.parts:
            if part.name in found:
                kinds[part.kind][part.name] = found[part.name]
        weights = kinds["attention"]
        if self.heads is not None:
            weights = {name: numbers_HTS[self.heads] for name, numbers_HTS in weights.items()}
        if next_tokens is not None:
            next_tokens = None if "next_token" not in self.names else _top(next_tokens, self.top)
        logits = kinds["logits"].get("logits")
        self.entries.append(
            LensEntry(
                source, output, weights, kinds["state"], kinds["gate"], logits, next_tokens, of
            )
        )

    def __enter__(self) -> Self:
        self.entries.clear()
        _ACTIVE.set((*_ACTIVE.get(), self))
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        _ACTIVE.set(tuple(lens for lens in _ACTIVE.get() if lens is not self))
        super().__exit__()

    def __getitem__(self, index: int) -> LensEntry:
        return self.entries[index]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[LensEntry]:
        return iter(self.entries)

    def _repr_html_(self) -> str:
        return entries_table(self.entries)


def _top(found: NextTokens, top: int) -> NextTokens:
    tokens = [row[:top] for row in found.tokens]
    return NextTokens(tokens, found.ids[:, :top], found.probabilities[:, :top], found.entropy)


def _check_heads(part: Part, heads: Sequence[int]) -> None:
    there = part.shape[0]
    assert isinstance(there, int)
    for head in heads:
        if not 0 <= head < there:
            raise ModelError(f"{part.name} has the heads 0 to {there - 1}, and none is {head}")


def _nothing_called(patterns: Sequence[str], there: Sequence[Part]) -> str:
    if not patterns:
        names = ", ".join(part.name for part in there)
        return f"the model has no attention; a pattern can name other parts: {names}"
    names = ", ".join(part.name for part in there if part.kind == "attention")
    return (
        f"no part is called {' or '.join(patterns)}; the model has the attention parts "
        f"{names or '(none)'}, and model.parts() lists all parts"
    )


# -------------------------------------------------------------------------------------- as a table


MAX_ROWS, MAX_COLUMNS, MAX_PARTS, MAX_ENTRIES = 40, 60, 6, 5


def entries_table(entries: Iterable[LensEntry]) -> str:
    """The first few entries."""
    seen = list(entries)
    shown = "".join(entry_table(entry) for entry in seen[:MAX_ENTRIES])
    return shown + _rest(len(seen), MAX_ENTRIES, "entries")


def entry_table(entry: LensEntry) -> str:
    """Attention of each part, the mean over its heads; of other parts, their shapes."""
    parts = [f"<p><b>{escape(entry.source)}</b> → <b>{escape(entry.output.text)}</b></p>"]
    for name in list(entry.weights)[:MAX_PARTS]:
        parts.append(_attention(entry, name))
    parts.append(_rest(len(entry.weights), MAX_PARTS, "attention parts"))
    for found in (entry.states, entry.gates):
        for name, numbers in list(found.items())[:MAX_PARTS]:
            parts.append(f"<p>{escape(name)}: {' × '.join(map(str, numbers.shape))}</p>")
        parts.append(_rest(len(found), MAX_PARTS, "parts"))
    return "<div>" + "".join(parts) + "</div>"


def _attention(entry: LensEntry, name: str) -> str:
    weights_TS = entry.weights[name].mean(axis=0, dtype=np.float64)
    rows, columns = entry.labels(name)
    cell = "padding: 2px 4px; font-weight: normal"
    heads = "".join(f'<th style="{cell}">{escape(column)}</th>' for column in columns[:MAX_COLUMNS])
    body = []
    for label, weights_S in zip(rows[:MAX_ROWS], weights_TS, strict=False):
        shades = "".join(
            f'<td title="{weight:.3f}" style="background: rgba(31, 119, 180, {weight:.3f})"></td>'
            for weight in weights_S[:MAX_COLUMNS]
        )
        body.append(f'<tr><th style="{cell}; text-align: right">{escape(label)}</th>{shades}</tr>')
    table = f"<table><tr><th></th>{heads}</tr>{''.join(body)}</table>"
    more = _rest(len(rows), MAX_ROWS, "rows") + _rest(len(columns), MAX_COLUMNS, "columns")
    count = len(entry.weights[name])
    mean = f", mean of {count} heads" if count > 1 else ""
    return f"<p>{escape(name)}{mean}</p>{table}{more}"


def _rest(count: int, maximum: int, what: str) -> str:
    return f"<p>… and {count - maximum:,} more {what}</p>" if count > maximum else ""
