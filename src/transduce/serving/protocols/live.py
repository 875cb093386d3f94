"""The server's own protocol for live speech, /api/live: samples in, partial and final
transcripts out, with word times and with what is stable. The page uses it.

The client sends binary messages of PCM16 at `rate`, then {"type": "finish"}. The server sends
{"type": "ready"}, {"type": "partial"} and {"type": "final"} with the fields of a transcript,
{"type": "error"}, and {"type": "done"} after the last transcript.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from transduce.serving import api
from transduce.serving.body import parse_object
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.jobs import check_list
from transduce.serving.live.conversation import Conversation
from transduce.serving.live.stream import pcm16
from transduce.serving.settings import ServiceSettings
from transduce.tasks.live import Transcript

PREFIXES = ("/api/live",)
RATE = 16_000
WHOLE = re.compile(r"\d{1,9}", re.ASCII)
NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?", re.ASCII)

error = api.error


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    async def listen(websocket: WebSocket) -> None:
        await OwnConversation(websocket, engine.live).run()

    return [WebSocketRoute("/api/live", listen)]


class OwnConversation(Conversation):
    """One connection to /api/live?model=NAME&rate=16000&chunk_ms=320&beam=8
    &hotwords=Quilter&language_model=NAME, where hotwords may be there several times."""

    restarts = False

    async def begin(self) -> None:
        asked = self.websocket.query_params
        served = self.live.find(asked.get("model"))
        rate = asked.get("rate", str(RATE))
        if not WHOLE.fullmatch(rate):
            raise BadRequest(f"rate is {rate[:40]!r}; it must be a whole number, as 16000")
        settings: dict[str, Any] = {}
        if (chunk := asked.get("chunk_ms")) is not None:
            if not NUMBER.fullmatch(chunk):
                raise BadRequest(f"chunk_ms is {chunk[:40]!r}; it must be a number, as 320")
            self.live.limits.check("live_chunk_ms", float(chunk), f"chunk_ms is {chunk}")
            settings["chunk_ms"] = float(chunk)
        if hotwords := asked.getlist("hotwords"):
            check_list("hotwords", hotwords, self.live.limits)
            settings["hotwords"] = hotwords
        if (beam := asked.get("beam")) is not None:
            if not WHOLE.fullmatch(beam):
                raise BadRequest(f"beam is {beam[:40]!r}; it must be a whole number, as 5")
            self.live.limits.check("beam", int(beam), f"beam is {int(beam):,}")
            settings["beam"] = int(beam)
        if (name := asked.get("language_model")) is not None:
            settings["language_model"] = self.live.catalogue.language_model(name)
        for setting, example in (("hotword_bonus", 1.5), ("lm_weight", 0.3)):
            if (value := asked.get(setting)) is not None:
                if not NUMBER.fullmatch(value):
                    raise BadRequest(
                        f"{setting} is {value[:40]!r}; it must be a number, as {example}"
                    )
                settings[setting] = float(value)
        await self.open_stream(served, int(rate), **settings)
        await self.send({"type": "ready", "model": served.name, "rate": int(rate)})

    async def hear(self, message: str | bytes) -> bool:
        if self.stream is None:
            raise BadRequest("the session has failed; connect again")
        if isinstance(message, bytes):
            await self.send_samples(pcm16(self.whole_samples(message)))
            return True
        if self._kind(message) != "finish":
            raise BadRequest('a text message must be {"type": "finish"}; audio is binary, PCM16')
        await self.finish()
        await self.send({"type": "done"})
        return False

    async def show(self, transcript: Transcript) -> None:
        kind = "final" if transcript.final else "partial"
        await self.send({"type": kind, **transcript.to_json()})

    async def fail(self, error: ServiceError) -> None:
        await self.send({"type": "error", "error": {"message": error.message, "code": error.code}})

    def _kind(self, text: str) -> Any:
        with contextlib.suppress(BadRequest):
            return parse_object(text, self.live.limits).get("type")
