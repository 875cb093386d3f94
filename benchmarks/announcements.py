"""Align a long row of announcements with its text, of which a few differ from what is said.

    transduce corpus get asterisk
    python benchmarks/announcements.py whisper-base ~/.cache/transduce/corpora/asterisk/train.tsv

The table has an audio file and its text in each line. So many prompts are drawn from it and
joined with short pauses. One line of the text is not read (--unread), and one prompt has no line
(--untold). Counted are the lines that are read and were found, those that are falsely "not read",
whether the line that is not read is named as such, the speech without text, and how many starts
and ends of lines are within 0.2 s of the truth. Any speech model that `transduce align` takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from whisper_times import NEAR, RATE, Samples, Span, loud_part, prompts_of

from transduce.alignment.align import Aligned
from transduce.alignment.show import align_with
from transduce.data.audio.read import read_audio
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import load

PAUSES = (0.3, 0.9)  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("audio", type=Path, help="a table: audio file, text")
    parser.add_argument("--lines", type=int, default=90)
    parser.add_argument("--unread", type=int, default=40, help="the line that nobody reads")
    parser.add_argument("--untold", type=int, default=60, help="the prompt that has no line")
    parser.add_argument("--language", help="of the text, such as en")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    samples, texts, spans, untold = announce(asked)
    model = load(asked.model)
    assert isinstance(model, SpeechModel)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "announcements.wav"
        soundfile.write(path, samples, RATE)
        began = time.process_time()
        aligned = align_with(model.freeze(), path, texts, asked.language)
    row = judge(aligned, spans, untold)
    row |= {
        "seconds": round(len(samples) / RATE, 1),
        "cpu_seconds": round(time.process_time() - began, 1),
        "seed": asked.seed,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(row))
    if asked.json is not None:
        asked.json.write_text(json.dumps(row, indent=2) + "\n", "utf-8")


def announce(asked: argparse.Namespace) -> tuple[Samples, list[str], list[Span | None], Span]:
    """The recording, its lines, where each is read, and where something is said without text."""
    draw = np.random.default_rng(asked.seed)
    usable = prompts_of(asked.audio)
    pieces: list[Samples] = []
    texts: list[str] = []
    spans: list[Span | None] = []
    untold, length = Span(0.0, 0.0), 0
    for number in range(1, asked.lines + 2):
        path, text = usable[int(draw.integers(len(usable)))]
        if number != asked.untold:
            texts.append(text)
        if number == asked.unread:
            spans.append(None)
            continue
        pause = np.zeros(round(float(draw.uniform(*PAUSES)) * RATE), np.float32)
        prompt = read_audio(str(path), RATE).samples.astype(np.float32)
        part = loud_part(prompt)
        start = (length + len(pause)) / RATE
        span = Span(start + part.start, start + part.end)
        if number == asked.untold:
            untold = span
        else:
            spans.append(span)
        pieces += [pause, prompt]
        length += len(pause) + len(prompt)
    return np.concatenate(pieces), texts, spans, untold


def judge(aligned: Aligned, spans: list[Span | None], untold: Span) -> dict[str, Any]:
    errors: list[float] = []
    falsely_absent, uncertain, unread_named = [], [], False
    for one, span in zip(aligned.utterances, spans, strict=True):
        if span is None:
            unread_named = not one.read and one.number not in aligned.uncertain
        elif one.read:
            errors += [abs(one.start - span.start), abs(one.end - span.end)]
        elif one.number in aligned.uncertain:
            uncertain.append(one.number)
        else:
            falsely_absent.append(one.number)
    overlap = sum(
        max(0.0, min(end, untold.end) - max(start, untold.start)) for start, end in aligned.untold
    )
    return {
        "lines": len(spans),
        "found": len(errors) // 2,
        "falsely_absent": falsely_absent,
        "uncertain": uncertain,
        "unread_line_named": unread_named,
        "untold_speech_named": round(overlap / (untold.end - untold.start), 2),
        "without_text_seconds": round(sum(end - start for start, end in aligned.untold), 1),
        "near": round(float(np.mean(np.array(errors) <= NEAR)), 3) if errors else None,
        "fits": not aligned.warning,
    }


if __name__ == "__main__":
    main()
