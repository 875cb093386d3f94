"""Whisper by transduce and by faster-whisper, on the same files: word error rate, and speed.

    python benchmarks/whisper.py wer   --ours DIR --theirs DIR --audio LIST.tsv --json OUT.json
    python benchmarks/whisper.py speed --ours DIR --theirs DIR --audio LIST.tsv --threads 2

DIR of ours is what `transduce import` made of theirs, a folder of CTranslate2. LIST.tsv has an
audio file and its text in each line. Each system is a process of its own and has the same number of
threads; they take turns, file by file, and one waits while the other works. Both detect the
language, predict timestamps and have the same beam; no temperature fallback. Texts are compared
after the normalization of Whisper's authors (numbers as digits, no punctuation), of transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SYSTEMS = ("transduce", "faster-whisper")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("wer", "speed", "worker"))
    parser.add_argument("--ours", type=Path)
    parser.add_argument("--theirs", type=Path)
    parser.add_argument("--audio", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--limit", type=int, help="so many files, drawn at random")
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    parser.add_argument("--precisions", default="float32,int8", help="of speed")
    parser.add_argument("--language", help="default: detected")
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    if asked.mode == "worker":
        work(asked)
        return
    files = read_list(asked.audio, asked.limit)
    values = wer(asked, files) if asked.mode == "wer" else speed(asked, files)
    values |= {
        "mode": asked.mode,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": asked.threads,
        "beam": asked.beam,
        "files": len(files),
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_list(path: Path, limit: int | None) -> list[tuple[Path, str]]:
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line.strip()]
    found = [((path.parent / name).resolve(), text) for name, text in lines]
    if limit is not None and limit < len(found):
        found = sorted(random.Random(1).sample(found, limit))
    return found


# ------------------------------------------------------------------------------- both modes


class System:
    """A system in a process of its own."""

    def __init__(self, name: str, precision: str, asked: argparse.Namespace) -> None:
        self.name = name
        folder = asked.ours if name == "transduce" else asked.theirs
        where = ["--ours", str(folder), "--theirs", str(folder)]
        more = ["--language", asked.language] if asked.language else []
        self.process = subprocess.Popen(
            [
                *(sys.executable, __file__, "worker", "--system", name, "--precision", precision),
                *("--threads", str(asked.threads), "--beam", str(asked.beam), *where, *more),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(asked.threads)},
        )

    def transcribe(self, file: Path) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{file}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def wer(asked: argparse.Namespace, files: list[tuple[Path, str]]) -> dict[str, Any]:
    import jiwer
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    normalize = EnglishTextNormalizer({})
    systems = [System(name, asked.precision, asked) for name in SYSTEMS]
    rows = []
    for number, (file, text) in enumerate(files, start=1):
        row: dict[str, Any] = {"file": file.name, "reference": text}
        for system in systems:
            row[system.name] = system.transcribe(file)
        rows.append(row)
        print(f"{number}/{len(files)} {file.name}", file=sys.stderr, flush=True)
    values: dict[str, Any] = {"precision": asked.precision, "rows": rows}
    references = [normalize(row["reference"]) for row in rows]
    scored = [place for place, text in enumerate(references) if text]
    for name in SYSTEMS:
        texts = [normalize(row[name]["text"]) for row in rows]
        found = jiwer.process_words([references[n] for n in scored], [texts[n] for n in scored])
        # Numbers may be cut into words in several ways: "1127" and "11 27".
        joined = [text.replace(" ", "") for text in texts]
        wanted = [text.replace(" ", "") for text in references]
        letters = jiwer.cer([wanted[n] for n in scored], [joined[n] for n in scored])
        values[name] = {
            "cer_without_spaces": round(100 * letters, 2),
            "wer": round(100 * found.wer, 2),
            "errors": found.substitutions + found.deletions + found.insertions,
            "words": found.substitutions + found.deletions + found.hits,
        }
        print(
            f"{name:15} WER {values[name]['wer']:6.2f}  ({values[name]['errors']} errors in "
            f"{values[name]['words']} words; CER without spaces "
            f"{values[name]['cer_without_spaces']:.2f})"
        )
    same = sum(row[SYSTEMS[0]]["text"] == row[SYSTEMS[1]]["text"] for row in rows)
    values["equal_outputs"] = same
    print(f"equal outputs: {same} of {len(rows)} files")
    for system in systems:
        system.close()
    return values


def speed(asked: argparse.Namespace, files: list[tuple[Path, str]]) -> dict[str, Any]:
    import soundfile

    seconds = sum(soundfile.info(str(file)).duration for file, _ in files)
    values: dict[str, Any] = {"audio_seconds": round(seconds, 1)}
    for precision in asked.precisions.split(","):
        systems = [System(name, precision, asked) for name in SYSTEMS]
        for system in systems:  # first calls are slower
            system.transcribe(files[0][0])
        taken: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        for turn in range(asked.rounds):
            order = systems if turn % 2 == 0 else systems[::-1]
            total = dict.fromkeys(SYSTEMS, 0.0)
            for file, _ in files:
                for system in order:
                    total[system.name] += system.transcribe(file)["seconds"]
            for name in SYSTEMS:
                taken[name].append(total[name] / seconds)
        for name in SYSTEMS:
            factors = [round(one, 4) for one in taken[name]]
            values[f"{name} {precision}"] = {"real_time_factors": factors}
            print(
                f"{name:15} {precision:8} real-time factor {statistics.median(factors):.4f} "
                f"({min(factors):.4f} to {max(factors):.4f})"
            )
        for system in systems:
            system.close()
    return values


# ---------------------------------------------------------------------------------- a worker


def work(asked: argparse.Namespace) -> None:
    """Transcribe the files of standard input, a line each."""
    if asked.system == "transduce":
        import torch

        import transduce

        torch.set_num_threads(asked.threads)
        model = transduce.load(asked.ours, precision=asked.precision).freeze()

        def transcribe(file: str) -> tuple[str, str]:
            more = {"language": asked.language} if asked.language else {}
            (output,) = model.run([file], beam=asked.beam, **more)
            return output.text, output.language

    else:
        from faster_whisper import WhisperModel

        theirs = WhisperModel(
            str(asked.theirs),
            device="cpu",
            compute_type=asked.precision,
            cpu_threads=asked.threads,
        )

        def transcribe(file: str) -> tuple[str, str]:
            segments, info = theirs.transcribe(
                file,
                beam_size=asked.beam,
                temperature=0.0,
                language=asked.language,
                condition_on_previous_text=False,
            )
            return "".join(one.text for one in segments).strip(), info.language

    for line in sys.stdin:
        start = time.perf_counter()
        text, language = transcribe(line.strip())
        seconds = time.perf_counter() - start
        print(json.dumps({"text": text, "language": language, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
