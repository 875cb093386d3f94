"""The JSON body of /api/run: its fields, their types, and errors in one sentence."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

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
# Fields of RunRequest; all others are settings.
NOT_SETTINGS = ("model", "input", "inputs", "stream", "alternatives")


class RunRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client may ask for; the settings are those of `model.run`."""

    model: str | None = None
    input: str | None = None
    inputs: list[str] | None = None
    stream: bool = False
    alternatives: Whole = 0

    attention: bool | UnsetType = UNSET
    prefix: str | list[str] | UnsetType = UNSET
    include: str | list[str | list[str]] | UnsetType = UNSET
    exclude: str | list[str | list[str]] | UnsetType = UNSET
    ensemble: list[str] | UnsetType = UNSET
    rerank: str | UnsetType = UNSET
    language_model: str | UnsetType = UNSET

    beam: Whole | UnsetType | None = UNSET
    nbest: Whole | UnsetType = UNSET
    length_penalty: float | UnsetType | None = UNSET
    coverage_penalty: float | UnsetType | None = UNSET
    patience: float | UnsetType | None = UNSET
    groups: Whole | UnsetType = UNSET
    diversity: float | UnsetType = UNSET
    sample: bool | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    top_k: Whole | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    seed: Whole | UnsetType = UNSET
    mbr: str | UnsetType | None = UNSET
    samples: Whole | UnsetType = UNSET
    no_repeat_ngram: Whole | UnsetType | None = UNSET
    min_length: Whole | UnsetType = UNSET
    max_length: Whole | UnsetType | None = UNSET
    only: list[str] | UnsetType | None = UNSET
    unknown: bool | UnsetType = UNSET
    geometric: bool | UnsetType = UNSET
    rerank_weight: float | UnsetType = UNSET
    scores: bool | UnsetType = UNSET
    ctc_weight: float | UnsetType | None = UNSET
    lm_weight: float | UnsetType = UNSET

    chunk_ms: float | UnsetType | None = UNSET
    times: bool | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET

    # Of Whisper models.
    language: str | UnsetType | None = UNSET
    task: str | UnsetType | None = UNSET
    timestamps: bool | UnsetType | None = UNSET
    prompt: str | UnsetType = UNSET
    previous_text: bool | UnsetType = UNSET
    fallback: bool | UnsetType = UNSET

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
