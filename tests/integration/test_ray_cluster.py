"""With the real Ray, on a cluster of two nodes: batch jobs, and training by Ray Train.

A node is a set of processes of this machine, with one CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import HardwareError, TrainingError, TransduceError
from transduce.recipe import load_recipe
from transduce.training.distributed.ray_train import Lines, train_on_ray
from transduce.training.train import train_recipe

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
SETTINGS = [
    "train.steps=12",
    "train.log_every=1",
    "train.batch_tokens=64",
    "train.accumulate=2",
    "train.schedule=constant",
    "validation.every=6",
    "validation.limit=5",
    "model.encoder.layers=1",
    "model.decoder.layers=1",
    "train.device=cpu",
]


class Printed:
    """In place of a queue."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, line: str) -> None:
        self.lines.append(line)


def test_lines_are_sent_whole() -> None:
    queue = Printed()
    lines = Lines(queue)
    for text in ("step", " 1\nstep 2\n", "\nst", "ep 3\n", "rest"):
        lines.write(text)
    assert queue.lines == ["step 1\n", "step 2\n", "\n", "step 3\n"]


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray(task: Path, tmp_path: Path) -> None:
    recipe = load_recipe(task / "tiny.yaml", SETTINGS)
    with pytest.raises(HardwareError, match=r"--engine ray needs the package ray.*\.\[ray\]"):
        train_on_ray(recipe, tmp_path / "run", 2, resume=False, overwrite=False)


on_ray = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install '.[ray]'"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(900),
]


def marked(test: Any) -> Any:
    for mark in on_ray:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    quiet = {"include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **quiet})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@marked
def test_a_batch_job(cluster: Any, tmp_path: Path) -> None:
    """The same files as without a cluster."""
    from transduce.batch_inference.clusters import run_on_ray
    from transduce.batch_inference.decoder import open_decoder
    from transduce.batch_inference.job import Settings, open_job
    from transduce.batch_inference.local import run_locally

    lines = ["abcdabcdabcd"[n % 7 : n % 7 + 1 + n % 5] for n in range(400)]
    (tmp_path / "in.txt").write_text("\n".join(lines), "utf-8")
    settings, given = Settings(shard_lines=50), [str(tmp_path / "in.txt")]
    jobs = [
        open_job(MODEL, given, tmp_path / name, settings, lambda: None, print)
        for name in ("here", "there")
    ]
    run_locally(jobs[0], jobs[0].shards, 1, "cpu", open_decoder(MODEL, settings, "cpu"))
    run_on_ray(jobs[1], jobs[1].shards, 2, "cpu")
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("part-*")}
        for name in ("here", "there")
    )
    assert len(here) == 8
    assert here == there


def kill_a_node_that_decodes(cluster: Any, node: Any, folder: Path) -> None:
    """When one of its processes has begun a shard after the first ones are finished."""
    raylet = node.all_processes["raylet"][0].process.pid

    def decodes(process: Path) -> bool:
        opened = [str(link.readlink()) for link in process.glob("fd/*")]
        parent = int(process.joinpath("stat").read_text().rpartition(") ")[2].split()[1])
        return parent == raylet and any(str(folder) in one for one in opened)

    while True:
        time.sleep(0.01)
        finished = len(list(folder.glob("part-*")))
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if finished >= 2 and decodes(process):
                    cluster.remove_node(node, allow_graceful=False)
                    return


@marked
def test_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    """No other has room for its actor: what is left decodes its shard too."""
    from transduce.batch_inference.clusters import run_on_ray
    from transduce.batch_inference.decoder import open_decoder
    from transduce.batch_inference.job import Settings, open_job
    from transduce.batch_inference.local import run_locally

    lines = ["abcdabcdabcd"[n % 7 : n % 7 + 1 + n % 5] for n in range(20_000)]
    (tmp_path / "in.txt").write_text("\n".join(lines), "utf-8")
    settings, given = Settings(shard_lines=400), [str(tmp_path / "in.txt")]
    whole, job = (
        open_job(MODEL, given, tmp_path / name, settings, lambda: None, print)
        for name in ("whole", "out")
    )
    run_locally(whole, whole.shards, 2, "cpu", open_decoder(MODEL, settings, "cpu"))
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    killer = threading.Thread(
        target=kill_a_node_that_decodes, args=(cluster, node, tmp_path / "out"), daemon=True
    )
    killer.start()
    run_on_ray(job, job.shards, 3, "cpu")
    killer.join(10)
    assert not killer.is_alive(), "no node was killed"
    parts = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("part-*")}
    assert len(parts) == 50
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")} == parts


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "train"]


@marked
def test_two_nodes_train_as_one_process(
    cluster: Any, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank has to be on each node, as each has one CPU."""
    recipe = load_recipe(task / "tiny.yaml", SETTINGS)
    train_on_ray(recipe, tmp_path / "ray", 2, resume=False, overwrite=False)
    said = capsys.readouterr().err
    assert "2 processes share the 2 batches of an update." in said
    assert said.count("step 12/12  valid") == 1
    train_recipe(recipe, tmp_path / "alone")
    assert len(losses(tmp_path / "ray")) == 12
    assert losses(tmp_path / "ray") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    metrics = json.loads((tmp_path / "ray" / "metrics.json").read_text())
    assert metrics["training"]["processes"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "ray"]
    with pytest.raises(TrainingError, match="already holds a run"):  # of a worker, as it says it
        train_on_ray(recipe, tmp_path / "ray", 2, resume=False, overwrite=False)
    with pytest.raises(HardwareError, match=r"has 2 CPUs, but each of the 3 workers needs one"):
        train_on_ray(recipe, tmp_path / "ray", 3, resume=True, overwrite=False)


def kill_a_worker(folder: Path) -> None:
    """When there is a checkpoint."""
    while not (folder / "state" / "training.safetensors").exists():
        time.sleep(0.05)
    for process in Path("/proc").glob("[0-9]*"):
        name = b""
        try:
            name = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"RayTrainWorker" in name:
            os.kill(int(process.name), signal.SIGKILL)
            return


@marked
def test_a_worker_is_killed(cluster: Any, task: Path, tmp_path: Path) -> None:
    """One sentence; what is left goes on with another number of workers."""
    folder = tmp_path / "run"
    endless = load_recipe(task / "tiny.yaml", [*SETTINGS, "train.steps=100000"])
    killer = threading.Thread(target=kill_a_worker, args=(folder,), daemon=True)
    killer.start()
    with pytest.raises(TransduceError, match=r"rank \d.* (died|lost)") as raised:
        train_on_ray(endless, folder, 2, resume=False, overwrite=False)
    assert "--resume" in str(raised.value)
    killer.join(10)
    done = len(losses(folder))
    assert done >= 6
    rest = load_recipe(task / "tiny.yaml", [*SETTINGS, f"train.steps={done + 3}"])
    train_on_ray(rest, folder, 1, resume=True, overwrite=False)
    assert len(losses(folder)) == done + 3
    assert (folder / "model.safetensors").exists()
