"""OpenAI's protocol: models, transcriptions, also live, completions, and a thin chat."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from transduce.serving.engine import Engine
from transduce.serving.models import Served
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.openai.audio import Audio
from transduce.serving.protocols.openai.chat import Chat
from transduce.serving.protocols.openai.completions import Completions
from transduce.serving.protocols.openai.realtime import RealtimeConversation
from transduce.serving.protocols.openai.shapes import error, now
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


class Models:
    """GET /v1/models and /v1/models/{name}."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.started = engine, now()

    async def all(self, request: Request) -> Response:
        data = [self._shown(served) for served in self.engine.catalogue.values()]
        return json_response({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        return json_response(self._shown(self.engine.catalogue.find(request.path_params["name"])))

    def _shown(self, served: Served) -> dict[str, Any]:
        """`created` is when it was loaded. task and languages are more than OpenAI says."""
        shown: dict[str, Any] = {
            "id": served.name,
            "object": "model",
            "created": self.started,
            "owned_by": "transduce",
            "task": served.api_task,
            "audio": served.takes_audio,
        }
        return shown | ({"languages": list(served.pair)} if served.pair else {})
