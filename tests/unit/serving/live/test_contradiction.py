"""A final transcript that contradicts what was shown as stable, in each protocol: models without
chunks recognise the whole utterance again at its end."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from transduce.serving.limits import Limits
from transduce.serving.live.conversation import Conversation
from transduce.serving.protocols.live import OwnConversation
from transduce.serving.protocols.openai.realtime import RealtimeConversation
from transduce.serving.protocols.vosk import VoskConversation
from transduce.tasks.live import Transcript

PIECE = "conversation.item.input_audio_transcription."
HEARD = [
    Transcript("recognise", False, 0, 0.5, 1.0, stable=0),
    Transcript("wreck a nice", False, 0, 0.5, 1.5, stable=7),
    Transcript("wreck a nice beach", False, 0, 0.5, 2.0, stable=12),
]


def reported(kind: type[Conversation], final: str) -> list[dict[str, Any]]:
    """What a client gets of an utterance."""
    sent: list[dict[str, Any]] = []

    async def send_text(text: str) -> None:
        sent.append(json.loads(text))

    async def speak() -> None:
        socket: Any = SimpleNamespace(query_params={}, send_text=send_text, scope={"state": {}})
        conversation = kind(socket, SimpleNamespace(limits=Limits()))  # type: ignore[arg-type]
        last = Transcript(final, True, 0, 0.5, 2.0, stable=len(final))
        if isinstance(conversation, VoskConversation):  # each is the reply to a message
            for heard in [*HEARD, last]:
                conversation.stream = Stream(heard)  # type: ignore[assignment]
                await conversation.hear(b"\0\0")
            return
        for heard in [*HEARD, last]:
            await conversation.show(heard)

    asyncio.run(speak())
    return sent


class Stream:
    def __init__(self, heard: Transcript) -> None:
        self.heard = heard

    def pieces(self, samples: Any) -> list[Any]:
        return [samples]

    async def send(self, samples: Any) -> None: ...

    async def settled(self) -> None: ...

    def unread(self) -> list[Transcript]:
        return [self.heard]


@pytest.mark.parametrize(
    ("final", "deltas"),
    [
        ("wreck a nice beach", ["wreck a", " nice", " beach"]),
        ("recognise speech", ["wreck a", " nice"]),  # nothing can be taken back, nor is added
        ("wreck a", ["wreck a", " nice"]),
    ],
)
def test_openai(final: str, deltas: list[str]) -> None:
    events = reported(RealtimeConversation, final)
    assert [one["delta"] for one in events if one["type"] == PIECE + "delta"] == deltas
    (completed,) = [one for one in events if one["type"] == PIECE + "completed"]
    assert completed["transcript"] == final  # this is what counts
    assert events[-1] is completed


def test_vosk() -> None:
    partial, *_, result = reported(VoskConversation, "recognise speech")
    assert partial == {"partial": "recognise"}  # all of the hypothesis: it may change
    assert result["text"] == "recognise speech"


def test_its_own_protocol() -> None:
    *partials, final = reported(OwnConversation, "recognise speech")
    assert [one["text"][: one["stable"]] for one in partials] == ["", "wreck a", "wreck a nice"]
    assert (final["type"], final["text"]) == ("final", "recognise speech")
    assert final["utterance"] == partials[0]["utterance"]  # the one that it replaces
