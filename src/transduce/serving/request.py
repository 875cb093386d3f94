"""The JSON body of /api/run: its fields, their types, and errors in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from transduce.decoding_settings import SETTINGS, Setting
from transduce.serving.body import parse_json
from transduce.serving.errors import BadRequest
from transduce.serving.limits import Limits

WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a JSON object",
}
# Larger ones do not fit into the numbers that decoding works with.
Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Name = Annotated[str | None, msgspec.Meta(description="A served model. Default: the first.")]


class RunRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client may ask for, apart from the settings of `model.run`, which RUN_BODY adds."""

    model: Name = None
    input: Annotated[str | None, msgspec.Meta(description="One text.")] = None
    inputs: Annotated[list[str] | None, msgspec.Meta(description="Several texts.")] = None
    stream: Annotated[
        bool, msgspec.Meta(description="Send tokens as they are chosen, as server-sent events.")
    ] = False
    alternatives: Annotated[
        Whole, msgspec.Meta(description="Alternatives of each token of a stream.")
    ] = 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given. null is that of the recipe, as if it was not given."""
        given: dict[str, Any] = msgspec.to_builtins(self)  # without those that are UNSET
        return {
            name: value for name, value in given.items() if value is not None and name in SETTINGS
        }

    def all_inputs(self) -> list[str]:
        if (self.input is None) == (self.inputs is None):
            raise BadRequest("give either input, a text, or inputs, a list of texts")
        return [self.input] if self.input is not None else list(self.inputs or ())

    def one_input(self) -> str:
        inputs = self.all_inputs()
        if len(inputs) != 1:
            raise BadRequest(f"a stream has one input, not {len(inputs)}")
        return inputs[0]


def _json_type(kind: Any) -> Any:
    """The type of a JSON value for a keyword of `run`: lists for sequences."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    found = [Whole if one is int else one for one in members if get_origin(one) is not Sequence]
    items = [get_args(one)[0] for one in members if get_origin(one) is Sequence]
    if items:  # in JSON, a union has one kind of list
        found.append(list[_json_type(Union[tuple(items)])])  # type: ignore[misc]  # noqa: UP007
    return Union[tuple(found)]  # noqa: UP007


def _field(setting: Setting) -> tuple[str, Any, Any]:
    kind = setting.json_type or _json_type(setting.type)
    if setting.model:  # by name
        kind = list[str] | None if setting.repeatable else str | None
    return setting.name, kind | UnsetType, UNSET


RUN_BODY = cast(
    type[RunRequest],
    msgspec.defstruct(
        "RunRequest",
        [_field(setting) for setting in SETTINGS.values() if setting.request],
        bases=(RunRequest,),
        forbid_unknown_fields=True,
        kw_only=True,
    ),
)
"""A RunRequest with a field for each setting that is declared for requests."""

_decoder = msgspec.json.Decoder(RUN_BODY)


class AlignRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/align."""

    inputs: Annotated[list[str], msgspec.Meta(description="Sources.")]
    targets: Annotated[list[str], msgspec.Meta(description="A target for each source.")]
    model: Name = None


_align_decoder = msgspec.json.Decoder(AlignRequest)


def parse_run(body: bytes, limits: Limits) -> RunRequest:
    """Raises BadRequest."""
    return _parsed(body, limits, _decoder)


def parse_align(body: bytes, limits: Limits) -> AlignRequest:
    """Raises BadRequest."""
    return _parsed(body, limits, _align_decoder)


Body = TypeVar("Body", RunRequest, AlignRequest)


def _parsed(body: bytes, limits: Limits, decoder: msgspec.json.Decoder[Body]) -> Body:
    try:
        return parse_json(body, limits, decoder.decode)
    except msgspec.ValidationError as error:
        fields: tuple[str, ...] = decoder.type.__struct_fields__
        raise BadRequest(_sentence(str(error), fields)) from None


def _sentence(message: str, fields: tuple[str, ...]) -> str:
    """msgspec's message in the words of the API."""
    what, _, where = message.partition(" - at `$")
    if unknown := re.search("unknown field `(.*)`", what):
        return f"there is no field {unknown[1][:80]}; there are {', '.join(fields)}"
    if missing := re.search("missing required field `(.*)`", what):
        return f"the field {missing[1]} is missing"
    field = where.strip("`.") or "the body"
    if match := re.fullmatch("Expected `(.*)`, got `(.*)`", what):
        wanted = " or ".join(WORDS.get(one, one) for one in match[1].split(" | "))
        return f"{field} must be {wanted}, not {WORDS.get(match[2], match[2])}"
    return f"{field}: {what[:1].lower()}{what[1:]}"
