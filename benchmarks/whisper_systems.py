"""The systems of benchmarks/whisper.py, each in a process of its own.

A process reads lines of JSON, a list of audio files each, and answers with a line of JSON: what it
heard in each file, and the seconds and CPU seconds that took, reading of the files included, and
those of each thread: how many threads work is seen there. CPU time by the clock's time says nothing
of it on a machine that has other work to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

OURS = "transduce"
RATE = 16_000
LONGEST = 30.0  # seconds of a window

DetectedLanguage = list[tuple[str, str]]  # text and language of each file
Transcribe = Callable[[Sequence[str]], DetectedLanguage]


@cache
def read(file: str) -> Any:
    """The samples of a file."""
    from transduce.data.audio.read import read_audio

    return read_audio(file, RATE).samples


class System:
    """A system in a process of its own."""

    def __init__(self, name: str, precision: str, asked: argparse.Namespace) -> None:
        self.name = name
        reported = {
            one: getattr(asked, one) for one in ("threads", "beam", "batch", "device", "cache")
        }
        reported |= {"name": name, "precision": precision, "language": asked.language}
        reported["folder"] = str(asked.ours if name == OURS else asked.theirs)
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(reported)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(asked.threads)},
        )

    def transcribe(self, files: Sequence[Path]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(file) for file in files]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; what it printed is above.")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def pieces(waves: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Waves cut every 30 s, and the wave that each piece is of."""
    size = int(LONGEST * RATE)
    cut = [
        (wave[start : start + size], owner)
        for owner, wave in enumerate(waves)
        for start in range(0, len(wave), size)
    ]
    return [piece for piece, _ in cut], [owner for _, owner in cut]


def transduce_model(reported: dict[str, Any]) -> Transcribe:
    import torch

    import transduce

    torch.set_num_threads(reported["threads"])
    model = transduce.load(Path(reported["folder"]), device=reported["device"])
    model = model.compute_in(reported["precision"]).freeze()
    more: dict[str, Any] = {"language": reported["language"]} if reported["language"] else {}
    if reported["batch"] > 1:
        more["timestamps"] = False
    if reported["device"] == "cuda":
        more["rate"] = RATE

    def transcribe(files: Sequence[str]) -> DetectedLanguage:
        given: list[Any] = list(files)
        if reported["device"] == "cuda":
            given = [read(file) for file in files]
        outputs = model.run(given, beam=reported["beam"], fallback=False, **more)
        return [(output.text, output.language) for output in outputs]

    return transcribe


def faster_whisper(reported: dict[str, Any]) -> Transcribe:
    import numpy as np
    from faster_whisper import BatchedInferencePipeline, WhisperModel
    from faster_whisper.audio import decode_audio

    theirs = WhisperModel(
        reported["folder"],
        device=reported["device"],
        compute_type=reported["precision"],
        cpu_threads=reported["threads"],
    )
    more = {"beam_size": reported["beam"], "temperature": 0.0, "language": reported["language"]}
    batched = BatchedInferencePipeline(theirs)

    def one_by_one(files: Sequence[str]) -> DetectedLanguage:
        found = []
        for file in files:
            segments, info = theirs.transcribe(file, condition_on_previous_text=False, **more)
            found.append(("".join(one.text for one in segments).strip(), info.language))
        return found

    def together(files: Sequence[str]) -> DetectedLanguage:
        """The files one after the other as one recording, cut where they were joined."""
        waves, owners = pieces([decode_audio(file, sampling_rate=RATE) for file in files])
        ends = np.cumsum([len(wave) for wave in waves])
        clips = [
            {"start": (end - len(wave)) / RATE, "end": end / RATE}
            for wave, end in zip(waves, ends, strict=True)
        ]
        segments, info = batched.transcribe(
            np.concatenate(waves), clip_timestamps=clips, batch_size=reported["batch"], **more
        )
        texts = [""] * len(files)
        starts = [clip["start"] for clip in clips]
        for segment in segments:  # `seek` is where its clip begins, in 10 ms
            clip = int(np.argmin([abs(100 * start - segment.seek) for start in starts]))
            texts[owners[clip]] += segment.text
        return [(text.strip(), info.language) for text in texts]

    return together if reported["batch"] > 1 else one_by_one


def huggingface(reported: dict[str, Any]) -> Transcribe:
    """Whisper of transformers, in half precision with torch's fused attention."""
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers import WhisperTokenizerFast as Tokenizer

    kind = getattr(torch, reported["precision"])
    device = torch.device(reported["device"])
    theirs = WhisperForConditionalGeneration.from_pretrained(
        reported["folder"], dtype=kind, attn_implementation="sdpa"
    )
    theirs = theirs.to(device).eval()
    extract = WhisperFeatureExtractor.from_pretrained(reported["folder"])
    tokenizer = Tokenizer.from_pretrained(reported["folder"])

    more = {"cache_implementation": reported["cache"]} if reported["cache"] else {}

    def generate(waves: Sequence[Any]) -> list[str]:
        batch = extract(waves, sampling_rate=RATE, return_tensors="pt", device=str(device))
        with torch.inference_mode():
            ids = theirs.generate(
                batch.input_features.to(device, kind),
                num_beams=reported["beam"],
                do_sample=False,
                language=reported["language"] or "en",
                task="transcribe",
                **more,
            )
        decoded: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return decoded

    def transcribe(files: Sequence[str]) -> DetectedLanguage:
        waves, owners = pieces([read(file) for file in files])
        # Sorted, so that the outputs of a batch are about equally long.
        order = sorted(range(len(waves)), key=lambda place: -len(waves[place]))
        found = [""] * len(waves)
        for start in range(0, len(order), reported["batch"]):
            some = order[start : start + reported["batch"]]
            for place, text in zip(some, generate([waves[place] for place in some]), strict=True):
                found[place] = text
        texts = [""] * len(files)
        for owner, text in zip(owners, found, strict=True):
            texts[owner] += text
        return [(text.strip(), reported["language"] or "en") for text in texts]

    return transcribe


SYSTEMS: dict[str, Callable[[dict[str, Any]], Transcribe]] = {
    OURS: transduce_model,
    "faster-whisper": faster_whisper,
    "transformers": huggingface,
}


def thread_seconds() -> dict[str, float]:
    """CPU seconds of each thread of this process so far; empty where the system does not say."""
    found = {}
    for file in Path("/proc/self/task").glob("*/stat"):
        numbers = file.read_text("ascii").rpartition(")")[2].split()
        found[file.parent.name] = (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return found


def work(reported: dict[str, Any]) -> None:
    transcribe = SYSTEMS[reported["name"]](reported)
    for line in sys.stdin:
        files = json.loads(line)
        if reported["device"] == "cuda":
            for file in files:
                read(file)
        before = thread_seconds()
        start, cpu = time.perf_counter(), time.process_time()
        found = transcribe(files)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        after = thread_seconds()
        taken = {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "thread_seconds": {name: after[name] - before.get(name, 0.0) for name in after},
            "found": [{"text": text, "language": language} for text, language in found],
        }
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
