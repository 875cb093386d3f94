"""Prompt comparison, shown: as tables on a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transduce.inspection.page import Markup, html_page
from transduce.inspection.prompts import Comparison, Likely, PromptContinuation, ScoredContinuation
from transduce.storage import make_folder, write_text
from transduce.terminal import console as make_console
from transduce.terminal import plain

SPACE = "␣"
BESIDE, COLUMN = 22, 18  # characters of the first columns, and of each prompt's


def print_comparison(comparison: Comparison) -> None:
    """Print the continuation of each prompt; then, for each step of the first one's continuation,
    the next tokens that each prompt predicts, and the divergence between prompts.
    """
    console = make_console(highlight=False)
    continuations, scored = comparison.continuations, comparison.scored[0]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("", "prompt and continuation", "log-prob.", "perplexity"):
        table.add_column(column, justify="right" if "-" in column or "x" in column else "left")
    for number, one in enumerate(continuations, start=1):
        written = Text(plain(one.prompt), style="bold")
        written.append(plain(one.text), style="not bold")
        table.add_row(f"{number}", written, f"{one.log_probability:.2f}", f"{one.perplexity:.2f}")
    console.print(table)

    console.print("Each prompt with the continuation of prompt 1: the most probable next tokens")
    several = len(continuations) > 1
    fits = console.width >= BESIDE + COLUMN * len(continuations) + several * 5 * len(continuations)
    (_print_beside if fits else _print_below)(console, continuations, scored)
    if any(SPACE in token for token in scored.tokens):
        console.print(f"{SPACE} is a space.")
    if not several:
        return

    mean = Table(box=box.SIMPLE, pad_edge=False)
    mean.add_column("mean bits apart")
    for number in range(len(continuations)):
        mean.add_column(f"{number + 1}", justify="right")
    for number, (one, row) in enumerate(zip(continuations, scored.mean_PP, strict=True)):
        values = ["" if other == number else f"{bits:.3f}" for other, bits in enumerate(row)]
        mean.add_row(Text(f"{number + 1} {_short(one.prompt)}"), *values)
    console.print(mean)


def _print_beside(
    console: Console, continuations: Sequence[PromptContinuation], scored: ScoredContinuation
) -> None:
    """A row for each step, a column for each prompt."""
    steps = Table(box=box.SIMPLE, pad_edge=False)
    several = len(continuations) > 1
    bits = "bits 1–" + "/".join(str(number) for number in range(2, len(continuations) + 1))
    for column in ("step", "token", *([bits] if several else [])):
        steps.add_column(column, justify="left" if column == "token" else "right", no_wrap=True)
    for number, one in enumerate(continuations, start=1):
        steps.add_column(Text(f"{number} {_short(one.prompt)}"), no_wrap=True, overflow="ellipsis")
    width = console.width - 20 - several * max(len(bits), 5 * len(continuations) - 6)
    shown = max(
        1, min(3, width // (10 * len(continuations)))
    )  # tokens of each prompt that a line holds
    for step, token in enumerate(scored.tokens):
        apart = "/".join(f"{bits:.2f}" for bits in scored.divergence_KPP[step][0, 1:])
        likely = [_likely(of_one[step][:shown]) for of_one in scored.top]
        between = [apart] if several else []
        steps.add_row(f"{step + 1}", Text(plain(token)), *between, *map(Text, likely))
    console.print(steps)


def _print_below(
    console: Console, continuations: Sequence[PromptContinuation], scored: ScoredContinuation
) -> None:
    """A row for each prompt at each step, if the terminal is too narrow for columns."""
    steps = Table(box=box.SIMPLE, pad_edge=False)
    several = len(continuations) > 1
    names = [
        Text(f"{number} {_short(one.prompt, 18)}")
        for number, one in enumerate(continuations, start=1)
    ]
    first = min(12, max(cell_len(token) for token in [*scored.tokens, "token"]))
    widths = {"step": 4, "token": first, "prompt": max(name.cell_len for name in names)}
    widths |= {"bits": 4} if several else {}
    remaining = max(10, console.width - sum(widths.values()) - 3 * (len(widths) + 1))
    for name, width in [*widths.items(), ("most probable next tokens", remaining)]:
        right = name in ("step", "bits")
        steps.add_column(name, justify="right" if right else "left", width=width, no_wrap=True)
    for step, token in enumerate(scored.tokens):
        for number, (prompt, of_one) in enumerate(zip(names, scored.top, strict=True)):
            counted = [f"{step + 1}", Text(plain(token))] if number == 0 else ["", ""]
            apart = f"{scored.divergence_KPP[step][0, number]:.2f}" if number else ""
            counts = [n for n in (3, 2) if cell_len(_likely(of_one[step][:n])) <= remaining]
            steps.add_row(
                *counted,
                prompt,
                *([apart] if several else []),
                Text(_likely(of_one[step][: next(iter(counts), 1)])),
                end_section=number == len(continuations) - 1,
            )
    console.print(steps)
    if several:
        console.print("bits: Jensen-Shannon divergence from the predictions of prompt 1, 0 to 1")


def _likely(tokens: Likely) -> str:
    return plain("  ".join(f"{piece} {probability:.2f}" for piece, probability in tokens))


def _short(prompt: str, maximum: int = 24) -> str:
    """A prompt as the name of a column: its end differs from others more than its start."""
    shown = plain(prompt.replace("\n", "↵")) or "(nothing)"
    return shown if len(shown) <= maximum else f"…{shown[1 - maximum :]}"


# ------------------------------------------------------------------------------------- as a page


def write_prompts(comparison: Comparison, path: Path) -> None:
    """Write the comparison as an HTML page: the steps of every continuation."""
    continuations = [
        {
            "prompt": one.prompt,
            "tokens": one.tokens,
            "texts": one.texts,
            "log_probability": one.log_probability,
            "perplexity": one.perplexity,
            "probabilities": _rounded(scored.probabilities_PK.tolist()),
            "divergence": _rounded(scored.divergence_KPP.tolist()),
            "mean": _rounded(scored.mean_PP.tolist()),
            "top": _rounded(scored.top),
        }
        for one, scored in zip(comparison.continuations, comparison.scored, strict=True)
    ]
    data = {
        "model": comparison.model,
        "how": comparison.how,
        "continuations": continuations,
    }
    make_folder(path.parent)
    page = html_page(
        f"Prompts: {comparison.model}",
        Markup('<div id="prompts"></div>'),
        styles=("prompts.css",),
        scripts=("controls.js", "colors.js", "prompts.js"),
        data=data,
    )
    write_text(path, page)


def _rounded(values: Any) -> Any:
    """Numbers to four digits, in nested lists, to keep the page small."""
    if isinstance(values, float):
        return float(f"{values:.4g}")
    return [_rounded(value) for value in values] if isinstance(values, list | tuple) else values
