"""Whisper by transduce and by others, on the same files: word error rate, and speed.

    python benchmarks/whisper.py wer   --ours DIR --theirs DIR --audio LIST.tsv --json OUT.json
    python benchmarks/whisper.py speed --ours DIR --theirs DIR --audio LIST.tsv --threads 2
    python benchmarks/whisper.py speed --device cuda --batch 64 --ours DIR --theirs DIR ...

DIR of ours is what `transduce import` made of theirs: on a CPU a folder of CTranslate2, for
faster-whisper; on a GPU one of Hugging Face (`transduce export --to huggingface`), for
transformers. LIST.tsv has an audio file and its text in each line. Each system is a process of its
own and has the same number of threads; they take turns, and one waits while the other works. Both
have the same beam; no temperature fallback, no voice activity detection.

One file at a time, both detect the language and predict timestamps. With --batch there are no
timestamps, --language is needed, and longer files are cut every 30 s. On a CPU so many files are
given together: to transduce as a list, to faster-whisper's BatchedInferencePipeline as clips.

On a GPU, `speed` gives all files in one call, as samples: reading them would take most of the time.
transformers sorts them by length and takes --batch of them at a time, its features computed on the
GPU; transduce has its own batches. --cache static is transformers' cache of a fixed size, with
which it compiles its decoder. Every system hears all files twice before the time is taken, so that
nothing is compiled or recorded then.

`wer` writes its file after every batch, and goes on where the file ends: stop it whenever you
like. --share 2/5 takes every fifth file from the second on; --rows adds what was heard elsewhere.
Texts are compared after the normalization of Whisper's authors (numbers as digits, no
punctuation), of transformers; the difference of the two rates is resampled over files (paired
bootstrap).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from whisper_systems import OURS, System

Files = list[tuple[Path, str]]
RESAMPLES = 5000
KEPT = ("mode", "precision", "beam", "batch", "language", "device")  # the same in a resumed file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("wer", "speed"))
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--theirs", type=Path, required=True)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1, help="files given together")
    parser.add_argument("--cache", choices=("static",), help="of transformers; default: it grows")
    parser.add_argument("--limit", type=int, help="so many files, drawn at random")
    parser.add_argument("--language", help="default: detected")
    parser.add_argument("--precision", default="float32", help="of wer")
    parser.add_argument("--share", default="1/1", help="of wer: which part of the files")
    parser.add_argument("--minutes", type=float, help="of wer: stop after so many")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="of wer: other results")
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    parser.add_argument("--precisions", help="of speed; float32,int8 or bfloat16,float16")
    asked = parser.parse_args()
    files = read_list(asked.audio, asked.limit)
    check_batch(asked)
    about = {
        "mode": asked.mode,
        "machine": machine(asked.device),
        "device": asked.device,
        "threads": asked.threads,
        "beam": asked.beam,
        "batch": asked.batch,
        "cache": asked.cache,
        "language": asked.language or "detected",
        "files": len(files),
    }
    if asked.mode == "wer":
        wer(asked, files, about | {"precision": asked.precision})
    else:
        write(asked.json, about | speed(asked, files))


def read_list(path: Path, limit: int | None) -> Files:
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line.strip()]
    found = [((path.parent / name).resolve(), text) for name, text in lines]
    if len({file.name for file, _ in found}) < len(found):
        raise SystemExit(f"{path} has two files of the same name, by which results are kept.")
    if limit is not None and limit < len(found):
        found = sorted(random.Random(1).sample(found, limit))
    return found


def check_batch(asked: argparse.Namespace) -> None:
    if asked.device == "cuda" and asked.batch == 1:
        raise SystemExit("On a GPU files are compared in batches: give --batch, such as 64.")
    if asked.batch > 1 and asked.language is None:
        raise SystemExit("--batch needs --language, as transformers detects none of a batch.")


def machine(device: str) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores"


def names_of(device: str) -> tuple[str, str]:
    return OURS, "transformers" if device == "cuda" else "faster-whisper"


def write(path: Path | None, values: dict[str, Any]) -> None:
    if path is None:
        return
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
    aside.replace(path)


# ----------------------------------------------------------------------------- word error rate


def wer(asked: argparse.Namespace, files: Files, about: dict[str, Any]) -> None:
    names = names_of(asked.device)
    rows: dict[str, dict[str, Any]] = {}
    for path in (*asked.rows, *([asked.json] if asked.json is not None else [])):
        if path.exists():
            rows |= rows_of(path, about)
    part, parts = map(int, asked.share.split("/"))
    own = [one for one in files[part - 1 :: parts] if one[0].name not in rows]
    print(f"{len(rows)} files are done, {len(own)} are to do", file=sys.stderr, flush=True)
    systems = [System(name, asked.precision, asked) for name in names] if own else []
    until = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    for start in range(0, len(own), asked.batch):
        if time.monotonic() > until:
            break
        some = own[start : start + asked.batch]
        found = {one.name: one.transcribe([file for file, _ in some]) for one in systems}
        for place, (file, text) in enumerate(some):
            row: dict[str, Any] = {"file": file.name, "reference": text}
            for name in names:
                seconds = found[name]["cpu_seconds"] / len(some)
                row[name] = found[name]["found"][place] | {"cpu_seconds": round(seconds, 3)}
            rows[file.name] = row
        done = [rows[file.name] for file, _ in files if file.name in rows]
        write(asked.json, about | {"rows": done})
        print(f"{start + len(some)}/{len(own)}", file=sys.stderr, flush=True)
    done = [rows[file.name] for file, _ in files if file.name in rows]
    values = about | summary(done, names)
    write(asked.json, values)
    for name in names:
        one = values[name]
        print(
            f"{name:15} WER {one['wer']:6.2f}, {one['low']:.2f} to {one['high']:.2f}  "
            f"({one['errors']} errors in {one['words']} words; "
            f"CER without spaces {one['cer_without_spaces']:.2f})"
        )
    print("{} minus {}: {value:+.2f}, {low:+.2f} to {high:+.2f}, p = {p:.3f}".format(
        names[1], names[0], **values["difference"]
    ))  # fmt: skip
    print(f"equal outputs: {values['equal_outputs']} of {len(done)} files, of {len(files)} in all")
    for system in systems:
        system.close()


def rows_of(path: Path, about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    values = json.loads(path.read_text("utf-8"))
    for name in KEPT:
        if values.get(name) != about[name]:
            raise SystemExit(
                f"{path} was made with {name} {values.get(name)}, not {about[name]}; give another "
                f"file, or the same settings."
            )
    return {row["file"]: row for row in values["rows"]}


def summary(rows: list[dict[str, Any]], names: tuple[str, str]) -> dict[str, Any]:
    """The error rates of both systems, their difference, and the rows."""
    import jiwer
    import numpy as np
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    from transduce.evaluation.bootstrap import interval, paired_difference

    def rate(sums: Any) -> float:
        return float(100 * sums[0] / sums[1])

    normalize = EnglishTextNormalizer({})
    values: dict[str, Any] = {"done": len(rows)}
    references = [normalize(row["reference"]) for row in rows]
    scored = [place for place, text in enumerate(references) if text]
    edits = {}
    for name in names:
        texts = [normalize(row[name]["text"]) for row in rows]
        counts = []
        for place in scored:
            found = jiwer.process_words(references[place], texts[place])
            wrong = found.substitutions + found.deletions
            counts.append((wrong + found.insertions, wrong + found.hits))
        # Numbers may be cut into words in several ways: "1127" and "11 27".
        joined = [text.replace(" ", "") for text in texts]
        wanted = [text.replace(" ", "") for text in references]
        letters = jiwer.cer([wanted[n] for n in scored], [joined[n] for n in scored])
        edits[name] = np.array(counts, dtype=np.float64)
        errors, words = edits[name].sum(axis=0)
        low, high = interval(edits[name], rate, RESAMPLES, 1)
        values[name] = {
            "cer_without_spaces": round(100 * letters, 2),
            "wer": round(rate((errors, words)), 2),
            "low": round(low or 0.0, 2),
            "high": round(high or 0.0, 2),
            "errors": int(errors),
            "words": int(words),
        }
    difference = paired_difference(*((edits[name], rate) for name in names), RESAMPLES)
    values["difference"] = {
        key: None if value is None else round(value, 4)
        for key, value in difference.to_json().items()
    }
    values["equal_outputs"] = sum(row[names[0]]["text"] == row[names[1]]["text"] for row in rows)
    return values | {"rows": rows}


# --------------------------------------------------------------------------------------- speed


def speed(asked: argparse.Namespace, files: Files) -> dict[str, Any]:
    """Seconds and CPU seconds for each second of audio, in turns."""
    import soundfile

    names = names_of(asked.device)
    paths = [file for file, _ in files]
    together = asked.batch if asked.device == "cpu" else len(paths)
    batches = [paths[start : start + together] for start in range(0, len(paths), together)]
    length = sum(soundfile.info(str(file)).duration for file in paths)
    values: dict[str, Any] = {"audio_seconds": round(length, 1)}
    usual = "float32,int8" if asked.device == "cpu" else "bfloat16,float16"
    for precision in (asked.precisions or usual).split(","):
        # Ours has no float16: it is compared in bfloat16 with both.
        own = "bfloat16" if precision == "float16" else precision
        kinds = dict(zip(names, (own, precision), strict=True))
        systems = [System(name, kind, asked) for name, kind in kinds.items()]
        heard: dict[str, list[str]] = {name: [] for name in names}
        for system in systems:  # first calls are slower
            for batch in batches[:1] * (1 if asked.device == "cpu" else 2):
                system.transcribe(batch)
        taken = {name: {"seconds": [], "cpu_seconds": []} for name in names}
        worked: dict[str, Counter[str]] = {name: Counter() for name in names}
        for turn in range(asked.rounds):
            order = systems if turn % 2 == 0 else systems[::-1]
            total = {name: {"seconds": 0.0, "cpu_seconds": 0.0} for name in names}
            heard = {name: [] for name in names}
            for batch in batches:
                for system in order:
                    found = system.transcribe(batch)
                    heard[system.name] += [one["text"] for one in found["found"]]
                    worked[system.name].update(found["thread_seconds"])
                    for kind in total[system.name]:
                        total[system.name][kind] += found[kind]
            for name in names:
                for kind, seconds in total[name].items():
                    taken[name][kind].append(round(seconds / length, 5))
        same = sum(a == b for a, b in zip(heard[names[0]], heard[names[1]], strict=True))
        threads = {name: thread_shares(worked[name]) for name in names}
        values[precision] = {**taken, "equal_outputs": same, "thread_shares": threads}
        report(precision, taken, names, same, len(paths))
        if asked.device == "cpu":
            check_threads(asked.threads, threads, taken)
        for system in systems:
            system.close()
    return values


def thread_shares(worked: Counter[str]) -> list[float]:
    """The share of the CPU time of each thread that had at least a hundredth of it."""
    whole = sum(worked.values()) or 1.0
    return [round(one / whole, 3) for _, one in worked.most_common() if one >= whole / 100]


def check_threads(
    wanted: int, threads: dict[str, list[float]], taken: dict[str, dict[str, list[float]]]
) -> None:
    """Print how the work was shared, and whether the times by the clock can be used."""
    for name, shares in threads.items():
        print(f"{name}: shares of its threads {', '.join(f'{one:.2f}' for one in shares)}")
        if wanted > 1 and (len(shares) < wanted or shares[wanted - 1] < 0.3 / wanted):
            print(f"{name} did not use {wanted} threads: its times are not those of {wanted}")
    for name, one in taken.items():
        pairs = zip(one["cpu_seconds"], one["seconds"], strict=True)
        if statistics.median(cpu / wall for cpu, wall in pairs) < 0.6 * wanted:
            print(
                f"{name} waited for the processor: other work disturbs it, so that only its CPU "
                f"time is of use"
            )


def report(
    precision: str,
    taken: dict[str, dict[str, list[float]]],
    names: tuple[str, str],
    same: int,
    files: int,
) -> None:
    for name in names:
        wall, cpu = taken[name]["seconds"], taken[name]["cpu_seconds"]
        print(
            f"{name:15} {precision:8} real-time factor {statistics.median(wall):.5f} "
            f"({min(wall):.5f} to {max(wall):.5f}), CPU {statistics.median(cpu):.5f}"
        )
    for kind, what in (("seconds", "time"), ("cpu_seconds", "CPU time")):
        ratios = [b / a for a, b in zip(*(taken[name][kind] for name in names), strict=True)]
        print(f"{names[1]} takes {statistics.median(ratios):.2f} times as much {what}")
    print(f"equal outputs: {same} of {files} files")


if __name__ == "__main__":
    main()
