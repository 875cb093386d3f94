"""OpenAI's protocol: models, transcriptions, also live, completions, and a thin chat."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from transduce.serving.engine import Engine
from transduce.serving.protocols.openai.audio import Audio
from transduce.serving.protocols.openai.chat import Chat
from transduce.serving.protocols.openai.completions import Completions
from transduce.serving.protocols.openai.models import Models
from transduce.serving.protocols.openai.realtime import RealtimeConversation
from transduce.serving.protocols.openai.shapes import error
from transduce.serving.settings import ServiceSettings

__all__ = ["PREFIXES", "error", "routes"]

PREFIXES = ("/v1/",)


def routes(engine: Engine, settings: ServiceSettings) -> list[BaseRoute]:
    models, audio = Models(engine), Audio(engine)
    completions, chat = Completions(engine), Chat(engine)

    async def realtime(websocket: WebSocket) -> None:
        await RealtimeConversation(websocket, engine.live).run()

    return [
        Route("/v1/models", models.all, methods=["GET"]),
        Route("/v1/models/{name:path}", models.one, methods=["GET"]),
        Route("/v1/audio/transcriptions", audio.transcribe, methods=["POST"]),
        Route("/v1/audio/translations", audio.translate, methods=["POST"]),
        Route("/v1/completions", completions.create, methods=["POST"]),
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        WebSocketRoute("/v1/realtime", realtime),
    ]
