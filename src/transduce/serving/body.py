"""The one reader of request bodies: JSON, forms, and forms with files.

Size and time are checked as the parts arrive (app.py), and an API key that is in the body before
anything else is read from it: of a form, before a byte of a file is kept.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from transduce.serving.errors import BadRequest, TooLarge
from transduce.serving.exchange import Exchange
from transduce.serving.limits import Limits

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
MULTIPART = "multipart/form-data"
KEYS = ("api_key", "auth_key")
"""The fields of a body that may have the API key: LibreTranslate's and DeepL's."""
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
INNERMOST = re.compile(rb"\[\]|\{\}")
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

Value = TypeVar("Value")


def exchange_of(request: Request) -> Exchange:
    found: Exchange = request.scope["state"]["exchange"]
    return found


def media_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# ------------------------------------------------------------------------------------ JSON


def parse_json(
    data: bytes | str,
    limits: Limits,
    decoder: Callable[[bytes | str], Value] = msgspec.json.decode,
    what: str = "the body",
) -> Value:
    """The value of a JSON text. Raises BadRequest; msgspec.ValidationError is the decoder's."""
    _check_depth(data, limits.json_depth, what)
    try:
        return decoder(data)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):
            raise BadRequest(f"{what} is not JSON that can be read: {error}") from None
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not JSON: {error}") from None


def parse_object(data: bytes | str, limits: Limits, what: str = "the body") -> dict[str, Any]:
    """The object of a JSON text. Raises BadRequest."""
    value: Any = parse_json(data, limits, what=what)
    if not isinstance(value, dict):
        raise BadRequest(f'{what} must be a JSON object, such as {{"name": "value"}}')
    return value


def _check_depth(data: bytes | str, maximum: int, what: str) -> None:
    """Raise BadRequest for JSON that is nested deeper; in linear time, by a few passes in C."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if text.count(b"[") + text.count(b"{") <= maximum:
        return
    brackets = STRING.sub(b"", text).translate(None, NO_BRACKETS)
    for _ in range(maximum):
        before = len(brackets)
        brackets = INNERMOST.sub(b"", brackets)
        if not brackets or len(brackets) == before:
            break
    if brackets:
        raise BadRequest(f"{what} is not JSON, or it is nested more than {maximum} levels deep")


async def read_body(request: Request) -> bytes:
    """The whole body; quicker than Starlette's for one that has arrived at once."""
    parts = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_object(request: Request) -> dict[str, Any]:
    """The object of a JSON body. Raises BadRequest and Unauthorized."""
    return _keyed(exchange_of(request), parse_object, await read_body(request))


Fields = TypeVar("Fields", dict[str, Any], list[tuple[str, str]])


def _keyed(exchange: Exchange, parse: Callable[[bytes, Limits], Fields], body: bytes) -> Fields:
    """What a body has, where the key in it is known: without one, not even its errors are told."""
    try:
        found = parse(body, exchange.limits)
    except BadRequest:
        exchange.show_key(None)
        raise
    exchange.show_key(_key_in(dict(found)))
    return found


def _key_in(values: Mapping[str, Any]) -> str | None:
    found = next((values[name] for name in KEYS if name in values), None)
    return found if isinstance(found, str) else None


# ------------------------------------------------------------------------------------ forms


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


def parse_pairs(text: str, limits: Limits) -> list[tuple[str, str]]:
    """The fields of a URL-encoded form or a query string. Raises BadRequest."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=limits.parts)
    except ValueError:
        raise BadRequest(
            f"the form is not URL-encoded, or it has more than {limits.parts:,} fields"
        ) from None


async def read_pairs(request: Request) -> list[tuple[str, str]]:
    """The fields of a URL-encoded body. Raises BadRequest and Unauthorized."""
    return _keyed(exchange_of(request), _parse_form, await read_body(request))


def _parse_form(body: bytes, limits: Limits) -> list[tuple[str, str]]:
    try:
        return parse_pairs(body.decode(), limits)
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8 text") from None


async def read_pairs_or_object(request: Request) -> list[tuple[str, str]] | dict[str, Any]:
    """The fields of a URL-encoded body; a JSON object, which curl sends as if it were one.

    Raises BadRequest and Unauthorized.
    """
    exchange, body = exchange_of(request), await read_body(request)
    if body.lstrip().startswith(b"{"):
        return _keyed(exchange, parse_object, body)
    return _keyed(exchange, _parse_form, body)


@asynccontextmanager
async def receive_form(request: Request, files: bool = True) -> AsyncIterator[Form]:
    """The form of a request, multipart or URL-encoded; its files are deleted on leaving.

    files: whether it may have some. Raises BadRequest, TooLarge and Unauthorized.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == FORM.encode():
        yield Form(await read_pairs(request))
        return
    if kind != MULTIPART.encode() or not options.get(b"boundary"):
        raise BadRequest(f"the body must be {MULTIPART}, with its boundary, or {FORM}")
    receiver = _Receiver(exchange_of(request), options[b"boundary"], files)
    try:
        async for chunk in request.stream():
            receiver.write(chunk)
        yield receiver.finish()
    finally:
        receiver.close()


class _Receiver:
    """Takes the parts of a multipart body as they arrive; fields in memory, files on disk."""

    def __init__(self, exchange: Exchange, boundary: bytes, files: bool) -> None:
        self.exchange, self.limits, self.files = exchange, exchange.limits, files
        self.form = Form()
        self.parts = self.in_memory = self.size = 0
        self.ended = False
        self._folder: Path | None = None
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
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # its TypedDict
        except ValueError as error:
            raise BadRequest(f"the multipart body cannot be parsed: {error}") from None
        if files:
            exchange.take_files()

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.exchange.key_is_missing and self.size > self.limits.keyless_bytes:
            self.exchange.show_key(None)
        try:
            self._parser.write(chunk)
        except ValueError as error:  # of the parser; the service's own errors are none
            raise BadRequest(f"the multipart body cannot be parsed: {error}") from None

    def finish(self) -> Form:
        if self.exchange.key_is_missing:
            self.exchange.show_key(_key_in(dict(self.form.fields)))
        if not self.ended:
            raise BadRequest("the multipart body is incomplete")
        return self.form

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.exchange.folders.discard(self._folder)

    def _begin(self) -> None:
        self.parts += 1
        if self.parts > self.limits.parts:
            raise TooLarge(f"the form has more than {self.limits.parts:,} parts")
        self._headers, self._data, self._length = {}, bytearray(), 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._keep(end - start)
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._keep(end - start)
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
            if self.exchange.key_is_missing:  # it has to come first
                self.exchange.show_key(_key_in(dict(self.form.fields)))
            if not self.files:
                raise BadRequest("this address takes no files; send texts")
            self._filename = options[b"filename"].decode("utf-8", "replace")
            self._file = cast(BinaryIO, self._path().open("wb"))

    def _path(self) -> Path:
        """A file of our own naming; only a plain ending is the client's."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="transduce-"))
            self.exchange.folders.add(self._folder)
        ending = Path(self._filename).suffix
        plain = ending if ending[1:].isalnum() and ending.isascii() and len(ending) < 10 else ""
        return self._folder / f"upload-{len(self.form.files) + 1}{plain}"

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._length += end - start
        if self._file is not None:
            self._file.write(data[start:end])
            return
        self._keep(end - start)
        self._data += data[start:end]

    def _keep(self, size: int) -> None:
        """So many more bytes stay in memory."""
        self.in_memory += size
        if self.in_memory > self.limits.field_bytes:
            raise TooLarge(
                f"the fields of the form are larger than {self.limits.field_bytes:,} bytes"
            )

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
