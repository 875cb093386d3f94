"""Trains and scores recipes: several experiments at once, each with several seeds.

    python benchmarks/recipes.py NAME... [--jobs 4] [--minutes 9] [--seeds 1 2] [--list]

NAMEs are experiments, or patterns of them ('multi30k-*'), from benchmarks/experiments/*.yaml; each
of these files is a group, and its results are benchmarks/results/recipes_GROUP.json. There:

    my-experiment:
      recipe: multi30k-en-de              # a shipped recipe, or a file
      overrides: [model.width=256]        # as on the command line
      seeds: [1, 2, 3]                    # default: [1]
      splits: [test, test-2017]           # scored besides valid; default: none (a candidate)
      files: {test-b: [FILE.en, FILE.de]} # further test sets: source and target
      decode: {beam: 5}                   # settings of Model.run; default: as in the recipe
      metrics: [bleu, chrf]               # default: as in the recipe
      also: [tokenised_bleu]              # further scores, from benchmarks/scores.py
      ensemble: true                      # score the seeds' models together, too
      members: [one, other]               # instead of seeds: all models of these, together

Each seed is a process of its own with one thread for torch (`--jobs` at a time); each is trained
into runs/benchmarks/NAME/SEED, scored, and written down as soon as it is done. What the results
hold already is not done again, unless the experiment's recipe has changed; a run that was stopped
goes on. After `--minutes` whatever still runs is stopped, and kept. `--seeds` does no others of an
experiment's seeds, and no ensemble. `--override KEY=VALUE` is of all experiments, for trials. On a
GPU, `--share` lets small kernels of several processes run side by side (NVIDIA's MPS daemon, where
it is installed).

Corpora must be there before (`transduce corpus get NAME`), in $TRANSDUCE_DATA where that is set.
Choose by validation: an experiment without `splits` never sees a test set.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
EXPERIMENTS = HERE / "experiments"
RESULTS = HERE / "results"
WORK = Path("runs") / "benchmarks"
ENSEMBLE = "ensemble"
LONGEST_GOODBYE = 30.0  # seconds that a process has to save its state


@dataclass(frozen=True)
class Experiment:
    """One line of the table; see above."""

    name: str
    group: str
    recipe: str
    overrides: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [1])
    splits: list[str] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)
    metrics: list[str] | None = None
    also: list[str] = field(default_factory=list)
    ensemble: bool = False
    members: list[str] = field(default_factory=list)
    added: tuple[str, ...] = ()
    """Overrides of the command line, among the others."""

    @property
    def sets(self) -> list[str]:
        """All that it is scored on."""
        return ["valid", *self.splits, *self.files]

    @property
    def units(self) -> list[str]:
        """What is done in a process each: the seeds, and then all of them together."""
        if self.members:
            return [ENSEMBLE]
        return [str(seed) for seed in self.seeds] + [ENSEMBLE] * self.ensemble

    @property
    def fingerprint(self) -> str:
        """Of all that its results depend on but the seed."""
        from transduce.recipe import dump_recipe, load_recipe

        recipe = load_recipe(self.recipe, self.overrides)
        # Where the corpora lie is no part of what was done.
        data = recipe.data.model_copy(update={"folder": None})
        said = [dump_recipe(recipe.model_copy(update={"seed": 0, "data": data}))]
        said += [json.dumps([self.sets, self.decode, self.metrics, self.also, self.members])]
        return sha256("\n".join(said).encode()).hexdigest()[:16]


def read_experiments() -> dict[str, Experiment]:
    found: dict[str, Experiment] = {}
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        for name, values in (yaml.safe_load(path.read_text("utf-8")) or {}).items():
            if name in found:
                sys.exit(f"{path.name}: {name} stands in {found[name].group}.yaml already")
            try:
                found[name] = Experiment(name=name, group=path.stem, **values)
            except TypeError as error:
                sys.exit(f"{path.name}: {name}: {error}")
    return found


def chosen(
    patterns: Sequence[str], overrides: Sequence[str], seeds: Sequence[int] | None = None
) -> list[Experiment]:
    """The experiments of these names; with `seeds`, no others of theirs, and no ensemble."""
    known = read_experiments()
    names = [name for pattern in patterns for name in known if fnmatch.fnmatchcase(name, pattern)]
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            sys.exit(f"there is no experiment {pattern}; there are {', '.join(known)}")
    several = [known[name] for name in dict.fromkeys(names)]
    if seeds is not None:
        several = [
            replace(one, seeds=[seed for seed in one.seeds if seed in seeds], ensemble=False)
            for one in several
        ]
    return [
        replace(one, overrides=[*one.overrides, *overrides], added=tuple(overrides))
        for one in several
    ]


# ------------------------------------------------------------------------- one process's work


def do_unit(experiment: Experiment, unit: str, work: Path) -> None:
    """Train and score one seed, or score all seeds together; its result into work/NAME/UNIT.json"""
    began = time.perf_counter()
    result = _together(experiment, work) if unit == ENSEMBLE else _alone(experiment, unit, work)
    result["wall_seconds"] = round(time.perf_counter() - began, 1)
    path = _unit_file(experiment, unit, work)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), "utf-8")


def _alone(experiment: Experiment, unit: str, work: Path) -> dict[str, Any]:
    from transduce.recipe import load_recipe
    from transduce.tasks.folder import read_metrics
    from transduce.tasks.transduce import load
    from transduce.training import train
    from transduce.training.run_directory.checkpoint import has_state

    folder = work / experiment.name / unit
    if not (folder / "trained").exists():
        recipe = load_recipe(experiment.recipe, [*experiment.overrides, f"seed={unit}"])
        if train(recipe, folder, resume=has_state(folder)).interrupted:
            sys.exit(130)
        (folder / "trained").touch()
    device = load_recipe(experiment.recipe, experiment.overrides).train.device
    model = load(folder, device)
    return {
        "training": read_metrics(folder)["training"],
        "scores": _scores(experiment, model, folder, []),
    }


def _together(experiment: Experiment, work: Path) -> dict[str, Any]:
    from transduce.recipe import load_recipe
    from transduce.tasks.transduce import load

    device = load_recipe(experiment.recipe, experiment.overrides).train.device
    known = read_experiments()
    members = [known[name] for name in experiment.members] or [experiment]
    folders = [work / member.name / str(seed) for member in members for seed in member.seeds]
    for folder in folders:
        if not (folder / "trained").exists():
            sys.exit(f"{folder} holds no trained model: the ensemble needs all seeds' models")
    first, *others = (load(folder, device) for folder in folders)
    folder = work / experiment.name / ENSEMBLE
    folder.mkdir(parents=True, exist_ok=True)
    return {"members": len(folders), "scores": _scores(experiment, first, folder, others)}


def _scores(
    experiment: Experiment, model: Any, folder: Path, others: Sequence[Any]
) -> dict[str, Any]:
    """Of each split, all that was measured; hypotheses go beside the model."""
    import scores

    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.tasks.folder import read_metrics

    settings = {**experiment.decode, "ensemble": others} if others else experiment.decode
    metrics = None if experiment.metrics is None else ",".join(experiment.metrics)
    found = {}
    for split in experiment.sets:
        files = tuple(Path(name) for name in experiment.files.get(split, ())) or (None, None)
        evaluation = evaluate_folder(
            model, folder, split=split, files=files, metrics=metrics, **settings
        )
        found[split] = read_metrics(folder)[evaluation.name]
        for name in experiment.also:
            metric = getattr(scores, name)(model, split, evaluation)
            found[split]["metrics"][name] = metric.to_json()
    return found


def _unit_file(experiment: Experiment, unit: str, work: Path) -> Path:
    return work / experiment.name / f"{unit}.json"


# ----------------------------------------------------------------------------------- results


class Results:
    """The results of each group; a file is whole at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, experiment: Experiment) -> dict[str, Any]:
        """What there is of an experiment as it stands now."""
        kept = self._read(experiment.group)["experiments"].get(experiment.name, {})
        return kept if kept.get("fingerprint") == experiment.fingerprint else {}

    def has(self, experiment: Experiment, unit: str) -> bool:
        return unit in self.of(experiment).get("runs", {})

    def add(self, experiment: Experiment, unit: str, result: dict[str, Any]) -> None:
        whole = self._read(experiment.group)
        kept = self.of(experiment) or {
            "fingerprint": experiment.fingerprint,
            "command": f"python benchmarks/recipes.py {experiment.name}",
            "recipe": experiment.recipe,
            "overrides": experiment.overrides,
            "decode": experiment.decode,
            "runs": {},
        }
        kept["runs"][unit] = result
        whole["experiments"][experiment.name] = kept
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(experiment.group)
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")
        beside.replace(path)

    def _path(self, group: str) -> Path:
        return self.folder / f"recipes_{group}.json"

    def _read(self, group: str) -> dict[str, Any]:
        path = self._path(group)
        if not path.exists():
            return {"experiments": {}}
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return values


