"""What a lens saw as an HTML table, for notebooks: attention as shades of one colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import Output

MAX_ROWS, MAX_COLUMNS, MAX_PARTS, MAX_ENTRIES = 40, 60, 6, 5


class Entry(Protocol):
    """An entry of a lens, `transduce.decoding.run_lens.LensEntry`."""

    @property
    def source(self) -> str: ...
    @property
    def output(self) -> Output: ...
    @property
    def weights(self) -> Mapping[str, NDArray[np.float32]]: ...
    @property
    def states(self) -> Mapping[str, NDArray[np.float32]]: ...
    @property
    def gates(self) -> Mapping[str, NDArray[np.float32]]: ...

    def labels(self, name: str) -> tuple[list[str], list[str]]: ...


def entries_table(entries: Iterable[Entry]) -> str:
    """The first few entries."""
    seen = list(entries)
    shown = "".join(entry_table(entry) for entry in seen[:MAX_ENTRIES])
    return shown + _rest(len(seen), MAX_ENTRIES, "entries")


def entry_table(entry: Entry) -> str:
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


def _attention(entry: Entry, name: str) -> str:
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
