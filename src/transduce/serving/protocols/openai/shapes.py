"""What OpenAI's endpoints share: names of models, errors, identifiers, usage."""

from __future__ import annotations

import secrets
import time
from typing import Any

from starlette.responses import Response

from transduce.serving.errors import ServiceError
from transduce.serving.protocols.answers import event, json_response

TYPES = {403: "authentication_error", 429: "rate_limit_error"}
# Parameters that say something about the client, or how a model should think, and nothing about
# the output of models that do not.
HARMLESS = frozenset(
    [
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    ]
)


def error(found: ServiceError, request_id: str) -> Response:
    """OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""
    # OpenAI's clients know a wrong key by 401.
    status = 401 if found.code == "unauthorized" else found.status
    return json_response({"error": error_fields(found, request_id)}, status)


def error_fields(found: ServiceError, request_id: str = "") -> dict[str, Any]:
    usual = "invalid_request_error" if found.status < 500 else "server_error"
    return {
        "message": found.message,
        "type": TYPES.get(found.status, usual),
        "param": getattr(found, "param", None),
        "code": "invalid_api_key" if found.code == "unauthorized" else found.code,
        "request_id": request_id,
    }


def error_event(found: ServiceError) -> bytes:
    """The last event of a stream that has failed."""
    return event({"error": error_fields(found)})


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