def table(experiments: Sequence[Experiment], results: Results) -> list[str]:
    """A line for each experiment and split: the mean over seeds, and the ensemble's."""
    lines = []
    for experiment in experiments:
        runs = results.of(experiment).get("runs", {})
        units = [ENSEMBLE] if experiment.members else [str(seed) for seed in experiment.seeds]
        seeds = [runs[unit] for unit in units if unit in runs]
        for split in experiment.sets:
            cells = []
            for name in _names(seeds, split):
                values = [_value(run, split, name) for run in seeds]
                spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
                cells.append(f"{name} {statistics.mean(values):.2f}{spread}")
                if experiment.ensemble and ENSEMBLE in runs:
                    cells[-1] += f" ({_value(runs[ENSEMBLE], split, name):.2f} together)"
            times = [run["training"]["seconds"] for run in seeds if "training" in run]
            seconds = max(times, default=0)
            if cells:
                head = f"{experiment.name:32} {split:10} {len(seeds)} seeds {seconds:5.0f} s  "
                lines.append(head + "  ".join(cells))
    return lines


def _names(runs: Sequence[dict[str, Any]], split: str) -> list[str]:
    if not runs:
        return []
    found = runs[0]["scores"][split]
    return [*found["metrics"], *(f"mean {name}" for name in found.get("mean", {}))]


