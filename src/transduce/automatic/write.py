"""Write a choice as a recipe in YAML, with the reason beside each value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from transduce.automatic.choose import Choice

COLUMN = 52  # where comments begin, if the value is not longer
WIDEST = 10_000  # values are never broken


def commented(choice: Choice, seen: Iterable[str], folder: str | None) -> str:
    """The recipe as YAML. seen: what was found, put first. folder: where its files are; None: where
    the recipe is."""
    lines = [f"# {' '.join(sentence.split())}" for sentence in (*seen, *choice.about)]
    lines += ["# Everything can be changed: `transduce recipes --keys` explains every key.", ""]
    for key, value in choice.values.items():
        if not isinstance(value, dict):
            lines.append(_line(f"{key}: {_flow(value)}", choice.reasons.get(key, "")))
            continue
        lines += ["", f"{key}:"]
        if key == "data" and folder is not None:
            lines.append(f"  folder: {_flow(folder)}")
        for name, inner in value.items():
            lines += _entry(f"{key}.{name}", name, inner, choice)
    return "\n".join(lines) + "\n"


def _entry(key: str, name: str, value: Any, choice: Choice) -> list[str]:
    below = [place for place in choice.reasons if place.startswith(f"{key}.")]
    if not below:
        return [_line(f"  {name}: {_flow(value)}", choice.reasons.get(key, ""))]
    lines = [f"  {name}:"]
    for inner, one in value.items():
        lines.append(_line(f"    {inner}: {_flow(one)}", choice.reasons.get(f"{key}.{inner}", "")))
    return lines


def _line(text: str, why: str) -> str:
    if not why:
        return text
    gap = max(COLUMN - len(text), 2)
    return f"{text}{' ' * gap}# {why}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=WIDEST
    )
    return text.removesuffix("\n...\n").removesuffix("\n").rstrip()
