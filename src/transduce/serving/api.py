"""The server's own API: /api/run and /api/models, health, readiness and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from transduce import __version__
from transduce.serving.body import media_type, read_body, receive_form
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest, NotFound, ServiceError, Unready
from transduce.serving.jobs import StepEvent
from transduce.serving.live.engine import can_be_live
from transduce.serving.models import Served
from transduce.serving.openapi import openapi
from transduce.serving.protocols.answers import json_response, to_json
from transduce.serving.request import parse_align, parse_run
from transduce.serving.settings import ServiceSettings
from transduce.tasks import AudioInputModel

PREFIXES = ("/api/", "/openapi.json", "/health", "/ready", "/metrics")
OPEN = frozenset({"/openapi.json", "/health", "/ready", "/metrics"})


def error(failure: ServiceError, request_id: str) -> Response:
    """{"error": {"message", "code", "request_id"}}"""
    details = {"message": failure.message, "code": failure.code, "request_id": request_id}
    return json_response({"error": details}, failure.status)


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    async def run(request: Request) -> Response:
        return await _answer(engine, settings, request, None)

    async def classify(request: Request) -> Response:
        return await _answer(engine, settings, request, "classify")

    async def tag(request: Request) -> Response:
        return await _answer(engine, settings, request, "tag")

    async def align(request: Request) -> Response:
        return await _align(engine, request)

    async def look(request: Request) -> Response:
        return await _look(engine, settings, request)

    async def models(request: Request) -> Response:
        return json_response({"models": [_metadata(one) for one in engine.catalogue.values()]})

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


async def _answer(
    engine: Engine, settings: ServiceSettings, request: Request, task: str | None
) -> Response:
    if media_type(request).startswith("multipart/"):
        return await _answer_upload(engine, settings, request, task)
    asked = parse_run(await read_body(request), engine.limits)
    served = find(engine, asked.model, task)
    request.scope["state"]["model"] = served.name
    if asked.stream:
        events = engine.stream(
            served, asked.one_input(), alternatives=asked.alternatives, **asked.settings
        )
        return event_stream(served, events)
    outputs = await engine.run(served, asked.all_inputs(), **asked.settings)
    return json_response({"model": served.name, "outputs": [one.to_json() for one in outputs]})


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


async def _look(engine: Engine, settings: ServiceSettings, request: Request) -> Response:
    """What the page of `transduce look` shows of one input, as JSON."""
    if not media_type(request).startswith("multipart/"):
        asked = parse_run(await read_body(request), engine.limits)
        served = find(engine, asked.model)
        request.scope["state"]["model"] = served.name
        return json_response(await engine.inspect(served, asked.one_input(), **asked.settings))
    async with receive_form(request) as form:
        asked = parse_run((form.get("request") or "{}").encode(), engine.limits)
        served = find(engine, asked.model)
        request.scope["state"]["model"] = served.name
        if not served.takes_audio:
            raise BadRequest(f"the model {served.name} takes text, not files; send JSON")
        if len(form.files) != 1:
            raise BadRequest(f"a look inside needs one file, not {len(form.files)}")
        ((_, upload),) = form.files
        names = {str(upload.path): upload.filename}
        try:
            page = await engine.inspect(served, upload.path, **asked.settings)
        except BadRequest as failure:
            raise BadRequest(_renamed(failure.message, names)) from None
        page["source"] = upload.filename
        return json_response(_named(page, names))


async def _answer_upload(
    engine: Engine, settings: ServiceSettings, request: Request, task: str | None
) -> Response:
    """A form with files, and the rest of the request as JSON in the field `request`."""
    async with receive_form(request) as form:
        asked = parse_run((form.get("request") or "{}").encode(), engine.limits)
        served = find(engine, asked.model, task)
        request.scope["state"]["model"] = served.name
        inputs = [upload.path for _, upload in form.files]
        if not inputs:
            raise BadRequest("the form has no file")
        if not served.takes_audio:
            raise BadRequest(f"the model {served.name} takes text, not files; send JSON")
        outputs = await engine.run(served, inputs, **asked.settings)
        names = {str(upload.path): upload.filename for _, upload in form.files}
        return json_response(
            {"model": served.name, "outputs": [_named(one.to_json(), names) for one in outputs]}
        )


def _named(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Files in warnings under the names that the client gave them."""
    if warning := values.get("warning"):
        values["warning"] = _renamed(warning, names)
    return values


def _renamed(text: str, names: dict[str, str]) -> str:
    for path, name in names.items():
        text = text.replace(path, name)
    return text


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
    if name not in catalogue:
        raise NotFound(
            f"there is no model {name[:80]!r}; there are {', '.join(catalogue)}", "model_not_found"
        )
    served = catalogue[name]
    if task is not None and served.task != task:
        raise BadRequest(f"the model {name} has the task {served.task}, not {task}")
    return served


def event_stream(served: Served, events: AsyncIterator[StepEvent]) -> StreamingResponse:
    """Server-sent events: `token` for each token, then `output`, or `error`."""

    async def body() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                if event.output is None:
                    yield server_sent("token", _token(event))
                else:
                    last = {"model": served.name, "text": event.text}
                    yield server_sent("output", {**last, "output": event.output.to_json()})
        except ServiceError as failure:
            details = {"message": failure.message, "code": failure.code}
            yield server_sent("error", {"error": details})

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


def server_sent(event: str, value: Any) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + to_json(value) + b"\n\n"


def _token(event: StepEvent) -> dict[str, Any]:
    values: dict[str, Any] = {"text": event.text, "token": event.token, "score": event.score}
    if event.attention is not None:
        values["attention"] = event.attention
    if event.alternatives:
        texts = event.alternative_texts or [""] * len(event.alternatives)
        values["alternatives"] = [
            {"token": token, "text": text, "score": score}
            for (token, score), text in zip(event.alternatives, texts, strict=True)
        ]
    if event.source_tokens:
        values["source_tokens"] = event.source_tokens
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


__all__ = ["error", "event_stream", "find", "json_response", "routes"]
