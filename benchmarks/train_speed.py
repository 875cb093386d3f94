"""How fast a training step is: ours, Hugging Face's Marian, torch.nn.Transformer, side by side.

    python benchmarks/train_speed.py [--device auto] [--sizes base,small] [--kinds synthetic,real]

All systems of a size live in one process and take turns, round after round, so that whatever else
the machine does meets all of them. Synthetic batches have pairs of 32+32 tokens and no padding;
real ones are Multi30k's, cut into our own batches, which the peers get as they are: there, only
real tokens count. With --kernels (on a GPU), one more pass of ours is profiled: how long which
kinds of kernels run. Prints a table and writes benchmarks/results/train_speed_DEVICE.json.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from alone import measure_alone, synthetic
from systems import (
    PRECISIONS,
    SIZES,
    Size,
    Spec,
    System,
    build_system,
    end,
    flops,
    has_tiles,
    metadata,
    peers,
    real_lengths,
)
from torch import Tensor

from transduce import recipe
from transduce.data.batches.batch import Batch
from transduce.data.batches.bucketing import Batches
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.sides import train_tokens
from transduce.hardware import pick_device

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
LENGTH = 32
TOKENS = {"cuda": 24_576, "cpu": 4_096}
KERNELS = {
    "matrix products": ("nvjet", "splitKreduce", "gemm", "cutlass"),
    "attention": ("attention",),
    "embeddings": ("embed", "compute_grad_weight", "sum_and_scatter", "RadixSort"),
    "norms, residual sums, dropout": ("norm", "distribution_elementwise"),
    "gradients of biases, and of ReLU": ("column_sums",),
    "softmax and cross-entropy": ("softmax_gradient",),
    "optimizer, clipping, copies of weights": ("multi_tensor_apply",),
}
"""Kinds of kernels, and parts of their names; the first that fits."""


@dataclass
class Entry:
    """A system in the running, and what was seen of it."""

    spec: Spec
    system: System
    prepared: list[Any]
    row: dict[str, Any]
    rounds: list[float] = field(default_factory=list)


# ------------------------------------------------------------------------------------- batches


def synthetic_batches(size: Size, tokens: int) -> list[Batch]:
    return [synthetic(size, tokens // LENGTH, LENGTH, seed) for seed in range(4)]


def real_batches(size: Size, tokens: int, folder: Path, maximum: int | None) -> list[Batch]:
    """An epoch of Multi30k as training would take it; `maximum` batches of it, in no order.

    One vocabulary is learnt for both languages, at most as large as the model's.
    """
    files = recipe.ParallelFiles(source="train.en.gz", target="train.de.gz")
    sides = recipe.TokensOfSides(both=recipe.Tokens(size=size.vocabulary))
    data = recipe.Data(folder=str(folder), train=files, valid=files, tokens=sides, max_length=128)
    tokens_of_sides = train_tokens(data)
    with tempfile.TemporaryDirectory() as cache:
        encoded, _ = encode_corpus(data.train, data, *tokens_of_sides, Path(cache))
    epoch = itertools.takewhile(
        lambda update: update.position.epoch == 0 or update.position.batch == 0,
        Batches(encoded, tokens).updates(1),
    )
    return [update.batches[0] for update in itertools.islice(epoch, maximum)]


# --------------------------------------------------------------------------------------- timing


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_ceiling(device: torch.device, precision: str, quick: bool) -> dict[str, Any]:
    """The most operations a second that large square products reach here."""
    sides = [4096, 8192, 12288] if device.type == "cuda" else [1024, 2048, 3072]
    best = {"flops": 0.0, "side": 0}
    for side in [256] if quick else sides:
        x = torch.randn(side, side, device=device, dtype=PRECISIONS[precision])
        repeats = 20 if device.type == "cuda" else 3
        for _ in range(2):
            x @ x
        wait(device)
        for _ in range(3):
            began = time.perf_counter()
            for _ in range(repeats):
                x @ x
            wait(device)
            reached = repeats * 2 * side**3 / (time.perf_counter() - began)
            if reached > best["flops"]:
                best = {"flops": reached, "side": side}
    return best


def one_pass(entry: Entry, device: torch.device) -> float:
    """Seconds for all of the round's batches."""
    wait(device)
    began = time.perf_counter()
    for prepared in entry.prepared:
        entry.system.step(prepared)
    wait(device)
    return time.perf_counter() - began


