"""Looks: what was collected of inputs and one or two models, as a page, figure or notebook cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transduce.errors import DataError
from transduce.inspection.look.collect import Page, collect
from transduce.inspection.look.figure import draw
from transduce.inspection.look.page import page
from transduce.inspection.page import framed
from transduce.storage import make_folder, write_text
from transduce.tasks.model import Model

FIGURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
HEIGHT = 720  # pixels in a notebook


@dataclass(frozen=True)
class Look:
    """What one or two models computed for some inputs; a notebook shows it by itself.

    look(model, "A dog runs.")                      # the page, in a notebook
    look(model, "A dog runs.").save("look.html")
    """

    looks: list[list[Page]] = field(repr=False)
    """For each input what was collected, by model; see collect.py."""

    @property
    def data(self) -> dict[str, Any]:
        """All that a page shows, as JSON can hold it."""
        return {"inputs": [{"looks": pages} for pages in self.looks]}

    def html(self) -> str:
        """The page."""
        first = self.looks[0][0]
        names = " and ".join(dict.fromkeys(one["model"] for one in self.looks[0]))
        return page(self.data, f"{names}: {first['source'][:60]}")

    def save(self, path: str | Path) -> Path:
        """Write the page (.html), or mean attention as a figure (.png, .svg, .pdf)."""
        path = Path(path)
        check_suffix(path)
        if path.suffix.lower() in PAGES:
            make_folder(path.parent)
            write_text(path, self.html())
        else:
            draw(self.looks, path)
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), HEIGHT, scripts=True)


def look(
    model: Model,
    inputs: Any,
    *,
    target: str | None = None,
    against: Model | None = None,
    attribution: bool = False,
    **settings: Any,
) -> Look:
    """Collect what a model computes for an input, or for each of a list of inputs.

    target: a given output, instead of the model's own. against: another model, shown side by side
    on the same inputs. attribution: also integrated gradients. The settings are those of
    `model.run`, such as beam=5. Raises DataError and ModelError as `collect` does.
    """
    some: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]
    if not some:
        raise DataError("there is no input; give at least one")
    models = [model] if against is None else [model, against]
    asked = {"target": target, "attribution": attribution, **settings}
    return Look([[collect(one, source, **asked) for one in models] for source in some])


def check_suffix(path: Path) -> None:
    """Raise DataError for a name that says neither page nor figure."""
    if path.suffix.lower() not in (*PAGES, *FIGURES):
        known = ", ".join((*PAGES[:1], *FIGURES[:-1]))
        raise DataError(f"{path} cannot be written; its name must end in {known} or {FIGURES[-1]}")
