"""LibreTranslate's protocol: translation of texts, HTML and files, language identification."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce import __version__
from transduce.decoding.constraints.glossary import Glossary
from transduce.errors import DataError
from transduce.serving.body import parse_object, receive_form
from transduce.serving.documents import html_segments, text_segments
from transduce.serving.engine import Engine
from transduce.serving.errors import ServiceError
from transduce.serving.languages import Detected, name_of
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.libretranslate_files import FORMATS, Results, read_document
from transduce.serving.protocols.parameters import (
    ParameterError,
    Parameters,
    fields_of,
    query_of,
    read_any,
)
from transduce.serving.protocols.translation import Translator
from transduce.serving.settings import ServiceSettings

PREFIXES = (
    "/translate",
    "/detect",
    "/languages",
    "/download_file/",
    "/suggest",
    "/frontend/",
    "/spec",
)
OPEN = ("/languages", "/frontend/settings", "/spec", "/download_file/")
KEY_IN_BODY = ("/translate", "/detect", "/translate_file", "/suggest")
AUTO = "auto"


def error(found: ServiceError, request_id: str) -> Response:
    """LibreTranslate's shape: {"error": text}."""
    return json_response({"error": found.message, "request_id": request_id}, found.status)


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    own = LibreTranslate(engine, settings)
    both = ["GET", "POST"]  # some clients send a body with GET
    return [
        Route("/translate", own.translate, methods=["POST"]),
        Route("/detect", own.detect, methods=["POST"]),
        Route("/languages", own.languages, methods=both),
        Route("/translate_file", own.translate_file, methods=["POST"]),
        Route("/download_file/{name}", own.download_file, methods=["GET"]),
        Route("/suggest", own.suggest, methods=["POST"]),
        Route("/frontend/settings", own.frontend_settings, methods=["GET"]),
        Route("/spec", own.spec, methods=["GET"]),
    ]


class LibreTranslate:
    """The handlers of the protocol."""

    def __init__(self, engine: Engine, settings: ServiceSettings) -> None:
        self.engine, self.settings = engine, settings
        self.translator = Translator(engine)
        self.results = Results(settings)

    async def translate(self, request: Request) -> Response:
        asked = await read_any(request)
        texts, target = asked.texts("q"), asked.text("target")
        source = asked.text("source", AUTO)
        html = asked.choice("format", ("text", "html"), "text") == "html"
        cut = html_segments if html else text_segments
        alternatives = (
            asked.whole("alternatives", 0, 0, self.engine.limits.alternative_translations) or 0
        )
        if not asked.typed:  # forms have line ends of their own
            texts = [text.replace("\r\n", "\n") for text in texts]
        glossary = await read_glossary(asked, self.engine)
        detected, versions = await self.translator.translate_texts(
            texts, cut, None if source == AUTO else source, target, 1 + alternatives, glossary
        )
        listed = isinstance(asked["q"], list)
        answer = {"translatedText": _like_q([found[0] for found in versions], listed)}
        if source == AUTO:
            answer["detectedLanguage"] = _like_q([_shown(one) for one in detected], listed)
        if alternatives:
            answer["alternatives"] = _like_q([found[1:] for found in versions], listed)
        return json_response(answer)

    async def detect(self, request: Request) -> Response:
        asked = await read_any(request)
        text = asked.text("q")
        self.translator.check_texts([text])
        found = self.translator.detector.detect(text)
        likely = [one for one in found if one.confidence > 0]
        return json_response([_shown(one) for one in likely or found[:1]])

    async def languages(self, request: Request) -> Response:
        targets = self.translator.targets
        return json_response(
            [
                {"code": code, "name": name_of(code), "targets": targets.get(code, [])}
                for code in self.translator.languages
            ]
        )

    async def translate_file(self, request: Request) -> Response:
        async with receive_form(request) as form:
            asked = Parameters(query_of(request) | fields_of(form.fields), typed=False)
            upload = form.file("file")
            if upload is None:
                raise ParameterError("there is no file; send one in the field file", "file")
            target, source = asked.text("target"), asked.text("source", AUTO)
            self.settings.limits.check(
                "document_bytes", upload.size, f"the file has {upload.size:,} bytes"
            )
            if self.translator.is_same(source, target):
                contents = upload.path.read_bytes()
            else:
                document = await self.engine.threads.run(
                    read_document, upload.filename, upload.path, self.engine.limits
                )
                _, ((text, *_),) = await self.translator.translate(
                    [document.segments], None if source == AUTO else source, target
                )
                contents = await self.engine.threads.run(document.write, text)
        key = self.results.add(upload.filename, target, contents)
        self.results.expire_later()
        base = self.settings.public_url or str(request.base_url)
        return json_response({"translatedFileUrl": f"{base.rstrip('/')}/download_file/{key}"})

    async def download_file(self, request: Request) -> Response:
        return self.results.response(request.path_params["name"])

    async def suggest(self, request: Request) -> Response:
        await read_any(request)
        raise ServiceError(403, "this server takes no suggestions", "forbidden")

    async def frontend_settings(self, request: Request) -> Response:
        source, (target, *_) = next(iter(self.translator.targets.items()), ("", [""]))
        return json_response(
            {
                "apiKeys": self.settings.keys.required,
                "keyRequired": self.settings.keys.required,
                "charLimit": self.engine.limits.characters,
                "frontendTimeout": 500,
                "suggestions": False,
                "filesTranslation": True,
                "supportedFilesFormat": list(FORMATS),
                "language": {
                    "source": {"code": source, "name": name_of(source)},
                    "target": {"code": target, "name": name_of(target)},
                },
            }
        )

    async def spec(self, request: Request) -> Response:
        return json_response(specification())


