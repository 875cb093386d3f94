"""Getting a corpus as a person does: killed, interrupted, on a full disk; then learning from it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forked import Forked
from loopback import Loopback, cut, serving, slow
from slow_params import some_slow
from tiny_corpus import ENGLISH, GERMAN, SERVED
from transduce.cli.main import main
from transduce.corpora.location import is_intact, metadata_of
from transduce.storage import write_json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs signals, tmpfs and limits")

TINY = [
    "model.width=16",
    "model.encoder={layers: 1, heads: 2, feed_forward: 16}",
    "model.decoder={layers: 1, heads: 2, feed_forward: 16}",
    "data.tokens.both={level: character}",
    "train.steps=5",
    "train.average=null",
    "validation.every=5",
    "validation.beam=1",
    "decode={beam: 1, max_ratio: 1, max_extra: 0}",
]
SCRIPT = Path(__file__).parents[1] / "tiny_corpus.py"


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as server:
        server.files = dict(SERVED)
        yield server


def start(
    server: Loopback,
    shelf: Path,
    kind: type[subprocess.Popen[str]] = Forked[str],
    **more: Any,
) -> subprocess.Popen[str]:
    """`transduce corpus get tiny`, in a process of its own."""
    address = server.address("").rstrip("/")
    return kind(
        [sys.executable, str(SCRIPT), address, "corpus", "get", "tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRANSDUCE_DATA": str(shelf)},
        **more,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status, and what it said of an error."""
    _, errors = process.communicate(timeout=200)
    return process.returncode, errors


def wait_for(path: Path, size: int) -> None:
    """Until so many bytes are in a file."""
    for _ in range(3000):
        if path.exists() and path.stat().st_size >= size:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def check_whole(shelf: Path) -> None:
    files = sorted(str(path.relative_to(shelf)) for path in shelf.rglob("*") if path.is_file())
    assert files == ["tiny/corpus.json", "tiny/train.de", "tiny/train.en"]
    assert (shelf / "tiny" / "train.en").read_bytes() == ENGLISH
    assert (shelf / "tiny" / "train.de").read_bytes() == GERMAN
    assert is_intact(shelf / "tiny")
    assert not (shelf / "tiny.part").exists()


def test_a_kill_in_the_middle(server: Loopback, tmp_path: Path) -> None:
    server.replies["one.de"] = [slow(60, 0.05)]
    downloads = tmp_path / "tiny.part" / "downloads"
    part = downloads / "one.de.part"
    process = start(server, tmp_path)
    wait_for(part, 20_000)
    process.kill()
    assert end(process)[0] == -signal.SIGKILL
    have = part.stat().st_size
    assert sorted(path.name for path in downloads.iterdir()) == ["one.de.part", "one.en.gz"]
    assert part.read_bytes() == GERMAN[:have]
    assert not (tmp_path / "tiny").exists()
    server.replies.clear()
    server.asked.clear()
    assert end(start(server, tmp_path))[0] == 0
    assert server.asked == [("one.de", f"bytes={have}-")]
    check_whole(tmp_path)


def test_killed_again_and_again(server: Loopback, tmp_path: Path) -> None:
    """At any moment, of a server that breaks off as well."""
    chance = random.Random(3)
    for name in SERVED:
        server.replies[name] = [slow(40, 0.02), cut(20_000)]
    kills = 0
    for _ in range(6):
        process = start(server, tmp_path)
        try:
            process.wait(timeout=0.4 + chance.random())
            break
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
            process.communicate()
        assert not (tmp_path / "tiny").exists() or is_intact(tmp_path / "tiny")
    assert kills
    assert end(start(server, tmp_path))[0] == 0
    check_whole(tmp_path)


