"""The JSON body of /api/run: its fields, their types, and errors in one sentence."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect, Request

from transduce.serving.errors import BadRequest

WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a JSON object",
}
# Fields of RunRequest; all others are settings.
NOT_SETTINGS = ("model", "input", "inputs", "stream", "alternatives")


class RunRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client may ask for; the settings are those of `model.run`."""

    model: str | None = None
    input: str | None = None
    inputs: list[str] | None = None
    stream: bool = False
    alternatives: int = 0

    attention: bool | UnsetType = UNSET
    prefix: str | list[str] | UnsetType = UNSET
    include: str | list[str | list[str]] | UnsetType = UNSET
    exclude: str | list[str | list[str]] | UnsetType = UNSET
    ensemble: list[str] | UnsetType = UNSET
    rerank: str | UnsetType = UNSET
    language_model: str | UnsetType = UNSET

    beam: int | UnsetType | None = UNSET
    nbest: int | UnsetType = UNSET
    length_penalty: float | UnsetType | None = UNSET
    coverage_penalty: float | UnsetType | None = UNSET
    groups: int | UnsetType = UNSET
    diversity: float | UnsetType = UNSET
    sample: bool | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    mbr: str | UnsetType | None = UNSET
    samples: int | UnsetType = UNSET
    no_repeat_ngram: int | UnsetType | None = UNSET
    min_length: int | UnsetType = UNSET
    max_length: int | UnsetType | None = UNSET
    only: list[str] | UnsetType | None = UNSET
    unknown: bool | UnsetType = UNSET
    geometric: bool | UnsetType = UNSET
    rerank_weight: float | UnsetType = UNSET
    scores: bool | UnsetType = UNSET
    ctc_weight: float | UnsetType | None = UNSET
    lm_weight: float | UnsetType = UNSET

    times: bool | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were given."""
        given: dict[str, Any] = msgspec.to_builtins(self)  # without those that are UNSET
        for name in NOT_SETTINGS:
            del given[name]
        return given

    def all_inputs(self) -> list[str]:
        if (self.input is None) == (self.inputs is None):
            raise BadRequest("give either input, a text, or inputs, a list of texts")
        return [self.input] if self.input is not None else list(self.inputs or ())

    def one_input(self) -> str:
        inputs = self.all_inputs()
        if len(inputs) != 1:
            raise BadRequest(f"a stream has one input, not {len(inputs)}")
        return inputs[0]


_decoder = msgspec.json.Decoder(RunRequest)


class AlignRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/align."""

    inputs: list[str]
    targets: list[str]
    model: str | None = None


_align_decoder = msgspec.json.Decoder(AlignRequest)


def content_type(request: Request) -> str:
    """The header of this name; quicker than Starlette's, which decodes all of them."""
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            return str(value, "latin-1")
    return ""


async def read_body(request: Request) -> bytes:
    """The whole body; quicker than Starlette's for one that has arrived at once."""
    parts = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_run(body: bytes) -> RunRequest:
    """Raises BadRequest."""
    return _parsed(body, _decoder)


def parse_align(body: bytes) -> AlignRequest:
    """Raises BadRequest."""
    return _parsed(body, _align_decoder)


Body = TypeVar("Body", RunRequest, AlignRequest)


def _parsed(body: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        fields: tuple[str, ...] = decoder.type.__struct_fields__
        raise BadRequest(_sentence(str(error), fields)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


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
