"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from transduce.serving.auth import Keys
from transduce.serving.hosts import Hosts
from transduce.serving.limits import Limits


@dataclass(frozen=True)
class ServiceSettings:
    """How a server behaves, apart from its models."""

    keys: Keys = field(default_factory=Keys)
    cors: tuple[str, ...] = ()
    """Origins whose pages may use the server; "*": any."""
    hosts: Hosts = field(default_factory=Hosts)
    """The names under which clients reach the server."""
    public_url: str | None = None
    """The address that clients know, where a proxy is in front; None: as they send it."""
    limits: Limits = field(default_factory=Limits)
    glossary_folder: Path | None = None
    """The folder that keeps the glossaries of clients; None: they end with the server."""
    log: TextIO | None = None
    """Where the access log goes, a JSON object a line; None: nowhere."""
    accept_seconds: float = 2.0
    """After SIGTERM, how long new connections are still accepted."""
    drain_seconds: float = 30.0
    """The time from SIGTERM to the end of the process, at most."""
    folders: set[Path] = field(default_factory=set, compare=False)
    """Temporary folders in use; removed even where the process has to end at once."""
