"""Voices for synthesis, each with its own espeak variant, speed and pitch; some are held out."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from transduce.errors import DataError
from transduce.synthesis.espeak import USUAL_PITCH, USUAL_SPEED

# Alternating women and men, the most different first, so that the first few are a mixed group.
KNOWN = [
    *("f2", "m1", "Annie", "m7", "f5", "Andy", "linda", "m3", "klatt2", "f1", "Michael", "Alicia"),
    *("Hugo", "f3", "klatt4", "steph", "Marco", "m6", "Denis", "anika", "Lee", "belinda", "m8"),
]
HELD_OUT = ["f4", "m4", "Andrea", "klatt"]

SPEEDS = (0.8, 1.15)  # relative to the usual speed
PITCHES = (0.7, 1.3)


@dataclass(frozen=True)
class Voice:
    variant: str
    speed: float
    pitch: float
    held_out: bool


def voices(count: int) -> list[Voice]:
    """`count` voices to train on, and the held-out ones of the test set, which are always the
    same.
    """
    if not 1 <= count <= len(KNOWN):
        raise DataError(f"voices can be 1 to {len(KNOWN)}, not {count}")
    known = [voice(variant, False) for variant in KNOWN[:count]]
    return known + [voice(variant, True) for variant in HELD_OUT]


def voice(variant: str, held_out: bool) -> Voice:
    """An espeak variant, with a fixed speed and pitch."""
    draw = generator_of(variant).uniform
    return Voice(variant, USUAL_SPEED * draw(*SPEEDS), USUAL_PITCH * draw(*PITCHES), held_out)


def generator_of(*names: str) -> np.random.Generator:
    """A random generator seeded by the names."""
    return np.random.default_rng(int.from_bytes(sha256("\t".join(names).encode()).digest()[:8]))
