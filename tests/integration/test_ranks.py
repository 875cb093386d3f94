"""Several processes train one model: the same losses, nothing lost, nobody waits for ever.

Most runs are forked from a server that has everything imported, which is how they would be if
torchrun had started them, only sooner; where the launcher matters, torchrun itself is used.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forked import load
from process_group import Group
from transduce.storage import read_tensors

UPDATES = [
    "train.steps=12",
    "train.log_every=1",
    "train.batch_tokens=64",
    "train.accumulate=6",
    "train.schedule=constant",
    "validation.every=6",
]
EXACT = [
    *UPDATES,
    "validation.limit=20",
    "model.encoder.layers=1",
    "model.decoder.layers=1",
]
# All that has a memory: dropout's generators, moments, the moving average, kept checkpoints.
LONG = [
    "train.steps=40",
    "train.log_every=5",
    "train.batch_tokens=128",
    "train.accumulate=2",
    "validation.every=10",
    "validation.limit=5",
    "model.encoder.layers=1",
    "model.decoder.layers=1",
    "model.dropout=0.1",
    "train.ema=0.9",
    "train.average={of: best, count: 2}",
]


def start(
    task: Path,
    folder: Path,
    count: int,
    settings: list[str],
    *more: str,
    of_rank: dict[int, list[str]] | None = None,
) -> Group:
    arguments = ["train", str(task / "tiny.yaml"), *settings, "--output", str(folder), *more]
    return Group(folder, count, arguments, of_rank)


def finish(task: Path, folder: Path, count: int, settings: list[str], *more: str) -> Path:
    group = start(task, folder, count, settings, *more)
    codes = group.end()
    reported = "\n".join(group.said(rank) for rank in range(count))
    assert codes == [0] * count, reported
    for rank in range(1, count):
        assert group.said(rank) == ""  # the first speaks for all
    return folder


def torchrun(task: Path, folder: Path, count: int, settings: list[str]) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    ours = ["-m", "transduce", "train", str(task / "tiny.yaml"), *settings, "--output", str(folder)]
    return subprocess.Popen(
        [sys.executable, *launcher, *ours],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    seen = ""
    while word not in seen:
        line = process.stdout.readline()
        assert line, f"it ended before it said {word!r}: {seen}"
        seen += line


def child_of_rank(launcher: int, rank: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"no child of rank {rank} among {children}")


def log(folder: Path, kind: str) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == kind]
    assert steps == sorted(set(steps)), "a step is in the log twice"
    return {record["step"]: record for record in records if record["kind"] == kind}


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in log(folder, "train").values()]


def same_learning(folder: Path, other: Path) -> None:
    """The same losses, validations and weights, but for rounding."""
    mine, theirs = losses(folder), losses(other)
    assert len(mine) == len(theirs) == 12
    assert mine == pytest.approx(theirs, rel=1e-5)
    norms = ([r["gradient_norm"] for r in log(run, "train").values()] for run in (folder, other))
    assert next(norms) == pytest.approx(next(norms), rel=1e-4)
    validations, others = log(folder, "valid"), log(other, "valid")
    assert list(validations) == list(others) == [6, 12]
    for step, record in validations.items():
        for name in ("loss", "exact", "cer", "best"):
            assert record[name] == pytest.approx(others[step][name], rel=1e-5)
    weights, theirs_too = (read_tensors(run / "model.safetensors")[0] for run in (folder, other))
    for name, weight in weights.items():
        difference = (weight - theirs_too[name]).abs()
        if name.endswith("in_projection.bias"):
            # The softmax does not see what is added to all keys: the true gradient of their bias
            # is zero, and Adam makes whole steps of its rounding errors.
            width = len(difference) // 3
            difference[width : 2 * width] = 0
        assert float(difference.max()) < 1e-5, name


def identical(folder: Path, other: Path) -> None:
    for name in ("model.safetensors", "state/training.safetensors"):
        mine, metadata = read_tensors(folder / name)
        theirs, other_metadata = read_tensors(other / name)
        assert mine.keys() == theirs.keys()
        different = [key for key in mine if not mine[key].equal(theirs[key])]
        assert not different, f"{name}: {different[:3]}"
        for key in ("step", "position", "best", "best_step", "worse", "kept"):
            if "standing" in metadata:
                assert metadata["standing"][key] == other_metadata["standing"][key]
    assert losses(folder) == losses(other)
    assert list(log(folder, "train")) == list(range(5, 41, 5))


# ------------------------------------------------------------------------------- the same model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(task: Path, place: Path) -> Path:
    return finish(task, place / "alone", 1, EXACT)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_processes_learns_the_same(
    task: Path, place: Path, alone: Path, count: int
) -> None:
    same_learning(finish(task, place / f"on-{count}", count, EXACT), alone)


UNEVEN = [
    *EXACT,
    "train.accumulate=5",
    "train.ema=0.9",
    "data.streaming=true",
    "data.shuffle_buffer=150",
]


@pytest.fixture(scope="module")
def uneven(task: Path, place: Path) -> Path:
    """Five batches an update of a stream; what is kept is the moving average."""
    return finish(task, place / "uneven", 1, UNEVEN)


@pytest.mark.slow
def test_batches_that_do_not_divide(task: Path, place: Path, uneven: Path) -> None:
    same_learning(finish(task, place / "uneven-3", 3, UNEVEN), uneven)


@pytest.mark.slow  # a state that goes on in shards is tried each time
def test_shards(task: Path, place: Path, uneven: Path) -> None:
    same_learning(finish(task, place / "shards", 2, [*UNEVEN, "train.fsdp=true"]), uneven)


MEMORY_RUNS_OUT = """
import os, sys, transduce
from transduce.training.distributed import gradients

