"""Options of `transduce serve` for the limits of the service, from their declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from transduce.serving.limits import options

PANEL = "Limits of what clients may ask for"


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is **limits, with an option for each limit."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[
                type(one.default),
                typer.Option(one.flag, min=one.least, help=one.help, rich_help_panel=PANEL),
            ],
        )
        for one in options()
    ]

    def with_options(**given: Any) -> None:
        command(**given)

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__module__ = command.__module__
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + added
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options
