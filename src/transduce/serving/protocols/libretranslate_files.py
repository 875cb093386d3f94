"""Translation of files: what LibreTranslate's translate_file takes, and its results for a while."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from starlette.responses import FileResponse, Response

from transduce.serving.documents import (
    Segments,
    html_segments,
    read_package,
    srt_segments,
    text_segments,
    vtt_segments,
)
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings

TEXTS: dict[str, Callable[[str], Segments]] = {
    ".txt": text_segments,
    ".srt": srt_segments,
    ".vtt": vtt_segments,
    ".html": html_segments,
    ".htm": html_segments,
}
PACKAGES = (".docx", ".odt")
FORMATS = (*TEXTS, *PACKAGES)
UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class Document:
    """A file that is to be translated."""

    segments: Segments
    write: Callable[[str], bytes]
    """The file, of its translated text."""


def read_document(name: str, path: Path, limits: Limits) -> Document:
    """A file, by the ending of the client's name of it. Raises BadRequest and TooLarge."""
    ending = PurePosixPath(name).suffix.lower()
    if ending == ".pdf":
        raise BadRequest(
            "a PDF says where letters stand on a page, and not what the sentences are; convert it "
            "to .docx, .odt, .html or .txt"
        )
    if ending in PACKAGES:
        package = read_package(path, ending, limits)
        return Document(package.segments, package.write)
    if ending not in TEXTS:
        raise BadRequest(
            f"files of type {ending or 'no ending'} cannot be translated; there are "
            f"{', '.join(FORMATS)}"
        )
    contents = path.read_bytes()
    encoding = "utf-16" if contents[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        return Document(TEXTS[ending](contents.decode(encoding)), str.encode)
    except UnicodeDecodeError:
        raise BadRequest(f"{name!r:.80} is not UTF-8 text; convert it") from None


@dataclass
class _Result:
    path: Path
    shown: str
    expires: float
    size: int


class Results:
    """Translated files in a folder of their own, which is removed at the end; each for a while."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.lifetime = settings.limits.results_seconds
        self.max_bytes = settings.limits.results_bytes
        self._folders = settings.folders
        self._results: dict[str, _Result] = {}

    @cached_property
    def _folder(self) -> TemporaryDirectory[str]:
        """For this user alone; made for the first result."""
        made = TemporaryDirectory(prefix="transduce-files-")
        self._folders.add(Path(made.name))
        return made

    def add(self, name: str, target: str, contents: bytes) -> str:
        """Keep a translation; its name for download, which nobody can guess."""
        self._forget_old()
        if sum(one.size for one in self._results.values()) + len(contents) > self.max_bytes:
            raise ServiceError(
                507, "there is no room for more translated files; try again later", "full"
            )
        original = PurePosixPath(name.replace("\\", "/"))
        ending = original.suffix.lower()
        key = secrets.token_urlsafe(24) + ending
        path = Path(self._folder.name) / key
        path.write_bytes(contents)
        shown = UNSAFE.sub("_", f"{original.stem}_{target}")[:80] + ending
        expires = time.monotonic() + self.lifetime
        self._results[key] = _Result(path, shown, expires, len(contents))
        return key

    def expire_later(self) -> None:
        """Remove what was added until now when its time has come; within an event loop."""
        asyncio.get_running_loop().call_later(self.lifetime, self._forget_old)

    def response(self, key: str) -> Response:
        """The file of a name. Raises ServiceError for one that is not there (any more)."""
        self._forget_old()
        found = self._results.get(key)  # the name is never used as a path
        if found is None:
            raise ServiceError(404, "there is no such file, or it has expired", "not_found")
        # A page of somebody else must not act in the name of this server.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return FileResponse(found.path, headers=headers, filename=found.shown)

    def close(self) -> None:
        self._results.clear()
        self._folders.discard(Path(self._folder.name))
        self._folder.cleanup()

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key, one in list(self._results.items()):
            if one.expires <= now:
                one.path.unlink(missing_ok=True)
                del self._results[key]
