"""A run that is killed again and again, in training and in every write, loses nothing."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lives import Lives, cache_in, check_same, command
from slow_params import some_slow

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

LINES = 7  # of the log: a run waits to be killed then, however fast it is

STATE, WEIGHTS, KEPT = "training.safetensors", "model.safetensors", "kept-*.safetensors"
WRITES: list[dict[str, Any]] = [
    {"file": STATE, "place": "middle"},
    {"file": WEIGHTS, "place": "middle"},
    {"file": KEPT, "place": "middle"},
    {"file": STATE, "place": "written"},
    {"file": WEIGHTS, "place": "written"},
    {"file": STATE, "place": "between", "turn": 2},
    {"file": STATE, "place": "renamed"},
    {"file": WEIGHTS, "place": "renamed"},
    {"file": "log.jsonl", "place": "line", "kind": "train"},
    {"file": "log.jsonl", "place": "line", "kind": "valid"},
]


# Before the first update, in this order: each comes after what the one before it has left behind.
CACHE = "?" * 64 + ".safetensors"
PREPARING: list[dict[str, Any]] = [
    {"file": CACHE, "place": "middle"},
    {"file": CACHE, "place": "written", "turn": 1},
    {"file": "recipe.yaml", "place": "middle"},
    {"file": "source.tokens.json", "place": "renamed"},
    {"file": "target.tokens.json", "place": "middle"},
]
# After the last update.
ENDING: list[dict[str, Any]] = [
    {"file": "metrics.json", "place": "middle"},
    {"file": "README.md", "place": "written"},
]


def kill_while_writing(
    lives: Lives, arguments: list[str], death: dict[str, Any], **more: Any
) -> str:
    lives.start(*arguments, death=death, **more)
    assert lives.end() == -signal.SIGKILL, lives.reported
    hit = lives.report
    assert hit is not None
    return f"{hit['file']}, {hit['place']}"


def kill_from_outside(
    lives: Lives, arguments: list[str], folder: Path, chance: random.Random
) -> str:
    """At a random moment: now and then of its start, else of its training."""
    log = folder / "log.jsonl"
    before = log.stat().st_ino if log.exists() else 0
    hold = {"file": "log.jsonl", "place": "hold", "turn": LINES, "seed": 0}
    process = lives.start(*arguments, death=hold)
    if starting := chance.random() < 0.25:
        time.sleep(chance.uniform(0.0, 0.5))
    else:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.stat().st_ino != before):  # a start writes it anew
            assert time.monotonic() < deadline, lives.reported
            time.sleep(0.002)
        began = time.monotonic()
        seconds = chance.uniform(0.0, 0.5)
        while time.monotonic() - began < seconds and lives.report is None:
            time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    assert lives.end() == -signal.SIGKILL, lives.reported
    return "starting" if starting else "training"


def killed(
    lives: Lives,
    task: Path,
    folder: Path,
    deaths: Sequence[dict[str, Any] | None],
    *settings: str,
    **more: Any,
) -> Counter[str]:
    """One run, killed and resumed once for each death; None is one from outside."""
    chance = random.Random(20)
    kills: Counter[str] = Counter()
    for death in deaths:
        arguments = command(task, folder, *settings)
        if death is None:
            kills[kill_from_outside(lives, arguments, folder, chance)] += 1
        else:
            plan = {"turn": chance.choice([1, 2]), "seed": chance.random(), **death}
            kills[kill_while_writing(lives, arguments, plan, **more)] += 1
    return kills


@pytest.mark.parametrize("times", some_slow([3, 10], [3]))
def test_killed_in_each_write_and_from_outside(
    times: int, task: Path, undisturbed: Path, lives: Lives, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    deaths: list[dict[str, Any] | None] = [*WRITES, *[None] * times]
    random.Random(1).shuffle(deaths)
    kills = killed(lives, task, folder, deaths)
    from_outside = kills["training"] + kills["starting"]
    assert from_outside == times
    assert kills["training"] >= times // 2
    assert kills.total() - from_outside == 10
    kinds = set(kills) - {"training", "starting"}
    assert len(kinds) == len(WRITES) - 1, "the two of the log count as one kind"
    ends = killed(lives, task, folder, ENDING)
    print(dict(kills + ends))
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


def test_killed_while_preparing(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path
) -> None:
    """Half of a cache or of the tokens is never used: the run that follows is the same run."""
    folder = tmp_path / "run"
    plans = [{"turn": 1, **death} for death in PREPARING]
    own_cache = {"XDG_CACHE_HOME": str(cache_in(tmp_path))}
    kills = killed(lives, task, folder, [*plans, *[None] * 2], environment=own_cache)
    assert kills.total() == len(PREPARING) + 2
    lives.start(*command(task, folder), environment=own_cache)
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


@pytest.mark.slow
def test_killed_in_bfloat16_and_ended_by_patience(task: Path, lives: Lives, tmp_path: Path) -> None:
    settings = [
        "model.encoder={kind: transformer, layers: 1, heads: 2, feed_forward: 16}",
        "model.decoder={kind: transformer, layers: 1, heads: 2, feed_forward: 16}",
        "train.precision=bfloat16",
        "train.average=null",
        "train.lr=1e-4",
        "validation.metric=exact",
        "validation.patience=8",
    ]
    whole, folder = tmp_path / "whole", tmp_path / "run"
    lives.start(*command(task, whole, *settings))
    assert lives.end() == 0, lives.reported
    deaths = [WRITES[0], None, WRITES[5], None, WRITES[9], None]
    kills = killed(lives, task, folder, deaths, *settings)
    assert kills.total() == 6
    lives.start(*command(task, folder, *settings))
    assert lives.end() == 0, lives.reported
    check_same(folder, whole)
