"""Live sessions of a streaming encoder: their chunks, and clients that send nonsense."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from fixtures.make_models import MODELS, in_noise
from served import serving, until
from tiny_sounds import audio_model
from transduce.data.audio.corpus import to_int16
from transduce.errors import ModelError
from transduce.serving.engine import Engine
from transduce.serving.models import Catalogue, Served
from transduce.tasks.live.streaming import StreamingRecogniser
from transduce.tasks.transduce import load


def engine(chunk_ms: float | None, *names: str) -> Engine:
    models: dict[str, Any] = {"live": lambda: load(MODELS / "live"), "plain": audio_model}
    made = [Served.of(name, models[name]().freeze()) for name in names]
    return Engine(Catalogue(made), chunk_ms=chunk_ms)


def test_the_operator_chooses_chunks_and_a_client_others() -> None:
    async def sizes() -> list[int]:
        found = []
        choices: list[dict[str, Any]] = [{}, {"chunk_ms": 80.0}]
        for asked in choices:
            stream = await served.live.open(served.catalogue["live"], 4000, **asked)
            recogniser = stream.session.recogniser
            assert isinstance(recogniser, StreamingRecogniser)
            found.append(recogniser.streams.shape.states)
            served.live.close(stream)
        stream = await served.live.open(served.catalogue["plain"], 4000)  # has none, and works
        served.live.close(stream)
        return found

    served = engine(160.0, "live", "plain")
    assert asyncio.run(sizes()) == [4, 2]
    served.live.stop()


def test_a_session_that_is_cancelled_while_it_opens_leaves_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a client goes away while the model decodes for others."""

    made: list[Any] = []
    original = StreamingRecogniser.session

    def noted(recogniser: Any, *given: Any) -> Any:
        made.append(original(recogniser, *given))
        return made[-1]

    monkeypatch.setattr(StreamingRecogniser, "session", noted)

    async def cancel() -> None:
        model = served.catalogue["live"]
        first = await served.live.open(model, 4000)  # keeps the recogniser
        with served.live.turns["live"]:
            second = asyncio.create_task(served.live.open(model, 4000))
            while not served.live._opening:
                await asyncio.sleep(0.001)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        end = time.monotonic() + 60
        while len(made) < 2 or not made[1].closed:
            assert time.monotonic() < end, "the session is still open"
            await asyncio.sleep(0.001)
        third = await served.live.open(model, 4000)
        for stream in (first, third):
            served.live.close(stream)

    served = engine(None, "live")
    asyncio.run(cancel())
    slots = [session.slot for session in made]
    assert slots[2] == slots[1] != slots[0]
    served.live.stop()


def test_chunks_that_cannot_be_are_refused_at_the_start() -> None:
    with pytest.raises(ModelError, match="none of these was; omit it"):
        engine(160.0, "plain")
    with pytest.raises(ModelError, match="not a multiple of the 40 ms"):
        engine(50.0, "live")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("chunk_ms=no", "it must be a number"),
        ("chunk_ms=50", "multiple of the 40 ms"),
        ("chunk_ms=0", "chunk_ms is 0.0; it must be above 0"),
        ("chunk_ms=60040", "chunk_ms is 60040; the maximum is 60000"),
        ("rate=" + "9" * 30, "whole number"),
        ("rate=١٦٠٠٠", "whole number"),
        ("rate=999999999", "sample rate of 999999999 is not possible"),
    ],
)
def test_a_client_is_told_what_is_wrong(query: str, why: str, live_server: Any) -> None:
    websockets = pytest.importorskip("websockets.sync.client")
    url = live_server.url.replace("http", "ws")
    with websockets.connect(f"{url}/api/live?{query}") as socket:
        assert why in socket.recv()


def test_garbage_of_one_client_changes_nothing_for_another(live_server: Any) -> None:
    websockets = pytest.importorskip("websockets.sync.client")
    url = live_server.url.replace("http", "ws") + "/api/live?rate=4000"
    draw, spoken = random.Random(1), to_int16(in_noise("abcd ab", random.Random(4)))
    blocks = np.array_split(spoken, 9)
    with websockets.connect(url) as good, websockets.connect(url) as bad:
        for block in blocks:
            bad.send(draw.randbytes(draw.randrange(1, 4000)))  # also an odd number of bytes
            bad.send(b"")
            good.send(block.tobytes())
        bad.send("\ufffd{")
        good.send('{"type": "finish"}')
        found = [json.loads(message) for message in good]
    assert [one["text"] for one in found if one["type"] == "final"] == ["abcd ab"]
    assert found[-1]["type"] == "done"
    until(lambda: not live_server.engine.live.streams, "both sessions are closed")


@pytest.mark.parametrize("path", ["/", "/vosk", "/api/live", "/v1/realtime"])
@pytest.mark.parametrize("pieces", [[b"\xff{}"], [b'{"a": "', b"\xc3", b'"}']])
def test_text_that_is_not_utf8_ends_its_connection_alone(
    live_server: Any, capfd: pytest.CaptureFixture[str], path: str, pieces: list[bytes]
) -> None:
    websockets = pytest.importorskip("websockets.sync.client")
    from websockets.exceptions import ConnectionClosedError

    url = live_server.url.replace("http", "ws") + path
    with websockets.connect(url) as other, websockets.connect(url) as socket:
        socket.send(pieces if len(pieces) > 1 else pieces[0], text=True)
        with pytest.raises(ConnectionClosedError) as ended:
            list(iter(lambda: socket.recv(timeout=60), None))
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1007
        assert other.ping().wait(60)
    until(lambda: not live_server.service.sockets, "the connections are closed")
    assert not live_server.engine.live.streams
    assert capfd.readouterr().err == ""


def test_pings_are_answered_however_much_audio_waits(live_server: Any) -> None:
    websockets = pytest.importorskip("websockets.sync.client")
    url = live_server.url.replace("http", "ws") + "/api/live?rate=768000"
    live = live_server.engine.live
    with websockets.connect(url, ping_interval=None) as socket:
        socket.recv()
        with live.turns["live"]:  # recognition is held up meanwhile
            for _ in range(30):
                socket.send(bytes(1 << 20))  # together more than sockets and memory take
            assert socket.ping().wait(60)
            assert live.ahead_bytes > 10 << 20
            socket.close_socket()  # the client goes, and nothing of this is left
    until(lambda: not live_server.service.sockets, "the connection is closed")
    assert live.ahead_bytes == 0


@pytest.fixture(scope="module")
def live_server() -> Any:
    with serving({"live": load(MODELS / "live")}) as running:
        yield running
