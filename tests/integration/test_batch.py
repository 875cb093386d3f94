"""Batch jobs whose processes are killed at any moment end with the same bytes."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lives import Lives
from slow_params import some_slow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, /proc and locks")

TRIALS = 5  # on a busy machine a command may be done before this process can strike
MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "translate"


def write_lines(folder: Path, count: int, seed: int = 1) -> str:
    """Lines in two files, some of them bad; returns the pattern of the files."""
    draw = random.Random(seed)
    for number in range(2):
        lines = ["".join(draw.choices("abcd", k=draw.randint(1, 9))).encode() for _ in range(count)]
        for place in range(0, count, 97):
            lines[place] = draw.choice([b"", b"\xff", b"a" * 900, b"  "])
        packed = gzip.compress(b"\n".join(lines), mtime=0)
        (folder / f"in-{number}.gz").write_bytes(packed)
    return str(folder / "in-*.gz")


def batch(pattern: str, output: Path, *more: object) -> list[str]:
    given = ["batch", MODEL, "--input", pattern, "--output", output, *more]
    return [str(word) for word in given]


def content(folder: Path) -> dict[str, bytes]:
    """Every file that a user sees, and what killed processes have left behind."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".claims" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def children(process: int) -> list[int]:
    with suppress(OSError):
        listed = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(number) for number in listed.split()]
    return []


def kill(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def finished(folder: Path) -> int:
    return len(list(folder.glob("part-*")))


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, lives: Lives
) -> tuple[str, Path, dict[str, bytes]]:
    """The inputs, and the output of one worker that nobody disturbs."""
    folder = tmp_path_factory.mktemp("batch")
    pattern = write_lines(folder, 300)
    output = folder / "whole"
    lives.start(*batch(pattern, output, "--shard-lines", 20, "--workers", 1))
    assert lives.end() == 0, lives.reported
    assert finished(output) == 30
    return pattern, folder, content(output)


def strike(lives: Lives, command: list[str], output: Path, draw: random.Random) -> list[int]:
    """Run a command four times, its workers and the first three times itself killed at random
    moments, until all is done; how many workers and commands were killed."""
    struck = [0, 0]
    for turn in range(4):
        process = lives.start(*command)
        before = finished(output)
        # Workers are at work as soon as one more shard is finished; the rest is chance.
        while finished(output) == before and Path(f"/proc/{process}").exists():
            time.sleep(0.002)
        for _ in range(2):
            time.sleep(draw.random() * 0.03)
            workers = children(process)
            struck[0] += bool(workers) and kill(draw.choice(workers))
        if turn < 3:
            time.sleep(draw.random() * 0.03)
            struck[1] += kill(process)
            assert lives.end() in (0, -signal.SIGKILL), lives.reported
    assert lives.end() == 0, lives.reported
    return struck


def test_workers_and_commands_killed_at_random(
    undisturbed: tuple[str, Path, dict[str, bytes]], lives: Lives, tmp_path: Path
) -> None:
    pattern, _, whole = undisturbed
    draw = random.Random(5)
    for trial in range(TRIALS):
        output = tmp_path / str(trial)
        command = batch(pattern, output, "--shard-lines", 20, "--workers", 3)
        struck = strike(lives, command, output, draw)
        # A worker whose command was killed ends a moment later, and removes what it was writing.
        late = time.monotonic() + 10
        while content(output) != whole and time.monotonic() < late:
            time.sleep(0.1)
        assert content(output) == whole
        if min(struck) > 0:
            break
    assert min(struck) > 0, "nothing was killed: the test has to be slower"


@pytest.mark.parametrize(
    ("name", "place"),
    some_slow(
        itertools.product(["part-000007.txt", "part-000004.jsonl"], ["written", "renamed"]),
        [("part-000007.txt", "written"), ("part-000004.jsonl", "renamed")],
    ),
)
def test_killed_around_a_rename(
    undisturbed: tuple[str, Path, dict[str, bytes]],
    lives: Lives,
    tmp_path: Path,
    name: str,
    place: str,
) -> None:
    pattern, _, whole = undisturbed
    command = batch(pattern, tmp_path / "out", "--shard-lines", 20, "--workers", 2)
    lives.start(*command, death={"file": name, "place": place, "seed": 1})
    status = lives.end()
    assert lives.report is not None, "nobody died"
    if name.endswith(".txt") and place == "renamed":
        assert status == 0, lives.reported  # a new worker does what is left
    else:  # every worker that comes to this shard dies
        assert status == 2, lives.reported
        assert "workers in a row ended (signal 9, SIGKILL)" in lives.reported
        assert "Traceback" not in lives.reported
        lives.start(*command)
        assert lives.end() == 0, lives.reported
    assert content(tmp_path / "out") == whole


