"""What OpenAI's endpoints share: names of models, errors, identifiers, usage."""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.responses import Response

from transduce.serving.errors import ServiceError
from transduce.serving.models import Catalogue, Served
from transduce.serving.protocols.answers import json_response

TYPES = {
    400: "invalid_request_error",
    403: "authentication_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
# Parameters that say something about the client, and nothing about the output.
HARMLESS = frozenset(
    [
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    ]
)


def error(found: ServiceError, request_id: str) -> Response:
    """OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""
    # OpenAI's clients know a wrong key by 401.
    status = 401 if found.code == "unauthorized" else found.status
    return json_response({"error": error_fields(found, request_id)}, status)


def error_fields(found: ServiceError, request_id: str = "") -> dict[str, Any]:
    return {
        "message": found.message,
        "type": TYPES.get(found.status, "server_error"),
        "param": getattr(found, "param", None),
        "code": "invalid_api_key" if found.code == "unauthorized" else found.code,
        "request_id": request_id,
    }


def find_model(models: Catalogue, name: str) -> Served:
    """Raises a ServiceError in OpenAI's words for a model that is not served."""
    found = models.get(name)
    if found is None:
        raise ServiceError(
            404,
            f"the model {name!r:.80} is not served; there are {', '.join(models)}",
            "model_not_found",
        )
    return found


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def now() -> int:
    return int(time.time())


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