def test_an_interruption(server: Loopback, tmp_path: Path) -> None:
    """Of a program that is started, not forked, as a person has it."""
    server.replies["one.en.gz"] = [slow(60, 0.05)]
    process = start(server, tmp_path, subprocess.Popen)
    wait_for(tmp_path / "tiny.part" / "downloads" / "one.en.gz.part", 2_000)
    process.send_signal(signal.SIGINT)
    status, errors = end(process)
    assert status == 130
    assert "Traceback" not in errors
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["one.en.gz.part"]
    server.replies.clear()
    assert end(start(server, tmp_path))[0] == 0
    check_whole(tmp_path)


def one_sentence(status: int, errors: str) -> str:
    assert status == 2, errors
    assert errors.startswith("transduce: ")
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize("largest", some_slow([1_000, 60_000, 150_000], [60_000]))
def test_a_limit_on_the_size_of_files(server: Loopback, tmp_path: Path, largest: int) -> None:
    said = one_sentence(*end(start(server, tmp_path, largest=largest)))
    assert "could not be written (File too large)" in said
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert set(left) <= {"one.en.gz", "one.de"}  # whole files of the download, nothing else
    assert end(start(server, tmp_path))[0] == 0
    check_whole(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk, and not everywhere")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_a_disk_that_fills_up(server: Loopback, disk: Path) -> None:
    ballast, shelf = disk / "ballast", disk / "shelf"
    ballast.write_bytes(bytes(1_800_000))
    said = one_sentence(*end(start(server, shelf)))
    assert "tiny needs 0.5 MB, and 0.3 MB are free in" in said
    assert server.asked == []
    ballast.unlink()

    server.replies["one.de"] = [slow(30, 0.05)]
    process = start(server, shelf)
    wait_for(shelf / "tiny.part" / "downloads" / "one.de.part", 5_000)
    with ballast.open("wb") as file:  # others fill the disk in the meantime
        free = os.statvfs(disk)
        file.write(bytes(free.f_bavail * free.f_bsize))
    said = one_sentence(*end(process))
    assert "one.de.part could not be written (No space left on device) and was removed" in said
    left = [path.name for path in shelf.rglob("*") if path.is_file()]
    assert left == ["one.en.gz"]
    ballast.unlink()

    server.replies.clear()
    assert end(start(server, shelf))[0] == 0
    check_whole(shelf)


def test_from_its_name_to_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shipped recipe on a small corpus of the same name; then a further test set of it."""
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path / "shelf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def transduce(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["transduce", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return int(str(ended.value.code)), printed.out + printed.err

    place, run = tmp_path / "shelf" / "multi30k", str(tmp_path / "run")
    place.mkdir(parents=True)
    for split, count in {"train": 300, "valid": 20, "test": 20, "test-2017": 7}.items():
        for code in ("en", "de", "fr"):
            lines = [f"{code} {split} {number % 7} {number % 3}\n" for number in range(count)]
            (place / f"{split}.{code}").write_text("".join(lines))
    train = ["train", "multi30k-en-de", *TINY, "--output", run]
    assert transduce(*train) == (
        2,
        "transduce: multi30k is not on this machine: `transduce corpus get multi30k` downloads it "
        "(2.0 MB, research use)\n",
    )
    write_json(place / "corpus.json", metadata_of(place))
    status, said = transduce(*train)
    assert status == 0, said
    assert "Training: 300 pairs" in said
    for split in ("test", "test-2017"):
        assert transduce("evaluate", run, "--split", split, "--workers", "1")[0] == 0
    metrics = json.loads(Path(run, "metrics.json").read_text())
    assert metrics["test"]["items"] == 20
    assert metrics["test-2017"]["items"] == 7
    assert len(Path(run, "test-2017.hypotheses.txt").read_text().splitlines()) == 7
    card = Path(run, "README.md").read_text()
    assert "Trained on multi30k en-de (train)" in card
    assert "| test-2017 | 7 |" in card
    assert transduce("evaluate", run, "--split", "test-2018", "--workers", "1") == (
        2,
        "transduce: multi30k has no split test-2018; did you mean test-2017?\n",
    )
