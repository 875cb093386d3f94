"""How well long recordings are aligned: readings by voices that no model has heard, where the truth
is known.

    transduce corpus udhr --languages eng && transduce train udhr-small
    python benchmarks/alignment.py runs/udhr-small

The Declaration is read by espeak's held-out voices, phrase by phrase, with pauses, in a room with
noise. Some phrases are left out, and something else is said now and then. Found boundaries are
compared with the true ones. Prints a table, and writes JSON with --output.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transduce.alignment.align import Aligned, align_recording
from transduce.alignment.lines import spell
from transduce.corpora.versions import read_version
from transduce.data.audio import resampled
from transduce.data.recording import Samples, load_sound_package
from transduce.synthesis.declaration import cut
from transduce.synthesis.espeak import espeak
from transduce.synthesis.readings import RATE
from transduce.synthesis.surroundings import echoed, with_noise
from transduce.synthesis.voices import HELD_OUT, generator_of, voices
from transduce.tasks.hearing import Hearing
from transduce.transducer import load

LEFT_OUT = 0.08
UNWRITTEN = 0.06
PAUSES = (0.2, 1.2)
ELSE = (
    "Thank you for listening so far, we shall go on in a moment.",
    "Please turn the page, and look at the second picture from above.",
    "This recording is in the public domain.",
)
NEAR = 0.1  # seconds


@dataclass(frozen=True)
class Truth:
    """Where each line was read; None where it was left out. Starts of words beside it."""

    spans: list[tuple[float, float] | None]
    words: list[dict[int, float]]


def assemble(
    texts: list[str], language: str, variant: str, seed: str, noise: float
) -> tuple[Samples, Truth]:
    """A long reading and the truth of it."""
    generator = generator_of(seed, variant)
    voice = next(voice for voice in voices(1) if voice.variant == variant)
    name = espeak().voice_of(language)
    assert name is not None
    pieces: list[Samples] = []
    place = 0

    def add(samples: Samples) -> float:
        nonlocal place
        start = place / RATE
        pieces.append(samples.astype(np.float32))
        place += len(samples)
        return start

    spans: list[tuple[float, float] | None] = []
    words: list[dict[int, float]] = []
    for text in texts:
        add(np.zeros(round(generator.uniform(*PAUSES) * RATE)))
        if generator.uniform() < UNWRITTEN:
            told = ELSE[int(generator.integers(len(ELSE)))]
            reading = espeak().read(told, name, variant, voice.speed, voice.pitch)
            add(resampled(reading.samples, reading.rate, RATE))
        if generator.uniform() < LEFT_OUT:
            spans.append(None)
            words.append({})
            continue
        speed = voice.speed * generator.uniform(0.9, 1.1)
        reading = espeak().read(text, name, variant, speed, voice.pitch)
        start = add(resampled(reading.samples, reading.rate, RATE))
        spans.append((start + reading.phones[0].start, start + reading.phones[-1].end))
        begins: dict[int, float] = {}
        for phone in reading.phones:
            begins.setdefault(phone.word, start + phone.start)
        words.append(begins)
    sound = echoed(np.concatenate(pieces), RATE, 0.25, 0.3, generator)
    sound = with_noise(sound, noise, 0.5, generator)
    return (0.7 / np.abs(sound).max() * sound).astype(np.float32), Truth(spans, words)


def judge(aligned: Aligned, truth: Truth, unseen: list[bool]) -> dict[str, float]:
    """How far found boundaries are from true ones, in all lines that were read.

    unseen: whether a line is of an article that training had not.
    """
    starts, ends, word_errors = [], [], []
    missed = found_unread = unread = 0
    for one, span, words in zip(aligned.utterances, truth.spans, truth.words, strict=True):
        if span is None:
            unread += 1
            found_unread += not one.read
            continue
        if not one.read:
            missed += 1
            starts.append(np.inf)
            ends.append(np.inf)
            continue
        starts.append(abs(one.start - span[0]))
        ends.append(abs(one.end - span[1]))
        if len(one.words) == len(words):
            told = zip(one.words, sorted(words.values()), strict=True)
            word_errors += [abs(word.start - true) for word, true in told]
    both = np.array([*starts, *ends])
    new = [flag for flag, span in zip(unseen, truth.spans, strict=True) if span is not None]
    return {
        "minutes": aligned.seconds / 60,
        "lines": len(truth.spans),
        "starts": 100 * float((np.array(starts) <= NEAR).mean()),
        "ends": 100 * float((np.array(ends) <= NEAR).mean()),
        "boundaries": 100 * float((both <= NEAR).mean()),
        "boundaries_unseen": 100 * float((both[[*new, *new]] <= NEAR).mean()),
        "median_ms": 1000 * float(np.median(both)),
        "words": 100 * float((np.array(word_errors) <= NEAR).mean()),
        "left_out": unread,
        "left_out_found": found_unread,
        "read_missed": missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--language", default="eng", help="a code of corpus udhr")
    parser.add_argument("--voices", default=",".join(HELD_OUT))
    parser.add_argument("--noise", type=float, default=20.0, help="dB of speech above noise")
    parser.add_argument("--lines", type=int, default=None, help="only the first so many")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    model = load(asked.model)
    assert isinstance(model, Hearing)
    version = read_version(asked.language)
    parts = list(cut(version))[: asked.lines]
    texts = [part.text for part in parts]
    unseen = [part.split != "train" for part in parts]
    lines = spell(model, texts, version.tag)
    soundfile = load_sound_package("soundfile")
    results = {}
    for variant in asked.voices.split(","):
        sound, truth = assemble(texts, version.tag, variant, "alignment", asked.noise)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{variant}.flac"
            soundfile.write(path, sound, RATE)
            began = time.perf_counter()
            aligned = align_recording(model, path, lines)
        result = judge(aligned, truth, unseen) | {"seconds": time.perf_counter() - began}
        results[variant] = result
        print(
            f"{variant:8} {result['minutes']:5.1f} min  {result['lines']:.0f} lines  "
            f"boundaries within 100 ms {result['boundaries']:5.1f} % (starts "
            f"{result['starts']:5.1f}, ends {result['ends']:5.1f}, unseen articles "
            f"{result['boundaries_unseen']:5.1f}), median "
            f"{result['median_ms']:3.0f} ms; words {result['words']:5.1f} %; left out "
            f"{result['left_out_found']:.0f} of {result['left_out']:.0f} found, "
            f"{result['read_missed']:.0f} missed; {result['seconds']:.0f} s",
            flush=True,
        )
    if asked.output is not None:
        asked.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
