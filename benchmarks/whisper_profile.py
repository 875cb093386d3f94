"""Where the time of Whisper goes: the host's work, features, encoder, steps of the decoder.

    python benchmarks/whisper_profile.py --ours DIR --audio LIST.tsv --device cuda --beam 1

All files are given in one call, as samples; the parts are timed in a call of their own, in which
the device is waited for before and after each of them. What is not in a part is `rest`. With
--kernels, the kernels that take most of the time are printed as well (torch.profiler).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from whisper import machine, read_list, write
from whisper_systems import RATE, read

import transduce
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.cuda.pool import AudioTask
from transduce.models.encoders import TransformerEncoder
from transduce.models.speech import SpeechFrontend
from transduce.nn.speech.whisper import WhisperMel
from transduce.tasks.audio_input import AudioInput
from transduce.whisper.model import WhisperModel

PARTS: list[tuple[str, type, str]] = [  # a part's time is without that of the parts within it
    ("samples", AudioInput, "split"),
    ("features", WhisperMel, "forward"),
    ("convolutions", SpeechFrontend, "forward"),
    ("encoder", TransformerEncoder, "forward"),
    ("language", WhisperModel, "listen"),
    ("fill slots", Slots, "fill_encoded"),
    ("steps", Slots, "go"),
    ("hypotheses", Slots, "take"),
    ("search", AudioTask, "run"),
    ("windows", WhisperModel, "decode_windows"),
    ("outputs", WhisperModel, "_joined"),
]


class Parts:
    """Seconds and calls of each part; of parts within each other, each has its own time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._within = [0.0]

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **more: Any) -> Any:
            start = self._now()
            self._within.append(0.0)
            try:
                return work(*given, **more)
            finally:
                taken = self._now() - start
                self.seconds[name] += taken - self._within.pop()
                self._within[-1] += taken
                self.calls[name] += 1

        return run

    @contextmanager
    def watched(self) -> Iterator[None]:
        with ExitStack() as held:
            for name, owner, method in PARTS:
                work = self.timed(name, getattr(owner, method))
                held.enter_context(patch.object(owner, method, work))
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--language", default="en")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model = transduce.load(asked.ours, device=asked.device).compute_in(asked.precision).freeze()
    files = read_list(asked.audio, asked.limit)
    waves = [read(str(file)) for file, _ in files]
    more = {"rate": RATE, "beam": asked.beam, "language": asked.language, "timestamps": False}
    more["fallback"] = False

    def run() -> None:
        model.run(waves, **more)

    parts = Parts(asked.device)
    for _ in range(2 if asked.device == "cuda" else 0):
        run()
    whole = Parts(asked.device)
    for _ in range(asked.rounds):
        whole.timed("whole", run)()
    with parts.watched():
        for _ in range(asked.rounds):
            parts.timed("rest", run)()
    found: dict[str, Any] = {
        "machine": machine(asked.device),
        "precision": asked.precision,
        "beam": asked.beam,
        "files": len(files),
        "audio_seconds": round(sum(map(len, waves)) / RATE, 1),
        "milliseconds": round(1000 * whole.seconds["whole"] / asked.rounds, 2),
        "parts": {
            name: {
                "milliseconds": round(1000 * seconds / asked.rounds, 2),
                "calls": parts.calls[name] // asked.rounds,
            }
            for name, seconds in parts.seconds.most_common()
        },
    }
    print(json.dumps(found, indent=2))
    write(asked.json, found)
    if asked.kernels:
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds[: 2 if asked.device == "cuda" else 1]) as seen:
            run()
        sort = "self_cuda_time_total" if asked.device == "cuda" else "self_cpu_time_total"
        print(seen.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=60))


if __name__ == "__main__":
    main()
