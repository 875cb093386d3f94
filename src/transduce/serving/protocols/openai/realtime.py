"""OpenAI's realtime transcription: WebSocket /v1/realtime?intent=transcription.

Each utterance is an item. Its deltas are the text that will not change any more; its completed
transcript is the final one. Utterances end with silence (server_vad), or with a commit.
"""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket

from transduce.serving.body import parse_object
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.live.conversation import Conversation
from transduce.serving.live.engine import LiveEngine
from transduce.serving.protocols.openai.realtime_session import Configuration
from transduce.serving.protocols.openai.shapes import error_fields, new_id
from transduce.serving.protocols.parameters import ParameterError
from transduce.tasks.live import Transcript

UPDATES = {"session.update": False, "transcription_session.update": True}
PIECE = "conversation.item.input_audio_transcription."
MIN_COMMIT = 0.1  # seconds of audio, as with OpenAI


@dataclass
class Item:
    """One utterance."""

    id: str
    start: float
    """Seconds since the connection began, as all times here."""
    shown: str = ""
    """What was sent as deltas."""
    text: str = ""
    """Final transcripts so far, where only a commit ends the item."""


class RealtimeConversation(Conversation):
    """One connection."""

    def __init__(self, websocket: WebSocket, live: LiveEngine) -> None:
        super().__init__(websocket, live)
        self.id = new_id("sess")
        self._configuration = Configuration(model=websocket.query_params.get("model") or None)
        self._beta = False
        self._item: Item | None = None
        self._previous: str | None = None
        self._event: str | None = None
        """The id of the client's event that is being handled, for errors."""
        self._expires = int(time.time() + live.limits.live_seconds)

    async def begin(self) -> None:
        intent = self.websocket.query_params.get("intent", "transcription")
        if intent != "transcription":
            raise ParameterError("this server transcribes; intent must be transcription", "intent")
        self._configuration.check(self.live)
        await self._send_event("session.created", session=self._session())

    async def hear(self, message: str | bytes) -> bool:
        self._event = None
        try:
            event = parse_object(message, self.live.limits, "the message")
        except BadRequest as error:
            raise BadRequest(error.message, "invalid_json") from None
        known = event.get("event_id")
        self._event = known if isinstance(known, str) else None
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            await self._append(event.get("audio"))
        elif kind == "input_audio_buffer.commit":
            await self._commit()
        elif kind == "input_audio_buffer.clear":
            self.drop_stream()
            self._item, self.rest = None, b""
            await self._send_event("input_audio_buffer.cleared")
        elif isinstance(kind, str) and kind in UPDATES:
            await self._update(event.get("session"), UPDATES[kind])
        else:
            raise ParameterError(
                f"events of type {kind!r:.60} are not for a transcription session", "type"
            )
        return True

    # --------------------------------------------------------------------------- events

    async def _update(self, session: Any, beta: bool) -> None:
        changed = self._configuration.updated(session, beta)
        changed.check(self.live)
        if changed != self._configuration and self.stream is not None:
            await self.finish()
        if changed.format != self._configuration.format:
            self.rest = b""
        self._configuration, self._beta = changed, beta
        name = "transcription_session.updated" if beta else "session.updated"
        await self._send_event(name, session=self._session())

    async def _append(self, audio: Any) -> None:
        if not isinstance(audio, str):
            raise ParameterError("audio must be text: base64 of the samples", "audio")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ParameterError(f"audio is not base64 ({error})", "audio") from None
        size = 2 if self._configuration.format == "audio/pcm" else 1
        samples = self._configuration.decoder(self.whole_samples(data, size))
        if self.stream is None:
            served = self._configuration.check(self.live)
            settings = self._configuration.settings(served)
            await self.open_stream(served, self._configuration.rate, **settings)
        await self.send_samples(samples)

    async def _commit(self) -> None:
        seconds = 0.0 if self.stream is None else self.stream.sent_seconds
        if seconds < MIN_COMMIT:
            raise BadRequest(
                f"the audio buffer has {1000 * seconds:.0f} ms; a commit needs at least 100 ms",
                "input_audio_buffer_commit_empty",
            )
        before = self._previous
        await self.end_stream()
        if self._configuration.turns and self._item is None and self._previous != before:
            return  # its utterances have been committed, each at its end
        await self._complete(self._item or await self._started(self.seconds_before - seconds))

    async def finish(self) -> None:
        await self.end_stream()
        if self._item is not None:
            await self._complete(self._item)

    async def show(self, transcript: Transcript) -> None:
        item = self._item
        if item is None:
            item = await self._started(self.seconds_before + transcript.start)
        if not transcript.final:
            await self._delta(item, transcript.text[: transcript.stable])
            return
        await self._delta(item, transcript.text)
        item.text = f"{item.text} {transcript.text}".strip()
        if self._configuration.turns:
            await self._complete(item, self.seconds_before + transcript.end)

    async def _started(self, start: float) -> Item:
        self._item = item = Item(new_id("item"), start)
        if self._configuration.turns:
            milliseconds = round(1000 * start)
            await self._send_event(
                "input_audio_buffer.speech_started", item_id=item.id, audio_start_ms=milliseconds
            )
        return item

    async def _delta(self, item: Item, text: str) -> None:
        """Send what is new; a text that contradicts what was sent has to wait for the end."""
        whole = f"{item.text} {text}".strip() if item.text else text
        if len(whole) > len(item.shown) and whole.startswith(item.shown):
            new, item.shown = whole[len(item.shown) :], whole
            await self._send_event(PIECE + "delta", item_id=item.id, content_index=0, delta=new)

    async def _complete(self, item: Item, end: float | None = None) -> None:
        end = self.seconds_before if end is None else end
        self._item = None
        if self._configuration.turns:
            milliseconds = round(1000 * end)
            await self._send_event(
                "input_audio_buffer.speech_stopped", item_id=item.id, audio_end_ms=milliseconds
            )
        before = {"previous_item_id": self._previous}
        await self._send_event("input_audio_buffer.committed", item_id=item.id, **before)
        content = {"type": "input_audio", "transcript": None}
        message = {"id": item.id, "object": "realtime.item", "type": "message", "role": "user"}
        message |= {"status": "completed", "content": [content]}  # type: ignore[dict-item]
        names = ["created"] if self._beta else ["added", "done"]
        for name in names:
            await self._send_event(f"conversation.item.{name}", item=message, **before)
        self._previous = item.id
        usage = {"type": "duration", "seconds": round(max(0.0, end - item.start), 3)}
        await self._send_event(
            PIECE + "completed",
            item_id=item.id,
            content_index=0,
            transcript=item.text,
            usage=usage,
        )

    async def fail(self, error: ServiceError) -> None:
        if self.stream is None:
            self._item = None
        details = error_fields(error) | {"event_id": self._event}
        del details["request_id"]
        await self._send_event("error", error=details)

    async def _send_event(self, kind: str, **fields: Any) -> None:
        await self.send({"type": kind, "event_id": new_id("event"), **fields})

    def _session(self) -> dict[str, Any]:
        more = {"client_secret": None} if self._beta else {}
        whole = {"id": self.id, "expires_at": self._expires}
        return whole | self._configuration.to_json(self._beta) | more