def _value(run: dict[str, Any], split: str, name: str) -> float:
    found = run["scores"][split]
    of_groups = name.startswith("mean ")
    metric = found["mean"][name.removeprefix("mean ")] if of_groups else found["metrics"][name]
    return float(metric["value"])


# ---------------------------------------------------------------------------------- many at once


@dataclass
class Job:
    experiment: Experiment
    unit: str
    process: subprocess.Popen[bytes]
    log: Path


def run_all(
    experiments: Sequence[Experiment], jobs: int, minutes: float, work: Path, results: Results
) -> bool:
    """Do what is not done; False if something failed or time was up."""
    waiting = [(e, unit) for e in experiments for unit in e.units if not results.has(e, unit)]
    # What takes long should not begin last; within an experiment seeds come before the ensemble.
    running: list[Job] = []
    good, deadline = True, time.monotonic() + 60 * minutes
    while (waiting or running) and time.monotonic() < deadline:
        ready = [one for one in waiting if _is_ready(*one, waiting, running)]
        for experiment, unit in ready[: max(jobs - len(running), 0)]:
            waiting.remove((experiment, unit))
            running.append(_start(experiment, unit, work))
            print(f"{experiment.name}, {unit}: started", flush=True)
        if not ready and not running:
            break  # an ensemble whose seeds have failed
        time.sleep(0.2)
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            good = _finish(job, jobs, work, results) and good
    for job in running:
        job.process.send_signal(signal.SIGINT)
    for job in running:
        try:
            job.process.wait(LONGEST_GOODBYE)
        except subprocess.TimeoutExpired:
            job.process.kill()
        print(f"{job.experiment.name}, {job.unit}: stopped, time is up", flush=True)
    return good and not running and not waiting


def _is_ready(
    experiment: Experiment,
    unit: str,
    waiting: Sequence[tuple[Experiment, str]],
    running: Sequence[Job],
) -> bool:
    """An ensemble waits for the models of its seeds."""
    if unit != ENSEMBLE:
        return True
    left = [one.name for one, other in waiting if other != ENSEMBLE]
    left += [job.experiment.name for job in running if job.unit != ENSEMBLE]
    return not set(left) & {experiment.name, *experiment.members}


def _start(experiment: Experiment, unit: str, work: Path) -> Job:
    log = work / experiment.name / f"{unit}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), experiment.name, "--unit", unit]
    command += ["--work", str(work), *(f"--override={one}" for one in experiment.added)]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "2"}
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=surroundings)
    return Job(experiment, unit, process, log)


def _finish(job: Job, jobs: int, work: Path, results: Results) -> bool:
    name = f"{job.experiment.name}, {job.unit}"
    path = _unit_file(job.experiment, job.unit, work)
    if job.process.returncode != 0 or not path.exists():
        tail = job.log.read_text("utf-8", "replace").splitlines()[-15:]
        print(f"{name}: failed ({job.process.returncode})", *tail, sep="\n  ", flush=True)
        return False
    result = json.loads(path.read_text("utf-8")) | {"at_once": jobs}
    results.add(job.experiment, job.unit, result)
    print(f"{name}: done in {result['wall_seconds']:.0f} s", flush=True)
    return True


@contextmanager
def shared_gpu(wanted: bool) -> Iterator[None]:
    """Kernels of different processes side by side, where NVIDIA's MPS daemon can be had."""
    control = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if control is None:
        if wanted:
            print("There is no nvidia-cuda-mps-control here: processes take turns on the GPU.")
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        subprocess.run([control, "-d"], check=False)
        try:
            if not _gpu_answers():
                print("MPS does not answer: processes take turns on the GPU.")
                _quit(control)
                for name in places:
                    del os.environ[name]
            yield
        finally:
            if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
                _quit(control)


def _gpu_answers() -> bool:
    code = "import torch; torch.ones(4, device='cuda').sum().item()"
    try:
        return subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _quit(control: str) -> None:
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([control], input=b"quit -t 5\n", check=False, timeout=15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="experiments, or patterns of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so long")
    parser.add_argument("--share", action="store_true", help="share a GPU through MPS")
    parser.add_argument("--list", action="store_true", help="print the experiments and end")
    parser.add_argument("--table", action="store_true", help="print what is known and end")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of the experiments' seeds")
    parser.add_argument("--override", action="append", default=[], help="of all; for trials")
    parser.add_argument("--work", type=Path, default=WORK, help="where models are trained")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures go")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        for experiment in read_experiments().values():
            print(f"{experiment.group:16} {experiment.name:32} {' '.join(experiment.overrides)}")
        return
    experiments, results = chosen(asked.names, asked.override, asked.seeds), Results(asked.results)
    if asked.unit is not None:
        do_unit(experiments[0], asked.unit, asked.work)
        return
    good = True
    if not asked.table:
        with shared_gpu(asked.share):
            good = run_all(experiments, asked.jobs, asked.minutes, asked.work, results)
    print(*table(experiments, results), sep="\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
