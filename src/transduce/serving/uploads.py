"""Form bodies: fields in memory, files streamed to a temporary folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import parse_qsl

from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from transduce.serving.errors import BadRequest, TooLarge
from transduce.serving.limits import Limits
from transduce.serving.request import read_body

MAX_PARTS = 1000
FIELD_BYTES = 1 << 20


@dataclass(frozen=True)
class Upload:
    """A file that a client sent, on disk for as long as its form is open."""

    path: Path
    filename: str
    """As the client called it: never a path here."""
    content_type: str
    size: int


@dataclass
class Form:
    """The fields of a form in order, and its files by the name of their field."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    files: list[tuple[str, Upload]] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        """The last value of a field."""
        return next((value for key, value in reversed(self.fields) if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def file(self, name: str) -> Upload | None:
        return next((upload for key, upload in self.files if key == name), None)


@asynccontextmanager
async def receive_form(request: Request, limits: Limits) -> AsyncIterator[Form]:
    """The form of a request, multipart or URL-encoded; its files are deleted on leaving.

    Raises BadRequest and TooLarge.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/x-www-form-urlencoded":
        body = await read_body(request)
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10_000)
        except (UnicodeDecodeError, ValueError):
            raise BadRequest("the form is not URL-encoded UTF-8") from None
        yield Form(pairs)
        return
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise BadRequest(
            "the body must be multipart/form-data or application/x-www-form-urlencoded"
        )
    folder = Path(tempfile.mkdtemp(prefix="transduce-"))
    receiver = _Receiver(folder, options[b"boundary"], limits)
    try:
        async for chunk in request.stream():
            receiver.write(chunk)
        yield receiver.finish()
    finally:
        receiver.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Receiver:
    """Takes the parts of a multipart body as they arrive."""

    def __init__(self, folder: Path, boundary: bytes, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.form = Form()
        self.size = self.parts = 0
        self.in_memory = 0
        self.ended = False
        self._header = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = self._filename = self._type = ""
        self._data = bytearray()
        self._file: BinaryIO | None = None
        self._length = 0
        callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # its TypedDict

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self.limits.upload_bytes:
            raise TooLarge(f"the body is larger than {self.limits.upload_bytes:,} bytes")
        try:
            self._parser.write(chunk)
        except (BadRequest, TooLarge):
            raise
        except ValueError as error:  # of the parser
            raise BadRequest(f"the multipart body cannot be parsed: {error}") from None

    def finish(self) -> Form:
        if not self.ended:
            raise BadRequest("the multipart body is incomplete")
        return self.form

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise BadRequest(f"the form has more than {MAX_PARTS:,} parts")
        self._headers, self._data, self._length = {}, bytearray(), 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"name" not in options:
            raise BadRequest("a part of the form has no name")
        self._name = options[b"name"].decode("utf-8", "replace")
        self._type = self._headers.get(b"content-type", b"").decode("latin-1")
        if b"filename" in options:
            self._filename = options[b"filename"].decode("utf-8", "replace")
            self._file = cast(BinaryIO, self._path().open("wb"))

    def _path(self) -> Path:
        """A file of our own naming; only a plain ending is the client's."""
        ending = Path(self._filename).suffix
        plain = ending if ending[1:].isalnum() and ending.isascii() and len(ending) < 10 else ""
        return self.folder / f"upload-{self.parts}{plain}"

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._length += end - start
        if self._file is not None:
            self._file.write(data[start:end])
            return
        self.in_memory += end - start
        if self.in_memory > FIELD_BYTES:
            raise TooLarge(f"the fields of the form are larger than {FIELD_BYTES:,} bytes")
        self._data += data[start:end]

    def _part_end(self) -> None:
        if self._file is None:
            try:
                self.form.fields.append((self._name, self._data.decode()))
            except UnicodeDecodeError:
                raise BadRequest(f"the field {self._name[:40]} is not UTF-8 text") from None
            return
        self._file.close()
        self._file = None
        upload = Upload(self._path(), self._filename, self._type, self._length)
        self.form.files.append((self._name, upload))

    def _end(self) -> None:
        self.ended = True