gradients.BUCKET = 4096
passes = []

def fail(gradient):
    passes.append(gradient)
    if len(passes) == 6:
        raise MemoryError

def watched(network):
    if os.environ["RANK"] == "1":
        next(network.parameters()).register_hook(fail)

transduce.train(sys.argv[1], sys.argv[2], overrides=sys.argv[3:], change=watched)
assert os.environ["RANK"] == "0" or len(passes) > 36  # three in each of twelve updates
"""


def test_memory_runs_out_on_one_rank(task: Path, place: Path, alone: Path) -> None:
    """In the last of its three passes of an update, when later layers were sent already."""
    folder = place / "memory"
    arguments = [str(task / "tiny.yaml"), str(folder), *EXACT]
    group = Group(folder, 2, arguments, program=("-c", MEMORY_RUNS_OUT))
    assert group.end() == [0, 0], group.said(0) + group.said(1)
    same_learning(folder, alone)


def test_more_processes_than_batches_are_reported(task: Path, tmp_path: Path) -> None:
    group = start(task, tmp_path / "run", 2, [*EXACT, "train.steps=2", "train.accumulate=1"])
    assert group.end() == [0, 0], group.said(0)
    assert "2 processes share the 2 batches of an update (train.accumulate is 1)" in group.said(0)


# -------------------------------------------------------------------------- going on elsewhere


@pytest.fixture(scope="module")
def half(task: Path, place: Path) -> Path:
    """Two processes, half of the way."""
    return finish(task, place / "half", 2, [*EXACT, "train.steps=6"])


@pytest.mark.parametrize(
    ("count", "more"),
    [(1, []), pytest.param(3, [], marks=pytest.mark.slow), (2, ["train.fsdp=true"])],
)
def test_a_state_goes_on_with_any_number(
    task: Path, half: Path, alone: Path, tmp_path: Path, count: int, more: list[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    if more:
        load("torch._dynamo", "torch.distributed.fsdp")
    same_learning(finish(task, folder, count, [*EXACT, *more], "--resume"), alone)


@pytest.mark.slow
def test_a_state_of_shards_goes_on_whole(task: Path, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finish(task, folder, 2, [*EXACT, "train.steps=6", "train.fsdp=true"])
    same_learning(finish(task, folder, 1, EXACT, "--resume"), alone)


# ---------------------------------------------------------------------------- stopped and lost


@pytest.fixture(scope="module")
def whole(task: Path, place: Path) -> Path:
    """Two processes that nobody disturbed."""
    return finish(task, place / "whole", 2, LONG)


def test_processes_drop_out_differently(whole: Path) -> None:
    state, _ = read_tensors(whole / "state" / "training.safetensors")
    seeds = [state[name][:8].tolist() for name in ("random/torch", "random/torch/1")]
    assert seeds[0] != seeds[1]  # a generator's state begins with its seed


@pytest.mark.slow  # by torchrun; a process that is asked to end, and resuming, are tested without
def test_interrupted_and_resumed(task: Path, whole: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches torchrun, which hands it on; what follows is as if it had not come."""
    folder = tmp_path / "run"
    process = torchrun(task, folder, 2, LONG)
    wait_for(process, "step 15/40")
    process.send_signal(signal.SIGINT)
    reported, _ = process.communicate(timeout=200)
    assert "a checkpoint is saved" in reported
    finish(task, folder, 2, LONG, "--resume")
    identical(folder, whole)


