"""How fast decoding is: ours, Hugging Face's generate and CTranslate2, over the same weights.

    python benchmarks/decode_speed.py [--device auto] [--sizes base,small] [--model FOLDER]

Every system has a process of its own (decode_worker.py), so that none disturbs or brings down
another; they take turns, round after round, and only one works at a time, on a CPU all on the same
two cores: one process with two threads, and two processes with one thread each. Where a turn has
several calls, one more comes first that is not counted, whoever's turn it is. Before anything is
timed, all must give the same log-probabilities in float32, and the share of equal greedy outputs is
told. Sources have 32 tokens, outputs exactly 32; with --model, Multi30k's test sentences are
translated too, by that model, to their natural ends. Prints tables and writes
benchmarks/results/decode_speed_DEVICE.json as it goes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from decode_engines import export
from decode_model import make_model
from systems import SIZES, Size, end, has_tiles, metadata

from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.hardware import pick_device
from transduce.recipe import ParallelFiles
from transduce.tasks.transduce import Transducer, load

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
LENGTH = 32
CHECKED = 8  # sentences that all systems must agree on
CLOSE, WRONG = 1e-3, 0.05  # log-probabilities: what rounding explains, and what it cannot
NAMES = {"ours": "transduce", "hf": "Hugging Face", "hf-static": "Hugging Face, static cache"}
NAMES["ct2"] = "CTranslate2"
UP = "left out"  # what --minutes left no time for, as the command said


@dataclass(frozen=True)
class Spec:
    """Whose decoding, in which precision."""

    system: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.system} {self.precision}"


@dataclass(frozen=True)
class Cell:
    """A column of the table: a beam and a batch; `count` sentences are one pass.

    `apart`: also with two processes of one thread each. `exact` is None for natural ends. Without a
    batch it is a file, which each system takes in the batches that suit it best.
    """

    beam: int
    batch: int | None
    count: int
    apart: bool = False
    exact: int | None = LENGTH

    @property
    def name(self) -> str:
        search = "greedy" if self.beam == 1 else f"beam {self.beam}"
        return f"{search}, {self.batch or 'file'}"


# ------------------------------------------------------------------------------------- workers


class Failed(Exception):
    """A system that said why it cannot, or died, or took too long."""


class Worker:
    """A process with one system in it; it stands still while it is not asked."""

    def __init__(self, spec: Spec, device: str, threads: int, cores: list[int]) -> None:
        wanted = {"system": spec.system, "device": device, "threads": threads, "cores": cores}
        environment = dict(os.environ)
        if device == "cpu":
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        path = str(Path(__file__).with_name("decode_worker.py"))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", path, json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
        )
        self.freezes = (
            device == "cpu"
        )  # else threads that wait by spinning take the next one's core
        self.buffer = b""

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        if self.freezes:
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(self._last_words()) from None

    def answer(self, limit: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        pipe, ends = self.process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                self.close()
                raise Failed(f"longer than {limit:.0f} s")
            part = os.read(pipe, 1 << 20)
            if not part:
                raise Failed(self._last_words())
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\n", 1)
        if self.freezes:
            self.process.send_signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Failed(found["error"])
        return found

    def ask(self, limit: float = 60, **request: Any) -> dict[str, Any]:
        self.send(**request)
        return self.answer(limit)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _last_words(self) -> str:
        status = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return f"ended with {status}: {lines[-1] if lines else 'it said nothing'}"[:300]


@dataclass
class Team:
    """A system as it is run: one worker, or two that share the sentences."""

    spec: Spec
    threads: int
    workers: list[Worker]
    metadata: dict[str, str] = field(default_factory=dict)
    batch_sizes: list[int | None] = field(default_factory=list)
    held: int = 0
    """Bytes of the GPU that its process took, everything counted."""

    @property
    def name(self) -> str:
        return f"{self.spec.name}, {len(self.workers)} x {self.threads}"

    def ask(self, limit: float, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        on_gpu = not self.workers[0].freezes
        free = torch.cuda.mem_get_info()[0] if on_gpu else 0
        for worker, request in zip(self.workers, requests, strict=True):
            worker.send(**request)
        answers = [worker.answer(limit) for worker in self.workers]
        # Nobody else works meanwhile: what is gone is its own.
        self.held += free - torch.cuda.mem_get_info()[0] if on_gpu else 0
        return answers


@dataclass
class Entry:
    """A team in a cell, and what was seen of it."""

    team: Team
    cell: Cell
    row: dict[str, Any]
    repeats: int = 1
    passes: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)


def two_cores() -> list[int]:
    """Two cores that are not two threads of one, where there are such."""
    allowed = sorted(os.sched_getaffinity(0))
    seen, kept = set(), []
    for core in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = path.read_text("ascii").strip() if path.exists() else str(core)
        if siblings not in seen:
            seen.add(siblings)
            kept.append(core)
    return (kept if len(kept) > 1 else allowed)[:2]


# ------------------------------------------------------------------------------------- sections


class Section:
    """All systems with the weights of one model folder: one table."""

    def __init__(
        self, arguments: argparse.Namespace, name: str, kind: str, folder: Path, ends: float
    ) -> None:
        self.arguments, self.name, self.kind, self.folder = arguments, name, kind, folder
        self.device: str = arguments.device
        self.ends = ends
        self.agreement: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.teams: list[Team] = []
        self.left_out: dict[str, str] = {}
        self.found: dict[str, Any] = {
            "size": name,
            "kind": kind,
            "left_out": self.left_out,
            "agreement": self.agreement,
            "rows": self.rows,
        }

    # ---------------------------------------------------------------------- what is compared

    def specs(self) -> list[Spec]:
        if self.device == "cuda":
            specs = [Spec("ours", "bfloat16"), Spec("hf", "bfloat16")]
            specs += [Spec("ct2", kind) for kind in ("float16", "bfloat16", "int8_float16")]
            if self.kind == "static":
                specs = [*specs[:2], Spec("hf-static", "bfloat16")]
        else:
            specs = [Spec("ours", "float32"), Spec("hf", "float32")]
            specs += [Spec("ct2", "float32"), Spec("ct2", "int8")]
            specs[1:1] = [Spec("ours", "bfloat16")] * has_tiles() + [Spec("ours", "int8")]
        wanted = self.arguments.systems.split(",") if self.arguments.systems else None
        without = set(self.arguments.without.split(","))
        chosen = [s for s in specs if wanted is None or {s.system, s.name} & set(wanted)]
        return [spec for spec in chosen if not {spec.system, spec.name} & without]

    def cells(self) -> list[Cell]:
        only = self.arguments.only.split(";") if self.arguments.only else None
        return [cell for cell in self._cells() if only is None or cell.name in only]

    def _cells(self) -> list[Cell]:
        if self.kind == "real":
            count = len(self.sources)
            return [Cell(beam, None, count, apart=True, exact=None) for beam in (1, 5)]
        if self.kind == "static":
            return [Cell(1, 1, 1), Cell(1, 64, 64)]
        if self.device == "cuda":
            sizes = [1, 8] if self.arguments.quick else [1, 8, 64, 512]
            return [Cell(beam, size, size) for beam in (1, 4) for size in sizes]
        light = self.name != "base"
        maximum = 16 if self.arguments.quick else 32
        file = 2 * maximum
        return [
            Cell(1, 1, 1),
            Cell(1, 8, 8),
            Cell(1, maximum, file, apart=True),
            Cell(1, None, 2 * file, apart=True),
            Cell(4, 1, 1),
            Cell(4, 8, 8),
            Cell(4, maximum, 2 * maximum if light else maximum, apart=light),
        ]

    # ------------------------------------------------------------------------------- running

    def run(self) -> None:
        print(f"\n{self.name}, {self.kind}, {self.device}", flush=True)
        self.found["facts"] = metadata(torch.device(self.device))
        if self.device == "cpu":
            # The parent's threads do no work.
            hardware = self.found["facts"]["hardware"].rsplit(",", 1)[0]
            self.found["facts"] |= {"hardware": f"{hardware}, 2 cores", "threads": 2}
        self._texts()
        try:
            self._start()
            self._check()
            entries = self._enter_all()
            self._take_turns(entries)
        finally:
            for team in self.teams:
                for worker in team.workers:
                    worker.close()
        self._write()
        self._print()

    def _texts(self) -> None:
        """The sources, in ids without END, and targets to be scored."""
        if self.kind == "real":
            data = self.arguments.data
            files = [
                data / f"test_2016_flickr.{language}.gz" for language in self.arguments.languages
            ]
            pairs = list(
                read_pairs(ParallelFiles(source=str(files[0]), target=str(files[1])), None)
            )
            if self.arguments.quick:
                pairs = pairs[:12]
            model: Transducer = load(self.folder)
            self.model = model
            self.sources = model.source_tokens.encode_batch([pair.source for pair in pairs])
            self.references = [pair.target for pair in pairs]
            self.targets = model.target_tokens.encode_batch(self.references[:CHECKED])
            return
        vocabulary = SIZES[self.name].vocabulary
        if self.device == "cpu":
            vocabulary = min(vocabulary, 8000)
        draw = torch.Generator().manual_seed(1)
        shape = (512 + CHECKED, LENGTH - 1)
        ids = torch.randint(len(SPECIALS), vocabulary, shape, generator=draw).tolist()
        self.sources, self.targets = ids[:512], ids[512:]

    def _start(self) -> None:
        """All processes at once: most of their start is imports. Then they load one by one."""
        try:
            if any(spec.system == "ct2" for spec in self.specs()):
                export(self.folder, self.folder / "ctranslate2")
        except Exception as error:
            self._leave_out("ct2", str(error))
        waiting = []
        for spec in self.specs():
            if spec.system in self.left_out:
                continue
            if self.device == "cuda":
                waiting.append(Team(spec, 1, [Worker(spec, self.device, 0, [])]))
                continue
            cores = two_cores()
            waiting.append(Team(spec, 2, [Worker(spec, self.device, 2, cores)]))
            if any(cell.apart for cell in self.cells()) and len(cores) == 2:
                pair = [Worker(spec, self.device, 1, [core]) for core in cores]
                waiting.append(Team(spec, 1, pair))
        for team in waiting:
            try:
                for worker in team.workers:
                    hello = worker.answer(120)
                team.metadata, team.batch_sizes = hello["facts"], hello["batch_sizes"]
                self.found["facts"] |= team.metadata
                self.teams.append(team)
            except Failed as error:
                self._drop(team, str(error))

    def _drop(self, team: Team, why: str) -> None:
        for worker in team.workers:
            worker.close()
        self.teams = [other for other in self.teams if other is not team]
        self._leave_out(team.name, why)

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"  {name} is left out: {why}", flush=True)

    def _load(self, team: Team, precision: str) -> None:
        request = {"do": "load", "folder": str(self.folder), "precision": precision}
        team.ask(60, [request] * len(team.workers))

    def _check(self) -> None:
        """The same log-probabilities in float32, and how many outputs are the same."""
        sources = self.sources[:CHECKED]
        exact = None if self.kind == "real" else LENGTH
        wish = {"do": "decode", "sources": sources, "beam": 1, "batch": None, "exact": exact}
        reference: dict[str, Any] = {}
        for team in list(self.teams):
            row: dict[str, Any] = {"system": team.spec.system, "precision": team.spec.precision}
            try:
                if team.threads == 1 and self.device == "cpu":  # the same as with two threads
                    self._load(team, team.spec.precision)
                    continue
                self._load(team, "float32")
                # A compiler's work is in it where the cache is static.
                limit = 150 if team.spec.system == "hf-static" else 60
                forced = {"do": "score", "sources": sources, "targets": self.targets[:CHECKED]}
                scored = team.ask(60, [forced])[0]["log_probs"]
                outputs = team.ask(limit, [wish])[0]["outputs"]
                reference = reference or {"scores": scored, "outputs": outputs}
                row["worst_log_prob"] = max(
                    abs(mine - other)
                    for of_one, of_other in zip(reference["scores"], scored, strict=True)
                    for mine, other in zip(of_one, of_other, strict=True)
                )
                row["same_in_float32"] = _same(reference["outputs"], outputs)
                if team.spec.precision != "float32":
                    self._load(team, team.spec.precision)
                    outputs = team.ask(limit, [wish])[0]["outputs"]
                row["same_as_timed"] = _same(reference["outputs"], outputs)
                if exact and not all(exact - 1 <= len(output) <= exact for output in outputs):
                    raise Failed(f"it wrote {set(map(len, outputs))} tokens, not {exact}")
            except Failed as error:
                self._drop(team, str(error))
                continue
            self.agreement.append(row)
            print(
                f"  {team.spec.name}: log-probabilities in float32 within "
                f"{row['worst_log_prob']:.1e} of {self.agreement[0]['system']}'s, "
                f"{row['same_in_float32']:.0%} of greedy outputs the same, "
                f"{row['same_as_timed']:.0%} as timed",
                flush=True,
            )
            if row["worst_log_prob"] > WRONG:
                self._drop(team, f"its log-probabilities are off by {row['worst_log_prob']:.2g}")
            elif row["worst_log_prob"] > CLOSE:
                print(f"  WARNING: that is more than {CLOSE}", flush=True)

    def _enter_all(self) -> list[Entry]:
        entries = []
        for cell in self.cells():
            for team in list(self.teams):
                alone = cell.count == 1 and self.device == "cpu"
                if team.threads == 1 and self.device == "cpu" and not (cell.apart or alone):
                    continue
                if alone:  # of two workers, one has nothing to do
                    team = replace(team, workers=team.workers[:1])
                row: dict[str, Any] = {
                    "system": team.spec.system,
                    "precision": team.spec.precision,
                    "cell": cell.name,
                    "beam": cell.beam,
                    "batch": cell.batch,
                    "sentences": cell.count,
                    "workers": len(team.workers),
                    "threads": team.threads,
                }
                self.rows.append(row)
                if time.monotonic() > self.ends:
                    row["error"] = f"{UP}: the time was up"
                    continue
                try:
                    entries.append(self._enter(team, cell, row))
                except Failed as error:
                    row["error"] = str(error)
                    print(f"  {team.name}, {cell.name}: {error}", flush=True)
        return entries

    def _enter(self, team: Team, cell: Cell, row: dict[str, Any]) -> Entry:
        """Run warm; a file with the batch size that was fastest."""
        several = len(team.workers)
        shares = [self.sources[: cell.count][i::several] for i in range(several)]
        # The second run is the one that records a graph or finds caches filled.
        warm = 3 if self.device == "cuda" else 1 if cell.count > 8 else 2
        sizes: list[int | None] = [cell.batch]
        if cell.batch is None and team.spec.system != "ours":
            sizes = team.batch_sizes if cell.exact is None else [32, 64, 128]
        tried = {}
        for size in sizes:
            wish = {"beam": cell.beam, "batch": size, "exact": cell.exact, "warm": warm}
            wish |= {"do": "plan", "name": f"{cell.name} {size}"}
            requests = [wish | {"sources": share} for share in shares]
            found = team.ask(90 if team.spec.system == "hf-static" else 60, requests)
            tried[size] = max(answer["seconds"] for answer in found), found
        best = min(tried, key=lambda size: tried[size][0])
        seconds, found = tried[best]
        row["batch_size"] = best
        row["first_seconds"] = max(answer["first"] for answer in found)
        if found[0]["peak_mib"] is not None:
            row["peak_mib"] = sum(answer["peak_mib"] for answer in found)
        if self.device == "cuda":
            row["held_mib"] = team.held / 2**20
        entry = Entry(team, cell, row)
        wanted = (0.8, 25) if cell.count == 1 else (0.25, 10)
        entry.repeats = max(1, min(wanted[1], int(wanted[0] / max(seconds, 1e-4))))
        if cell.exact is None:
            self._read_outputs(entry)
        return entry

    def _read_outputs(self, entry: Entry) -> None:
        """Tokens are counted as each system wrote them, END among them; BLEU shows it was work."""
        cell, row = entry.cell, entry.row
        key = (row["system"], row["precision"], row["cell"])
        known = [r for r in self.rows if (r["system"], r["precision"], r["cell"]) == key]
        if "tokens" not in known[0]:
            wish = {"sources": self.sources[: cell.count], "beam": cell.beam, "exact": None}
            found = entry.team.workers[0].ask(90, do="decode", batch=row["batch_size"], **wish)
            outputs = found["outputs"]
            row["tokens"] = sum(len(output) + 1 for output in outputs)
            texts = [self.model.target_tokens.decode(output) for output in outputs]
            from sacrebleu.metrics.bleu import BLEU

            row["bleu"] = BLEU().corpus_score(texts, [self.references]).score
        row |= {name: known[0][name] for name in ("tokens", "bleu")}

    def _take_turns(self, entries: list[Entry]) -> None:
        for number in range(self.arguments.rounds):
            for cell in dict.fromkeys(entry.cell for entry in entries):
                if number and time.monotonic() > self.ends:
                    break
                own = [entry for entry in entries if entry.cell == cell]
                # Another one begins each round, so that none is always the one after a pause.
                start = number % len(own)
                for entry in [*own[start:], *own[:start]]:
                    # The slow ones get fewer rounds, so that all come to their turn.
                    slow = number >= 2 and sum(entry.passes) > self.arguments.each
                    if "error" not in entry.row and not slow:
                        self._one_round(entry)
            print(f"  round {number + 1} of {self.arguments.rounds}", flush=True)
            self._write()

    def _one_round(self, entry: Entry) -> None:
        row, cell = entry.row, entry.cell
        name = f"{cell.name} {row['batch_size']}"
        request = {"do": "time", "name": name, "repeats": entry.repeats}
        try:
            answers = entry.team.ask(120, [request] * len(entry.team.workers))
        except Failed as error:
            row["error"] = str(error)
            print(f"  {entry.team.name}, {cell.name}: {error}", flush=True)
            return
        # Of two workers that began together, the later one says when all was done.
        passes = [max(both) for both in zip(*(a["seconds"] for a in answers), strict=True)]
        entry.passes += passes
        entry.rounds.append(statistics.fmean(passes))
        tokens = row.get("tokens", cell.count * LENGTH)
        speeds = [tokens / seconds for seconds in entry.rounds]
        row |= {
            "round_seconds": entry.rounds,
            "tokens_per_second": statistics.median(speeds),
            "slowest": min(speeds),
            "fastest": max(speeds),
            "sentences_per_second": cell.count / statistics.median(entry.rounds),
        }
        if cell.count == 1:
            row["latency_ms"] = _percentiles(entry.passes)

    # ------------------------------------------------------------------------------- telling

    def _write(self) -> None:
        """The file with this section in the place of the old one of its size and kind."""
        self.found["ratios"] = ratios(self.rows)
        out: Path = self.arguments.out
        old = json.loads(out.read_text("utf-8"))["sections"] if out.exists() else []
        key = (self.name, self.kind)
        kept = [section for section in old if (section["size"], section["kind"]) != key]
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"sections": [*kept, self.found]}, indent=1)
        out.write_text(text + "\n", "utf-8")

    def _print(self) -> None:
        print(f"{'':42}{'tokens/s':>11}  {'slowest - fastest':>21}  {'p50/p90/p99 ms':>22}  MiB")
        for row in self.rows:
            arrangement = f"{row['workers']} x {row['threads']}" if self.device == "cpu" else ""
            name = f"{row['cell']:12} {row['system']} {row['precision']} {arrangement}"
            if "tokens_per_second" not in row:
                print(f"{name:42}{row.get('error', 'not measured')}")
                continue
            spread = f"{row['slowest']:,.0f} - {row['fastest']:,.0f}"
            late = row.get("latency_ms")
            percentiles = "" if late is None else "{p50:.1f} / {p90:.1f} / {p99:.1f}".format(**late)
            memory = row.get("held_mib", row.get("peak_mib"))
            peak = "-" if memory is None else f"{memory:,.0f}"
            print(
                f"{name:42}{row['tokens_per_second']:11,.0f}  {spread:>21}  {percentiles:>22}  "
                f"{peak}"
            )
        for row in self.found["ratios"]:
            print(
                f"{row['cell']}: ours {row['precision']} is {row['times']:.2f} times "
                f"{NAMES[row['peer']]} {row['peer_precision']} "
                f"({row['low']:.2f} to {row['high']:.2f})"
            )
        sys.stdout.flush()


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our best in each cell against the best of each peer, by the time for the same sentences."""
    found = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        measured = [row for row in rows if row["cell"] == cell and "round_seconds" in row]
        measured.sort(key=lambda row: -statistics.median(row["round_seconds"]))
        best = {row["system"]: row for row in measured}
        ours = best.pop("ours", None)
        for system, peer in [] if ours is None else best.items():
            mine, other = ours["round_seconds"], peer["round_seconds"]
            found.append(
                {
                    "cell": cell,
                    "precision": ours["precision"],
                    "peer": system,
                    "peer_precision": peer["precision"],
                    "times": statistics.median(other) / statistics.median(mine),
                    "low": min(other) / max(mine),  # the worst that the spread of both allows
                    "high": max(other) / min(mine),
                }
            )
    return found


