"""Host and Origin: which names the server answers to, and pages of which sites may use it."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from transduce.errors import DataError
from transduce.serving.errors import ServiceError
from transduce.serving.hosts import Hosts, host_of


@pytest.mark.parametrize(
    ("host", "allowed", "given", "fits"),
    [
        ("127.0.0.1", [], "127.0.0.1:5000", True),
        ("127.0.0.1", [], "localhost:5000", True),
        ("127.0.0.1", [], "LOCALHOST", True),
        ("127.0.0.1", [], "localhost.:5000", True),
        ("127.0.0.1", [], "[::1]:5000", True),
        ("127.0.0.1", [], "evil.example:5000", False),
        ("127.0.0.1", [], "10.1.2.3:5000", False),
        ("127.0.0.1", [], "localhost.evil.example", False),
        ("127.0.0.1", [], "evil.example@localhost", False),
        ("127.0.0.1", [], "localhost/evil", False),
        ("127.0.0.1", [], "localhost:x", False),
        ("127.0.0.1", [], "[", False),
        ("127.0.0.1", [], "", False),
        ("0.0.0.0", [], "10.1.2.3:5000", True),
        ("::", [], "[fe80::1]:5000", True),
        ("0.0.0.0", [], "evil.example", False),
        ("10.1.2.3", [], "10.1.2.3:80", True),
        ("10.1.2.3", [], "10.1.2.4", False),
        ("127.0.0.1", ["a.example", "b.example:8080"], "a.example", True),
        ("127.0.0.1", ["a.example", "b.example:8080"], "A.example:99", True),
        ("127.0.0.1", ["a.example,c.example"], "c.example", True),
        ("127.0.0.1", ["b.example:8080"], "b.example:8080", True),
        ("127.0.0.1", ["b.example:8080"], "b.example:8081", False),
        ("127.0.0.1", ["b.example:8080"], "b.example", False),
        ("127.0.0.1", ["*"], "anything.example", True),
    ],
)
def test_the_server_answers_to_its_own_names(
    host: str, allowed: list[str], given: str, fits: bool
) -> None:
    assert Hosts.bound(host, allowed).allow(given) is fits


@pytest.mark.parametrize(
    ("method", "host", "origin", "cors", "status"),
    [
        ("POST", "localhost:5000", None, (), 0),
        ("POST", "localhost:5000", "http://localhost:5000", (), 0),
        ("POST", "localhost:5000", "https://localhost:5000", (), 0),  # TLS ends at a proxy
        ("POST", "localhost:5000", "http://localhost:3000", (), 403),
        ("POST", "localhost:5000", "http://localhost", (), 403),
        ("POST", "localhost:5000", "https://evil.example", (), 403),
        ("POST", "localhost:5000", "null", (), 403),
        ("POST", "localhost:5000", "http://[", (), 403),
        ("", "localhost:5000", "https://evil.example", (), 403),
        ("", "evil.example:5000", "http://evil.example:5000", (), 400),  # DNS rebinding
        ("GET", "evil.example:5000", None, (), 400),
        ("GET", "localhost:5000", "https://evil.example", (), 0),  # it cannot read the answer
        ("POST", "localhost:5000", "https://page.example", ("https://page.example",), 0),
        ("POST", "localhost:5000", "https://page.example", ("*",), 0),
        ("POST", "evil.example", "https://page.example", ("*",), 400),
        ("POST", "localhost:5000", "https://a.example", (), 0),  # of a proxy that sends its own
        ("POST", "localhost:5000", "https://a.example:99", (), 403),
    ],
)
def test_pages_of_other_sites_are_refused(
    method: str, host: str, origin: str | None, cors: tuple[str, ...], status: int
) -> None:
    headers = {b"host": host.encode()} | ({b"origin": origin.encode()} if origin else {})
    hosts = Hosts.bound("127.0.0.1", ["a.example"])
    if not status:
        hosts.check(method, headers, cors)
        return
    with pytest.raises(ServiceError) as refused:
        hosts.check(method, headers, cors)
    assert refused.value.status == status


def test_a_public_address_is_one_of_ours() -> None:
    assert host_of("https://a.example:8080/translate") == ["a.example:8080"]
    assert host_of(None) == []
    for wrong in ("a.example", "ftp://a.example", "https://", "http://["):
        with pytest.raises(DataError, match="is no address"):
            host_of(wrong)
