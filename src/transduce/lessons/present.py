"""What a lesson calls: its size, its table and its figure.

Two environment variables say how a lesson is run, so that the same file does as a script, as a
notebook and in the tests: TRANSDUCE_LESSONS_SIZE (`reduced`, or `full`) and
TRANSDUCE_LESSONS_OUTPUT, the folder of its figures and pages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transduce.storage import make_folder, write_file, write_text
from transduce.terminal import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from transduce.tasks.model import Model

SIZE, OUTPUT = "TRANSDUCE_LESSONS_SIZE", "TRANSDUCE_LESSONS_OUTPUT"
DEFAULT_OUTPUT = "lesson-figures"
FULL = "full"
# Okabe and Ito's, which people with any kind of colour vision can tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222")
INK, FAINT = "#222222", "#999999"

Value = TypeVar("Value")


def size(reduced: Value, full: Value) -> Value:
    """A value by the size in which the lesson runs.

    Args:
        reduced: the value in tests and by default.
        full: the value in the full size.
    """
    return full if os.environ.get(SIZE) == FULL else reduced


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: text to the left, numbers to the right.

    Args:
        head: the titles of the columns.
        rows: the rows; numbers are formatted with four digits.
    """
    rows = [list(row) for row in rows]
    shown = [list(head), *([_shown(cell) for cell in row] for row in rows)]
    left = [all(isinstance(cell, str) for cell in column) for column in zip(*rows, strict=True)]
    first, *others = aligned(shown, left)
    rule = "  ".join("-" * max(map(len, column)) for column in zip(*shown, strict=True))
    print("\n".join([first, rule, *others]))


def _shown(cell: object) -> str:
    """A number with four digits that count; whole numbers with commas."""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell != 0 and not 1e-3 <= abs(cell) < 1e5:
        return f"{cell:.2e}"
    return f"{cell:.4g}"


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 4.4, height: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the style of the lessons, and its panels row by row.

    Args:
        columns: number of panels side by side.
        rows: number of rows of panels.
        width: width of one panel in inches.
        height: height of one panel in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(columns * width, rows * height), facecolor="white", layout="constrained"
    )
    every = [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
    for axes in every:
        axes.set_prop_cycle(color=COLORS[:-1])
        axes.grid(color="#ebebeb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9, colors=INK, length=0)
        for side, spine in axes.spines.items():
            spine.set(visible=side in ("bottom", "left"), edgecolor=FAINT)
    return figure, every


def show(figure: Figure, name: str) -> Path:
    """Save a figure as NAME.svg in the output folder, and in a notebook also display it.

    Args:
        figure: the figure.
        name: name of the file; that of the first figure is the lesson's name.
    """
    path = Path(os.environ.get(OUTPUT) or DEFAULT_OUTPUT) / f"{name}.svg"
    make_folder(path.parent)
    settings: dict[str, Any] = {"format": "svg", "metadata": {"Date": None}}
    write_file(path, lambda part: figure.savefig(part, **settings))
    if "ipykernel" in sys.modules:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        display(figure)
    return path


def live(model: Model, name: str, sources: Sequence[str]) -> Path:
    """Save a page with a model inside as NAME.html in the output folder, in a notebook also
    display it: the reader's own sentences, and what the model attends to.

    Args:
        model: the model, of any task.
        name: name of the file.
        sources: sources to begin with.
    """
    from transduce.web.export import model_bytes, page

    path = Path(os.environ.get(OUTPUT) or DEFAULT_OUTPUT) / f"{name}.html"
    make_folder(path.parent)
    write_text(path, page(model, name, model_bytes(model), sources))
    if "ipykernel" in sys.modules:
        from IPython.display import (  # type: ignore[import-not-found, unused-ignore]
            IFrame,
            display,
        )

        display(IFrame(str(path), "100%", 700))
    return path


# ----------------------------------------------------------------------------------------------
# A plain training loop, for the small networks of the lessons.


def fit(
    network: nn.Module, batch: Callable[[], tuple[Any, ...]], steps: int, lr: float = 3e-3
) -> list[float]:
    """Train a small network by AdamW with gradients clipped at norm 1.

    The learning rate rises for a tenth of the steps, then falls to zero along a cosine.

    Args:
        network: a network with the method `loss`.
        batch: a function that returns the arguments of `network.loss`, newly drawn.
        steps: number of updates.
        lr: the highest learning rate.

    Returns:
        The share of right tokens at each step.
    """
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    network.train()
    accuracies = []
    for _ in range(steps):
        loss = network.loss(*batch())  # type: ignore[operator]
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        accuracies.append(float(loss.correct / loss.tokens))
    network.eval()
    return accuracies
