"""API keys: read from a file, compared in constant time, never logged."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import HTTPConnection

from transduce.errors import DataError
from transduce.serving.errors import Unauthorized

SCHEMES = ("bearer ", "deepl-auth-key ")
KEY_PROTOCOL = "openai-insecure-api-key."
"""Before a key among the subprotocols of a WebSocket: pages cannot set its headers."""


class Keys:
    """The keys that clients may use; without any, every client may."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.listed = tuple(keys)
        self._keys = [key.encode() for key in keys]
        self.required = bool(keys)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One key a line; empty lines and those that begin with # are skipped."""
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"the API keys cannot be read from {path}: {error}") from None
        keys = [line.strip() for line in lines]
        keys = [key for key in keys if key and not key.startswith("#")]
        if not keys:
            raise DataError(f"{path} has no API key; write one key a line, or omit --api-keys")
        return cls(keys)

    def allow(self, key: str | None) -> bool:
        """Whether a key is one of ours. Takes the same time for any key of a given length."""
        if not self._keys:
            return True
        given = (key or "").encode("utf-8", "surrogatepass")
        found = False
        for known in self._keys:
            found |= hmac.compare_digest(known, given)
        return found

    def knows(self, request: HTTPConnection) -> bool:
        """Whether a request has a known key, in its headers or as api_key in its query."""
        return self.allow(key_of(request))

    def require(self, request: HTTPConnection) -> None:
        """Raise Unauthorized unless the request has a known key."""
        self.check(key_of(request))

    def check(self, key: str | None) -> None:
        """Raise Unauthorized unless a key is known."""
        if not self.allow(key):
            raise Unauthorized


def key_of(request: HTTPConnection) -> str | None:
    """The key in the headers or the query of a request."""
    value = request.headers.get("authorization", "")
    for scheme in SCHEMES:
        if value.lower().startswith(scheme):
            return value[len(scheme) :].strip()
    for protocol in request.headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(KEY_PROTOCOL):
            return protocol.strip()[len(KEY_PROTOCOL) :]
    return request.query_params.get("api_key") or request.query_params.get("auth_key")
