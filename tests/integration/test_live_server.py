"""Live speech over WebSocket with real clients: OpenAI's own, and the messages that the test script
of vosk-server sends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("starlette", reason="needs the extra serve")

import soundfile
import websockets

import optional
from fixtures.make_models import MODELS, in_noise
from served import Running, serving, until
from tones import RATE, tones
from transduce.data.audio.corpus import to_int16
from transduce.data.audio.read import resampled
from transduce.serving.auth import Keys
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load

openai = optional.package("openai")
TEXTS = ["abc de", "cab", "ee dac"]
ANY_LOAD = Limits(live_load=0.0)  # nobody is refused because the machine is busy with other tests
PIECE = "conversation.item.input_audio_transcription."


def spoken(*texts: str, pause: float = 1.2) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)

    def quiet(seconds: float) -> NDArray[np.float32]:
        return (0.003 * draw.standard_normal(round(seconds * RATE))).astype(np.float32)

    parts = [quiet(1.0)]
    for number, text in enumerate(texts):
        parts += [tones(text, number), quiet(pause)]
    return np.concatenate(parts)


AUDIO = spoken(*TEXTS)
PCM = to_int16(AUDIO)
WIDE = to_int16(resampled(AUDIO, RATE, 24_000)).tobytes()


@pytest.fixture(scope="module")
def model(tones_run: Path) -> Any:
    return load(tones_run / "run")


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Running]:
    limits = replace(ANY_LOAD, live_idle_seconds=30.0, live_backlog=4.0)
    with serving({"tones": model}, ServiceSettings(limits=limits)) as running:
        yield running
        until(lambda: not running.engine.live.streams, "live sessions are closed")
        assert not running.engine.live._recognisers
        assert not running.engine.live._counts


def address(server: Running, path: str = "/") -> str:
    return server.url.replace("http", "ws") + path


async def vosk(
    url: str, pcm: NDArray[np.int16] = PCM, rate: int = RATE, **config: Any
) -> list[dict[str, Any]]:
    """What the test script of vosk-server does: 0.2 s a message, a reply to each, then eof."""
    replies = []
    async with websockets.connect(url) as socket:
        await socket.send(json.dumps({"config": {"sample_rate": rate, **config}}))
        size = int(rate * 0.2)
        for start in range(0, len(pcm), size):
            await socket.send(pcm[start : start + size].tobytes())
            replies.append(json.loads(await socket.recv()))
        await socket.send('{"eof" : 1}')
        replies.append(json.loads(await socket.recv()))
    return replies


def texts(replies: list[dict[str, Any]]) -> list[str]:
    return [reply["text"] for reply in replies if reply.get("text")]


def test_the_messages_of_vosk_servers_test_script(server: Running) -> None:
    replies = asyncio.run(vosk(address(server)))
    assert texts(replies) == TEXTS
    results = [reply for reply in replies if reply.get("text")]
    words = [word for reply in results for word in reply["result"]]
    assert [word["word"] for word in words] == " ".join(TEXTS).split()
    assert 1.0 < words[0]["start"] < words[0]["end"] < words[-1]["end"] < len(AUDIO) / RATE
    assert all(0 < word["conf"] <= 1 for word in words)
    assert {"abc d", "cab"} & {reply.get("partial") for reply in replies}
    assert replies[-1] == {"text": ""}


def test_speakers_share_batches_and_do_not_hear_each_other(server: Running, model: Any) -> None:
    sizes: list[int] = []
    original = model.run

    def noted(sources: Any, **settings: Any) -> Any:
        sizes.append(len(sources))
        return original(sources, **settings)

    several = [spoken(*TEXTS[n:], *TEXTS[:n]) for n in range(3)]

    async def all_of_them() -> list[list[str]]:
        url = address(server, f"/api/live?rate={RATE}")
        sockets = [await websockets.connect(url) for _ in several]
        for socket in sockets:
            assert json.loads(await socket.recv())["type"] == "ready"
        with server.engine.live.turns["tones"]:  # until all have spoken
            for socket, audio in zip(sockets, several, strict=True):
                await socket.send(to_int16(audio).tobytes())
                await socket.send('{"type": "finish"}')
            await asyncio.sleep(0.2)
        found = []
        for socket in sockets:
            messages = [json.loads(message) async for message in socket]
            found.append([one["text"] for one in messages if one["type"] == "final"])
        return found

    model.run = noted
    try:
        found = asyncio.run(all_of_them())
    finally:
        del model.run
    assert found == [TEXTS[n:] + TEXTS[:n] for n in range(3)]
    assert max(sizes) > 1


def test_a_streaming_encoder_is_served_with_the_code_of_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples = to_int16(in_noise("abcd ab", random.Random(4)))
    page = Path(__file__).parents[2] / "docs" / "guides" / "live-speech.md"
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    with serving({"live": load(MODELS / "live")}, ServiceSettings(limits=ANY_LOAD)) as server:
        replies = asyncio.run(vosk(address(server), samples))
        own = address(server, f"/api/live?rate={RATE}")
        code = blocks[-1].replace("ws://127.0.0.1:5000/api/live?rate=16000", own)
        exec(code, {"blocks": np.array_split(samples, 7)})
    assert texts(replies) == ["abcd ab"]
    assert [word["word"] for word in replies[-1]["result"]] == ["abcd", "ab"]
    assert capsys.readouterr().out.strip().endswith("abcd ab")


def test_each_connection_has_its_own_hotwords() -> None:
    samples = to_int16(in_noise("abcd ab", random.Random(4)))

    async def own(url: str) -> list[str]:
        async with websockets.connect(url) as socket:
            await socket.send(samples.tobytes())
            await socket.send('{"type": "finish"}')
            messages = [json.loads(message) async for message in socket]
        return [one["text"] for one in messages if one["type"] == "final"]

    async def together(server: Running) -> list[Any]:
        live = address(server, f"/api/live?rate={RATE}")
        return await asyncio.gather(
            vosk(address(server), samples, phrase_list=["abcd abb", "[unk]"]),
            vosk(address(server), samples),
            own(live),
            own(f"{live}&hotwords=abcd+abb&hotwords=dd"),
            own(f"{live}&hotwords=abcd+abb&hotword_bonus=0"),
        )

    with serving({"live": load(MODELS / "live")}, ServiceSettings(limits=ANY_LOAD)) as server:
        first, second, *others = asyncio.run(together(server))
    assert [texts(first), texts(second), *others] == [
        ["abcd abb"],
        ["abcd ab"],
        ["abcd ab"],
        ["abcd abb"],
        ["abcd ab"],
    ]


def test_vosk_reset_words_and_alternatives(server: Running) -> None:
    async def talk() -> list[Any]:
        found = []
        async with websockets.connect(address(server, "/vosk")) as socket:
            config = {"sample_rate": RATE, "words": False, "max_alternatives": 2, "model": "tones"}
            await socket.send(json.dumps({"config": config}))
            for _ in range(2):
                await socket.send(to_int16(spoken("cab", pause=0.1)).tobytes())
                found.append(json.loads(await socket.recv()))
                await socket.send('{"reset" : 1}')
                found.append(json.loads(await socket.recv()))
        return found

    first, reset, *again = asyncio.run(talk())
    assert "partial" in first
    assert [one["text"] for one in reset["alternatives"]] == ["cab"]
    assert "result" not in reset["alternatives"][0]
    assert [again[0].keys(), again[1]] == [first.keys(), reset]


async def realtime(
    server: Running,
    pieces: list[bytes],
    session: dict[str, Any],
    completed: int,
    beta: bool = False,
    commit: bool = False,
) -> list[Any]:
    """The events that OpenAI's client receives."""
    client = openai.AsyncOpenAI(
        base_url=server.url + "/v1", websocket_base_url=address(server, "/v1"), api_key="k"
    )
    found = []
    place = client.beta.realtime if beta else client.realtime
    query = {"intent": "transcription"}
    async with place.connect(model="tones", extra_query=query) as connection:
        update = connection.transcription_session if beta else connection.session
        await update.update(session=session)

        async def send() -> None:
            for piece in pieces:
                audio = base64.b64encode(piece).decode()
                await connection.input_audio_buffer.append(audio=audio)
            if commit:
                await connection.input_audio_buffer.commit()

        sending = asyncio.create_task(send())
        async for event in connection:
            found.append(event)
            assert event.type != "error", event
            completed -= event.type == PIECE + "completed"
            if not completed:
                break
        await sending
    return found