async def read_glossary(asked: Parameters, engine: Engine) -> Glossary | None:
    """The glossary of a request, an object in JSON; of a form, the JSON as text. LibreTranslate has
    no such field. Raises ParameterError and TooLarge."""
    terms = asked.get("glossary")
    if isinstance(terms, str) and not asked.typed:
        terms = parse_object(terms, engine.limits, "glossary")
    if terms is None:
        return None
    if not isinstance(terms, dict):
        raise ParameterError("glossary must be an object of terms and translations", "glossary")
    engine.limits.check("glossary_entries", len(terms), f"glossary has {len(terms):,} terms")
    try:
        return await engine.threads.run(Glossary, terms)
    except DataError as error:
        raise ParameterError(str(error), "glossary") from None


def _like_q(values: list[Any], listed: bool) -> Any:
    """A list for a list; one value for a text."""
    return values if listed else values[0]


def _shown(found: Detected) -> dict[str, Any]:
    return {"confidence": found.confidence, "language": found.language}


KEY = ("api_key", False, "an API key")
Field = tuple[str, bool, str]
ENDPOINTS: dict[str, tuple[str, str, tuple[Field, ...]]] = {
    "/translate": (
        "post",
        "Translate a text, or a list of texts (as JSON)",
        (
            ("q", True, "the text, or a list of texts"),
            ("source", True, "code of the source language, or auto"),
            ("target", True, "code of the target language"),
            ("format", False, "text or html"),
            ("alternatives", False, "how many further translations"),
            ("glossary", False, "as JSON: the translations of terms"),
            KEY,
        ),
    ),
    "/detect": ("post", "Detect the language of a text", (("q", True, "the text"), KEY)),
    "/languages": ("get", "List the languages", ()),
    "/translate_file": (
        "post",
        "Translate a file",
        (
            ("file", True, "the file"),
            ("source", True, "code of the source language, or auto"),
            ("target", True, "code of the target language"),
            KEY,
        ),
    ),
    "/suggest": ("post", "Suggest a better translation; always refused", ()),
    "/frontend/settings": ("get", "Limits and defaults", ()),
    "/health": ("get", "Whether the server is alive", ()),
}
ERRORS = {
    "400": "a parameter cannot be used",
    "403": "the API key is wrong",
    "429": "too many requests",
}


def specification() -> dict[str, Any]:
    """The description of the endpoints, as OpenAPI (Swagger 2.0)."""
    paths = {}
    for path, (method, about, fields) in ENDPOINTS.items():
        parameters = [
            {
                "in": "formData",
                "name": name,
                "required": required,
                "description": text,
                "type": "file" if name == "file" else "string",
            }
            for name, required, text in fields
        ]
        answers = {"200": {"description": "the result"}}
        if fields:
            answers |= {code: {"description": text} for code, text in ERRORS.items()}
        paths[path] = {method: {"summary": about, "parameters": parameters, "responses": answers}}
    return {
        "swagger": "2.0",
        "info": {"title": "transduce", "version": __version__},
        "paths": paths,
    }