def kernels(entry: Entry, device: torch.device) -> dict[str, Any]:
    """Microseconds of a step in which kernels of each kind ran, in a pass that is profiled."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        one_pass(entry, device)
    found = dict.fromkeys([*KERNELS, "others"], 0.0)
    for one in profile.events():
        if one.device_type == torch.autograd.DeviceType.CUDA:
            parts = KERNELS.items()
            kind = next((k for k, names in parts if any(n in one.name for n in names)), "others")
            found[kind] += one.time_range.elapsed_us() / len(entry.prepared)
    step = 1e6 * min(entry.rounds) / len(entry.prepared)
    return {"step": step, "kinds": dict(sorted(found.items(), key=lambda pair: -pair[1]))}


def enter(
    spec: Spec, size: Size, device: torch.device, batches: list[Batch], dynamic: bool, warm: int
) -> Entry:
    """Build a system and run it warm; its compile time and, on a GPU, its memory are seen here."""
    gc.collect()
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    widest = max(max(b.source_BS.shape[1], b.target_BT.shape[1]) for b in batches)
    system = build_system(spec, size, device, widest, dynamic)
    prepared = [system.prepare(batch) for batch in batches]
    row = {
        "system": spec.system,
        "mode": spec.mode,
        "precision": spec.precision,
        "parameters": system.parameters,
    }
    entry = Entry(spec, system, prepared, row)
    losses: list[Tensor] = []
    began = time.perf_counter()
    losses.append(system.step(prepared[0]))
    wait(device)
    first = time.perf_counter() - began
    began = time.perf_counter()
    losses.append(system.step(prepared[0]))
    wait(device)
    row["first_step_seconds"] = first
    # A compiler, or the recording of a graph, may come with later shapes too: until all is warm.
    for step in range(warm):
        losses.append(system.step(prepared[step % len(prepared)]))
    wait(device)
    row["warm_up_seconds"] = first + time.perf_counter() - began
    row["loss"] = [float(losses[0]), float(losses[-1])]
    if device.type == "cuda":
        row["peak_mib"] = (torch.cuda.max_memory_allocated(device) - before) / 2**20
    return entry


def failed(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


# -------------------------------------------------------------------------------------- running


class Section:
    """All systems of one size on one kind of batches: one table."""

    def __init__(self, arguments: argparse.Namespace, size: Size, kind: str) -> None:
        self.arguments, self.size, self.kind = arguments, size, kind
        self.device: torch.device = arguments.device
        self.rows: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {"size": size.name, "kind": kind, "rows": self.rows}

    def specs(self) -> list[Spec]:
        """Eager ones first: they are soon built, and should not wait for a compiler."""
        precisions = ["bfloat16"]
        if self.device.type == "cpu":
            precisions = ["float32", "bfloat16"] if has_tiles() else ["float32"]
        modes = self.arguments.modes
        if modes is None:
            # On a CPU, compiling for every shape takes longer than all the rest.
            once = self.arguments.quick or (self.device.type == "cpu" and self.kind == "real")
            modes = "eager" if once else "eager,compiled"
        specs = []
        for mode in modes.split(","):
            if mode == "graphs" and (self.device.type == "cpu" or self.kind == "real"):
                continue  # graphs want one shape
            for precision in precisions:
                for system in self.arguments.systems.split(","):
                    if system != "ours" or mode == "eager":
                        specs.append(Spec(system, mode, precision))
        return specs

    def run(self) -> None:
        arguments, size, device = self.arguments, self.size, self.device
        print(f"\n{size.name}, {self.kind} batches", flush=True)
        batches = self._batches()
        specs = self.specs()
        precisions = sorted({spec.precision for spec in specs})
        ceilings = {name: matmul_ceiling(device, name, arguments.quick) for name in precisions}
        for name, ceiling in ceilings.items():
            print(f"  matmul ceiling, {name}: {ceiling['flops'] / 1e12:.2f} TFLOP/s", flush=True)
        self.found |= {
            "facts": metadata(device),
            "ceilings": ceilings,
            "batches": self._describe(batches),
        }
        entries = self._enter_all(specs, batches)
        self._take_turns(entries, batches)
        if arguments.kernels and device.type == "cuda":
            ours = next(entry for entry in entries if entry.spec.system == "ours")
            self.found["kernels"] = kernels(ours, device)
        del entries
        torch._dynamo.reset()  # it keeps the models that it compiled
        if device.type == "cpu" and self.kind == "synthetic":
            self._memory_on_cpu()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._write()
        self._print()

    def _batches(self) -> list[Batch]:
        arguments = self.arguments
        if self.kind == "real":
            maximum = arguments.steps or (None if self.device.type == "cuda" else 3)
            return real_batches(self.size, arguments.tokens, arguments.data, maximum)
        made = synthetic_batches(self.size, arguments.tokens)
        count = arguments.steps or (10 if self.device.type == "cuda" else 2)
        return [made[i % len(made)] for i in range(count)]

    def _describe(self, batches: list[Batch]) -> dict[str, Any]:
        lengths = [pair for batch in batches for pair in real_lengths(batch)]
        places = sum(b.source_BS.numel() + b.target_BT[:, 1:].numel() for b in batches)
        return {
            "count": len(batches),
            "pairs": len(lengths),
            "source_tokens": sum(S for S, _ in lengths),
            "target_tokens": sum(T for _, T in lengths),
            "real_share": sum(S + T for S, T in lengths) / places,
            "flops": flops(self.size, lengths),
        }

    def _enter_all(self, specs: list[Spec], batches: list[Batch]) -> list[Entry]:
        entries = []
        for spec in specs:
            row: dict[str, Any] = {
                "system": spec.system,
                "mode": spec.mode,
                "precision": spec.precision,
            }
            if time.monotonic() > self.arguments.deadline:
                self.rows.append(row | {"error": f"{UP}: the time was up"})
                print(f"  {spec.name}: left out, the time is up", flush=True)
                continue
            dynamic = self.kind == "real"
            # Three passes: ours records a shape when it comes again.
            warm = 3 * len(batches) if dynamic else 8
            if self.device.type == "cpu":
                warm = len(batches) if dynamic and spec.mode != "eager" else 1
            try:
                entry = enter(spec, self.size, self.device, batches, dynamic, warm)
            except Exception as error:
                traceback.print_exc()
                self.rows.append(row | {"error": failed(error)})
                continue
            entries.append(entry)
            self.rows.append(entry.row)
            first, last = entry.row["loss"]
            print(
                f"  {spec.name}: {entry.row['parameters']:,} parameters, "
                f"first step {entry.row['first_step_seconds']:.1f} s, "
                f"loss {first:.3f} to {last:.3f}",
                flush=True,
            )
        return entries

    def _take_turns(self, entries: list[Entry], batches: list[Batch]) -> None:
        tokens = self.found["batches"]["target_tokens"]
        work = self.found["batches"]["flops"]
        for number in range(self.arguments.rounds):
            # Another one begins each round, so that none is always the one after a pause.
            start = number % max(len(entries), 1)
            for entry in [*entries[start:], *entries[:start]]:
                if "error" in entry.row:
                    continue
                try:
                    entry.rounds.append(one_pass(entry, self.device))
                except Exception as error:
                    traceback.print_exc()
                    entry.row["error"] = failed(error)
                    continue
                speeds = [tokens / seconds for seconds in entry.rounds]
                ceiling = self.found["ceilings"][entry.spec.precision]["flops"]
                median = statistics.median(speeds)
                entry.row |= {
                    "round_seconds": entry.rounds,
                    "tokens_per_second": median,
                    "slowest": min(speeds),
                    "fastest": max(speeds),
                    "share_of_ceiling": median * work / tokens / ceiling,
                }
            print(f"  round {number + 1} of {self.arguments.rounds}", flush=True)
            self._write()

    def _memory_on_cpu(self) -> None:
        """Peak memory of each eager system; of a compiled one, the compiler's would be seen."""
        pairs = self.arguments.tokens // LENGTH
        for row in self.rows:
            if row["mode"] != "eager" or "error" in row:
                continue
            spec = Spec(row["system"], row["mode"], row["precision"])
            try:
                alone = measure_alone(
                    spec, self.size, pairs, LENGTH, steps=2, threads=torch.get_num_threads()
                )
            except RuntimeError as error:
                row["memory_error"] = failed(error)
                continue
            row["peak_mib"] = alone["peak_mib"]
            row["libraries_mib"] = alone["libraries_mib"]

    def _write(self) -> None:
        """The file with this section in the place of the old one of its size and kind."""
        out: Path = self.arguments.out
        old = json.loads(out.read_text("utf-8"))["sections"] if out.exists() else []
        key = (self.size.name, self.kind)
        kept = [section for section in old if (section["size"], section["kind"]) != key]
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"sections": [*kept, self.found]}, indent=1)
        out.write_text(text + "\n", "utf-8")

    def _print(self) -> None:
        head = f"{'':26}{'tokens/s':>11}  {'slowest - fastest':>21}  {'of ceiling':>10}"
        print(f"{head}  {'peak MiB':>9}  {'first step':>10}")
        for row in self.rows:
            name = f"{row['system']} {row['mode']} {row['precision']}"
            if "tokens_per_second" not in row:
                print(f"{name:26}{row.get('error', 'not measured')}")
                continue
            spread = f"{row['slowest']:,.0f} - {row['fastest']:,.0f}"
            peak = f"{row['peak_mib']:,.0f}" if "peak_mib" in row else "-"
            print(
                f"{name:26}{row['tokens_per_second']:11,.0f}  {spread:>21}  "
                f"{row['share_of_ceiling']:10.1%}  {peak:>9}  {row['first_step_seconds']:8.1f} s"
            )
        measured = [row for row in self.rows if "tokens_per_second" in row]
        best = {
            mine: max(
                (r for r in measured if (r["system"] == "ours") == mine),
                key=lambda r: r["tokens_per_second"],
                default=None,
            )
            for mine in (True, False)
        }
        if best[True] and best[False]:
            ratio = best[True]["tokens_per_second"] / best[False]["tokens_per_second"]
            fastest = f"{best[False]['system']} {best[False]['mode']} {best[False]['precision']}"
            print(f"ours / the fastest peer ({fastest}): {ratio:.2f}", flush=True)