def ga(form: dict[str, Any], turns: Any) -> dict[str, Any]:
    audio = {"format": form, "transcription": {"model": "tones"}, "turn_detection": turns}
    return {"type": "transcription", "audio": {"input": audio}}


def test_openais_client_with_turn_detection(server: Running) -> None:
    session = ga({"type": "audio/pcm", "rate": 24000}, {"type": "server_vad"})
    # Pieces of odd lengths: a sample may be cut in two.
    pieces = [WIDE[start : start + 9601] for start in range(0, len(WIDE), 9601)]
    events = asyncio.run(realtime(server, pieces, session, completed=3))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    detection = events[1].session.audio.input.turn_detection
    assert (detection.type, detection.silence_duration_ms) == ("server_vad", 500)
    done = [event for event in events if event.type == PIECE + "completed"]
    assert [event.transcript for event in done] == TEXTS
    assert all(event.usage.type == "duration" and event.usage.seconds > 0.3 for event in done)
    for event in done:
        own = [one for one in events if getattr(one, "item_id", None) == event.item_id]
        names = [one.type.removeprefix("input_audio_buffer.") for one in own]
        assert names[0] == "speech_started"
        assert names[-3:] == ["speech_stopped", "committed", PIECE + "completed"]
        deltas = [one.delta for one in own if one.type == PIECE + "delta"]
        assert "".join(deltas) == event.transcript
    started = [e.audio_start_ms for e in events if e.type.endswith("speech_started")]
    assert started == sorted(started)
    assert 800 < started[0] < 1200
    committed = [event for event in events if event.type.endswith("committed")]
    assert [one.previous_item_id for one in committed[1:]] == [one.item_id for one in done[:2]]


