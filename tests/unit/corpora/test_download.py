"""Downloads: whatever a server does, a file is whole or not there, and broken ones go on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from loopback import (
    Loopback,
    Reply,
    cut,
    cut_without_length,
    redirect,
    silent,
    slow,
    status,
    stuck,
    well,
    with_length,
    without_ranges,
    wrong_range,
)
from transduce.corpora import download as module
from transduce.corpora.download import download
from transduce.errors import DataError

BODY = random.Random(1).randbytes(300_000)


def fetch(server: Loopback, folder: Path, *replies: Reply, body: bytes = BODY) -> list[int]:
    """Download `file` into a folder; the progress that was told."""
    server.files["file"], server.replies["file"] = body, list(replies)
    reported: list[int] = []
    path = folder / "file"
    address = server.address("file")
    download(address, path, len(BODY), lambda part: part.read_bytes() == BODY, reported.append)
    assert path.read_bytes() == BODY
    assert [p.name for p in folder.iterdir()] == ["file"]
    return reported


def failure(server: Loopback, folder: Path, *replies: Reply, body: bytes = BODY) -> str:
    """The one sentence that a download ends in."""
    with pytest.raises(DataError) as caught:
        fetch(server, folder, *replies, body=body)
    assert not (folder / "file").exists()
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_server_that_behaves(server: Loopback, tmp_path: Path) -> None:
    reported = fetch(server, tmp_path)
    assert reported == sorted(reported)
    assert reported[-1] == len(BODY)
    assert server.asked == [("file", None)]


REPLIES: dict[str, list[Reply]] = {
    "cut once": [cut(100_000), well],
    "cut again and again": [cut(30_000)] * 9 + [well],
    "cut at once": [cut(0), well],
    "cut, then without ranges": [cut(100_000), without_ranges],
    "cut, without ranges": [cut(100_000, ranges=False), cut(200_000, ranges=False), well],
    "cut, without length": [cut_without_length(100_000), well],
    "without length": [cut_without_length(len(BODY))],
    "another range": [cut(100_000), wrong_range, well],
    "busy": [status(503), status(500), status(429), well],
    "busy in the middle": [cut(100_000), status(502), well],
    "slow": [slow(10, 0.05)],
    "stuck": [stuck(100_000, 1.0), well],
    "stuck before a word": [cut(100_000), silent(1.0), well],
    "a length too large": [with_length(+1000)],
}


@pytest.mark.parametrize("replies", REPLIES.values(), ids=REPLIES.keys())
def test_all_comes_in_the_end(server: Loopback, tmp_path: Path, replies: list[Reply]) -> None:
    fetch(server, tmp_path, *replies)


def test_only_what_is_missing_is_asked_for(server: Loopback, tmp_path: Path) -> None:
    fetch(server, tmp_path, cut(100_000), cut(50_000), well)
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_server_that_goes_back_and_forth(server: Loopback, tmp_path: Path) -> None:
    """Without ranges, each try begins anew: what matters is who came furthest."""
    replies = [cut(200_000, ranges=False), cut(100_000, ranges=False)] * 20
    assert "bytes were received from" in failure(server, tmp_path, *replies)
    assert len(server.asked) == module.ATTEMPTS


def test_a_later_call_goes_on(server: Loopback, tmp_path: Path) -> None:
    said = failure(server, tmp_path, cut(100_000), cut(0))
    assert "only 100,000 of 300,000 bytes were received from http://127.0.0.1" in said
    assert "resumes from there" in said
    assert (tmp_path / "file.part").read_bytes() == BODY[:100_000]
    server.asked.clear()
    fetch(server, tmp_path, well)
    assert server.asked == [("file", "bytes=100000-")]


def test_a_part_that_was_whole_before_the_end(server: Loopback, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY)
    fetch(server, tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("old", [b"x" * 1000, b"x" * 300_000, b"x" * 300_001])
def test_a_part_of_something_else(server: Loopback, tmp_path: Path, old: bytes) -> None:
    (tmp_path / "file.part").write_bytes(old)
    fetch(server, tmp_path)


def test_a_file_that_has_become_shorter(server: Loopback, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY[:200_000])
    assert "has other content" in failure(server, tmp_path, body=BODY[:150_000])
    # There is nothing after byte 200,000, and too little before it.
    assert [asked for _, asked in server.asked] == ["bytes=200000-", None]
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_shorter(server: Loopback, tmp_path: Path) -> None:
    """Such as the page on which a network asks people to sign in."""
    assert "has other content" in failure(server, tmp_path, body=BODY[:1000])
    assert len(server.asked) == 1
    assert not list(tmp_path.iterdir())


def test_a_length_that_is_too_small(server: Loopback, tmp_path: Path) -> None:
    assert "has other content" in failure(server, tmp_path, with_length(-1000))
    assert not list(tmp_path.iterdir())


def test_wrong_bytes(server: Loopback, tmp_path: Path) -> None:
    wrong = bytes(len(BODY))
    said = failure(server, tmp_path, body=wrong)
    assert "has other content than expected" in said
    assert "--from" in said
    assert server.asked == [("file", None)]  # once: it came as it is there
    assert not list(tmp_path.iterdir())


def test_wrong_bytes_in_pieces_are_fetched_once_more(server: Loopback, tmp_path: Path) -> None:
    failure(server, tmp_path, cut(1000), well, cut(1000), well, body=bytes(len(BODY)))
    assert [asked for _, asked in server.asked] == [None, "bytes=1000-"] * 2
    assert not list(tmp_path.iterdir())


def test_more_bytes_than_there_should_be(server: Loopback, tmp_path: Path) -> None:
    """They are not even read: a server may have no end of them."""
    endless = bytes(20_000_000)
    failure(server, tmp_path, body=endless)
    reported: list[int] = []
    path = tmp_path / "file"
    with pytest.raises(DataError):
        download(server.address("file"), path, 1000, lambda part: False, reported.append)
    assert reported[-1] == 1000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("code", "said"), [(404, "404 (Not Found)"), (403, "403 (Forbidden)")])
def test_no_such_file(server: Loopback, tmp_path: Path, code: int, said: str) -> None:
    assert f"/file answers {said}" in failure(server, tmp_path, status(code))
    assert len(server.asked) == 1
    assert not list(tmp_path.iterdir())


def test_always_busy(server: Loopback, tmp_path: Path) -> None:
    assert "it answers 503" in failure(server, tmp_path, status(503))
    assert len(server.asked) == module.ATTEMPTS
    assert not list(tmp_path.iterdir())


def test_redirections(server: Loopback, tmp_path: Path) -> None:
    server.files["elsewhere"] = BODY
    server.replies["elsewhere"] = [cut(100_000), well]
    fetch(server, tmp_path, redirect("/elsewhere"))
    assert server.asked[-1] == ("elsewhere", "bytes=100000-")


def test_a_redirection_in_a_circle(server: Loopback, tmp_path: Path) -> None:
    assert "redirections without end" in failure(server, tmp_path, redirect("/file"))


def test_a_redirection_to_a_file_of_this_machine(server: Loopback, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_bytes(BODY)
    failure(server, tmp_path, redirect(secret.as_uri()))
    assert not list(tmp_path.iterdir())


def test_a_server_that_never_answers(server: Loopback, tmp_path: Path) -> None:
    said = failure(server, tmp_path, silent(1.5))
    assert "cannot be reached (nothing came for 0.5 seconds)" in said
    assert len(server.asked) == 1


def test_no_server(server: Loopback, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^127.0.0.1:1 cannot be reached \(Connection refused\)"):
        download("http://127.0.0.1:1/file", tmp_path / "file", 10, lambda part: True, print)
    assert not list(tmp_path.iterdir())


def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^nowhere\.invalid cannot be reached \(.*--from"):
        download("http://nowhere.invalid/file", tmp_path / "file", 10, lambda part: True, print)


def test_a_folder_that_cannot_be_written(server: Loopback, tmp_path: Path) -> None:
    server.files["file"] = BODY
    with pytest.raises(DataError, match=r"file\.part could not be written \(.*--output"):
        download(
            server.address("file"), tmp_path / "no" / "file", len(BODY), lambda part: True, print
        )
