"""With the real Ray, where it is installed: batch jobs, and the page of Ray Serve in the docs."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "deploying.md"
LETTERS = "abcdabcdabcd"

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install '.[ray]'"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(600),
]


def parts_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.skipif(
    find_spec("ray") is None or find_spec("starlette") is None or find_spec("fastapi") is None,
    reason="needs Ray Serve: pip install 'ray[serve]'",
)
def test_the_page_of_ray_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/guides/deploying.md deploys, with one replica on a CPU, answers."""
    import ray
    from ray import serve

    [block] = re.findall(r"```python\n(# deploy\.py.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for there, here in {
        "/models/en-de": str(MODEL),
        "num_replicas=4": "num_replicas=1",
        '"num_gpus": 1': '"num_gpus": 0',
    }.items():
        assert there in block
        block = block.replace(there, here)
    (tmp_path / "deploy.py").write_text(block, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {"env_vars": {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env=environment,
    )
    try:
        from deploy import app  # type: ignore[import-not-found]

        serve.start(http_options={"host": "127.0.0.1", "port": 8765})
        serve.run(app)
        health = "http://127.0.0.1:8765/health"
        named = urllib.request.Request(health, headers={"Host": "translate.example.com"})
        with urllib.request.urlopen(named, timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="400"):  # not a name of the page
            urllib.request.urlopen(health, timeout=60)
    finally:
        serve.shutdown()
        ray.shutdown()


def test_actors_that_are_killed(tmp_path: Path) -> None:
    import ray

    from transduce.batch_inference.clusters import run_on_ray
    from transduce.batch_inference.decoder import open_decoder
    from transduce.batch_inference.job import Settings, open_job
    from transduce.batch_inference.local import run_locally

    for number in range(2):
        lines = [LETTERS[n % 7 : n % 7 + 1 + n % 5] for n in range(number, number + 4000)]
        (tmp_path / f"in-{number}.txt").write_text("\n".join(lines), "utf-8")
    pattern = str(tmp_path / "in-*.txt")
    settings = Settings(shard_lines=500)
    alone = open_job(MODEL, [pattern], tmp_path / "whole", settings, lambda: None, print)
    run_locally(alone, alone.shards, 2, "cpu", open_decoder(MODEL, settings, "cpu"))
    job = open_job(MODEL, [pattern], tmp_path / "out", settings, lambda: None, print)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    killer = subprocess.Popen([sys.executable, "-c", KILLER, str(tmp_path / "out")])
    try:
        run_on_ray(job, job.shards, 2, "cpu")
    finally:
        ray.shutdown()
        killer.kill()  # unless it has ended
    assert killer.wait() == 0, "fewer actors were killed than planned"
    assert parts_in(tmp_path / "out") == parts_in(tmp_path / "whole")


# Kills three of the processes that decode, each after one more shard is finished.
KILLER = """
import os, signal, sys, time
from pathlib import Path

folder, before, killed = Path(sys.argv[1]), 0, 0


def decodes(process):
    opened = [os.readlink(link) for link in process.glob("fd/*")]
    name = process.joinpath("cmdline").read_bytes()
    return name.startswith(b"ray::ShardDecoder") and any(str(folder) in one for one in opened)


while killed < 3:
    time.sleep(0.01)
    finished = len(list(folder.glob("part-*")))
    if finished <= before:
        continue
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if decodes(process):
                os.kill(int(process.name), signal.SIGKILL)
                before, killed = finished, killed + 1
                break
        except OSError:
            pass
"""
