"""Signals while someone speaks: `transduce serve` sends the last words and closes every connection,
`transduce run --live` prints them; nothing hangs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

import soundfile
import websockets

from fixtures.make_models import MODELS, samples_of
from lives import Lives
from served import until
from transduce.data.audio.corpus import to_int16
from transduce.data.audio.read import resampled

RATE = 4000
WORDS = "abcd ab"
PIECE = "conversation.item.input_audio_transcription."


def spoken() -> Any:
    """Words with little silence after them: the utterance is not over yet."""
    sound = np.concatenate([np.zeros(RATE // 4), samples_of(WORDS), np.zeros(RATE // 4)])
    noise = np.random.default_rng(1).standard_normal(len(sound))
    return (sound + 0.003 * noise).astype(np.float32)


async def until_closed(socket: Any) -> list[dict[str, Any]]:
    found = []
    try:
        while True:
            found.append(json.loads(await asyncio.wait_for(socket.recv(), 100)))
    except websockets.ConnectionClosed:
        return found


async def talk(url: str, process: int, asked: signal.Signals) -> dict[str, Any]:
    """A session of each protocol with an unfinished utterance, and one without audio; then a
    signal. What each got after it, and the codes with which they were closed."""
    pcm = to_int16(spoken())
    wide = base64.b64encode(to_int16(resampled(spoken(), RATE, 24_000)).tobytes()).decode()
    own = await websockets.connect(f"{url}/api/live?rate={RATE}")
    vosk = await websockets.connect(url)
    realtime = await websockets.connect(f"{url}/v1/realtime?intent=transcription")
    quiet = await websockets.connect(f"{url}/api/live")
    sockets = {"own": own, "vosk": vosk, "realtime": realtime, "quiet": quiet}
    await own.send(pcm.tobytes())
    while json.loads(await own.recv())["type"] != "partial":
        pass
    await vosk.send(json.dumps({"config": {"sample_rate": RATE}}))
    await vosk.send(pcm.tobytes())
    assert json.loads(await vosk.recv())["partial"]
    await realtime.send(json.dumps({"type": "input_audio_buffer.append", "audio": wide}))
    while json.loads(await realtime.recv())["type"] != "input_audio_buffer.speech_started":
        pass
    try:
        more = await websockets.connect(f"{url}/api/live")
        status = more.response.status_code if more.response else 0
        await more.close()
    except websockets.InvalidStatus as error:
        status = error.response.status_code
    os.kill(process, asked)
    rest = await asyncio.gather(*map(until_closed, sockets.values()))
    codes = {name: one.close_code for name, one in sockets.items()}
    return {"codes": codes, "one more": status, **dict(zip(sockets, rest, strict=True))}


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_sends_the_last_words(asked: signal.Signals, lives: Lives) -> None:
    options = ["--port", "0", "--no-log", "--accept-seconds", "0.1", "--live-sessions", "4"]
    process = lives.start("serve", f"live={MODELS / 'live'}", *options)
    until(lambda: "\n" in lives.reported, "the server is there")
    url = lives.reported.split()[-1].replace("http", "ws")
    found = asyncio.run(talk(url, process, asked))
    start = time.monotonic()
    assert lives.end() == 0, lives.reported
    assert time.monotonic() - start < 20
    assert "Traceback" not in lives.reported
    assert found["one more"] == 429
    assert found["codes"] == dict.fromkeys(("own", "vosk", "realtime", "quiet"), 1012)
    assert [one["text"] for one in found["own"] if one["type"] == "final"] == [WORDS]
    assert found["own"][-1]["error"]["message"] == "the server is stopping"
    assert [one["text"] for one in found["vosk"] if "text" in one] == [WORDS]
    completed = [one for one in found["realtime"] if one["type"] == PIECE + "completed"]
    assert [one["transcript"] for one in completed] == [WORDS]
    assert found["realtime"][-1]["error"]["message"] == "the server is stopping"
    assert [one["type"] for one in found["quiet"]] == ["ready", "error"]


def test_ctrl_c_prints_what_was_said_last(lives: Lives, tmp_path: Path) -> None:
    file, errors = tmp_path / "talk.wav", tmp_path / "errors"
    pause = (0.003 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    soundfile.write(file, np.concatenate([spoken(), pause, *[spoken()] * 20]), RATE)
    process = lives.start("run", str(MODELS / "live"), str(file), "--live", errors=str(errors))
    until(lambda: "\n" in lives.reported, "the first utterance is over")
    time.sleep(3)
    os.kill(process, signal.SIGINT)
    start = time.monotonic()
    assert lives.end() == 0, errors.read_text()
    assert time.monotonic() - start < 20
    first, second = lives.reported.splitlines()
    assert first == WORDS
    assert second.startswith(WORDS.split()[0])
    assert errors.read_text() == ""