@pytest.mark.parametrize("form", ["pcm16", "g711_ulaw", "g711_alaw"])
def test_openais_beta_client_commits_audio_of_any_format(
    server: Running, form: str, tmp_path: Path
) -> None:
    data = WIDE
    if form != "pcm16":  # written by libsndfile
        file = tmp_path / "telephone.raw"
        subtype = {"g711_ulaw": "ULAW", "g711_alaw": "ALAW"}[form]
        soundfile.write(file, resampled(AUDIO, RATE, 8000), 8000, subtype, format="RAW")
        data = file.read_bytes()
    session = {"input_audio_format": form, "turn_detection": None}
    pieces = [data[start : start + 8000] for start in range(0, len(data), 8000)]
    events = asyncio.run(realtime(server, pieces, session, 1, beta=True, commit=True))
    assert events[-1].transcript == " ".join(TEXTS)
    assert "input_audio_buffer.speech_started" not in [event.type for event in events]
    assert events[1].type == "transcription_session.updated"


async def answers(url: str, messages: list[Any], replies: int) -> list[dict[str, Any]]:
    found = []
    async with websockets.connect(url) as socket:
        for message in messages:
            await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
        async with asyncio.timeout(100):
            while len(found) < replies:
                found.append(json.loads(await socket.recv()))
    return found


APPEND = "input_audio_buffer.append"
INPUT = {"type": "session.update", "session": {"type": "transcription"}}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("no json", "not JSON"),
        (b"\x00\xff\xfe", "not JSON"),
        ("[1]", "JSON object"),
        ({"type": APPEND, "audio": "@@@", "event_id": "own"}, "not base64"),
        ({"type": APPEND, "audio": 5}, "base64"),
        ({"type": "input_audio_buffer.commit"}, "at least 100 ms"),
        ({"type": "response.create"}, "response.create"),
        ({"type": "session.update", "session": 7}, "must be an object"),
        (
            {"type": "session.update", "session": ga({"type": "audio/pcm", "rate": 7}, None)},
            "24000",
        ),
        ({"type": "session.update", "session": ga({"type": "audio/flac"}, None)}, "audio/flac"),
        ({"type": "session.update", "session": ga({}, {"type": "semantic_vad"})}, "server_vad"),
    ],
)
def test_bad_events_get_openais_errors_and_the_session_goes_on(
    server: Running, message: Any, why: str
) -> None:
    url = address(server, "/v1/realtime?intent=transcription")
    created, error, updated = asyncio.run(answers(url, [message, INPUT], 3))
    assert created["type"] == "session.created"
    assert error["type"] == "error"
    assert why in error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"
    named = isinstance(message, dict) and message.get("event_id")
    assert error["error"]["event_id"] == (named or None)
    assert updated["type"] == "session.updated"


