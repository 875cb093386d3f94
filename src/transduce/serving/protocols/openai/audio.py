"""Transcription and translation of audio."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from transduce.decoding.output import Output, TimedWord
from transduce.decoding.speech.subtitles import transcript
from transduce.errors import DataError, ModelError
from transduce.serving.body import Form, parse_json, receive_form
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest
from transduce.serving.jobs import LastStep
from transduce.serving.languages import NAMES, code_of, name_of
from transduce.serving.limits import Limits
from transduce.serving.models import Served
from transduce.serving.protocols.answers import (
    DONE,
    EventStream,
    closing,
    event,
    json_response,
)
from transduce.serving.protocols.openai.shapes import HARMLESS, error_event
from transduce.serving.protocols.parameters import ParameterError, Parameters
from transduce.serving.recordings import Recorded, read_recordings
from transduce.whisper import WhisperModel

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("word", "segment")
TIMES, INCLUDE = "timestamp_granularities[]", "include[]"
IGNORED = "x-ignored-parameters"
CHUNKS = "chunking_strategy"
STRATEGIES = ("auto", "server_vad")  # the same here: long audio is cut at silences
KNOWN = HARMLESS | {"model", "language", "response_format", "temperature", "stream"}
# Ours, from the client's extra_body={"hotwords": [...], "language_model": NAME}.
HOTWORDS = "hotwords[]"  # as it sends a list
KNOWN |= {TIMES, INCLUDE, "prompt", CHUNKS, HOTWORDS, "hotwords", "language_model", "lm_weight"}
LIST_WORDS = 4  # a prompt whose parts between commas have so many words at most is a list of names


class Audio:
    """POST /v1/audio/transcriptions and /v1/audio/translations."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def transcribe(self, request: Request) -> Response:
        return await self._create(request, "transcribe")

    async def translate(self, request: Request) -> Response:
        return await self._create(request, "translate")

    async def _create(self, request: Request, task: str) -> Response:
        async with AsyncExitStack() as stack:
            form = await stack.enter_async_context(receive_form(request))
            asked = Parameters(_fields(form), typed=False)
            served = self.engine.catalogue.find(asked.text("model"))
            request.scope["state"]["model"] = served.name
            kind = _check(served, asked, task, self.engine.limits)
            upload = form.file("file")
            if upload is None:
                raise ParameterError("there is no file; send one in the field file", "file")
            (recorded,) = await read_recordings(self.engine.threads, request, [upload])
            if isinstance(recorded, DataError):
                raise ParameterError(str(recorded), "file")
            settings = _settings(asked) | _tags(served, asked)
            hotwords = [*_wanted(asked, "hotwords"), *_wanted(asked, HOTWORDS)]
            if isinstance(served.model, WhisperModel):
                settings |= _prompted(served.model, asked, task)
            elif not hotwords:
                hotwords = listed_names(asked.get("prompt", ""))
            if hotwords:
                settings["hotwords"] = hotwords
            if asked.flag("stream"):
                events = self._events(served, recorded, settings)
                # The file is needed until the end of the stream.
                return await EventStream.of(_with_file(events, stack.pop_all()), error_event)
            times = kind in ("srt", "vtt", "verbose_json") or _logprobs(asked)
            (output,) = await self.engine.run(served, [recorded], times=times, **settings)
            if output.failed:
                raise ParameterError(recorded.named(output.warning), "file")
            response = _response(served, output, asked, task, recorded.seconds)
            if not isinstance(served.model, WhisperModel) and asked.get("prompt") and not hotwords:
                response.headers[IGNORED] = "prompt"  # a hint that this model cannot take
            return response

    async def _events(
        self, served: Served, recorded: Recorded, settings: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        """OpenAI's events of a transcript that grows."""
        text = ""
        steps = self.engine.stream(served, recorded, **settings)
        async with closing(steps):
            async for step in steps:
                if isinstance(step, LastStep) and step.output.failed:
                    raise ParameterError(recorded.named(step.output.warning), "file")
                text += step.text
                if step.text:
                    yield event({"type": "transcript.text.delta", "delta": step.text})
        usage = {"type": "duration", "seconds": round(recorded.seconds, 3)}
        yield event({"type": "transcript.text.done", "text": text, "usage": usage})
        yield DONE


async def _with_file(events: AsyncIterator[bytes], files: AsyncExitStack) -> AsyncIterator[bytes]:
    async with files, closing(events):
        async for one in events:
            yield one


def _fields(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = dict(form.fields)
    lists = (TIMES, INCLUDE, HOTWORDS, "hotwords")
    return found | {name: form.all(name) for name in lists if name in found}


def listed_names(prompt: str) -> list[str]:
    """The names that a prompt lists, as in "Quilter, Ann Brown"; none where it is running text."""
    parts = [part.strip(" .") for part in re.split("[,;\n]", prompt)]
    names = [part for part in parts if part]
    return [] if any(len(one.split()) > LIST_WORDS for one in names) else names


def _check(served: Served, asked: Parameters, task: str, limits: Limits) -> str:
    """The response format; raises where the model cannot do what was asked for."""
    if not served.takes_audio or served.task != "transduce":
        raise BadRequest(f"{served.name} does not turn audio into text; choose a speech model")
    model: Any = served.model
    prompted = isinstance(model, WhisperModel)
    if prompted and task == "translate" and not model.prompt_tokens.multilingual:
        raise BadRequest(f"{served.name} is for English alone and does not translate")
    translates = served.pair[0] != served.pair[1] if served.pair else not model.transcribes
    if prompted:
        translates = task == "translate"
    if translates and task == "transcribe":
        raise BadRequest(f"{served.name} translates what it hears; use /v1/audio/translations")
    if not translates and task == "translate":
        raise BadRequest(f"{served.name} transcribes and does not translate; choose another model")
    parts = {name for name in asked if name.startswith(f"{CHUNKS}[")}  # of an object
    asked.refuse_others(KNOWN | parts, served.name)
    if not prompted:
        _check_language(served, code_of(asked.get("language", "")))
    if _strategy(asked, limits) not in STRATEGIES:
        raise ParameterError(
            f"{CHUNKS} can only be {' or '.join(STRATEGIES)}: long audio is cut at silences", CHUNKS
        )
    form = asked.choice("response_format", FORMATS, "json")
    for name, allowed in ((TIMES, GRANULARITIES), (INCLUDE, ("logprobs",))):
        for value in _wanted(asked, name):
            if value not in allowed:
                raise ParameterError(
                    f"{name} is {value!r}; it must be {' or '.join(allowed)}", name
                )
    if _wanted(asked, TIMES) and form != "verbose_json":
        raise ParameterError(f"{TIMES} needs response_format=verbose_json", TIMES)
    if _logprobs(asked) and form != "json":
        raise ParameterError("logprobs need response_format=json", INCLUDE)
    if asked.flag("stream"):
        if task == "translate":
            raise ParameterError("translations are not streamed; leave out stream", "stream")
        if form not in ("json", "text") or _logprobs(asked):
            raise ParameterError("a stream has response_format=json and no logprobs", "stream")
    return form


def _check_language(served: Served, language: str) -> None:
    """Raise where a model is not for a language, as far as that is known."""
    if not language:
        return
    known = [served.pair[0].lower()] if served.pair else []
    known += [tag.strip("<>").lower() for tag in served.model.source_tokens.tags]
    if known and language not in known:
        raise ParameterError(
            f"{served.name} understands {', '.join(known[:20])}, not {language[:40]}; choose "
            f"another model",
            "language",
        )
    if not known and language.partition("-")[0] not in NAMES:
        raise ParameterError(
            f"{language[:40]!r} is no language that is known here; give its code, as en", "language"
        )


def _strategy(asked: Parameters, limits: Limits) -> str:
    """auto, or the type of an object, whose fields a form has by themselves or as JSON."""
    given = asked.get(CHUNKS, "auto")
    if given.lstrip().startswith("{"):
        found: Any = parse_json(given, limits)
        return str(found.get("type")) if isinstance(found, dict) else ""
    kind: str = asked.get(f"{CHUNKS}[type]", given)
    return kind


def _settings(asked: Parameters) -> dict[str, Any]:
    temperature = asked.number("temperature", 0.0, 0.0, 1.0)
    found: dict[str, Any] = {"sample": True} if temperature else {}
    if temperature not in (0, 1):
        found["temperature"] = temperature
    if "language_model" in asked:
        found["language_model"] = asked.text("language_model")
    if "lm_weight" in asked:
        found["lm_weight"] = asked.number("lm_weight", 0.0, 0.0, math.inf)
    return found


def _tags(served: Served, asked: Parameters) -> dict[str, Any]:
    """The language as a tag, of a model that was trained with such tags."""
    language = code_of(asked.get("language", ""))
    found = [tag for tag in served.model.source_tokens.tags if tag.strip("<>").lower() == language]
    prompted = isinstance(served.model, WhisperModel)
    return {"tags": found[:1]} if found and language and not prompted else {}


def _prompted(model: WhisperModel, asked: Parameters, task: str) -> dict[str, Any]:
    """Language, task and text before, of a model that takes them."""
    language = code_of(asked.get("language", "")) or None
    try:
        model.prompt_tokens.check_language(language)
    except ModelError as error:
        raise ParameterError(str(error), "language") from None
    found = {"task": task, "language": language, "prompt": asked.get("prompt")}
    return {name: value for name, value in found.items() if value}


def _wanted(asked: Parameters, name: str) -> list[str]:
    return list(asked.get(name, ()))


def _logprobs(asked: Parameters) -> bool:
    return "logprobs" in _wanted(asked, INCLUDE)


def _response(
    served: Served, output: Output, asked: Parameters, task: str, seconds: float
) -> Response:
    form = asked.choice("response_format", FORMATS, "json")
    if form == "text":
        return PlainTextResponse(output.text + "\n")
    if form in ("srt", "vtt"):
        return PlainTextResponse(transcript(output, form, seconds))
    usage = {"type": "duration", "seconds": round(seconds, 3)}
    if form == "json":
        found: dict[str, Any] = {"text": output.text, "usage": usage}
        if _logprobs(asked):
            found["logprobs"] = [
                {"token": token, "logprob": _log(value), "bytes": list(token.encode("utf-8"))}
                for token, value in _tokens(output)
            ]
        return json_response(found)
    asked_for = code_of(asked.get("language", ""))
    language = served.pair[task == "translate"] if served.pair else asked_for
    language = output.language or language
    wanted = _wanted(asked, TIMES) or ["segment"]
    found = {
        "task": task,
        "language": name_of(language).lower(),
        "duration": round(seconds, 3),
        "text": output.text,
        "usage": usage,
    }
    if "segment" in wanted:
        temperature = asked.number("temperature", 0.0, 0.0, 1.0)
        found["segments"] = [
            _segment(served, number, one, temperature) for number, one in enumerate(output.segments)
        ]
    if "word" in wanted:
        found["words"] = [
            {"word": one.text, "start": round(one.start, 3), "end": round(one.end, 3)}
            for one in output.words
        ]
    return json_response(found)


def _segment(served: Served, number: int, one: TimedWord, temperature: float) -> dict[str, Any]:
    """Whisper's fields. The confidence of a segment is the geometric mean of the probabilities of
    its tokens, whose logarithm is their average log-probability. Segments without speech are left
    out by silence detection, so no_speech_prob is 0."""
    text = one.text.encode("utf-8")
    return {
        "id": number,
        "seek": round(100 * one.start),
        "start": round(one.start, 3),
        "end": round(one.end, 3),
        "text": one.text,
        "tokens": served.model.target_tokens.encode(one.text),
        "temperature": temperature,
        "avg_logprob": _log(one.confidence),
        "compression_ratio": len(text) / max(1, len(zlib.compress(text))),
        "no_speech_prob": 0.0,
    }


def _tokens(output: Output) -> list[tuple[str, float]]:
    """Tokens with their probabilities, without END."""
    pairs = zip(output.tokens, output.probabilities, strict=False)
    return [(token.replace("▁", " "), value) for token, value in pairs][: len(output.ids)]


def _log(probability: float) -> float:
    return math.log(max(probability, 1e-30))
