"""How well long recordings are aligned: readings by voices that no model has heard, where the truth
is known.

    transduce corpus get udhr && transduce corpus udhr --languages eng,fra --voices 8
    transduce train udhr-small data.train.language=all data.valid.language=all \\
        data.test.language=all train.steps=2500 train.minutes=45 --output runs/align
    python benchmarks/alignment.py runs/align

Two versions of the Declaration, and a text of another kind (the licence of this project), are read
by voices of espeak that neither training nor the choice of any limit has heard, phrase by phrase,
with pauses, in a room with noise. Some phrases are left out, and something else is said now and
then. Found boundaries are compared with the true ones. Prints a table, and writes
benchmarks/results/alignment.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from systems import metadata

from transduce.alignment.align import Aligned, align_recording, spell
from transduce.corpora.udhr import read_version
from transduce.data.audio.read import resampled
from transduce.data.audio.recording import Samples, load_audio_package
from transduce.synthesis.acoustics import echoed, with_noise
from transduce.synthesis.declaration import cut, phrases
from transduce.synthesis.espeak import espeak
from transduce.synthesis.speech_corpus import RATE
from transduce.synthesis.voices import generator_of, voice
from transduce.tasks.folder import read_metrics
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import load

LEFT_OUT = 0.08
UNWRITTEN = 0.06
PAUSES = (0.2, 1.2)
NOISES = (10.0, 15.0, 20.0)  # dB of speech above noise, in turn
FRESH = ("m2", "steph3", "adam", "Gene", "boris", "klatt6")
ELSE = {
    "en": (
        "Thank you for listening so far, we shall go on in a moment.",
        "Please turn the page, and look at the second picture from above.",
        "This recording is in the public domain.",
    ),
    "fr": (
        "Merci de votre attention, nous continuons dans un instant.",
        "Tournez la page, et regardez la deuxième image en haut.",
        "Cet enregistrement est dans le domaine public.",
    ),
}
NEAR = 0.1  # seconds
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "alignment.json"


@dataclass(frozen=True)
class Text:
    """Lines to read, their language, and which of them training had not."""

    name: str
    tag: str
    lines: list[str]
    unseen: list[bool]


def texts() -> list[Text]:
    found = []
    for code in ("eng", "fra"):
        version = read_version(code)
        parts = list(cut(version))
        lines, unseen = [part.text for part in parts], [part.split != "train" for part in parts]
        found.append(Text(f"the Declaration, {version.title}", version.tag, lines, unseen))
    licence = (ROOT / "LICENSE").read_text("utf-8").partition("APPENDIX")[0]
    lines = [line for part in licence.split("\n\n") for line in phrases(part)]
    return [*found, Text("the Apache licence", "en", lines, [True] * len(lines))]


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
    reader = voice(variant, held_out=True)
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
            reported = ELSE[language][int(generator.integers(len(ELSE[language])))]
            reading = espeak().read(reported, name, variant, reader.speed, reader.pitch)
            add(resampled(reading.samples, reading.rate, RATE))
        if generator.uniform() < LEFT_OUT:
            spans.append(None)
            words.append({})
            continue
        speed = reader.speed * generator.uniform(0.9, 1.1)
        reading = espeak().read(text, name, variant, speed, reader.pitch)
        start = add(resampled(reading.samples, reading.rate, RATE))
        spans.append((start + reading.phones[0].start, start + reading.phones[-1].end))
        begins: dict[int, float] = {}
        for phone in reading.phones:
            begins.setdefault(phone.word, start + phone.start)
        words.append(begins)
    audio = echoed(np.concatenate(pieces), RATE, 0.25, 0.3, generator)
    audio = with_noise(audio, noise, 0.5, generator)
    return (0.7 / np.abs(audio).max() * audio).astype(np.float32), Truth(spans, words)


def evaluate(aligned: Aligned, truth: Truth, unseen: list[bool]) -> dict[str, Any]:
    """How far found boundaries are from true ones, in all lines that were read, and in all their
    words.

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
            word_errors += [np.inf] * len(words)
            continue
        starts.append(abs(one.start - span[0]))
        ends.append(abs(one.end - span[1]))
        if len(one.words) == len(words):
            reported = zip(one.words, sorted(words.values()), strict=True)
            word_errors += [abs(word.start - true) for word, true in reported]
        else:  # some have no interval, and nobody can say which: none of them counts as found
            word_errors += [np.inf] * len(words)
    both = np.array([*starts, *ends])
    new = [flag for flag, span in zip(unseen, truth.spans, strict=True) if span is not None]
    of_new = both[[*new, *new]]
    return {
        "minutes": round(aligned.seconds / 60, 2),
        "lines": len(truth.spans),
        "boundaries": len(both),
        "near": int((both <= NEAR).sum()),
        "near_starts": int((np.array(starts) <= NEAR).sum()),
        "near_ends": int((np.array(ends) <= NEAR).sum()),
        "boundaries_unseen": len(of_new),
        "near_unseen": int((of_new <= NEAR).sum()),
        "median_ms": round(1000 * float(np.median(both)), 1),
        "words": len(word_errors),
        "near_words": int((np.array(word_errors) <= NEAR).sum()),
        "left_out": unread,
        "left_out_found": found_unread,
        "read_missed": missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--voices", default=",".join(FRESH))
    parser.add_argument("--lines", type=int, default=None, help="only the first so many")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    model = load(asked.model)
    assert isinstance(model, SpeechModel)
    soundfile = load_audio_package("soundfile")
    rows: list[dict[str, Any]] = []
    for text in texts():
        lines = spell(model, text.lines[: asked.lines], text.tag)
        read = [line.text for line in lines]
        for number, variant in enumerate(asked.voices.split(",")):
            noise = NOISES[number % len(NOISES)]
            audio, truth = assemble(read, text.tag, variant, "alignment", noise)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{variant}.flac"
                soundfile.write(path, audio, RATE)
                began = time.perf_counter()
                aligned = align_recording(model, path, lines)
            row = evaluate(aligned, truth, text.unseen[: asked.lines])
            row |= {"text": text.name, "voice": variant, "noise": noise}
            rows.append(row | {"seconds": round(time.perf_counter() - began, 1)})
            print(_reported(rows[-1]), flush=True)
            found = {
                "facts": metadata(torch.device("cpu")),
                "training": read_metrics(asked.model)["training"],
                "rows": rows,
            }
            asked.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    near, all_of = (sum(row[name] for row in rows) for name in ("near", "boundaries"))
    out, reported = (sum(row[name] for row in rows) for name in ("left_out", "left_out_found"))
    print(
        f"within 100 ms: {100 * near / all_of:.2f} % of {all_of}; "
        f"left out: {reported} of {out} found"
    )


def _reported(row: dict[str, Any]) -> str:
    return (
        f"{row['text']:28} {row['voice']:8} {row['noise']:2.0f} dB {row['minutes']:5.1f} min  "
        f"within 100 ms {row['near']} of {row['boundaries']}, unseen {row['near_unseen']} of "
        f"{row['boundaries_unseen']}, median {row['median_ms']:.0f} ms; words {row['near_words']} "
        f"of {row['words']}; left out {row['left_out_found']} of {row['left_out']} found, "
        f"{row['read_missed']} missed; {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
