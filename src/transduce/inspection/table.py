"""A comparison of prompts as tables for a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from transduce.inspection.prompts import Comparison
from transduce.terminal import console as make_console
from transduce.terminal import plain


def print_comparison(comparison: Comparison) -> None:
    """What followed each prompt; then, step by step after the first one's continuation, what each
    prompt expects, and how far apart they are."""
    console = make_console(highlight=False)
    said, followed = comparison.said, comparison.followed[0]
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("", "prompt and continuation", "log-prob.", "perplexity"):
        table.add_column(column, justify="right" if "-" in column or "x" in column else "left")
    for number, one in enumerate(said, start=1):
        written = Text(plain(one.prompt), style="bold")
        written.append(plain(one.text), style="not bold")
        table.add_row(f"{number}", written, f"{one.log_probability:.2f}", f"{one.perplexity:.2f}")
    console.print(table)

    console.print("Each prompt, followed by what came after prompt 1: the likeliest next tokens")
    steps = Table(box=box.SIMPLE, pad_edge=False)
    several = len(said) > 1
    bits = "bits 1–" + "/".join(str(number) for number in range(2, len(said) + 1))
    for column in ("step", "token", *([bits] if several else [])):
        steps.add_column(column, justify="left" if column == "token" else "right", no_wrap=True)
    for number, one in enumerate(said, start=1):
        steps.add_column(Text(f"{number} {_short(one.prompt)}"), no_wrap=True, overflow="ellipsis")
    room = console.width - 20 - several * max(len(bits), 5 * len(said) - 6)
    shown = max(1, min(3, room // (10 * len(said))))  # tokens of each prompt that a line holds
    for step, token in enumerate(followed.tokens):
        apart = "/".join(f"{bits:.2f}" for bits in followed.divergence_KPP[step][0, 1:])
        likely = [
            "  ".join(f"{piece} {probability:.2f}" for piece, probability in of_one[step][:shown])
            for of_one in followed.top
        ]
        between = [apart] if several else []
        steps.add_row(f"{step + 1}", Text(plain(token)), *between, *map(Text, map(plain, likely)))
    console.print(steps)
    if not several:
        return

    mean = Table(box=box.SIMPLE, pad_edge=False)
    mean.add_column("mean bits apart")
    for number in range(len(said)):
        mean.add_column(f"{number + 1}", justify="right")
    for number, (one, row) in enumerate(zip(said, followed.mean_PP, strict=True)):
        values = ["" if other == number else f"{bits:.3f}" for other, bits in enumerate(row)]
        mean.add_row(Text(f"{number + 1} {_short(one.prompt)}"), *values)
    console.print(mean)


def _short(prompt: str, most: int = 24) -> str:
    """A prompt as the name of a column: its end tells it from others better than its start."""
    shown = plain(prompt.replace("\n", "↵")) or "(nothing)"
    return shown if len(shown) <= most else f"…{shown[1 - most :]}"
