"""Glossaries of DeepL's protocol: version 2, of one language pair, and version 3, of several.

They are kept for the API key that made each: in memory until the server stops, and in the folder of
`ServiceSettings.glossaries` where it has one.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.decoding.constraints.glossary import Glossary, parse
from transduce.errors import DataError
from transduce.serving.auth import key_of
from transduce.serving.errors import BadRequest, NotFound, ServiceError
from transduce.serving.languages import base_of
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.glossary_store import (
    GlossaryFolder,
    Pair,
    Stored,
    about,
    owner_of,
)
from transduce.serving.protocols.parameters import ParameterError, Parameters, query_of, read_any
from transduce.serving.protocols.translation import Translator
from transduce.serving.settings import ServiceSettings

FORMATS = ("tsv", "csv")
MAX_NAME = 1024  # characters
MAX_IDS = 5  # glossaries of one translation, as of DeepL
TSV = "text/tab-separated-values"


class Glossaries:
    """Those that clients have made, and the handlers of their endpoints."""

    def __init__(self, translator: Translator, settings: ServiceSettings) -> None:
        self.translator, self.settings = translator, settings
        self.limits = settings.limits
        self._stored: dict[str, dict[str, Stored]] = {}
        """By owner and id."""
        folder = settings.glossary_folder
        self._folder = GlossaryFolder(folder) if folder else None
        for one in self._folder.read() if self._folder else ():
            self._stored.setdefault(one.owner, {})[one.id] = one

    def routes(self) -> list[BaseRoute]:
        one, pairs = "/glossaries/{id}", "/glossaries/{id}/dictionaries"
        return [
            Route("/v2/glossary-language-pairs", self.language_pairs, methods=["GET"]),
            Route("/v2/glossaries", self.create_one, methods=["POST"]),
            Route("/v2/glossaries", self.list_ones, methods=["GET"]),
            Route(f"/v2{one}", self.get_one, methods=["GET"]),
            Route(f"/v2{one}", self.delete, methods=["DELETE"]),
            Route(f"/v2{one}/entries", self.entries_of_one, methods=["GET"]),
            Route("/v3/glossaries", self.create, methods=["POST"]),
            Route("/v3/glossaries", self.list_all, methods=["GET"]),
            Route(f"/v3{one}", self.get, methods=["GET"]),
            Route(f"/v3{one}", self.update, methods=["PATCH"]),
            Route(f"/v3{one}", self.delete, methods=["DELETE"]),
            Route(f"/v3{one}/entries", self.entries, methods=["GET"]),
            Route(f"/v3{pairs}", self.replace_pair, methods=["PUT"]),
            Route(f"/v3{pairs}", self.delete_pair, methods=["DELETE"]),
        ]

    # ------------------------------------------------------------------------ translation

    async def of_translation(
        self, request: Request, asked: Parameters, source: str | None, target: str
    ) -> Glossary | None:
        """The glossary that a translation asks for by glossary_id, or by glossary_ids, of which the
        first that has a term decides. Raises ParameterError and NotFound."""
        ids = [*_ids(asked, "glossary_id"), *_ids(asked, "glossary_ids")]
        if not ids:
            return None
        if len(ids) > MAX_IDS:
            raise ParameterError(
                f"there are {len(ids)} glossaries; the maximum is {MAX_IDS}", "glossary_ids"
            )
        if source is None:
            raise ParameterError("a glossary needs source_lang; give it", "source_lang")
        pair = (base_of(source).upper(), base_of(target).upper())
        found = [self._find(request, one, asked.get("auth_key")) for one in ids]
        for one in found:
            if pair not in one.dictionaries:
                raise ParameterError(
                    f"the glossary {one.name!r:.80} is not for {pair[0]} to {pair[1]}; it has "
                    f"{_shown(one.dictionaries)}",
                    "glossary_id",
                )
        glossaries = [one.dictionaries[pair] for one in found]
        return glossaries[0] if len(glossaries) == 1 else await self._merged(glossaries[::-1])

    # ------------------------------------------------------------------------- version 2

    async def language_pairs(self, request: Request) -> Response:
        pairs = dict.fromkeys(
            (base_of(source), base_of(target))
            for source, into in self.translator.targets.items()
            for target in into
        )
        shown = [{"source_lang": source, "target_lang": target} for source, target in pairs]
        return json_response({"supported_languages": shown})

    async def create_one(self, request: Request) -> Response:
        asked = await read_any(request)
        pair, glossary = await self._read(asked)
        made = self._add(request, asked, {pair: glossary})
        return json_response(made.about_one(), 201)

    async def list_ones(self, request: Request) -> Response:
        ones = [one for one in self._own(request).values() if len(one.dictionaries) == 1]
        return json_response({"glossaries": [one.about_one() for one in ones]})

    async def get_one(self, request: Request) -> Response:
        return json_response(self._single(request).about_one())

    async def entries_of_one(self, request: Request) -> Response:
        (glossary,) = self._single(request).dictionaries.values()
        return Response(as_tsv(glossary), media_type=TSV)

    def _single(self, request: Request) -> Stored:
        found = self._find(request)
        if len(found.dictionaries) != 1:
            raise BadRequest(
                f"the glossary has {len(found.dictionaries)} language pairs; use /v3/glossaries"
            )
        return found

    # ------------------------------------------------------------------------- version 3

    async def create(self, request: Request) -> Response:
        asked = await read_any(request)
        dictionaries = await self._read_all(asked)
        if not dictionaries:
            raise ParameterError("dictionaries is empty; give one at least", "dictionaries")
        return json_response(self._add(request, asked, dictionaries).about(), 201)

    async def list_all(self, request: Request) -> Response:
        return json_response({"glossaries": [one.about() for one in self._own(request).values()]})

    async def get(self, request: Request) -> Response:
        return json_response(self._find(request).about())

    async def update(self, request: Request) -> Response:
        """A new name; new entries, which go to those that are there."""
        asked = await read_any(request)
        read = await self._read_all(asked) if "dictionaries" in asked else {}
        found = self._find(request)
        name = _name(asked) if "name" in asked else found.name
        new: dict[Pair, Glossary] = {}
        for pair, more in read.items():
            known = found.dictionaries.get(pair)
            new[pair] = more if known is None else await self._merged([known, more])
        found = self._find(request)  # others may have changed it meanwhile
        changed = replace(found, name=name, dictionaries={**found.dictionaries, **new})
        self._keep(changed)
        return json_response(changed.about())

    async def replace_pair(self, request: Request) -> Response:
        asked = await read_any(request)
        pair, glossary = await self._read(asked)
        found = self._find(request)
        self._keep(replace(found, dictionaries={**found.dictionaries, pair: glossary}))
        return json_response(about(pair, glossary))

    async def delete_pair(self, request: Request) -> Response:
        found, pair = self._pair_of(request)
        left = {other: of for other, of in found.dictionaries.items() if other != pair}
        self._keep(replace(found, dictionaries=left))
        return Response(status_code=204)

    async def entries(self, request: Request) -> Response:
        found, pair = self._pair_of(request)
        shown = {
            "source_lang": pair[0],
            "target_lang": pair[1],
            "entries": as_tsv(found.dictionaries[pair]),
            "entries_format": "tsv",
        }
        return json_response({"dictionaries": [shown]})

    async def delete(self, request: Request) -> Response:
        found = self._find(request)
        if self._folder is not None:
            self._folder.remove(found)
        del self._own(request)[found.id]
        return Response(status_code=204)

    def _pair_of(self, request: Request) -> tuple[Stored, Pair]:
        found = self._find(request)
        pair = _pair(Parameters(query_of(request), typed=False))
        if pair not in found.dictionaries:
            raise NotFound(
                f"the glossary has nothing for {pair[0]} to {pair[1]}; it has "
                f"{_shown(found.dictionaries)}",
                "glossary_not_found",
            )
        return found, pair

    # --------------------------------------------------------------------------- contents

    async def _read_all(self, asked: Parameters) -> dict[Pair, Glossary]:
        given = asked.get("dictionaries")
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise ParameterError("dictionaries must be a list of objects", "dictionaries")
        pairs = len(self.translator.catalogue.pairs())
        if len(given) > pairs:
            raise ParameterError(
                f"there are {len(given)} dictionaries, but {pairs} language pairs here",
                "dictionaries",
            )
        found: dict[Pair, Glossary] = {}
        for one in given:
            pair, glossary = await self._read(Parameters(one))
            found[pair] = await self._merged([found[pair], glossary]) if pair in found else glossary
        return found

    async def _read(self, asked: Parameters) -> tuple[Pair, Glossary]:
        """The entries of one language pair. Raises ParameterError and TooLarge."""
        pair = _pair(asked)
        served = self.translator.catalogue.for_pair(*pair)
        if served is None:
            pairs = [f"{s}-{t}" for s, t in self.translator.catalogue.pairs()]
            raise ParameterError(
                f"no model here translates from {pair[0]!r:.20} to {pair[1]!r:.20}; there are "
                f"{', '.join(pairs)}",
                "target_lang",
            )
        text, kind = asked.text("entries"), asked.choice("entries_format", FORMATS, "tsv")

        def read() -> Glossary:
            entries: dict[str, str] = {}
            for term, translation in parse(text, "entries", kind):
                if term in entries:
                    raise DataError(f"entries: {term[:40]!r} is there twice; remove one")
                entries[term] = translation
                self._check_entries(len(entries))
            if not entries:
                raise DataError("entries is empty; give a term and its translation a line")
            glossary = Glossary(entries, "entries")
            glossary.check(served.model.target_tokens)
            return glossary

        try:
            return pair, await self.translator.engine.threads.run(read)
        except DataError as error:
            raise ParameterError(str(error), "entries") from None

    async def _merged(self, glossaries: Sequence[Glossary]) -> Glossary:
        """All entries; of the same term, the last."""
        entries = {term: of for one in glossaries for term, of in one.entries.items()}
        return await self.translator.engine.threads.run(Glossary, entries)

    def _check_entries(self, count: int) -> None:
        maximum = self.limits.glossary_entries
        if count > maximum:
            raise BadRequest(f"a glossary has at most {maximum:,} entries here; give fewer")

    # ------------------------------------------------------------------------------ store

    def _add(self, request: Request, asked: Parameters, of: dict[Pair, Glossary]) -> Stored:
        name, owner = _name(asked), self._owner(request, asked.get("auth_key"))
        own = self._stored.get(owner, {})
        if len(own) >= self.limits.glossaries:
            raise _full(f"there are {len(own):,} glossaries already; delete one first")
        created = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        made = Stored(str(uuid.uuid4()), owner, name, created, of)
        self._keep(made)
        return made

    def _keep(self, stored: Stored) -> None:
        """A new or a changed glossary. Raises where it would be above a limit, or cannot be
        written; then nothing has changed."""
        self._check_entries(sum(len(one.entries) for one in stored.dictionaries.values()))
        every = (one for own in self._stored.values() for one in own.values())
        total = sum(one.characters for one in every if one.id != stored.id) + stored.characters
        if total > self.limits.glossary_characters:
            raise _full("there is no room for more glossaries; delete some")
        if self._folder is not None:
            self._folder.write(stored)
        self._stored.setdefault(stored.owner, {})[stored.id] = stored

    def _owner(self, request: Request, key: Any = None) -> str:
        """The client; key: where older clients send it in the body."""
        given = (key_of(request) or key or "") if self.settings.keys.required else ""
        return owner_of(str(given))

    def _own(self, request: Request, key: Any = None) -> dict[str, Stored]:
        """The glossaries of the client."""
        return self._stored.setdefault(self._owner(request, key), {})

    def _find(self, request: Request, id: str | None = None, key: Any = None) -> Stored:
        wanted = request.path_params["id"] if id is None else id
        found = self._own(request, key).get(wanted)
        if found is None:
            raise NotFound(f"there is no glossary {wanted[:80]!r}", "glossary_not_found")
        return found


def as_tsv(glossary: Glossary) -> str:
    return "\n".join(f"{term}\t{of}" for term, (of, *_) in glossary.entries.items())


def _full(message: str) -> ServiceError:
    return ServiceError(456, message, "quota")  # as DeepL says that a quota is used up


def _ids(asked: Parameters, name: str) -> list[str]:
    return [one for one in asked.texts(name) if one] if name in asked else []


def _name(asked: Parameters) -> str:
    name = asked.text("name").strip()
    if not 0 < len(name) <= MAX_NAME:
        raise ParameterError(f"name must have 1 to {MAX_NAME} characters", "name")
    return name


def _pair(asked: Parameters) -> Pair:
    source, target = (base_of(asked.text(f"{side}_lang")).upper() for side in ("source", "target"))
    return source, target


def _shown(pairs: Collection[Pair]) -> str:
    return ", ".join(f"{source}-{target}" for source, target in pairs) or "no language pairs"