def _same(outputs: list[list[int]], others: list[list[int]]) -> float:
    """The share of outputs that are the same but for a last token, which ours must be END."""
    pairs = list(zip(outputs, others, strict=True))
    return sum(mine[: LENGTH - 1] == other[: LENGTH - 1] for mine, other in pairs) / len(pairs)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * s for s in seconds)
    at = {f"p{share}": ordered[round(share / 100 * (len(ordered) - 1))] for share in (50, 90, 99)}
    return at | {"calls": len(ordered)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", default="small,base", help="of base and small")
    parser.add_argument("--systems", help='such as "ours,hf,ct2 int8"; default: all')
    parser.add_argument("--without", default="", help='such as "ct2,hf": not compared with')
    parser.add_argument("--only", help='columns of the table: "greedy, 1;beam 4, 64"; default: all')
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="for real sentences")
    parser.add_argument("--languages", nargs=2, default=["en", "de"], help="of --model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=float, help="seconds after which two rounds are enough")
    parser.add_argument("--minutes", type=float, help="for all; default: 3, 5 on a CPU")
    parser.add_argument("--static", action="store_true", help="Hugging Face's static cache too")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "multi30k", metavar="FOLDER"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    arguments.device = device.type
    on_gpu = device.type == "cuda"
    arguments.out = arguments.out or RESULTS / f"decode_speed_{device.type}.json"
    arguments.each = arguments.each or (4.0 if on_gpu else 8.0)
    if arguments.quick:
        arguments.sizes, arguments.rounds = arguments.sizes and "tiny", 2
        arguments.minutes = arguments.minutes or 30
    wanted = [(name, "exact") for name in arguments.sizes.split(",") if name]
    wanted += [("base", "static")] if arguments.static and on_gpu else []
    wanted += [(arguments.model.name, "real")] if arguments.model else []
    ends = time.monotonic() + 60 * (arguments.minutes or (3 if on_gpu else 5))
    missing: dict[str, str] = {}
    for place, (name, kind) in enumerate(wanted):
        # A large model takes about three times as long as a small one.
        shares = [1 if size in ("small", "tiny") else 3 for size, _ in wanted[place:]]
        now = time.monotonic()
        until = now + (ends - now) * shares[0] / sum(shares)
        with tempfile.TemporaryDirectory() as made:
            try:
                folder = Path(made) / "model"
                if kind == "real":
                    load(arguments.model).save(folder)
                else:
                    make_model(_size(name, on_gpu), folder)
                section = Section(arguments, name, kind, folder, until)
                section.run()
                missing |= section.left_out
                missing |= {
                    f"{row['system']} {row['precision']}, {row['cell']}": row["error"]
                    for row in section.rows
                    if not row.get("error", UP).startswith(UP)
                }
            except Exception as error:
                traceback.print_exc()  # the other sections still count
                missing[f"{name}, {kind}"] = type(error).__name__
    end(missing)


def _size(name: str, on_gpu: bool) -> Size:
    size = SIZES[name]
    return size if on_gpu else replace(size, vocabulary=min(size.vocabulary, 8000))


if __name__ == "__main__":
    main()
