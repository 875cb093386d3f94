"""The list of models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.engine import Engine
from transduce.serving.models import Served
from transduce.serving.protocols.answers import json_response
from transduce.serving.protocols.openai.shapes import now


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
