"""A web server on this machine that behaves, or misbehaves as it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked.append((name, self.headers.get("Range")))
        replies = self.server.replies.get(name, [])
        # The last way is for all further requests.
        reply = replies.pop(0) if len(replies) > 1 else replies[0] if replies else well
        body = self.server.files.get(name)
        if body is None and reply is well:
            self.send_error(404)
        else:
            reply(self, body or b"")

    @property
    def start(self) -> int:
        """The first byte that is asked for."""
        asked = self.headers.get("Range", "bytes=0-")
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def head(self, body: bytes, *, length: int | None = None, ranges: bool = True) -> bytes:
        """The head of a right answer, and the bytes that should follow it."""
        start = self.start if ranges else 0
        if start >= len(body) > 0:
            self.send_error(416)
            return b""
        rest = body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest) if length is None else length))
        self.end_headers()
        return rest

    def hang_up(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def well(handler: Handler, body: bytes) -> None:
    handler.wfile.write(handler.head(body))


def without_ranges(handler: Handler, body: bytes) -> None:
    handler.wfile.write(handler.head(body, ranges=False))


def cut(count: int, *, ranges: bool = True) -> Reply:
    """The connection breaks after so many bytes."""

    def reply(handler: Handler, body: bytes) -> None:
        handler.wfile.write(handler.head(body, ranges=ranges)[:count])
        handler.hang_up()

    return reply


def cut_without_length(count: int) -> Reply:
    """As servers of old: the end of the connection is the end of the file."""

    def reply(handler: Handler, body: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body[:count])
        handler.hang_up()

    return reply


def with_length(off: int) -> Reply:
    """A Content-Length that is off by so many bytes; all the bytes come."""

    def reply(handler: Handler, body: bytes) -> None:
        handler.wfile.write(handler.head(body, length=len(body) - handler.start + off))
        handler.hang_up()

    return reply


def wrong_range(handler: Handler, body: bytes) -> None:
    """Answers with another part than asked for."""
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int) -> Reply:
    return lambda handler, body: handler.send_error(code)


def redirect(to: str) -> Reply:
    def reply(handler: Handler, body: bytes) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return reply


def slow(pieces: int, pause: float) -> Reply:
    """In pieces, with pauses before them."""

    def reply(handler: Handler, body: bytes) -> None:
        rest = handler.head(body)
        size = -(-len(rest) // pieces)
        for begin in range(0, len(rest), size):
            time.sleep(pause)
            handler.wfile.write(rest[begin : begin + size])

    return reply


def stuck(count: int, seconds: float) -> Reply:
    """So many bytes, and then nothing for a long time."""

    def reply(handler: Handler, body: bytes) -> None:
        handler.wfile.write(handler.head(body)[:count])
        handler.wfile.flush()
        time.sleep(seconds)

    return reply


def silent(seconds: float) -> Reply:
    """Takes the question and does not answer."""
    return lambda handler, body: time.sleep(seconds)


class Loopback(ThreadingHTTPServer):
    """Serves `files`; of a name in `replies`, the first answer in the first way, and so on."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.replies: dict[str, list[Reply]] = {}
        self.asked: list[tuple[str, str | None]] = []
        """Names, and the ranges that were asked for."""

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that hangs up is not worth a traceback


@contextmanager
def serving() -> Iterator[Loopback]:
    with Loopback() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
