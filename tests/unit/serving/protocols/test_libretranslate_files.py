"""Translated files: names that nobody guesses, for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_server import skip_without

skip_without()


def test_a_result_is_removed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.serving.errors import ServiceError
    from transduce.serving.limits import Limits
    from transduce.serving.protocols import libretranslate_files
    from transduce.serving.protocols.libretranslate_files import Results
    from transduce.serving.settings import ServiceSettings

    now = 100.0
    monkeypatch.setattr(libretranslate_files, "time", SimpleNamespace(monotonic=lambda: now))
    limits = Limits(results_seconds=0.05, results_bytes=10)
    results = Results(settings := ServiceSettings(limits=limits))
    first, second = results.add("a.txt", "de", b"tee"), results.add("a.txt", "de", b"tasse")
    assert first != second
    assert min(len(first), len(second)) > 32
    folder = Path(results._folder.name)
    assert folder.stat().st_mode & 0o077 == 0
    assert settings.folders == {folder}  # removed even where the process has to end at once
    answer = results.response(first)
    assert answer.status_code == 200
    # A page that somebody had translated must not act in the name of this server.
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["content-disposition"].startswith("attachment")
    with pytest.raises(ServiceError, match="no room") as refused:
        results.add("b.txt", "de", b"zu viel")
    assert refused.value.status == 507

    now += 0.04
    assert results.response(second).status_code == 200
    now += 0.02

    async def wait() -> None:
        results.expire_later()
        while list(folder.iterdir()):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(wait(), 60))
    with pytest.raises(ServiceError, match="expired"):
        results.response(first)
    results.add("b.txt", "de", b"platz")  # there is room again
    results.close()
    assert not folder.exists()
    assert not settings.folders
