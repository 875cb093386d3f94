"""Parameters of a request: JSON, form or query string, read with one-sentence errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from transduce.serving.body import (
    FORM,
    JSON,
    MULTIPART,
    exchange_of,
    media_type,
    parse_pairs,
    read_body,
    read_object,
    read_pairs_or_object,
    receive_form,
)
from transduce.serving.errors import BadRequest

WIDEST = 2**62  # whole numbers of clients, either way; larger ones do not fit into all of ours


class ParameterError(BadRequest):
    """A parameter is missing or cannot be used; `param` names it, as in OpenAI's errors."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Parameters(Mapping[str, Any]):
    """The parameters of a request. A value of null is as good as none."""

    def __init__(self, values: Mapping[str, Any], *, typed: bool = True) -> None:
        """typed: from JSON; otherwise values are texts, also of numbers and booleans."""
        self._values = {name: value for name, value in values.items() if value is not None}
        self.typed = typed

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if value is None:
            raise ParameterError(f"{name} is missing; give a text", name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def texts(self, name: str) -> list[str]:
        """A text, or a list of them."""
        value = self._values.get(name)
        if value is None:
            raise ParameterError(f"{name} is missing; give a text or a list of texts", name)
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in found):
            raise self._wrong(name, "a text or a list of texts")
        return found

    def whole(
        self, name: str, default: int | None = None, minimum: int = 0, maximum: int = WIDEST
    ) -> int | None:
        value = self._number(name, int)
        if value is None:
            return default
        if not minimum <= value <= maximum:
            raise self._wrong(name, f"a whole number from {minimum} to {maximum}")
        return int(value)

    def number(self, name: str, default: float, minimum: float, maximum: float) -> float:
        value = self._number(name, float)
        if value is None:
            return default
        if not minimum <= value <= maximum:
            raise self._wrong(name, f"a number from {minimum:g} to {maximum:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        if not self.typed and isinstance(value, str):
            value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._values.get(name, default)
        if value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return str(value)

    def refuse_others(self, known: Collection[str], what: str) -> None:
        """Raise for a parameter that would change the output, and that nothing here obeys."""
        for name, value in self._values.items():
            if name not in known and value not in ("", [], {}, False):
                raise ParameterError(f"{what} does not support {name}; leave it out", name)

    def _number(self, name: str, kind: type[int] | type[float]) -> int | float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str) and not self.typed:
            try:
                value = kind(value)
            except ValueError:
                raise self._wrong(name, "a number") from None
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not -WIDEST <= value <= WIDEST or (kind is int and value != int(value)):
            raise self._wrong(name, "a whole number" if kind is int else "a number")
        return kind(value)

    def _wrong(self, name: str, wanted: str) -> ParameterError:
        return ParameterError(f"{name} is {self._values[name]!r:.60}; it must be {wanted}", name)


def fields_of(pairs: Iterable[tuple[str, str]], repeated: Collection[str] = ()) -> dict[str, Any]:
    """The first of the fields of each name; those in `repeated` as lists."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in repeated:
            found.setdefault(name, []).append(value)
        else:
            found.setdefault(name, value)
    return found


def query_of(request: Request, repeated: Collection[str] = ()) -> dict[str, Any]:
    """The fields of the query string."""
    return fields_of(parse_pairs(request.url.query, exchange_of(request).limits), repeated)


async def read_json(request: Request) -> Parameters:
    """The parameters of a JSON body."""
    return Parameters(await read_object(request))


async def read_any(request: Request, repeated: Collection[str] = ()) -> Parameters:
    """The parameters of a JSON body; or of a form and the query string together."""
    kind = media_type(request)
    if kind == JSON or kind.endswith("+json"):
        return await read_json(request)
    if kind == MULTIPART:
        async with receive_form(request, files=False) as form:
            pairs = form.fields
    elif kind in (FORM, ""):
        found = await read_pairs_or_object(request)
        if isinstance(found, dict):
            return Parameters(found)
        pairs = found
    else:
        if await read_body(request):
            raise ParameterError(f"the content type {kind} is not supported; send {JSON} or {FORM}")
        pairs = []
    return Parameters(query_of(request, repeated) | fields_of(pairs, repeated), typed=False)
