"""What was found in a file: its task, its parts, and statistics of both sides."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from transduce.data.text.entities import mark_entities
from transduce.data.text.split import in_part

Task = Literal[
    "text to text", "text to label", "words to tags", "language model", "audio to text",
    "audio to label",
]  # fmt: skip
FEW_PIECES = 400  # distinct symbols, such as phones, or tags: more of them are words
SHORT_PIECE = 2.5  # mean characters of a symbol: 1.9 in ARPABET, words have more
REPEATED = 10  # how often a symbol occurs in the mean: words repeat less
REPEATED_OF_FEW = 3  # the same of FEW_TEXTS or fewer
FEW_TEXTS = 200
HELD_OUT = "80-100%"  # of the sources, for `Unseen`
COUNTED = 50_000  # pairs, for the same
MAX_LETTERS = 400  # of an alphabet; more are syllables or ideographs


def count_of(number: int, whole: bool) -> str:
    """A number in words; what was estimated from a part has three digits."""
    return f"{number:,}" if whole else f"about {float(f'{number:.3g}'):,.0f}"


@dataclass(frozen=True)
class Lengths:
    """Median, 95th percentile, maximum and mean."""

    median: int
    percentile_95: int
    maximum: int
    mean: float

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Lengths:
        ordered = sorted(sizes) or [0]
        last = len(ordered) - 1
        mean = sum(ordered) / len(ordered)
        return cls(ordered[last // 2], ordered[last * 95 // 100], ordered[-1], mean)

    def times(self, factor: float) -> Lengths:
        """So many times as long."""
        return Lengths(
            round(factor * self.median),
            round(factor * self.percentile_95),
            round(factor * self.maximum),
            factor * self.mean,
        )


@dataclass(frozen=True)
class Side:
    """Statistics of the sources, or of the targets."""

    characters: Lengths
    words: Lengths
    bytes: Lengths
    letters: frozenset[str]
    """All characters but white space."""
    scripts: tuple[str, ...]
    """Scripts of at least a tenth of the letters, the most frequent first: Latin."""
    pieces: int
    """Different pieces between white space."""
    piece_length: float
    """Mean characters of a piece."""
    frequency: float
    """How often a piece occurs in the mean."""
    repeated: int
    """Pieces that occur more than once."""
    texts: int
    entities: bool = False
    """Whether pieces are tags that mark entities: O, B-PER, I-PER."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> Side:
        split = [text.split() for text in texts]
        counts = Counter(piece for pieces in split for piece in pieces)
        letters = Counter(sign for piece, n in counts.items() for sign in piece * min(n, 3))
        total = sum(counts.values())
        characters = sum(len(piece) * n for piece, n in counts.items())
        return cls(
            Lengths.of(len(text.strip()) for text in texts),
            Lengths.of(map(len, split)),
            Lengths.of(len(text.strip().encode("utf-8", "surrogatepass")) for text in texts),
            frozenset(letters),
            _scripts(letters),
            len(counts),
            characters / max(total, 1),
            total / max(len(counts), 1),
            sum(n > 1 for n in counts.values()),
            len(texts),
            len(counts) <= FEW_PIECES and mark_entities(counts),
        )

    @property
    def is_symbols(self) -> bool:
        """Whether white space separates symbols of a small set, such as phones."""
        return (
            self.words.median >= 2
            and self.pieces <= FEW_PIECES
            and self.piece_length <= SHORT_PIECE
            and self.frequency >= (REPEATED_OF_FEW if self.texts <= FEW_TEXTS else REPEATED)
        )

    @property
    def is_words(self) -> bool:
        """Whether most texts are a word or two."""
        return (
            self.words.median <= 2
            and self.words.percentile_95 <= 3
            and self.characters.percentile_95 <= 60
        )

    @property
    def in_script(self) -> str:
        """In words: in Latin."""
        return f"in {' and '.join(self.scripts[:2])}" if self.scripts else "without letters"


