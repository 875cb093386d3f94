"""DeepL's protocol, version 2: translation of texts, languages, usage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.serving.documents import Segments, html_segments, text_segments, whole_segment
from transduce.serving.documents.html import SKIPPED
from transduce.serving.engine import Engine
from transduce.serving.errors import ServiceError
from transduce.serving.languages import name_of
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.parameters import ParameterError, Parameters, read_any
from transduce.serving.protocols.translation import Translator, cut_all
from transduce.serving.settings import ServiceSettings

PREFIXES = ("/v2/",)
KNOWN = frozenset(
    [
        "text",
        "source_lang",
        "target_lang",
        "show_billed_characters",
        "tag_handling",
        "split_sentences",
        "preserve_formatting",
        "ignore_tags",
        "formality",
        "model_type",
        "tag_handling_version",
    ]
)
# What other values of these ask for, the models cannot do.
ALLOWED = {
    "formality": ("default", "prefer_more", "prefer_less"),
    "split_sentences": ("1", "nonewlines", "0"),
    "tag_handling": ("html", "xml"),
    "model_type": ("quality_optimized", "prefer_quality_optimized", "latency_optimized"),
}
UNLIMITED = 1_000_000_000_000  # characters; the clients need a limit


def error(found: ServiceError, request_id: str) -> Response:
    """DeepL's shape: {"message", "detail"}."""
    return json_response(
        {"message": found.message, "detail": f"request {request_id}"}, found.status
    )


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    own = DeepL(engine)
    return [
        Route("/v2/translate", own.translate, methods=["POST"]),
        Route("/v2/languages", own.languages, methods=["GET", "POST"]),
        Route("/v2/usage", own.usage, methods=["GET", "POST"]),
    ]


class DeepL:
    """The handlers of the protocol."""

    def __init__(self, engine: Engine) -> None:
        self.translator = Translator(engine)
        self.characters = 0
        """Translated since the server was started."""

    async def translate(self, request: Request) -> Response:
        asked = await read_any(request, ("text", "ignore_tags"))
        texts, target = asked.texts("text"), asked.text("target_lang")
        source = asked.text("source_lang", "") or None
        cut = _cut(asked)
        self.translator.check_texts(texts)
        documents = await cut_all(self.translator.engine, cut, texts)
        detected, found = await self.translator.translate(documents, source, target)
        self.characters += sum(map(len, texts))
        return json_response(
            {
                "translations": [
                    {
                        "detected_source_language": code(one.language, region=False),
                        "text": versions[0],
                        "billed_characters": len(text),
                    }
                    for text, one, versions in zip(texts, detected, found, strict=True)
                ]
            }
        )

    async def languages(self, request: Request) -> Response:
        asked = await read_any(request)
        targets = self.translator.targets
        if asked.choice("type", ("source", "target"), "source") == "source":
            shown: list[dict[str, str | bool]] = [
                {"language": code(one), "name": name_of(one)} for one in targets
            ]
        else:
            every = sorted({one for some in targets.values() for one in some})
            shown = [
                {"language": code(one), "name": name_of(one), "supports_formality": False}
                for one in every
            ]
        return json_response(shown)

    async def usage(self, request: Request) -> Response:
        """Of this server since it was started; there is no quota."""
        return json_response({"character_count": self.characters, "character_limit": UNLIMITED})


def code(language: str, region: bool = True) -> str:
    """A language code as DeepL writes it: EN, PT-BR."""
    whole = language.replace("_", "-").upper()
    return whole if region else whole.partition("-")[0]


def _cut(asked: Parameters) -> Callable[[str], Segments]:
    """How texts are cut into segments, as the parameters say. Raises ParameterError."""
    asked.refuse_others(KNOWN, "this server")
    for name, values in ALLOWED.items():
        if name in asked and asked[name] != "" and asked[name] not in values:
            raise ParameterError(
                f"{name} is {asked[name]!r:.40}; the models here support {', '.join(values)}", name
            )
    markup = asked.get("tag_handling")
    ignored = {
        tag.strip().lower()
        for some in (asked.texts("ignore_tags") if "ignore_tags" in asked else ())
        for tag in some.split(",")
    }
    if markup:
        return partial(html_segments, skipped=ignored | (SKIPPED if markup == "html" else set()))
    if ignored:
        raise ParameterError("ignore_tags needs tag_handling", "ignore_tags")
    lines = asked.get("split_sentences", "1") in ("1", "")
    return text_segments if lines else whole_segment