def test_what_is_left_when_all_is_finished_is_removed(
    undisturbed: tuple[str, Path, dict[str, bytes]], lives: Lives, tmp_path: Path
) -> None:
    """The last worker was killed, then its command, and others had finished its shard."""
    pattern, folder, whole = undisturbed
    output = tmp_path / "out"
    shutil.copytree(folder / "whole", output)
    for half_written in (output / ".transduce-a.part", output / "errors" / ".transduce-b.part"):
        half_written.mkdir()
        (half_written / "part-000020.txt").touch()
    lives.start(*batch(pattern, output, "--shard-lines", 20, "--workers", 1))
    assert lives.end() == 0, lives.reported
    assert content(output) == whole


@pytest.mark.slow
def test_two_commands_share_the_work(
    undisturbed: tuple[str, Path, dict[str, bytes]], lives: Lives, tmp_path: Path
) -> None:
    """Also where one of them is stopped and never goes on: its shards are not lost."""
    pattern, _, whole = undisturbed
    command = batch(pattern, tmp_path / "out", "--shard-lines", 20, "--workers", 2)
    other = subprocess.Popen(
        [sys.executable, "-m", "transduce", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    lives.start(*command)
    assert lives.end() == 0, lives.reported
    _, reported = other.communicate(timeout=120)
    assert other.returncode == 0, reported
    assert content(tmp_path / "out") == whole


def test_a_command_that_is_interrupted_says_how_to_go_on(
    undisturbed: tuple[str, Path, dict[str, bytes]], lives: Lives, tmp_path: Path
) -> None:
    pattern, _, whole = undisturbed
    command = batch(pattern, tmp_path / "out", "--shard-lines", 20, "--workers", 2)
    for _ in range(TRIALS):
        process = lives.start(*command)
        lives.wait_for(lambda: finished(tmp_path / "out") > 0)
        workers = children(process)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT)
        status = lives.end()
        if status != 0:
            break
        shutil.rmtree(tmp_path / "out")  # done before it was interrupted
    assert status == 130, lives.reported
    assert "the same command goes on" in lives.reported
    assert "Traceback" not in lives.reported
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]
    lives.start(*command)
    assert lives.end() == 0, lives.reported
    assert content(tmp_path / "out") == whole


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_lines_and_ten_kills(tmp_path: Path) -> None:
    pattern = write_lines(tmp_path, 50_000, seed=2)
    settings = ["--shard-lines", 500, "--workers", 2]
    start = [sys.executable, "-m", "transduce"]
    subprocess.run([*start, *batch(pattern, tmp_path / "whole", *settings)], check=True)
    kills = {"worker": 0, "command": 0}
    while True:
        process = subprocess.Popen([*start, *batch(pattern, tmp_path / "out", *settings)])
        before = finished(tmp_path / "out")
        while process.poll() is None and sum(kills.values()) < 10:
            # One of 200 shards is finished between two kills: there are enough, on any machine.
            if finished(tmp_path / "out") == before:
                time.sleep(0.002)
                continue
            before = finished(tmp_path / "out")
            workers = children(process.pid)
            if sum(kills.values()) % 3 and workers:
                kills["worker"] += kill(workers[-1])
            elif process.poll() is None:
                process.kill()
                kills["command"] += 1
        if process.wait() == 0:
            break
    print(kills, finished(tmp_path / "out"), "shards")
    assert sum(kills.values()) == 10
    assert min(kills.values()) > 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.slow
def test_workers_that_load_the_model_themselves(tmp_path: Path) -> None:
    """As on a GPU, where a process cannot be forked."""
    from transduce.batch_inference.decoder import open_decoder
    from transduce.batch_inference.job import Settings, open_job
    from transduce.batch_inference.local import run_locally

    pattern, settings = write_lines(tmp_path, 60), Settings(shard_lines=20)
    jobs = [
        open_job(MODEL, [pattern], tmp_path / name, settings, lambda: None, print)
        for name in ("spawned", "forked")
    ]
    run_locally(jobs[0], jobs[0].shards, 2, "cpu", None)
    run_locally(jobs[1], jobs[1].shards, 2, "cpu", open_decoder(MODEL, settings, "cpu"))
    assert finished(tmp_path / "spawned") == 6
    assert content(tmp_path / "spawned") == content(tmp_path / "forked")
