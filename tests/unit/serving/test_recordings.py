"""Recordings that clients upload: settings, limits, formats that ffmpeg reads, files that nothing
reads, and clients that go away."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("soundfile", reason="needs the extra speech")

from client_server import write_wave
from fixtures.make_models import MODELS
from served import Running, serving, until
from tiny_whisper import our_model
from transduce.data.audio import ffmpeg
from transduce.data.audio.read import audio_info
from transduce.tasks.transduce import load

pytestmark = pytest.mark.filterwarnings("ignore::transduce.errors.TransduceWarning")
OTHER = b"\0\0\0\x20ftypM4A " + bytes(range(200))  # a format that libsndfile does not read
TRANSCRIBE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def models(server: Running) -> dict[str, Any]:
    return {name: served.model for name, served in server.engine.catalogue.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = {name: load(MODELS / name) for name in ("live", "translate")} | {"whisper": our_model()}
    uploads = tmp_path_factory.mktemp("uploads")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(uploads))
        with serving(made) as running:
            yield running
            until(lambda: not running.service.open, "all requests are over")
            until(lambda: not list(uploads.iterdir()), "no upload is left")
            assert running.service.on_disk == 0


@pytest.fixture
def limited(server: Running) -> Iterator[Callable[..., None]]:
    """Sets limits of the server, for one test."""
    places = (server.engine, server.service.settings)
    before = server.engine.limits
    seconds = server.engine.threads.seconds

    def limit(**values: Any) -> None:
        for one in places:
            object.__setattr__(one, "limits", replace(before, **values))
        server.engine.threads.seconds = server.engine.limits.seconds

    yield limit
    for one in places:
        object.__setattr__(one, "limits", before)
    server.engine.threads.seconds = seconds


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A program ffmpeg of some lines of shell, alone in the path; OUT is the file to write."""

    def made(lines: str) -> None:
        path = tmp_path / "bin" / "ffmpeg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nfor OUT; do :; done\nOUT="${{OUT#file:}}"\n{lines}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return made


@pytest.fixture
def wave(tmp_path: Path) -> Path:
    return write_wave(tmp_path / "a.wav", 1.5)


def post(
    server: Running, *files: tuple[str, bytes], path: str = "/api/run", **asked: Any
) -> httpx.Response:
    asked = {"model": "live", **asked}
    data = asked if path == TRANSCRIBE else {"request": json.dumps(asked)}
    return server.client.post(path, files=[("file", one) for one in files], data=data)


def error(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    assert "upload-" not in message
    assert tempfile.gettempdir() not in message
    return message


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("live", {"chunk_ms": 160.0, "beam": 2, "patience": 2.0}),
        ("whisper", {"language": "de", "task": "translate"}),
        ("whisper", {"timestamps": False, "prompt": "uncle Iroh", "language": "en"}),
        ("whisper", {"previous_text": True, "fallback": False, "seed": 3, "language": "en"}),
    ],
)
def test_settings_of_speech_models_are_those_of_run(
    server: Running, models: dict[str, Any], wave: Path, name: str, settings: dict[str, Any]
) -> None:
    answer = post(server, ("a.wav", wave.read_bytes()), model=name, **settings)
    assert answer.status_code == 200, answer.text
    same = wave.rename(wave.with_name("upload-1.wav"))  # samples depend on the name of a file
    (expected,) = models[name].run([same], **settings)
    (found,) = answer.json()["outputs"]
    assert found["text"] == expected.text
    assert found["score"] == pytest.approx(expected.score, abs=1e-4)
    for key, value in settings.items():
        if isinstance(value, float):
            refused = post(server, ("a.wav", same.read_bytes()), model=name, **{key: -1.0})
            assert f"{key} is -1.0" in error(refused, 400)


def test_patience_is_that_of_run(server: Running, models: dict[str, Any]) -> None:
    texts = []
    for patience in (0.01, 1.0):
        settings = {"beam": 4, "patience": patience}
        (expected,) = models["translate"].run(["cab"], **settings)
        (found,) = server.run(model="translate", input="cab", **settings)
        assert found["text"] == expected.text
        texts.append(found["text"])
    assert texts[0] != texts[1]


@pytest.mark.parametrize("path", ["/api/run", "/api/look", TRANSCRIBE])
def test_audio_without_a_header_is_the_clients_mistake(server: Running, path: str) -> None:
    samples = np.zeros(16_000, "<i2").tobytes()
    message = error(post(server, ("talk.raw", samples), path=path), 400)
    assert message.startswith("talk.raw is raw audio, whose sampling rate is not known")


def test_one_file_that_cannot_be_read_stops_no_other(
    server: Running, models: dict[str, Any], wave: Path
) -> None:
    good = wave.read_bytes()
    answer = post(server, ("a.wav", good), ("b.raw", bytes(999)), ("c.wav", b"?"), ("d.wav", good))
    assert answer.status_code == 200, answer.text
    found = answer.json()["outputs"]
    (expected,) = models["live"].run([wave])
    assert [one["text"] for one in found] == [expected.text, "", "", expected.text]
    assert found[1]["warning"].startswith("b.raw is raw audio")
    assert found[2]["warning"].startswith("c.wav is not audio that can be read here")


@pytest.mark.parametrize("path", ["/api/run", "/api/look", TRANSCRIBE])
def test_the_length_of_a_recording_is_limited(
    server: Running, limited: Callable[..., None], wave: Path, path: str
) -> None:
    seconds = audio_info(wave).seconds
    sound = ("a.wav", wave.read_bytes())
    limited(audio_seconds=seconds)
    assert post(server, sound, path=path).status_code == 200
    limited(audio_seconds=seconds - 0.01)
    begun = server.engine._scheduler.submit
    server.engine._scheduler.submit = None  # type: ignore[method-assign, assignment]
    try:
        message = error(post(server, sound, path=path), 413)
    finally:
        server.engine._scheduler.submit = begun  # type: ignore[method-assign]
    assert message == f"a recording has 2 s; the maximum is {seconds - 0.01:g}"


def test_many_files_of_other_formats_are_converted_once_each(
    server: Running,
    models: dict[str, Any],
    wave: Path,
    tmp_path: Path,
    program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off the event loop, whatever their number; nothing is converted again to be decoded."""
    monkeypatch.setattr(ffmpeg, "MAX_KEPT", 1)
    monkeypatch.setattr(ffmpeg, "_CONVERTED", OrderedDict())
    program(f'echo run >> {tmp_path}/runs; cp {wave} "$OUT"')
    answer = post(server, *[(f"{number}.m4a", OTHER) for number in range(4)])
    assert answer.status_code == 200, answer.text
    (expected,) = models["live"].run([wave])
    assert [one["text"] for one in answer.json()["outputs"]] == [expected.text] * 4
    assert (tmp_path / "runs").read_text() == 4 * "run\n"
    assert not ffmpeg._CONVERTED  # these are kept for local files only


def test_limits_of_conversion(
    server: Running,
    limited: Callable[..., None],
    wave: Path,
    tmp_path: Path,
    program: Callable[[str], None],
) -> None:
    program(f'cp {wave} "$OUT"')
    size, sent = wave.stat().st_size, ("talk.m4a", OTHER)
    limited(converted_bytes=size)
    assert f"talk.m4a has more audio than fits into {size:,} bytes" in error(
        post(server, sent), 400
    )
    limited(converted_bytes=size + 1)
    assert post(server, sent).status_code == 200
    limited(disk_bytes=size)  # of all requests, with what was sent
    assert "too many large bodies" in error(post(server, sent), 429)
    limited(disk_bytes=size + 2000)
    assert post(server, sent).status_code == 200
    program("exec sleep 1000")
    limited(seconds=0.5)
    assert "within 0.5 s" in error(post(server, sent), 504)


def test_a_client_that_leaves_ends_the_conversion(
    server: Running, tmp_path: Path, program: Callable[[str], None]
) -> None:
    process = tmp_path / "process"
    program(f"echo $$ > {process}; exec sleep 1000")
    files = {"file": ("talk.m4a", OTHER)}
    request = httpx.Request("POST", f"{server.url}/api/run", files=files)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    address = (request.url.host, request.url.port)
    with socket.create_connection(address) as client:
        client.sendall(f"POST /api/run HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        until(lambda: process.exists() and process.read_text() != "", "ffmpeg has begun")
        assert not _has_ended(process)
    until(lambda: _has_ended(process), "ffmpeg has ended", 60)
    until(lambda: not server.service.open, "the request is over")
    assert not server.service.settings.folders


def _has_ended(file: Path) -> bool:
    """Whether the process whose number is in a file is over."""
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False
