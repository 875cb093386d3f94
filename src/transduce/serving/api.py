"""The server's own API: /api/run and /api/models, health, readiness and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce import __version__
from transduce.decoding.output import Output
from transduce.errors import DataError
from transduce.serving.body import Form, media_type, read_body, receive_form
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest, NotFound, ServiceError, Unready
from transduce.serving.jobs import LastStep
from transduce.serving.live.engine import can_be_live
from transduce.serving.models import Served
from transduce.serving.openapi import openapi
from transduce.serving.protocols.answers import EventStream, closing, event, json_response
from transduce.serving.recordings import Recorded, read_recordings
from transduce.serving.request import RunRequest, parse_align, parse_run
from transduce.serving.settings import ServiceSettings
from transduce.tasks import AudioInputModel
from transduce.tasks.observer import TokenStep

PREFIXES = ("/api/", "/openapi.json", "/health", "/ready", "/metrics")
OPEN = frozenset({"/openapi.json", "/health", "/ready", "/metrics"})


def error(failure: ServiceError, request_id: str) -> Response:
    """{"error": {"message", "code", "request_id"}}"""
    details = {"message": failure.message, "code": failure.code, "request_id": request_id}
    return json_response({"error": details}, failure.status)


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    async def run(request: Request) -> Response:
        return await _with_body(engine, request, partial(_run, engine, request, None))

    async def classify(request: Request) -> Response:
        return await _with_body(engine, request, partial(_run, engine, request, "classify"))

    async def tag(request: Request) -> Response:
        return await _with_body(engine, request, partial(_run, engine, request, "tag"))

    async def align(request: Request) -> Response:
        return await _align(engine, request)

    async def look(request: Request) -> Response:
        return await _with_body(engine, request, partial(_look, engine, request))

    async def models(request: Request) -> Response:
        catalogue = engine.catalogue
        every = [_metadata(one) for one in catalogue.values()]
        return json_response({"models": every, "ngram_models": list(catalogue.ngrams)})

    async def description(request: Request) -> Response:
        return json_response(openapi(settings))

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def ready(request: Request) -> Response:
        if engine.draining:
            raise Unready("the server is stopping")
        state = {"running": engine.running, "waiting": engine.waiting}
        return json_response({"status": "ready", **state})

    async def metrics(request: Request) -> Response:
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return Response(engine.metrics.text(), media_type=kind)

    return [
        Route("/api/run", run, methods=["POST"]),
        Route("/api/classify", classify, methods=["POST"]),
        Route("/api/tag", tag, methods=["POST"]),
        Route("/api/align", align, methods=["POST"]),
        Route("/api/look", look, methods=["POST"]),
        Route("/api/models", models),
        Route("/openapi.json", description),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    ]


async def _with_body(
    engine: Engine,
    request: Request,
    answer: Callable[[RunRequest, Form | None], Awaitable[Response]],
) -> Response:
    """The answer to a JSON body; or to a form with files, which has the rest in its field
    `request`."""
    if not media_type(request).startswith("multipart/"):
        return await answer(parse_run(await read_body(request), engine.limits), None)
    async with receive_form(request) as form:
        return await answer(parse_run((form.get("request") or "{}").encode(), engine.limits), form)


async def _run(
    engine: Engine, request: Request, task: str | None, asked: RunRequest, form: Form | None
) -> Response:
    served = find(engine, asked.model, task)
    request.scope["state"]["model"] = served.name
    if form is None and asked.stream:
        source = asked.one_input()
        settings = await engine.with_glossary(served, [source], asked.settings)
        steps = engine.stream(served, source, alternatives=asked.alternatives, **settings)
        return await EventStream.of(_events(served, steps), _failed_event)
    if form is None:
        outputs = await engine.run(served, asked.all_inputs(), **asked.settings)
        return json_response({"model": served.name, "outputs": [one.to_json() for one in outputs]})
    found = await _recordings(engine, request, served, form)
    recorded = [one for one in found if isinstance(one, Recorded)]
    named = iter(zip(recorded, await engine.run(served, recorded, **asked.settings), strict=True))
    shown = [_failed(one) if isinstance(one, DataError) else _named(*next(named)) for one in found]
    return json_response({"model": served.name, "outputs": shown})


async def _recordings(
    engine: Engine, request: Request, served: Served, form: Form
) -> list[Recorded | DataError]:
    """The files of a form. Raises BadRequest where none can be read."""
    if not form.files:
        raise BadRequest("the form has no file")
    if not served.takes_audio:
        raise BadRequest(f"the model {served.name} takes text, not files; send JSON")
    uploads = [upload for _, upload in form.files]
    found = await read_recordings(engine.threads, request, uploads)
    if all(isinstance(one, DataError) for one in found):
        raise BadRequest(str(found[0]))
    return found


def _named(recorded: Recorded, output: Output) -> dict[str, Any]:
    """An output whose warning has the name that the client gave its file."""
    output.warning = recorded.named(output.warning)
    return output.to_json()


def _failed(error: DataError) -> dict[str, Any]:
    return Output("", float("-inf"), warning=str(error), failed=True).to_json()


async def _align(engine: Engine, request: Request) -> Response:
    """Teacher forcing: the log-probability of each token of a target, and its attention."""
    asked = parse_align(await read_body(request), engine.limits)
    served = find(engine, asked.model, "transduce")
    request.scope["state"]["model"] = served.name
    scores = await engine.score(served, asked.inputs, asked.targets)
    found = []
    for score in scores:
        values = score.to_json()
        if score.attention is not None:
            mean = score.attention.mean(axis=(0, 1))[:-1, :-1]  # without END
            rows = mean.argmax(axis=1).tolist() if mean.shape[1] else []
            values["alignment"] = [[source, target] for target, source in enumerate(rows)]
        found.append(values)
    return json_response({"model": served.name, "outputs": found})


async def _look(engine: Engine, request: Request, asked: RunRequest, form: Form | None) -> Response:
    """What the page of `transduce look` shows of one input, as JSON."""
    served = find(engine, asked.model)
    request.scope["state"]["model"] = served.name
    if form is None:
        return json_response(await engine.inspect(served, asked.one_input(), **asked.settings))
    recorded, *more = await _recordings(engine, request, served, form)
    if more:
        raise BadRequest(f"a look inside needs one file, not {len(form.files)}")
    assert isinstance(recorded, Recorded)
    try:
        page = await engine.inspect(served, recorded, **asked.settings)
    except BadRequest as failure:
        raise BadRequest(recorded.named(failure.message)) from None
    page["source"] = recorded.name
    if warning := page.get("warning"):
        page["warning"] = recorded.named(warning)
    return json_response(page)


def find(engine: Engine, name: str | None, task: str | None = None) -> Served:
    """The model of a name; without one, the first of the task. Raises NotFound and BadRequest."""
    catalogue = engine.catalogue
    if name is None and task is None:
        return catalogue.first
    if name is None:
        fitting = [one for one in catalogue.values() if one.task == task]
        if not fitting:
            raise NotFound(f"no model of task {task} is served", "model_not_found")
        return fitting[0]
    served = catalogue.find(name)
    if task is not None and served.task != task:
        raise BadRequest(f"the model {name} has the task {served.task}, not {task}")
    return served


async def _events(
    served: Served, steps: AsyncIterator[TokenStep | LastStep]
) -> AsyncIterator[bytes]:
    """Server-sent events: `token` for each token, then `output`."""
    async with closing(steps):
        yield b""  # so that the response begins before the first token
        async for step in steps:
            if isinstance(step, LastStep):
                last = {"model": served.name, "text": step.text, "output": step.output.to_json()}
                yield event(last, "output")
            else:
                yield event(_token(step), "token")


def _failed_event(failure: ServiceError) -> bytes:
    return event({"error": {"message": failure.message, "code": failure.code}}, "error")


def _token(step: TokenStep) -> dict[str, Any]:
    values: dict[str, Any] = {
        "text": step.text,
        "token": step.token,
        "score": step.log_probability,
    }
    if step.attention is not None:
        values["attention"] = step.attention
    if step.alternatives:
        values["alternatives"] = [
            {"token": token, "text": text, "score": score}
            for (token, score), text in zip(step.alternatives, step.alternative_texts, strict=True)
        ]
    if step.source_tokens:
        values["source_tokens"] = step.source_tokens
    return values


def _metadata(served: Served) -> dict[str, Any]:
    return {
        "name": served.name,
        "task": served.api_task,
        "input": "audio" if served.takes_audio else "text",
        "look": served.model.engine is None,
        "live": can_be_live(served),
        "seconds": served.model.recordings.longest
        if isinstance(served.model, AudioInputModel)
        else None,
        "source": served.pair[0] if served.pair else None,
        "target": served.pair[1] if served.pair else None,
        "parameters": sum(p.numel() for p in served.model.network.parameters()),
    }
