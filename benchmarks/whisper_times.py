"""Whisper's times beside pauses: prompts in a long recording, silence, noise and music between.

    transduce corpus get asterisk
    python benchmarks/whisper_times.py whisper-base ~/.cache/transduce/corpora/asterisk/train.tsv
    python benchmarks/whisper_times.py whisper-base train.tsv --vad --theirs faster-whisper-base

The table has an audio file and its text in each line. Prompts are drawn from it, and what is
between two of them lasts from 0.3 to 9 s: digital silence, hiss, hum or a chord that swells, as
loud as the speech. Where each prompt begins and ends is known, so where its first word begins and
its last word ends is known too. Counted are the edges that are within 0.2 s of the truth, among
words that were recognised; the seconds of what is no speech that segments and words cover; the
longest word. Then it hears silence, hiss and music alone: every word there is made up. --theirs:
the same with faster-whisper, from a folder of CTranslate2. Prints a table, and writes --json.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import transduce
from transduce.data.audio.read import read_audio

RATE = 16_000
GAPS = (0.3, 9.0)  # seconds
NEAR = 0.2  # seconds
QUIET = 40.0  # dB below its loudest 10 ms, at which a prompt begins and ends
LEVEL = 0.05  # root mean square of what is heard between prompts
KINDS = ("silence", "hiss", "hum", "music")
WORDS = re.compile(r"[a-z']+")

Samples = NDArray[np.float32]


class Word(NamedTuple):
    text: str
    start: float
    end: float


class Span(NamedTuple):
    start: float
    end: float


@dataclass
class Recording:
    """Samples, and what is said in them."""

    samples: Samples
    texts: list[list[str]] = field(default_factory=list)
    """The words of each prompt."""
    spans: list[Span] = field(default_factory=list)
    """From when to when each is spoken."""


class Heard(NamedTuple):
    words: list[Word]
    segments: list[Span]
    seconds: float
    """That it took."""


Listener = Callable[[Samples], Heard]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours", type=Path, help="a Whisper model of transduce")
    parser.add_argument("audio", type=Path, help="a table: audio file, text")
    parser.add_argument("--theirs", type=Path, help="the model for faster-whisper")
    parser.add_argument("--vad", action="store_true")
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument(
        "--alone", type=float, default=300.0, help="seconds of silence, hiss, music"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    listeners = {"transduce": ours(asked.ours, asked.beam, vad=False)}
    if asked.vad:
        listeners["transduce, vad"] = ours(asked.ours, asked.beam, vad=True)
    if asked.theirs is not None:
        listeners["faster-whisper"] = theirs(asked.theirs, asked.beam, vad=False)
        if asked.vad:
            listeners["faster-whisper, vad"] = theirs(asked.theirs, asked.beam, vad=True)
    talk = assemble(asked.audio, asked.seconds, asked.seed)
    draw = np.random.default_rng(asked.seed)
    alone = {kind: sound(kind, asked.alone, draw) for kind in ("silence", "hiss", "music")}
    rows = []
    for name, listener in listeners.items():
        row = {"system": name, **judge(talk, listener(talk.samples))}
        for kind, samples in alone.items():
            row[f"made_up_in_{kind}"] = [word.text for word in listener(samples).words]
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    spoken = sum(span.end - span.start for span in talk.spans)
    about = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seconds": round(len(talk.samples) / RATE, 1),
        "prompts": len(talk.spans),
        "speech_seconds": round(spoken, 1),
        "alone_seconds": asked.alone,
        "seed": asked.seed,
        "beam": asked.beam,
        "near": NEAR,
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n", "utf-8")


# ------------------------------------------------------------------------------ what is heard


def prompts_of(table: Path) -> list[tuple[Path, str]]:
    """The recordings of a table that are there, and have words."""
    lines = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
    known = [(table.parent / row[0], row[1]) for row in lines if len(row) > 1]
    usable = [(path, text) for path, text in known if WORDS.search(text.lower()) and path.is_file()]
    if not usable:
        raise SystemExit(f"{table} names no audio file beside it: give audio TAB text in each line")
    return usable


def assemble(table: Path, seconds: float, seed: int) -> Recording:
    """Prompts that are drawn from a table, with something between them."""
    draw = np.random.default_rng(seed)
    usable = [(path, WORDS.findall(text.lower())) for path, text in prompts_of(table)]
    found = Recording(np.empty(0, np.float32))
    pieces: list[Samples] = []
    length, number = 0, 0
    while length < seconds * RATE:
        gap = sound(KINDS[number % len(KINDS)], float(draw.uniform(*GAPS)), draw)
        path, words = usable[int(draw.integers(len(usable)))]
        prompt = read_audio(str(path), RATE).samples.astype(np.float32)
        span = loud_part(prompt)
        start = (length + len(gap)) / RATE
        found.texts.append(words)
        found.spans.append(Span(start + span.start, start + span.end))
        pieces += [gap, prompt]
        length += len(gap) + len(prompt)
        number += 1
    found.samples = np.concatenate([*pieces, sound("silence", 3.0, draw)])
    return found


def loud_part(samples: Samples) -> Span:
    """From when to when a clean prompt is spoken."""
    size = RATE // 100
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    loudness = 10 * np.log10(np.maximum(frames.var(axis=1), 1e-10))
    there = np.flatnonzero(loudness > loudness.max() - QUIET)
    return Span(float(there[0]) / 100, float(there[-1] + 1) / 100)


def sound(kind: str, seconds: float, draw: np.random.Generator) -> Samples:
    """Something that is no speech."""
    t = np.arange(round(seconds * RATE)) / RATE
    if kind == "silence":
        return np.zeros(len(t), np.float32)
    if kind == "hiss":
        wave = draw.standard_normal(len(t))
    elif kind == "hum":
        wave = sum(np.sin(2 * np.pi * 50 * n * t) / n for n in (1, 2, 3, 5))
        wave = wave + 0.05 * draw.standard_normal(len(t))
    else:  # a chord of plucked strings, another every half second
        wave = np.zeros(len(t))
        for begin in np.arange(0, seconds, 0.5):
            after = np.maximum(t - begin, 0.0)
            for note in draw.choice([0, 3, 7, 10, 12, 15], 3, replace=False):
                pitch = 220 * 2 ** (note / 12)
                tone = sum(np.sin(2 * np.pi * pitch * n * after) / n for n in (1, 2, 3))
                wave += (after > 0) * np.exp(-3 * after) * tone
    return (LEVEL / max(float(np.sqrt(np.mean(wave**2))), 1e-9) * wave).astype(np.float32)


# ----------------------------------------------------------------------------------- systems


def ours(folder: Path, beam: int, vad: bool) -> Listener:
    model: Any = transduce.load(folder).freeze()

    def hear(samples: Samples) -> Heard:
        began = time.process_time()
        more = {"vad": True} if vad else {}
        (output,) = model.run([samples], rate=RATE, language="en", times=True, beam=beam, **more)
        return Heard(
            [Word(one.text, one.start, one.end) for one in output.words],
            [Span(one.start, one.end) for one in output.segments if one.text],
            time.process_time() - began,
        )

    return hear


def theirs(folder: Path, beam: int, vad: bool) -> Listener:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(folder), device="cpu", compute_type="float32")

    def hear(samples: Samples) -> Heard:
        began = time.process_time()
        segments, _ = model.transcribe(
            samples,
            language="en",
            beam_size=beam,
            word_timestamps=True,
            vad_filter=vad,
            condition_on_previous_text=False,
        )
        found = list(segments)
        return Heard(
            [Word(w.word.strip(), w.start, w.end) for one in found for w in one.words],
            [Span(one.start, one.end) for one in found],
            time.process_time() - began,
        )

    return hear


# -------------------------------------------------------------------------------- what counts


def judge(talk: Recording, heard: Heard) -> dict[str, Any]:
    """How far the edges of prompts are from the truth, and what is covered that is no speech."""
    wanted = [(word, number) for number, words in enumerate(talk.texts) for word in words]
    found = [(word, one) for one in heard.words for word in WORDS.findall(one.text.lower())]
    matcher = difflib.SequenceMatcher(
        None, [word for word, _ in wanted], [word for word, _ in found], autojunk=False
    )
    match = {a + n: b + n for a, b, size in matcher.get_matching_blocks() for n in range(size)}
    starts, ends = [], []
    place = 0
    for words, span in zip(talk.texts, talk.spans, strict=True):
        first, last = match.get(place), match.get(place + len(words) - 1)
        if first is not None:
            starts.append(found[first][1].start - span.start)
        if last is not None:
            ends.append(found[last][1].end - span.end)
        place += len(words)
    edges = np.abs([*starts, *ends])
    length = len(talk.samples) / RATE
    return {
        "words": len(heard.words),
        "recognised": round(len(match) / max(1, len(wanted)), 3),
        "edges": len(edges),
        "near": round(float(np.mean(edges <= NEAR)), 3) if len(edges) else None,
        "starts_near": round(float(np.mean(np.abs(starts) <= NEAR)), 3) if starts else None,
        "ends_near": round(float(np.mean(np.abs(ends) <= NEAR)), 3) if ends else None,
        "largest": round(float(edges.max()), 2) if len(edges) else None,
        "longest_word": round(max((one.end - one.start for one in heard.words), default=0.0), 2),
        "segments_beside_speech": round(beside(heard.segments, talk.spans), 1),
        "words_beside_speech": round(beside([Span(*w[1:]) for w in heard.words], talk.spans), 1),
        "no_speech": round(length - sum(span.end - span.start for span in talk.spans), 1),
        "cpu_seconds": round(heard.seconds, 1),
    }


def beside(spans: Sequence[Span], speech: Sequence[Span]) -> float:
    """Seconds of spans where nothing is said."""
    total = sum(one.end - one.start for one in spans)
    both = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in spans for b in speech)
    return total - both


if __name__ == "__main__":
    main()