UP = "left out"  # what --minutes left no time for, as the command said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", help="of base and small; default: both, small on a CPU")
    parser.add_argument("--kinds", default="synthetic,real")
    parser.add_argument("--systems", help="of ours, marian and torch; default: all")
    parser.add_argument("--without", default="", help="such as marian: not compared with")
    parser.add_argument(
        "--modes",
        help="how the peers run: eager, compiled, graphs (compiled, with CUDA graphs); default: "
        "eager and compiled, and eager alone for real batches on a CPU",
    )
    parser.add_argument("--rounds", type=int, help="timed rounds; default: 7, 4 on a CPU")
    parser.add_argument("--steps", type=int, help="batches a round")
    parser.add_argument("--tokens", type=int, help="target tokens a batch")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "multi30k", metavar="FOLDER"
    )
    parser.add_argument("--minutes", type=float, default=60, help="build nothing after so many")
    parser.add_argument("--kernels", action="store_true", help="profile a pass of ours, too")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    arguments.device = device = pick_device(arguments.device)
    on_gpu = device.type == "cuda"
    arguments.systems = arguments.systems or ",".join(["ours", *peers(arguments.without)])
    arguments.sizes = arguments.sizes or ("base,small" if on_gpu else "small")
    arguments.rounds = arguments.rounds or (7 if on_gpu else 4)
    arguments.tokens = arguments.tokens or TOKENS[device.type]
    arguments.out = arguments.out or RESULTS / f"train_speed_{device.type}.json"
    arguments.deadline = time.monotonic() + 60 * arguments.minutes
    if arguments.quick:
        arguments.sizes, arguments.rounds = "tiny", 2
        arguments.steps, arguments.tokens = arguments.steps or 2, 256
    # What a person who wants speed sets; TF32 is for what autocast leaves in float32.
    torch.set_float32_matmul_precision("high" if on_gpu else "highest")
    # Else the compiler would give up on the eighth model of one process and run it eagerly.
    torch._dynamo.config.recompile_limit = 64
    missing: dict[str, str] = {}
    for name, kind in itertools.product(arguments.sizes.split(","), arguments.kinds.split(",")):
        if kind == "real" and not (arguments.data / "train.en.gz").exists():
            why = f"there is no train.en.gz in {arguments.data}; see --data, or --kinds synthetic"
            missing["real batches"] = why
            continue
        try:
            section = Section(arguments, SIZES[name], kind)
            section.run()
            missing |= {
                f"{row['system']} {row['mode']} {row['precision']}": row["error"]
                for row in section.rows
                if not row.get("error", UP).startswith(UP)
            }
        except Exception as error:
            traceback.print_exc()  # the other sections still count
            missing[f"{name}, {kind}"] = type(error).__name__
    end(missing)


if __name__ == "__main__":
    main()
