"""Options of `transduce serve` for the limits of the service, from their declaration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import option
from transduce.serving.limits import options

PANEL = "Limits of what clients may ask for"


class LimitOptions:
    """An option for each limit."""

    def parameters(self) -> list[inspect.Parameter]:
        return [
            option(
                one.name,
                Annotated[
                    type(one.default),
                    typer.Option(one.flag, min=one.minimum, help=one.help, rich_help_panel=PANEL),
                ],
                one.default,
            )
            for one in options()
        ]

    def collected(self, values: dict[str, Any]) -> dict[str, Any]:
        return values


LimitSettings = Annotated[Mapping[str, Any], LimitOptions()]
