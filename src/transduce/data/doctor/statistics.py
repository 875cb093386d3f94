"""Statistics of one corpus for the data checks: lengths, hashes, and which pairs are unusual."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.read import audio_info
from transduce.data.audio.segment import parse_place
from transduce.data.text.pairs import EXAMPLES, Pair, ReadingCounts, is_running, read_pairs, text_of
from transduce.data.text.tags import without_tags
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import DataError
from transduce.recipe import Audio, Corpus

AT_ONCE = 4096
EXCERPT = 40

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts of one side; `unit` is characters, tokens or words."""

    split: str
    side: str
    unit: str
    least: int
    median: float
    mean: float
    most_below: float
    """95th percentile."""
    greatest: int


class CorpusStatistics:
    """Statistics of one corpus: hashes and lengths of every pair, examples of unusual ones."""

    def __init__(
        self, name: str, corpus: Corpus, folder: str | None, audio: Audio | None = None
    ) -> None:
        self.name, self.corpus, self.folder, self.audio = name, corpus, folder, audio
        self.unreadable: list[str] = []
        self.is_text, self.running = text_of(corpus) is not None, is_running(corpus)
        self.noun = "line" if self.is_text else "pair"
        self.sides = ("target",) if self.is_text else ("source", "target")
        self.counts = ReadingCounts()
        self.unit = "words"
        self.characters: dict[str, Counter[str]] = {"source": Counter(), "target": Counter()}
        self.unknown = {"source": 0, "target": 0}
        self.tags: Counter[str] = Counter()
        self.control = array("q")
        self.replacement = array("q")
        self.copies = array("q")
        self._sizes = {
            (side, what): array("i") for side in ("source", "target") for what in ("long", "units")
        }
        self._hashes = {"source": array("Q"), "pair": array("Q")}

    def read(self, tokens: tuple[Tokens, Tokens] | None) -> None:
        self.unit = "tokens" if tokens else "words"
        pairs = read_pairs(self.corpus, self.folder, self.counts)
        number = 0
        while some := list(islice(pairs, AT_ONCE)):
            for pair in some:
                self._look(pair, number)
                number += 1
            if self.audio is not None:
                frames = [self._frames(pair, self.audio) for pair in some]
                self._sizes["source", "units"].extend(frames)
            for side in self.sides if self.audio is None else ("target",):
                texts = [str(getattr(pair, side)) for pair in some]
                self._sizes[side, "long"].extend(map(len, texts))
                if tokens:
                    ids = tokens[side == "target"].encode_batch(texts)
                    self._sizes[side, "units"].extend(map(len, ids))
                    self.unknown[side] += sum(row.count(UNKNOWN) for row in ids)
                else:
                    self._sizes[side, "units"].extend(len(text.split()) for text in texts)
        if not number:
            raise DataError(f"no {self.noun} is left to use; every one has an empty side")

    def _frames(self, pair: Pair, audio: Audio) -> int:
        """The length of a recording by its header; unreadable ones are recorded."""
        path, start, end = parse_place(without_tags(pair.source, pair.tags)[1])
        try:
            seconds = min(audio_info(path).seconds, end or float("inf")) - start
        except DataError as error:
            self.unreadable.append(f"{pair.file}:{pair.line}: {error}")
            return 0
        return int(seconds * audio.frames_a_second)

    def _look(self, pair: Pair, number: int) -> None:
        self.tags.update(pair.tags)
        if self.audio is None:
            # Tags are tokens of their own, not text.
            self.characters["source"].update(without_tags(pair.source, pair.tags)[1])
        self.characters["target"].update(pair.target)
        self._hashes["source"].append(_hash(pair.source))
        self._hashes["pair"].append(_hash(f"{pair.source}\n{pair.target}"))
        both = pair.source + pair.target
        if CONTROL.search(both):
            self.control.append(number)
        if REPLACEMENT in both:
            self.replacement.append(number)
        if pair.source == pair.target and not self.is_text:
            self.copies.append(number)

    def sizes(self, side: str, what: str = "units") -> NDArray[np.int32]:
        return np.frombuffer(self._sizes[side, what], np.int32)

    def hashes(self, what: str) -> NDArray[np.uint64]:
        return np.frombuffer(self._hashes[what], np.uint64)

    def unknown_share(self, side: str) -> float:
        return self.unknown[side] / max(1, int(self.sizes(side).sum()))

    def length_table(self) -> list[Lengths]:
        table = []
        for side in self.sides:
            units = [("long", "characters"), ("units", self.unit)]
            if side == "source" and self.audio is not None:
                units = [("units", "frames")]
            for what, unit in units:
                sizes = self.sizes(side, what)
                table.append(
                    Lengths(
                        split=self.name,
                        side=self.called(side),
                        unit=unit,
                        least=int(sizes.min()),
                        median=float(np.median(sizes)),
                        mean=float(sizes.mean()),
                        most_below=float(np.percentile(sizes, 95)),
                        greatest=int(sizes.max()),
                    )
                )
        return table

    def called(self, side: str) -> str:
        """The name of a side in messages: text has only one."""
        return "text" if self.is_text else side

    def excerpts(self, numbers: Iterable[int]) -> list[str]:
        """The first few of these pairs as file:line and an excerpt; reads up to them again."""
        wanted = sorted(int(number) for number in islice(iter(numbers), EXAMPLES))
        found: list[str] = []
        if not wanted:
            return found
        start = 0
        pairs = read_pairs(self.corpus, self.folder)
        for number in wanted:
            pair = next(islice(pairs, number - start, None))
            start = number + 1
            target = excerpt(pair.target.rstrip("\n"))
            shown = target if self.is_text else f"{excerpt(pair.source)} → {target}"
            found.append(f"{pair.file}:{pair.line}: {shown}")
        return found


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def excerpt(text: str) -> str:
    short = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
    # Unprintable characters would upset a terminal.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short)
