"""A real S3 server (moto's) in a process of its own, and a proxy in front of it that fails on
request.

Where moto or s3fs is not installed, the tests that need them are skipped:
pip install '.[remote]' 'moto[server]'.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

START = (
    "import sys, logging; logging.getLogger('werkzeug').disabled = True\n"
    "from moto.server import ThreadedMotoServer\n"
    "server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False); server.start()\n"
    "print(server.get_host_and_port()[1], flush=True); sys.stdin.read()"
)


@contextmanager
def store_server(script: str = START) -> Iterator[int]:
    """The port of a new server, which the script starts and prints; it ends with this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(timeout=30)


@dataclass
class Seen:
    """A request that came to the proxy."""

    method: str
    path: str
    range: str


Fault = Callable[[Seen], str]
"""What becomes of a request: "" (it is passed on), "503" or "403" (it is refused), "timeout",
"truncated" (the connection breaks in the middle) or "short" (half of what was asked for)."""

REFUSED = {
    "503": "<Code>ServiceUnavailable</Code><Message>Please try again</Message>",
    "403": "<Code>AccessDenied</Code><Message>Access Denied</Message>",
}


@dataclass
class Proxy:
    """In front of the server: passes requests on, or fails as `fault` says."""

    upstream: int
    fault: Fault = lambda seen: ""
    seen: list[Seen] = field(default_factory=list)
    patience: float = 3.0
    """Seconds that a request waits which is to time out."""
    lock: Lock = field(default_factory=Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    port: int = 0

    def gets(self) -> list[Seen]:
        """The requests for bytes of objects so far."""
        return [one for one in self.seen if one.method == "GET" and one.range]

    def failing(self, *faults: str, method: str = "GET") -> None:
        """Let the next requests for bytes fail, one after the other, and those after them pass."""
        left = list(faults)

        def fault(seen: Seen) -> str:
            wanted = seen.method == method and (method != "GET" or seen.range)
            return left.pop(0) if wanted and left else ""

        self.fault = fault

    def __enter__(self) -> Proxy:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            seen = Seen(self.command, self.path, self.headers.get("Range") or "")
            with proxy.lock:
                proxy.seen.append(seen)
                fault = proxy.fault(seen)
            if fault == "timeout":
                time.sleep(proxy.patience)
                self.close_connection = True
                return
            if fault in REFUSED:
                text = f"<Error>{REFUSED[fault]}</Error>".encode()
                self.send(int(fault), {"Content-Type": "application/xml"}, text)
                return
            upstream = HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            answer = upstream.getresponse()
            content = answer.read()
            upstream.close()
            if fault == "short":
                content = content[: len(content) // 2]
            self.send(answer.status, dict(answer.getheaders()), content, fault == "truncated")

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def send(
            self, status: int, headers: dict[str, str], content: bytes, cut: bool = False
        ) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            size = headers.get("Content-Length") if self.command == "HEAD" else len(content)
            self.send_header("Content-Length", str(size or 0))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # The library's own repetitions come on top of ours.
    "AWS_MAX_ATTEMPTS": "1",
}


def put(port: int, path: str, content: bytes = b"") -> None:
    """Make a bucket, or an object in it."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", content, method="PUT")
    request.add_header("Content-Type", "application/octet-stream")
    # moto takes who is asking from this header, and checks no signature.
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3")
    with urllib.request.urlopen(request):
        pass