@pytest.mark.parametrize(
    ("path", "message", "why"),
    [
        ("/", "no json", "not JSON"),
        ("/", b"\x00\x01\x02", "16 bits"),
        ("/", {"config": {"sample_rate": 0.5}}, "sample_rate"),
        ("/", {"config": {"sample_rate": -8000}}, "from 1,000 to 768,000"),
        ("/", {"config": {"model": "nobody"}}, "nobody"),
        ("/", {"config": {"phrase_list": "one"}}, "phrase_list must be text, or a list"),
        ("/api/live?hotword_bonus=much", None, "a number, as 1.5"),
        ("/", {"hello": 1}, "config, eof or reset"),
        ("/api/live?rate=16", None, "sample rate of 16"),
        ("/api/live?rate=fast", None, "whole number"),
        (f"/api/live?rate={'9' * 5000}", None, "whole number"),
        ("/api/live?model=nobody", None, "nobody"),
        ("/api/live", "stop", "finish"),
    ],
)
def test_bad_messages_get_an_error(server: Running, path: str, message: Any, why: str) -> None:
    messages = [] if message is None else [message, *[b"\x00\x00"] * (path == "/")]
    replies = asyncio.run(answers(address(server, path), messages, 2 if path[-4:] == "live" else 1))
    assert why in str(replies[-1]["error"])


def test_what_one_client_does_harms_no_other(server: Running) -> None:
    async def rude() -> None:
        for _ in range(3):
            socket = await websockets.connect(address(server, f"/api/live?rate={RATE}"))
            await socket.send(PCM[: RATE * 2].tobytes())
            socket.transport.abort()  # the client is gone
        async with websockets.connect(address(server)) as socket:
            with pytest.raises(websockets.ConnectionClosed):
                await socket.send(bytes(20 << 20))  # a message that is too long

    async def both() -> list[dict[str, Any]]:
        found, _ = await asyncio.gather(vosk(address(server)), rude())
        return found

    assert texts(asyncio.run(both())) == TEXTS
    assert texts(asyncio.run(vosk(address(server)))) == TEXTS
    until(lambda: not server.engine.live.streams, "the sessions of clients that left are closed")


def test_a_model_that_fails_on_one_speaker_fails_only_there(server: Running, model: Any) -> None:
    original = model.run

    def fails(sources: Any, **settings: Any) -> Any:
        if any(len(source.wave) > 3.0 * RATE / 2 for source in sources):
            raise ValueError("too long")
        return original(sources, **settings)

    audio = [spoken("cab"), spoken("abc de abc de abc"), spoken("cab")]

    async def all_of_them() -> list[list[dict[str, Any]]]:
        url = address(server, f"/api/live?rate={RATE}")
        sockets = [await websockets.connect(url) for _ in audio]
        for socket in sockets:
            assert json.loads(await socket.recv())["type"] == "ready"
        with server.engine.live.turns["tones"]:  # one is being recognised, then the two others
            for socket, one in zip(sockets, audio, strict=True):
                await socket.send(to_int16(one).tobytes())
                await socket.send('{"type": "finish"}')
                await asyncio.sleep(0.1)
        found: list[list[dict[str, Any]]] = []
        for socket in sockets:
            found.append([])
            with contextlib.suppress(websockets.ConnectionClosedError):
                async for message in socket:
                    found[-1].append(json.loads(message))
        return found

    model.run = fails
    try:
        first, bad, last = asyncio.run(all_of_them())
    finally:
        del model.run
    for good in (first, last):
        assert [one["text"] for one in good if one["type"] == "final"] == ["cab"]
        assert good[-1]["type"] == "done"
    assert bad[-1]["type"] == "error"
    assert bad[-1]["error"]["message"] == "the model failed on this request"


def test_a_client_that_sends_too_fast_is_slowed_down(server: Running) -> None:
    minutes = np.tile(PCM, 6)  # 40 s, sent at once
    sent = 0

    async def flood() -> int:
        nonlocal sent
        async with websockets.connect(address(server, f"/api/live?rate={RATE}")) as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            with server.engine.live.turns["tones"]:  # recognition is held up meanwhile

                async def send() -> None:
                    nonlocal sent
                    for start in range(0, len(minutes), RATE):
                        await socket.send(minutes[start : start + RATE].tobytes())
                        sent += 1

                sending = asyncio.create_task(send())
                await asyncio.sleep(0.7)
                (stream,) = server.engine.live.streams
                assert stream.sent_seconds <= 4.0 + 2.0
            await sending
            await socket.send('{"type": "finish"}')
            finals = 0
            async for message in socket:
                finals += json.loads(message)["type"] == "final"
            return finals

    assert asyncio.run(flood()) >= 3 * 6 - 2


