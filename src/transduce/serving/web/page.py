"""Serves the page: its files are in this folder, its views are those of `transduce look`.

There is no build step, and the page loads nothing from elsewhere. Its Content-Security-Policy
allows scripts, styles and connections of this server only, and no inline ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from transduce.inspection.look.show import STYLES, module
from transduce.inspection.page import stylesheet
from transduce.serving import api
from transduce.serving.engine import Engine
from transduce.serving.errors import NotFound
from transduce.serving.settings import ServiceSettings

PREFIXES = ("/page/", "/look/")
OPEN = frozenset({"/", "/page/", "/look/"})
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}

error = api.error


@dataclass(frozen=True)
class File:
    """A file of the page, with the ETag of its content."""

    content: bytes
    type: str
    etag: str

    @classmethod
    def of(cls, name: str, content: str) -> File:
        encoded = content.encode()
        kind = TYPES[name[name.rindex(".") :]]
        return cls(encoded, kind, f'"{hashlib.sha256(encoded).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        headers = {**HEADERS, "etag": self.etag}
        known = request.headers.get("if-none-match", "")
        if self.etag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.type)


def files() -> dict[str, File]:
    """All files by their path."""
    folder = resources.files("transduce.serving").joinpath("web")
    found = {
        "/look/look.js": File.of("look.js", module()),
        "/look/look.css": File.of("look.css", stylesheet(STYLES)),
    }
    for one in folder.iterdir():
        if one.name.endswith(tuple(TYPES)):
            path = "/" if one.name == "index.html" else f"/page/{one.name}"
            found[path] = File.of(one.name, one.read_text("utf-8"))
    return found


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    served = files()

    async def answer(request: Request) -> Response:
        file = served.get(request.url.path)
        if file is None:
            raise NotFound("there is nothing at this address")
        return file.response(request)

    return [Route("/", answer), Route("/page/{name}", answer), Route("/look/{name}", answer)]
