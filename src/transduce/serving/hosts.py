"""Host and Origin of requests: which names the server answers to, and pages of which sites may use
it.

A browser lets any page send requests to any server, also to one on the user's own machine. A page
of another site is told by its Origin. Where its name was made to lead here (DNS rebinding), Origin
and Host agree, but Host is a name that is not ours.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from transduce.errors import DataError
from transduce.serving.errors import ServiceError

ANY = "*"
SHORT = 255  # characters of a Host header that is remembered
LOCAL = ("localhost", "127.0.0.1", "::1")
READING = ("GET", "HEAD", "OPTIONS")
"""What a page of another site may send: without CORS it cannot see the answer."""


@dataclass(frozen=True)
class Hosts:
    """The names under which clients reach the server: host, or host:port.

    A name without a port is for all ports. `addresses`: any IP address is accepted, too, as by a
    server that listens on all of its machine; no page of another site has one of these as its name.
    """

    names: tuple[str, ...] = LOCAL
    addresses: bool = False

    @classmethod
    def bound(cls, host: str, allowed: Sequence[str] = ()) -> Hosts:
        """Of a server that listens on an address: that, this machine's names, and those given."""
        everywhere = _is_unspecified(host)
        own = (socket.gethostname(), socket.getfqdn()) if everywhere else (host,)
        names = [*LOCAL, *own, *(one for some in allowed for one in some.split(","))]
        return cls(tuple(dict.fromkeys(_plain(one) for one in names if one.strip())), everywhere)

    def allow(self, given: str) -> bool:
        """Whether a Host header is one of ours."""
        found = _parts(given)
        if found is None:
            return False
        name, port = found
        if ANY in self.names or (self.addresses and _is_address(name)):
            return True
        return name in self.names or (port is not None and f"{name}:{port}" in self.names)

    def check(self, method: str, headers: Mapping[bytes, bytes], cors: Sequence[str] = ()) -> None:
        """Raise ServiceError for a host that is not ours, and for what a page of another site
        sends, unless `cors` has its origin. `method` "": a WebSocket."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self.allow(host):
            raise ServiceError(
                400, f"this server is not called {host[:80]!r}; see --allowed-hosts", "wrong_host"
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or method in READING or ANY in cors or origin in cors:
            return
        if not self._is_own(origin, host):
            raise ServiceError(
                403, f"pages of {origin[:80]} may not use this server; see --cors", "wrong_origin"
            )

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page is one of this server: it has its host and port. Behind a proxy Host may
        be another; then the name, with the usual port, is among those that were given."""
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:  # such as http://[
            return False
        if place and place == host.lower():
            return True
        return bool(place) and _plain(place) in set(self.names) - set(LOCAL)


def host_of(url: str | None) -> list[str]:
    """The host of an address, which is then one of ours; none without an address. Raises
    DataError."""
    if url is None:
        return []
    try:
        parts = urlsplit(url)
        host, known = parts.netloc, parts.scheme in ("http", "https")
    except ValueError:
        host, known = "", False
    if not known or not host:
        raise DataError(
            f"{url!r:.80} is no address; give one such as https://example.com/translate"
        )
    return [host]


def _plain(name: str) -> str:
    """A name as it is compared: lower case, IPv6 without brackets."""
    return name.strip().lower().removeprefix("[").removesuffix("]")


def _parts(given: str) -> tuple[str, int | None] | None:
    """The name and the port of a Host header; None: it is none."""
    return _read(given) if len(given) > SHORT else _read_short(given)


@lru_cache(maxsize=256)  # most requests have one of few
def _read_short(given: str) -> tuple[str, int | None] | None:
    return _read(given)


def _read(given: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(f"//{given}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if name is None or parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return name.rstrip("."), port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified
