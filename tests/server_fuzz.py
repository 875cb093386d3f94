"""Hostile requests for a server, each made from its number: what is sent, and how it is sent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote_plus

JSON_PATHS = [
    "/api/run",
    "/api/classify",
    "/api/tag",
    "/api/align",
    "/api/look",
    "/translate",
    "/detect",
    "/suggest",
    "/v2/translate",
    "/v2/languages",
    "/v2/usage",
    "/v1/completions",
    "/v1/chat/completions",
]
FORM_PATHS = [
    "/api/run",
    "/api/look",
    "/translate",
    "/detect",
    "/translate_file",
    "/v2/translate",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/completions",
]
GET_PATHS = [
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/api/models",
    "/languages",
    "/frontend/settings",
    "/spec",
    "/v1/models",
    "/v1/models/%00",
    "/v1/models/../../etc/passwd",
    "/page/../../../etc/passwd",
    "/look/%2e%2e%2f",
    "/download_file/x.txt",
    "/download_file/%2fetc%2fpasswd",
    "/translate",
    "/v1/realtime",
    "/nothing",
    "*",
    "//",
    "/\u00ff",
]
SOCKETS = ["/api/live", "/v1/realtime?intent=transcription", "/vosk", "/", "/nothing"]
NAMES = ["en-de", "de-en", "speech", "speech-de", "tea", "none", "", "x" * 300, "\x00", "é"]
FIELDS = [
    "model",
    "input",
    "inputs",
    "stream",
    "alternatives",
    "attention",
    "prefix",
    "include",
    "exclude",
    "ensemble",
    "rerank",
    "language_model",
    "beam",
    "nbest",
    "length_penalty",
    "coverage_penalty",
    "groups",
    "diversity",
    "sample",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "mbr",
    "samples",
    "no_repeat_ngram",
    "min_length",
    "max_length",
    "only",
    "times",
    "tags",
    "targets",
    "q",
    "source",
    "target",
    "format",
    "text",
    "source_lang",
    "target_lang",
    "tag_handling",
    "ignore_tags",
    "prompt",
    "n",
    "max_tokens",
    "stop",
    "logprobs",
    "top_logprobs",
    "echo",
    "stream_options",
    "messages",
    "response_format",
    "api_key",
    "language",
    "timestamp_granularities[]",
]
GOOD: dict[str, dict[str, Any]] = {
    "/api/run": {"model": "en-de", "input": "tea"},
    "/api/align": {"model": "en-de", "inputs": ["tea"], "targets": ["tea"]},
    "/api/look": {"model": "en-de", "input": "tea"},
    "/translate": {"q": "tea", "source": "en", "target": "de"},
    "/detect": {"q": "tea"},
    "/v2/translate": {"text": ["tea"], "source_lang": "EN", "target_lang": "DE"},
    "/v1/completions": {"model": "tea", "prompt": "tea", "max_tokens": 5},
    "/v1/chat/completions": {"model": "en-de", "messages": [{"role": "user", "content": "tea"}]},
    "/v1/audio/transcriptions": {"model": "speech"},
    "/v1/audio/translations": {"model": "speech-de"},
    "/translate_file": {"source": "en", "target": "de"},
}


def hostile_value(random: Random, depth: int = 0) -> Any:
    kinds: list[Any] = [
        lambda: random.choice([None, True, False, 0, -1, 1, 2, 7, 10**6, 2**62, 2**63, 10**400]),
        lambda: random.choice([0.0, -0.5, 1e-320, 1e308, 0.9]),
        lambda: random.choice(["", "tea", "a cup of tea", "\x00", "\ud800", "é" * 50, "<b>", "&"]),
        lambda: "x" * random.choice([10, 300, 3000, 30_000]),
        lambda: random.choice(NAMES),
        lambda: random.choice(["<b>" * 500, "<!--" * 500, "&" * 2000, "<svg>" * 300, "\n" * 3000]),
        lambda: random.choice(["chrf", "bleu", "html", "xml", "verbose_json", "auto", "EN", "de"]),
    ]
    if depth < 3:
        kinds += [
            lambda: [hostile_value(random, depth + 1) for _ in range(random.choice([0, 1, 3]))],
            lambda: ["tea"] * random.choice([1, 5, 50, 500]),
            lambda: {random.choice(FIELDS): hostile_value(random, depth + 1)},
        ]
    return random.choice(kinds)()


def hostile_fields(random: Random, path: str) -> dict[str, Any]:
    found = dict(GOOD.get(path, {})) if random.random() < 0.8 else {}
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        found[random.choice(FIELDS)] = hostile_value(random)
    return found


def json_body(random: Random, path: str) -> bytes:
    kind = random.random()
    if kind < 0.1:
        return random.choice([b"[", b'{"a":', b"[{", b'"']) * random.choice([1, 50, 2000])
    if kind < 0.15:
        return random.randbytes(random.choice([0, 1, 50, 3000]))
    text = json.dumps(hostile_fields(random, path)).encode()
    if kind < 0.25:
        place = random.randrange(len(text) + 1)
        text = text[:place] + random.randbytes(random.choice([0, 1, 4])) + text[place + 1 :]
    return text


def form_body(random: Random, path: str, wave: bytes) -> tuple[str, bytes]:
    if random.random() < 0.25:
        pairs = hostile_fields(random, path).items()
        text = "&".join(
            f"{name}={quote_plus(str(value), errors='replace')}" for name, value in pairs
        )
        return "application/x-www-form-urlencoded", text.encode()
    boundary = random.choice(["x", "x", "x", "", "y" * 70, "z" * 300, 'a"b', "é"])
    parts = []
    for name, value in hostile_fields(random, path).items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append((f'form-data; name="{name}"', text.encode("utf-8", "replace")))
    for _ in range(random.choice([0, 1, 1, 1, 3])):
        name = random.choice(["file", "file", "q", "request", ""])
        ending = random.choice(["a.wav", "a.txt", "a.html", "a.srt", "../../a.vtt", "a.exe", ""])
        contents = random.choice([wave, wave, wave[:60], b"", b"tea\n" * 50, random.randbytes(500)])
        parts.append((f'form-data; name="{name}"; filename="{ending}"', contents))
    random.shuffle(parts)
    head = random.choice(["Content-Disposition", "content-disposition", "X"])
    body = b"".join(
        f"--{boundary}\r\n{head}: {about}\r\n\r\n".encode("utf-8", "replace") + contents + b"\r\n"
        for about, contents in parts
    )
    end = random.choice([f"--{boundary}--\r\n", f"--{boundary}--\r\n", "", "--", "junk" * 300])
    kind = random.choice(["multipart/form-data"] * 6 + ["multipart/mixed", "multipart/"])
    return f"{kind}; boundary={boundary}", body + end.encode("utf-8", "replace")


@dataclass
class Case:
    """Bytes for a connection, in parts, and whether an answer is read."""

    kind: str
    parts: list[bytes]
    reads: bool = True
    pause: float = 0.0


def make_case(number: int, wave: bytes) -> Case:
    random = Random(number)
    kind = random.choices(["json", "form", "get", "broken", "socket"], [40, 25, 10, 10, 15])[0]
    if kind == "socket":
        return _socket(random)
    if kind == "broken":
        return _broken(random)
    host = random.choice(["localhost"] * 12 + ["evil.example", "", "[", "localhost:99999"])
    headers = [f"Host: {host}"]
    if random.random() < 0.1:
        headers.append(f"Origin: {random.choice(['http://evil.example', 'null', 'http://['])}")
    if random.random() < 0.1:
        headers.append(f"Authorization: {random.choice(['Bearer', 'Bearer x', 'Basic é', ''])}")
    if kind == "get":
        path, body, method = random.choice(GET_PATHS), b"", random.choice(["GET", "HEAD", "DELETE"])
    elif kind == "json":
        path, method = random.choice(JSON_PATHS), "POST"
        body = json_body(random, path)
        given = random.choice(["application/json", "application/json", "", "text/plain", "a/b;c=é"])
        headers += [f"Content-Type: {given}"] if given else []
    else:
        path, method = random.choice(FORM_PATHS), "POST"
        given, body = form_body(random, path, wave)
        headers.append(f"Content-Type: {given}")
    if random.random() < 0.1:
        path += "?" + "&".join(f"{name}=x" for name in random.sample(FIELDS, 3))
    length = len(body)
    way = random.random()
    if way < 0.05:
        length += random.choice([1, 1000])  # the rest never comes
    chunked = 0.05 < way < 0.15
    headers.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}")
    if chunked:
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
    head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    whole = head.encode("utf-8", "replace") + body
    if way > 0.95:  # it goes away in the middle
        return Case(kind, [whole[: random.randrange(len(whole))]], reads=False)
    if way > 0.9:  # or just after
        return Case(kind, [whole], reads=False)
    if way > 0.85:
        cut = random.randrange(len(whole))
        return Case(kind, [whole[:cut], whole[cut:]], pause=0.01)
    if way > 0.8:
        return Case(kind, [whole * 2])  # pipelining
    return Case(kind, [whole])


def _broken(random: Random) -> Case:
    lines = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9" + b"9" * 30 + b"\r\n\r\n",
        b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 9000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"\r\n" * 50,
        b"",
        random.randbytes(200),
    ]
    return Case("broken", [random.choice(lines)], reads=random.random() < 0.7)


def _frame(random: Random, opcode: int, payload: bytes) -> bytes:
    head = bytes([0x80 | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([0x80 | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", len(payload))
    mask = random.randbytes(4)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + masked


def _message(random: Random) -> bytes:
    audio = random.randbytes(random.choice([0, 1, 2, 640, 6401]))
    texts = [
        {"type": "finish"},
        {"config": {"sample_rate": random.choice([8000, 16000, 0, -1, 1e300, 10**400, "x", None])}},
        {"config": hostile_value(random)},
        {"eof": 1},
        {"reset": 1},
        {"type": "session.update", "session": hostile_value(random)},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()},
        {"type": "input_audio_buffer.append", "audio": hostile_value(random)},
        {"type": "input_audio_buffer.commit"},
        {"type": hostile_value(random)},
        hostile_value(random),
    ]
    kind = random.random()
    if kind < 0.35:
        return _frame(random, 2, audio)
    if kind < 0.8:
        return _frame(random, 1, json.dumps(random.choice(texts)).encode())
    if kind < 0.85:
        return _frame(random, 1, b"[" * 3000)
    if kind < 0.9:
        return _frame(random, 1, b"\xff\xfe")
    if kind < 0.93:
        return _frame(random, random.choice([3, 9, 10, 0]), b"x")
    if kind < 0.96:
        return _frame(
            random, 8, random.choice([b"", b"\x03", struct.pack(">H", 1000), b"\xff" * 9])
        )
    return random.randbytes(20)


def _socket(random: Random) -> Case:
    path = random.choice(SOCKETS)
    if random.random() < 0.3:
        joint = "&" if "?" in path else "?"
        path += joint + random.choice(["model=none", "rate=x", "rate=16000", "rate=999999999", "x"])
    host = random.choice(["localhost"] * 8 + ["evil.example"])
    origin = random.choice([""] * 6 + ["Origin: http://evil.example\r\n", "Origin: http://[\r\n"])
    key = base64.b64encode(random.randbytes(16)).decode()
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"{origin}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    frames = [_message(random) for _ in range(random.choice([0, 1, 3, 6]))]
    return Case("socket", [head.encode(), *frames], reads=random.random() < 0.7, pause=0.005)


async def send_case(case: Case, port: int, seconds: float) -> bytes:
    """What the server has answered, as far as it is read."""
    found = b""
    writer = None
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in case.parts:
                writer.write(part)
                await writer.drain()
                if case.pause:
                    await asyncio.sleep(case.pause)
            if case.reads:
                while len(found) < 1 << 16 and (new := await reader.read(1 << 14)):
                    found += new
                    if case.kind != "socket" and is_whole(found, case.parts[0][:5] == b"HEAD "):
                        break
    if writer is not None:
        writer.transport.abort()
    return found


def is_whole(answer: bytes, only_head: bool) -> bool:
    """Whether an answer has come to its end, as far as its head tells."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end or only_head:
        return bool(end)
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