def _scripts(letters: Counter[str]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        if name := script_of(letter):
            counts[name] += count
    whole = sum(counts.values())
    return tuple(name for name, count in counts.most_common() if 10 * count >= whole)


def main_script(text: str) -> str:
    """The script of most letters of a text; empty where it has none."""
    counts = Counter(filter(None, map(script_of, text)))
    return counts.most_common(1)[0][0] if counts else ""


@cache
def script_of(letter: str) -> str:
    """The script of a letter by its Unicode name; empty for other signs."""
    if not letter.isalpha():
        return ""
    first = unicodedata.name(letter, "").split(" ")[0]
    return {"MODIFIER": "", "CJK": "Han", "FULLWIDTH": "Latin"}.get(first, first.capitalize())


@dataclass(frozen=True)
class Unseen:
    """How many targets of a part that is held out have a letter (of symbols: a symbol) that no
    target of the rest has. A vocabulary of the rest cannot write them."""

    share: float = 0.0
    in_source: float = 0.0
    """Of these, the share whose unseen letters all stand in the source."""
    decomposed: float = 0.0
    """The same as `share` of letters that are taken apart: é into e and ´, 한 into ㅎㅏㄴ."""
    example: str = ""

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], symbols: bool, copies: bool = True) -> Unseen:
        """Of pairs of source and target, a fifth of the sources held out by their hash. copies:
        whether the sources are texts."""
        outside = in_part(HELD_OUT)
        shown = pairs[:COUNTED]
        held = [pair for pair in shown if outside(pair[0])]
        rest = [target for source, target in shown if not outside(source)]

        def signs(text: str) -> set[str]:
            return set(text.split()) if symbols else set("".join(text.split()))

        def apart(text: str) -> set[str]:
            return signs(unicodedata.normalize("NFD", text))

        known = set[str]().union(*map(signs, rest))
        known_apart = set[str]().union(*map(apart, rest))
        new = [(source, signs(target) - known) for source, target in held]
        new = [(source, letters) for source, letters in new if letters]
        copied = sum(copies and letters <= signs(source) for source, letters in new)
        decomposed = sum(bool(apart(target) - known_apart) for _, target in held)
        return cls(
            len(new) / max(len(held), 1),
            copied / max(len(new), 1),
            decomposed / max(len(held), 1),
            min(new[0][1]) if new else "",
        )


LONG = 30  # seconds


@dataclass(frozen=True)
class Sound:
    """Statistics of recordings, of a sample of them."""

    seconds: Lengths
    minutes: float
    """Of all recordings, estimated."""
    rate: int
    """The usual sampling rate."""
    too_short: float = 0.0
    """The share that is too short for CTC, which needs an encoder state for each letter."""
    in_long: float = 0.0
    """The share of the sound that is in recordings longer than LONG seconds."""


@dataclass(frozen=True)
class Found:
    """What was found, and why: everything that settings are chosen by."""

    task: Task
    name: str
    """A name for the run."""
    folder: Path
    """Where the names of files start."""
    corpora: dict[str, dict[str, Any]]
    """The corpora as a recipe has them: train, and valid and test where files of them are there."""
    rows: int
    sources: int
    """Different sources; where `whole` is false, both are estimates."""
    whole: bool
    """Whether all rows were looked at."""
    source: Side | None
    target: Side
    labels: int = 0
    """Different labels; 0: targets are text."""
    tags: int = 0
    """Different tags; 0: none."""
    features: bool = False
    """Whether rows have several tags, as the features of words, and not a language or a source."""
    joint_tags: str = ""
    """A tag that joins several, such as IN+ESS; "": there is none."""
    alternatives: float = 0.0
    """Share of the sources that have several targets."""
    unseen: Unseen = Unseen()
    """Letters of targets that only the held-out part has."""
    sound: Sound | None = None
    seen: list[str] = field(default_factory=list)
    """What was found, in sentences."""
    warnings: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    """Different sources, all of them where they are few: by these, the parts are counted."""
