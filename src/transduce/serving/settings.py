"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TextIO

from transduce.serving.auth import Keys
from transduce.serving.limits import Limits


@dataclass(frozen=True)
class ServiceSettings:
    """How a server behaves, apart from its models."""

    keys: Keys = field(default_factory=Keys)
    cors: tuple[str, ...] = ()
    """Origins whose pages may use the server; "*": any."""
    limits: Limits = field(default_factory=Limits)
    log: TextIO | None = None
    """Where the access log goes, a JSON object a line; None: nowhere."""
    drain_seconds: float = 2.0
    """After SIGTERM, how long new connections are still accepted."""
