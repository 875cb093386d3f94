"""The OpenAPI description of the server's own API, /openapi.json: made from the types of requests,
the declaration of decoding settings and the limits of this server."""

from __future__ import annotations

from typing import Any

import msgspec

from transduce import __version__
from transduce.decoding_settings import SETTINGS, Setting
from transduce.serving.jobs import OTHER_MODELS, SIZES
from transduce.serving.limits import Limits
from transduce.serving.request import RUN_BODY, AlignRequest
from transduce.serving.settings import ServiceSettings

RUN = {
    "/api/run": "Run a model: translate, transcribe, classify, tag or continue texts.",
    "/api/classify": "/api/run for models of the task classify.",
    "/api/tag": "/api/run for models of the task tag.",
    "/api/look": "What `transduce look` shows of one input: steps, attention, n-best list, beam.",
}
ALIGN = "Score given targets: the log-probability of each token, attention, alignment."
MODELS = "The models that are served."
OUTPUTS = "The name of the model, and for each input an output as of `transduce run --json`."
EVENTS = "With stream: an event `token` for each token, then `output`, or `error`."


def openapi(settings: ServiceSettings) -> dict[str, Any]:
    """The description as JSON values (OpenAPI 3.1)."""
    _, schemas = msgspec.json.schema_components(
        [RUN_BODY, AlignRequest], ref_template="#/components/schemas/{name}"
    )
    _add_settings(schemas["RunRequest"]["properties"], settings.limits)
    for schema in schemas.values():
        _add_sizes(schema["properties"], settings.limits)
    schemas["Error"] = ERROR
    paths: dict[str, Any] = {
        path: {"post": _operation(path, about, "RunRequest", files=True)}
        for path, about in RUN.items()
    }
    paths["/api/align"] = {"post": _operation("/api/align", ALIGN, "AlignRequest")}
    paths["/api/models"] = {"get": _operation("/api/models", MODELS)}
    components: dict[str, Any] = {"schemas": schemas}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "transduce", "version": __version__},
        "paths": paths,
        "components": components,
    }
    if settings.public_url:
        found["servers"] = [{"url": settings.public_url}]
    if settings.keys.required:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("message", "code", "request_id")},
        }
    },
}


def _add_settings(properties: dict[str, Any], limits: Limits) -> None:
    """Help, defaults and bounds of the settings."""
    for name in properties.keys() & SETTINGS.keys():
        setting = SETTINGS[name]
        about = setting.about() + (" Default: as in the recipe." if setting.in_recipe else "")
        bounds = {
            "description": about,
            "default": list(setting.default) if setting.default == () else setting.default,
            "minimum": setting.minimum,
            "exclusiveMinimum": setting.above,
            "maximum": _maximum(setting, limits),
            "enum": [*setting.choices, None] if setting.choices else None,
        }
        for key in ("default", "minimum", "maximum"):  # those that msgspec knows of the type
            properties[name].pop(key, None)
        properties[name] |= {key: value for key, value in bounds.items() if value is not None}


def _maximum(setting: Setting, limits: Limits) -> float | None:
    """What a client may ask for: the limit of the server, if it is below that of the setting."""
    if setting.name not in SIZES:
        return setting.maximum
    allowed: int = getattr(limits, SIZES[setting.name])
    return allowed if setting.maximum is None else min(allowed, setting.maximum)


def _add_sizes(properties: dict[str, Any], limits: Limits) -> None:
    """How many texts, how long: for values that are texts or lists (others ignore these keys)."""
    for name, one in properties.items():
        kinds = {inner.get("type") for inner in one.get("anyOf", [one])}
        if name in ("inputs", "targets"):
            one |= {"maxItems": limits.texts}
        elif "array" in kinds:
            one |= {"maxItems": limits.combined if name in OTHER_MODELS else limits.phrases}
        if "string" in kinds and "enum" not in one:
            one |= {"maxLength": limits.characters}
    if "alternatives" in properties:
        properties["alternatives"] |= {"minimum": 0, "maximum": limits.alternatives}


def _operation(path: str, about: str, body: str | None = None, files: bool = False) -> Any:
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    described = about if path in ("/api/models", "/api/look") else OUTPUTS
    if path == "/api/run":
        answer["text/event-stream"] = {"schema": {"type": "string", "description": EVENTS}}
    failure = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "operationId": path.rpartition("/")[2],
        "summary": about,
        "responses": {
            "200": {"description": described, "content": answer},
            "default": {"description": "What is wrong, in one sentence.", "content": failure},
        },
    }
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body}"}
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if files:
            form = {"file": {"type": "string", "format": "binary"}, "request": schema}
            content["multipart/form-data"] = {
                "schema": {"type": "object", "properties": form, "required": ["file"]}
            }
        operation["requestBody"] = {"required": True, "content": content}
    return operation