def test_a_long_message_is_taken_little_by_little(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds seconds of a session's audio, not what a client chose to send at once."""
    monkeypatch.setattr(server.engine.live, "limits", replace(server.engine.limits, live_unread=2))
    several = np.tile(PCM, 4)

    async def own() -> list[str]:
        async with websockets.connect(address(server, f"/api/live?rate={RATE}")) as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            with server.engine.live.turns["tones"]:  # recognition is held up meanwhile
                await socket.send(several.tobytes())
                await asyncio.sleep(0.5)
                (stream,) = server.engine.live.streams
                assert stream.sent_seconds <= 4.0 + 1.0
            await socket.send('{"type": "finish"}')
            messages = [json.loads(message) async for message in socket]
            return [one["text"] for one in messages if one["type"] == "final"]

    assert asyncio.run(own()) == TEXTS * 4
    config = {"config": {"sample_rate": RATE}}
    reply, last = asyncio.run(answers(address(server), [config, several.tobytes(), {"eof": 1}], 2))
    assert " ".join([reply["text"], last["text"]]).split() == " ".join(TEXTS * 4).split()


def test_a_commit_of_silence_is_answered(server: Running) -> None:
    silence = base64.b64encode(bytes(2 * 24_000)).decode()
    messages = [{"type": APPEND, "audio": silence}, {"type": "input_audio_buffer.commit"}]
    url = address(server, "/v1/realtime?intent=transcription")
    events = asyncio.run(answers(url, messages, 7))
    assert events[-1]["type"] == PIECE + "completed"
    assert events[-1]["transcript"] == ""


def test_keys_origins_and_the_number_of_sessions(
    model: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = Limits(live_sessions=1)
    settings = ServiceSettings(keys=Keys(["secret"]), limits=limits)

    async def refused(url: str, **more: Any) -> int:
        with pytest.raises(websockets.InvalidStatus) as raised:
            await websockets.connect(url, **more)
        body = json.loads(raised.value.response.body)
        assert body["error"]["message"]
        return raised.value.response.status_code

    async def talk(server: Running) -> None:
        path = "/v1/realtime?intent=transcription"
        good = {"Authorization": "Bearer secret"}
        url = address(server, path)
        assert await refused(url) == 401
        assert (
            await refused(address(server), additional_headers={"Authorization": "Bearer no"}) == 403
        )
        assert (
            await refused(url, additional_headers=good, origin="https://elsewhere.example") == 403
        )
        assert await refused(url, additional_headers=good, origin="http://[") == 403
        protocols = ["realtime", "openai-insecure-api-key.secret"]
        async with websockets.connect(url, subprotocols=protocols, origin=server.url) as socket:
            assert socket.subprotocol == "realtime"
            await socket.recv()
            assert await refused(address(server), additional_headers=good) == 429
        until(lambda: not server.service.sockets, "the connection is closed")

    with serving({"tones": model}, settings) as server:
        asyncio.run(talk(server))
    assert capfd.readouterr().err == ""


def test_sessions_that_recognition_would_not_keep_up_with_are_refused_at_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty clients come together: so many as fit get all their finals, the others 429."""
    monkeypatch.setattr("transduce.serving.live.engine.probe", lambda _: (20.0, 100.0))

    async def speaker(url: str) -> list[str] | int:
        try:
            return texts(await vosk(url))
        except websockets.InvalidStatus as refusal:
            later = int(refusal.response.headers["retry-after"])
            return refusal.response.status_code if later >= 1 else 0

    async def all_of_them(url: str) -> list[list[str] | int]:
        return await asyncio.gather(*(speaker(url) for _ in range(30)))

    with serving({"tones": model}, ServiceSettings(limits=Limits(live_load=0.9))) as server:
        found = asyncio.run(all_of_them(address(server)))
        assert found.count(TEXTS) == 4  # each needs 0.2 of the time
        assert found.count(429) == 26
        until(lambda: not server.engine.live.connected, "all places are free")
        # What was measured since counts: the model is faster than the probe said.
        assert server.engine.live.capacity.factor < 0.2
        assert asyncio.run(vosk(address(server)))


def test_the_first_client_does_not_wait_for_the_measurement(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than a client waits, with a large model on a busy machine. What the client
    says meanwhile is recognised afterwards."""
    begun, measured = threading.Event(), threading.Event()

    def probe(_: object) -> tuple[float, float]:
        begun.set()
        assert measured.wait(30)
        return 0.1, 100.0

    monkeypatch.setattr("transduce.serving.live.engine.probe", probe)

    async def talk(server: Running) -> bool:
        url = address(server, f"/api/live?rate={RATE}")
        async with websockets.connect(url) as socket:
            assert await asyncio.to_thread(begun.wait, 10)
            await socket.send(to_int16(spoken("cab", pause=0.1)).tobytes())
            second = asyncio.ensure_future(connected(url))
            waiting = not (await asyncio.wait([second], timeout=0.3))[0]
            measured.set()
            await second
            await socket.send('{"type": "finish"}')
            found = [json.loads(message) async for message in socket]
        assert [one["text"] for one in found if one["type"] == "final"] == ["cab"]
        return waiting

    async def connected(url: str) -> None:
        async with websockets.connect(url):
            pass

    with serving({"tones": model}, ServiceSettings(limits=Limits(live_load=0.9))) as server:
        assert asyncio.run(asyncio.wait_for(talk(server), 30))


@pytest.mark.parametrize("why", ["idle", "long", "stop"])
def test_the_last_words_are_sent_when_a_session_must_end(model: Any, why: str) -> None:
    seconds = {"idle": {"live_idle_seconds": 1.5}, "long": {"live_seconds": 2.0}}.get(why, {})

    async def talk(server: Running) -> tuple[list[dict[str, Any]], int]:
        found = []
        async with websockets.connect(address(server, f"/api/live?rate={RATE}")) as socket:
            await socket.send(to_int16(spoken("cab", pause=0.1)).tobytes())
            found.append(json.loads(await socket.recv()))
            if why == "stop":
                server.engine.draining = True  # as SIGTERM does
            with contextlib.suppress(websockets.ConnectionClosedError):
                async for message in socket:
                    found.append(json.loads(message))
            assert socket.close_code is not None
            return found, socket.close_code

    settings = ServiceSettings(limits=replace(ANY_LOAD, **seconds), accept_seconds=0.1)
    with serving({"tones": model}, settings) as server:
        found, code = asyncio.run(talk(server))
    assert [one["text"] for one in found if one["type"] == "final"] == ["cab"]
    assert found[-1]["type"] == "error"
    expected = {"idle": "nothing was sent", "long": "has lasted", "stop": "is stopping"}[why]
    assert expected in found[-1]["error"]["message"]
    assert code == (1012 if why == "stop" else 1001)


def test_requests_and_live_speech_do_not_starve_each_other(server: Running, tmp_path: Path) -> None:
    file = tmp_path / "cab.wav"
    soundfile.write(file, tones("cab"), RATE)

    def post() -> str:
        with file.open("rb") as upload:
            answer = server.client.post("/api/run", files={"file": upload})
        found: str = answer.json()["outputs"][0]["text"]
        return found.strip()

    async def both() -> tuple[list[dict[str, Any]], list[str]]:
        loop = asyncio.get_running_loop()
        calls: list[Callable[[], str]] = [post] * 8
        posts = [loop.run_in_executor(None, call) for call in calls]
        return await vosk(address(server)), await asyncio.gather(*posts)

    live, posted = asyncio.run(both())
    assert texts(live) == TEXTS
    assert posted == ["cab"] * 8


def test_metrics_of_live_speech(server: Running) -> None:
    asyncio.run(vosk(address(server)))
    until(lambda: not server.engine.live.streams, "the session is closed")
    lines = dict(
        line.rsplit(" ", 1)
        for line in server.client.get("/metrics").text.splitlines()
        if line[0] != "#"
    )
    assert float(lines["transduce:live_sessions"]) == 0
    assert (
        float(lines['transduce:live_audio_seconds_total{model_name="tones"}']) > len(AUDIO) / RATE
    )
    assert float(lines['transduce:live_lag_seconds_count{model_name="tones"}']) > 0
