"""One decoding system in a process of its own, asked over pipes: a line of JSON in, one out.

    python benchmarks/decode_worker.py '{"system": "ours", "device": "cpu", "threads": 2, ...}'

decode_speed.py starts it. What libraries print goes to stderr, so that it disturbs no answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from decode_engines import ENGINES, Engine, Plan, Wish


class Worker:
    """Answers one request after the other."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.device: str = wanted["device"]
        self.engine: Engine = ENGINES[wanted["system"]](self.device, wanted["threads"])
        if wanted["cores"]:
            # Not before the imports: they may use all cores, and threads made later inherit it.
            os.sched_setaffinity(0, wanted["cores"])
        self.plans: dict[str, Plan] = {}
        self.libraries_mib = resident_mib()

    def hello(self) -> dict[str, Any]:
        return {"facts": self.engine.metadata(), "batch_sizes": list(self.engine.batch_sizes)}

    def load(self, folder: str, precision: str) -> dict[str, Any]:
        self.plans.clear()
        self.engine.unload()
        gc.collect()
        torch = sys.modules.get("torch")
        if self.device == "cuda" and torch is not None:
            torch.cuda.empty_cache()
        began = time.perf_counter()
        self.engine.load(Path(folder), precision)
        return {"seconds": time.perf_counter() - began}

    def score(self, sources: list[list[int]], targets: list[list[int]]) -> dict[str, Any]:
        return {"log_probs": self.engine.score(sources, targets)}

    def decode(self, **wish: Any) -> dict[str, Any]:
        plan = self.engine.plan(Wish(**wish))
        return {"outputs": plan.read(plan.run())}

    def plan(self, name: str, warm: int, **wish: Any) -> dict[str, Any]:
        """Run it warm; the seconds of the last time, and the most memory that it took."""
        plan = self.plans[name] = self.engine.plan(Wish(**wish))
        self._forget_peak()
        seconds = [self._timed(plan) for _ in range(warm)]
        return {"first": seconds[0], "seconds": seconds[-1], "peak_mib": self._peak_mib()}

    def time(self, name: str, repeats: int) -> dict[str, Any]:
        if repeats > 1:  # the first after others had their turn finds all caches cold
            self._timed(self.plans[name])
        return {"seconds": [self._timed(self.plans[name]) for _ in range(repeats)]}

    def _timed(self, plan: Plan) -> float:
        began = time.perf_counter()
        plan.run()  # what it gives is on the host: nothing is left to wait for
        return time.perf_counter() - began

    def _forget_peak(self) -> None:
        torch = sys.modules.get("torch")
        if self.device == "cuda" and torch is not None:
            torch.cuda.reset_peak_memory_stats()
        elif self.device == "cpu":
            with contextlib.suppress(OSError):  # else the peak is that of all work so far
                Path("/proc/self/clear_refs").write_text("5", "ascii")

    def _peak_mib(self) -> float | None:
        """On a GPU what torch had allocated; on a CPU what came on top of the libraries."""
        if self.device == "cpu":
            return peak_mib() - self.libraries_mib
        torch = sys.modules.get("torch")
        return None if torch is None else torch.cuda.max_memory_allocated() / 2**20


def resident_mib() -> float:
    return _status("VmRSS")


def peak_mib() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    path = Path("/proc/self/status")
    if not path.exists():
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    line = next(line for line in path.read_text("ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) / 2**10


def _end_with_parent() -> None:
    """A worker that stands still would outlive a benchmark that was killed."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main() -> None:
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    try:
        worker = Worker(json.loads(sys.argv[1]))
        answer(worker.hello())
    except Exception as error:
        answer({"error": said(error)})
        return
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(worker, request.pop("do"))(**request))
        except Exception as error:
            answer({"error": said(error)})


def said(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


if __name__ == "__main__":
    main()
