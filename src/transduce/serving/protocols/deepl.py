"""DeepL's protocol: translation of texts, with glossaries; languages, usage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.serving.documents import (
    Segments,
    html_segments,
    text_segments,
    whole_segment,
    xml_segments,
)
from transduce.serving.documents.html import SKIPPED
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.languages import name_of
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.deepl_glossaries import Glossaries
from transduce.serving.protocols.parameters import ParameterError, Parameters, read_any
from transduce.serving.protocols.translation import Translator
from transduce.serving.settings import ServiceSettings

PREFIXES = ("/v2/", "/v3/")
KEY_IN_BODY = ("/v2/translate", "/v2/languages", "/v2/usage")  # of older clients: auth_key
KNOWN = frozenset(
    [
        "auth_key",
        "context",  # not used: the models read one text at a time
        "text",
        "source_lang",
        "target_lang",
        "show_billed_characters",
        "tag_handling",
        "split_sentences",
        "preserve_formatting",  # nothing here corrects what a model has written
        "ignore_tags",
        "non_splitting_tags",
        "outline_detection",
        "splitting_tags",
        "formality",
        "glossary_id",
        "glossary_ids",
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
TAGS = ("ignore_tags", "splitting_tags", "non_splitting_tags")
UNLIMITED = 1_000_000_000_000  # characters; the clients need a limit


def error(found: ServiceError, request_id: str) -> Response:
    """DeepL's shape: {"message", "detail"}."""
    return json_response(
        {"message": found.message, "detail": f"request {request_id}"}, found.status
    )


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    translator = Translator(engine)
    glossaries = Glossaries(translator, settings)
    own = DeepL(translator, glossaries)
    return [
        Route("/v2/translate", own.translate, methods=["POST"]),
        Route("/v2/languages", own.languages, methods=["GET", "POST"]),
        Route("/v2/usage", own.usage, methods=["GET", "POST"]),
        Route("/v2/document", own.documents, methods=["POST"]),
        *glossaries.routes(),
    ]


class DeepL:
    """The handlers of the protocol."""

    def __init__(self, translator: Translator, glossaries: Glossaries) -> None:
        self.translator, self.glossaries = translator, glossaries
        self.characters = 0
        """Translated since the server was started."""

    async def translate(self, request: Request) -> Response:
        asked = await read_any(request, ("text", "glossary_ids", *TAGS))
        texts, target = asked.texts("text"), asked.text("target_lang")
        source = asked.text("source_lang", "") or None
        glossary = await self.glossaries.of_translation(request, asked, source, target)
        detected, found = await self.translator.translate_texts(
            texts, _cut(asked), source, target, glossary=glossary
        )
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

    async def documents(self, request: Request) -> Response:
        raise BadRequest(
            "documents are not translated by this protocol; send the file to /translate_file"
        )

    async def usage(self, request: Request) -> Response:
        """Of this server since it was started; there is no quota."""
        await read_any(request)
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
    ignored, splitting, others = (_tags(asked, name, markup) for name in TAGS)
    if markup == "html":
        lower = {tag.lower() for tag in ignored}
        return partial(html_segments, skipped=lower | SKIPPED)
    if markup:
        return partial(
            xml_segments,
            skipped=ignored,
            splitting=splitting,
            non_splitting=others,
            outline=asked.flag("outline_detection", True),
        )
    lines = asked.get("split_sentences", "1") in ("1", "")
    return text_segments if lines else whole_segment


def _tags(asked: Parameters, name: str, markup: str | None) -> set[str]:
    """A list of names, or names with commas between them, for XML; ignored ones for HTML, too."""
    given = asked.texts(name) if name in asked else []
    found = {tag.strip() for some in given for tag in some.split(",")} - {""}
    allowed = ("html", "xml") if name == "ignore_tags" else ("xml",)
    if found and markup not in allowed:
        raise ParameterError(f"{name} needs tag_handling={' or '.join(allowed)}", name)
    return found
