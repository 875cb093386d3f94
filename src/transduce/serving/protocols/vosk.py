"""The WebSocket protocol of vosk-server: one reply to each message.

Text {"config": {"sample_rate": 16000}}, then binary PCM16; a reply is {"partial": text} or, at the
end of an utterance, {"result": [{"conf", "end", "start", "word"}], "text": text}. {"eof": 1} gets
the last result and ends the connection; {"reset": 1} gets it and goes on.

Vosk's phrase_list is a grammar: nothing else is recognised. Here its phrases are hotwords: they are
more likely to be, and all else still may.
"""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from transduce.serving import api
from transduce.serving.body import parse_object
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.jobs import check_list
from transduce.serving.live.conversation import Conversation
from transduce.serving.live.engine import LiveEngine
from transduce.serving.live.stream import pcm16
from transduce.serving.settings import ServiceSettings
from transduce.tasks.live import Transcript
from transduce.tasks.live.session import MAX_RATE, MIN_RATE

PREFIXES = ("/vosk",)
RATE = 8_000  # that of vosk-server where the client names none
OTHERS = "[unk]"  # in a phrase_list: all other words

error = api.error


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    async def listen(websocket: WebSocket) -> None:
        await VoskConversation(websocket, engine.live).run()

    # Vosk's clients connect to the root.
    return [WebSocketRoute("/", listen), WebSocketRoute("/vosk", listen)]


class VoskConversation(Conversation):
    """One connection; the model is that of the configuration, ?model=NAME, or the first."""

    def __init__(self, websocket: WebSocket, live: LiveEngine) -> None:
        super().__init__(websocket, live)
        self._model: str | None = websocket.query_params.get("model")
        self._rate, self._words, self._alternatives = RATE, True, False
        self._hotwords: list[str] = []
        self._partial, self._over = "", 0.0
        """The text of the utterance, and the seconds of audio before the stream."""

    async def hear(self, message: str | bytes) -> bool:
        if isinstance(message, bytes):
            await self._audio(message)
            return True
        asked = parse_object(message, self.live.limits, "the message")
        if "config" in asked:
            self._configure(asked["config"])
            return True
        if "eof" in asked or "reset" in asked:
            await self.send(self._result(await self._last()))
            return "eof" not in asked
        raise BadRequest("a text message must have config, eof or reset; audio is binary, PCM16")

    async def _audio(self, data: bytes) -> None:
        if len(data) % 2:
            raise BadRequest(f"{len(data)} bytes are not whole samples of 16 bits")
        if self.stream is None:
            self._over = self.seconds_before
            served, hotwords = self.live.find(self._model), self._hotwords
            settings = {"hotwords": hotwords} if hotwords else {}
            await self.open_stream(served, self._rate, spoken=False, **settings)
        assert self.stream is not None
        await self.send_samples(pcm16(data))
        await self.stream.settled()
        found = self.stream.unread()
        finals = [one for one in found if one.final]
        after = [one.text for one in found[found.index(finals[-1]) + 1 :]] if finals else []
        if finals:
            self._partial = after[-1] if after else ""
            await self.send(self._result(finals))
            return
        if found:
            self._partial = found[-1].text
        await self.send({"partial": self._partial})

    async def _last(self) -> list[Transcript]:
        """The last transcripts of the stream, after which another one begins."""
        stream, self._partial = self.stream, ""
        self._over = self.seconds_before
        if stream is None:
            return []
        try:
            await stream.finish()
            return [one for one in stream.unread() if one.final]
        finally:
            self.drop_stream()

    def _configure(self, config: Any) -> None:
        if not isinstance(config, dict):
            raise BadRequest('config must be an object, as in {"config": {"sample_rate": 16000}}')
        rate = config.get("sample_rate", self._rate)
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not number or not MIN_RATE <= rate <= MAX_RATE or rate % 1:
            raise BadRequest(
                f"sample_rate is {rate!r:.40}; it must be a whole number from {MIN_RATE:,} to "
                f"{MAX_RATE:,}, as 16000"
            )
        if self.stream is not None and rate != self._rate:
            raise BadRequest("sample_rate can only be set before the audio; send reset first")
        if (phrases := config.get("phrase_list")) is not None:
            check_list("phrase_list", phrases, self.live.limits)
            hotwords = [one for one in phrases if one.strip() and one != OTHERS]
            if self.stream is not None and hotwords != self._hotwords:
                raise BadRequest("phrase_list can only be set before the audio; send reset first")
            self._hotwords = hotwords
        model = config.get("model", self._model)
        self.live.find(None if model is None else str(model))
        self._rate, self._model = int(rate), None if model is None else str(model)
        self._words = bool(config.get("words", self._words))
        self._alternatives = bool(config.get("max_alternatives", self._alternatives))

    def _result(self, finals: list[Transcript]) -> dict[str, Any]:
        """Vosk's result of one utterance, or of several that one message has ended."""
        text = " ".join(one.text for one in finals if one.text)
        words = [
            {
                "conf": round(word.confidence, 6),
                "end": round(self._over + word.end, 6),
                "start": round(self._over + word.start, 6),
                "word": word.text,
            }
            for one in finals
            for word in one.words
        ]
        result = {"result": words} if self._words and words else {}
        if self._alternatives:
            sure = [one.confidence for one in finals if one.confidence is not None]
            best = {"confidence": min(sure, default=0.0), **result, "text": text}
            return {"alternatives": [best]}
        return {**result, "text": text}

    async def finish(self) -> None:
        if self.stream is not None:
            await self.send(self._result(await self._last()))

    async def show(self, transcript: Transcript) -> None:
        raise NotImplementedError  # transcripts are the replies to messages

    async def fail(self, error: ServiceError) -> None:
        await self.send({"error": error.message})