def test_one_process_is_asked_to_end(task: Path, tmp_path: Path) -> None:
    """All end together, whoever was asked, and however often."""
    group = start(task, tmp_path / "run", 2, [*LONG, "train.steps=1000"])
    group.wait_for("step 15/1000")
    for _ in range(2):
        os.kill(group.processes[1].pid, signal.SIGTERM)
    assert group.end() == [130, 130], group.said(0)
    assert "a checkpoint is saved" in group.said(0)
    assert group.said(1) == ""
    _, metadata = read_tensors(tmp_path / "run" / "state" / "training.safetensors")
    assert 15 <= metadata["standing"]["step"] < 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes by /proc")
def test_a_process_of_torchrun_is_killed(task: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = torchrun(task, folder, 2, LONG)
    wait_for(process, "step 15/40")
    os.kill(child_of_rank(process.pid, 1), signal.SIGKILL)
    reported, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    assert re.search(r"transduce: rank 1 \(\S+\) died at update \d+;", reported)
    assert "start again with --resume" in reported
    assert "[rank0]: Traceback" not in reported
    finish(task, folder, 2, LONG, "--resume")
    identical(folder, whole)


def test_a_process_is_killed(task: Path, whole: Path, tmp_path: Path) -> None:
    for trial in range(5):  # on a busy machine it may be done before this process can strike
        folder = tmp_path / f"run{trial}"
        group = start(task, folder, 2, LONG)
        group.wait_for("step 15/40")
        os.kill(group.processes[1].pid, signal.SIGKILL)
        ends = group.end()
        if ends != [0, 0]:
            break
    assert ends == [2, -signal.SIGKILL]
    assert re.search(r"transduce: rank 1 \(\S+\) died at update \d+;", group.said(0))
    assert "start again with --resume" in group.said(0)
    assert "Traceback" not in group.said(0)
    finish(task, folder, 2, LONG, "--resume")
    identical(folder, whole)


@pytest.mark.slow
def test_a_process_hangs(task: Path, tmp_path: Path) -> None:
    group = start(task, tmp_path / "run", 3, [*LONG, "train.steps=1000", "train.timeout=0.08"])
    group.wait_for("step 15/1000")
    os.kill(group.processes[1].pid, signal.SIGSTOP)
    deadline = time.monotonic() + 100
    while None in (group.processes[0].poll(), group.processes[2].poll()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert group.end(0) == [2, None, 2]
    for rank in (0, 2):
        assert "rank 1 (" in group.said(rank)
        assert "does not answer any more at update" in group.said(rank)
        assert "(waited 5 s: train.timeout)" in group.said(rank)
        assert "Traceback" not in group.said(rank)


def test_a_process_that_cannot_go_on_ends_the_run(task: Path, tmp_path: Path) -> None:
    """The first cannot make its folder; the other must not wait for it."""
    (tmp_path / "run").write_text("not a folder")
    group = start(task, tmp_path / "run", 2, EXACT)
    assert group.end() == [2, 2]
    assert "Traceback" not in group.said(0) + group.said(1)
    assert "ended before the first update with the error: the folder " in group.said(1)
    assert "run cannot be made" in group.said(1)


AGAIN = """
import os, sys, time
from torch.distributed import TCPStore
from transduce.training.distributed.processes import join

rank = int(os.environ["RANK"])
# As of torchrun: a store that outlives the groups of its processes.
port = int(os.environ["MASTER_PORT"])
store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
for run in ("first", "second"):
    with join("cpu", float(sys.argv[2])) as ranks:
        print(run, ranks.all_gather(rank), flush=True)
        time.sleep(float(sys.argv[1]) if rank == 0 else 0)
store.add("ended", 1)
while rank == 0 and store.add("ended", 0) < 2:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("late", "timeout"), [("0", "1"), pytest.param("8", "0.1", marks=pytest.mark.slow)]
)
def test_processes_train_twice(tmp_path: Path, late: str, timeout: str) -> None:
    """late: seconds for which rank 0 works alone at the end, such as longer than the timeout."""
    group = Group(tmp_path / "run", 2, [late, timeout], program=("-c", AGAIN))
    codes = group.end()
    assert codes == [0, 0], group.said(0) + group.said(1)
    assert group.said(1) == "first [0, 1]\nsecond [0, 1]\n"


# ----------------------------------------------------------------------------------- agreement


def test_a_rank_with_another_recipe_is_refused(task: Path, tmp_path: Path) -> None:
    group = start(task, tmp_path / "run", 2, EXACT, of_rank={1: ["train.lr=0.5"]})
    assert group.end() == [2, 2]
    for rank in (0, 1):
        assert re.search(r"train.lr is 0.5 on rank 1 \(\S+\), but .* on rank 0", group.said(rank))
    assert not (tmp_path / "run").exists()


def test_a_rank_with_other_data_is_refused(task: Path, tmp_path: Path) -> None:
    """The files have the same names, and lie in another folder."""
    other = tmp_path / "other"
    shutil.copytree(task, other)
    lines = (other / "train.tsv").read_text("utf-8").splitlines(keepends=True)
    (other / "train.tsv").write_text("".join(reversed(lines)), "utf-8")
    group = start(task, tmp_path / "run", 2, EXACT, of_rank={1: [f"data.folder={other}"]})
    assert group.end() == [2, 2]
    assert re.search(r"the training data of rank 1 \(\S+\) differ from those of", group.said(0))


BREAKS = """
import os, sys, torch, transduce

def broken(network):
    if os.environ["RANK"] == "1":
        with torch.no_grad():
            next(network.parameters()).flatten()[0].add_(1e-3)

transduce.train(sys.argv[1], sys.argv[2], overrides=sys.argv[3:], change=broken)
"""


def test_a_rank_with_other_weights_is_named(task: Path, tmp_path: Path) -> None:
    arguments = [str(task / "tiny.yaml"), str(tmp_path / "run"), *EXACT, "train.log_every=3"]
    group = Group(tmp_path / "run", 3, arguments, program=("-c", BREAKS))
    assert group.end() == [1, 1, 1]
    for rank in range(3):
        assert re.search(r"the weights of rank 1 \(\S+\) are wrong at update 3", group.said(rank))
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["train.fsdp=true"]])
def test_four_processes(task: Path, place: Path, alone: Path, tmp_path: Path, more: Any) -> None:
    """Data parallel and in shards; what they leave goes on with three, and alone."""
    folder = tmp_path / "run"
    finish(task, folder, 4, [*EXACT, *more, "train.steps=6"])
    shutil.copytree(folder, tmp_path / "copy")
    same_learning(finish(task, folder, 3, [*EXACT, *more], "--resume"), alone)
    same_learning(finish(task, tmp_path / "copy", 1, EXACT, "--resume"), alone)


@pytest.mark.slow
def test_a_language_model_learns_the_same_on_two_processes(tmp_path: Path) -> None:
    """Blocks, and the windows of validation, are dealt out like anything else."""
    text = "".join(f"line {number % 37} of {number % 11}\n" for number in range(300))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "tiny.yaml").write_text(
        "task: language_modeling\n"
        "data: {train: {text: text.txt}, valid: {text: text.txt, limit: 40}, max_length: 16,\n"
        "  tokens: {both: {level: character}}}\n"
        "model: {width: 16, dropout: 0.0, decoder: {layers: 1, heads: 2, feed_forward: 16}}\n"
        "train: {warmup: 2, label_smoothing: 0.0}\n"
    )
    alone, both = (finish(tmp_path, tmp_path / f"of-{n}", n, UPDATES) for n in (1, 2))
    parted = finish(tmp_path, tmp_path / "parted", 2, [*UPDATES, "train.fsdp=true"])
    assert losses(alone) == pytest.approx(losses(both), rel=1e-5)
    assert losses(alone) == pytest.approx(losses(parted), rel=1e-5)
    assert len(losses(both)) == 12
    for step, record in log(alone, "valid").items():
        for name in ("loss", "perplexity", "bits_per_character", "bits_per_byte"):
            assert record[name] == pytest.approx(log(both, "valid")[step][name], rel=1e-5)


@pytest.mark.slow
def test_a_tagger_learns_the_same_on_two_processes(tmp_path: Path) -> None:
    draw = random.Random(3)
    endings = {"NOUN": "ness", "VERB": "ize", "ADV": "ly", "ADJ": "ful"}
    for name, count in (("train", 300), ("valid", 100)):
        lines = []
        for _ in range(count):
            tags = draw.choices(list(endings), k=draw.randint(2, 8))
            words = ("".join(draw.choices("abcdefgh", k=4)) + endings[tag] for tag in tags)
            lines.append(f"{' '.join(words)}\t{' '.join(tags)}\n")
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    (tmp_path / "tiny.yaml").write_text(
        "task: tag\n"
        "data: {train: {file: train.tsv}, valid: {file: valid.tsv}}\n"
        "model: {width: 32, dropout: 0.0, encoder: {kind: recurrent, cell: gru},\n"
        "  characters: {kind: lstm, width: 16}}\n"
        "train: {warmup: 2, lr: 1e-2, label_smoothing: 0.0}\n"
        "validation: {metric: accuracy}\n"
    )
    settings = [*UPDATES, "validation.limit=20"]
    alone, both = (finish(tmp_path, tmp_path / f"of-{n}", n, settings) for n in (1, 2))
    assert losses(alone) == pytest.approx(losses(both), rel=1e-4)
    assert len(losses(both)) == 12
    for step, record in log(alone, "valid").items():
        assert record["accuracy"] == pytest.approx(log(both, "valid")[step]["accuracy"], abs=0.3)
