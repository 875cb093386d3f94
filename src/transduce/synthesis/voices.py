"""Voices that read, each by its own variant of espeak, speed and pitch; some are held out."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from transduce.errors import DataError
from transduce.synthesis.espeak import USUAL_PITCH, USUAL_SPEED

# In turn women and men, the most different first: the first few are a mixed group.
KNOWN = [
    *("f2", "m1", "Annie", "m7", "f5", "Andy", "linda", "m3", "klatt2", "f1", "Michael", "Alicia"),
    *("Hugo", "f3", "klatt4", "steph", "Marco", "m6", "Denis", "anika", "Lee", "belinda", "m8"),
]
HELD_OUT = ["f4", "m4", "Andrea", "klatt"]

SPEEDS = (0.8, 1.15)  # of the usual one
PITCHES = (0.7, 1.3)


@dataclass(frozen=True)
class Voice:
    variant: str
    speed: float
    pitch: float
    held_out: bool


def voices(count: int) -> list[Voice]:
    """So many to learn from, and those that only a test hears, which are always the same."""
    if not 1 <= count <= len(KNOWN):
        raise DataError(f"voices can be 1 to {len(KNOWN)}, not {count}")
    known = [voice(variant, False) for variant in KNOWN[:count]]
    return known + [voice(variant, True) for variant in HELD_OUT]


def voice(variant: str, held_out: bool) -> Voice:
    """Any of espeak's, with the speed and the pitch that it always has here."""
    draw = generator_of(variant).uniform
    return Voice(variant, USUAL_SPEED * draw(*SPEEDS), USUAL_PITCH * draw(*PITCHES), held_out)


def generator_of(*names: str) -> np.random.Generator:
    """Chance that is the same whenever the names are, whatever was drawn before."""
    return np.random.default_rng(int.from_bytes(sha256("\t".join(names).encode()).digest()[:8]))
