"""A web server, a tiny corpus that it has, and no patience: seconds of people are none here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopback import Loopback, serving
from tiny_corpus import SERVED, SUMS, tiny_listing
from transduce.corpora import catalogue, download
from transduce.corpora import entry as listing
from transduce.corpora.entry import Listing


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setattr(download, "TIMEOUT", 0.5)
    with serving() as server:
        yield server


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where corpora are kept."""
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


@pytest.fixture
def tiny(server: Loopback, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """A corpus of two files, one of which is packed where it is fetched."""
    server.files = dict(SERVED)
    corpus = tiny_listing(server.address("").rstrip("/"))
    monkeypatch.setattr(listing, "_checksums", lambda: SUMS)
    monkeypatch.setitem(catalogue.FETCHED, "tiny", corpus)
    return corpus
