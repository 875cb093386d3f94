"""What fine-tuning starts from and what it trains, as a short table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from transduce.training.fine_tuning.patterns import names_of

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
    widths = [max(len(row[n]) for row in (HEAD, *rows)) for n in range(len(HEAD))]
    text = [f"Starting from {metadata['from']} (fingerprint {metadata['fingerprint'][:12]}):"]
    for row in (HEAD, *rows):
        cells = [
            cell.rjust(width) if n == 1 else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        text.append(f"  {'  '.join(cells)}".rstrip())
    unused = list(dict.fromkeys(part_of(name) for name in metadata["unused"]))
    if unused:
        text.append(f"  not used of the start model: {', '.join(unused)}")
    return text
