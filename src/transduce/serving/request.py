"""The JSON body of /api/run: its fields, their types, and errors in one sentence."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from transduce.serving.errors import BadRequest

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
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not UNSET}

    def all_inputs(self) -> list[str]:
        if (self.input is None) == (self.inputs is None):
            raise BadRequest("give either input, a text, or inputs, a list of texts")
        return [self.input] if self.input is not None else list(self.inputs or ())

    def one_input(self) -> str:
        inputs = self.all_inputs()
        if len(inputs) != 1:
            raise BadRequest(f"a stream has one input, not {len(inputs)}")
        return inputs[0]


SETTINGS = tuple(name for name in RunRequest.__struct_fields__ if name not in NOT_SETTINGS)
_decoder = msgspec.json.Decoder(RunRequest)


def parse_run(body: bytes) -> RunRequest:
    """Raises BadRequest."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_sentence(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def _sentence(message: str) -> str:
    """msgspec's message in the words of the API."""
    what, _, where = message.partition(" - at `$")
    if unknown := re.search("unknown field `(.*)`", what):
        return f"there is no field {unknown[1][:80]}; there are {', '.join(_fields())}"
    field = where.strip("`.") or "the body"
    if match := re.fullmatch("Expected `(.*)`, got `(.*)`", what):
        wanted = match[1].replace(" | ", " or ").replace("object", "a JSON object")
        return f"{field} must be {wanted}, not {match[2]}"
    return f"{field}: {what[:1].lower()}{what[1:]}"


def _fields() -> tuple[str, ...]:
    return RunRequest.__struct_fields__
