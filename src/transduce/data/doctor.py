"""The doctor: looks a recipe's corpora over before a model is trained on them."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio import sound_facts
from transduce.data.corpus import (
    EXAMPLES,
    Pair,
    Tally,
    check_kind,
    is_running,
    read_pairs,
    text_of,
)
from transduce.data.places import parse_place
from transduce.data.tokens import UNKNOWN, Tokens, train_tokens
from transduce.errors import DataError, TokensError
from transduce.recipe import Corpus, Recipe, Sound
from transduce.rules import RULES

Severity = Literal["error", "warning", "note"]
AT_ONCE = 4096
EXCERPT = 40
MANY_UNKNOWN = 0.01  # a larger share of unknown tokens is worth a warning
FEW_TOKENS = 3  # shorter sides have wild length ratios
DEVIATIONS = 4
LONG = 40  # letters of a line that hardly comes twice in running text by chance

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Finding:
    """One thing found: a sentence, how often, where, and how to mend it."""

    severity: Severity
    what: str
    count: int
    examples: list[str]
    mend: str


@dataclass(frozen=True)
class Lengths:
    """How long the texts of one side are; `unit` is characters, tokens or words."""

    split: str
    side: str
    unit: str
    least: int
    median: float
    mean: float
    most_below: float
    """95 % are no longer than this."""
    greatest: int


@dataclass
class Diagnosis:
    """All that was found. `ok` unless there is an error."""

    pairs: dict[str, int] = field(default_factory=dict)
    """How many there are in each split; of text, lines."""
    noun: str = "pair"
    lengths: list[Lengths] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        errors = [finding.what for finding in self.findings if finding.severity == "error"]
        if errors:
            return f"Not fit to train: {errors[0]}{'' if errors[0].endswith(('.', '?')) else '.'}"
        warnings = sum(finding.severity == "warning" for finding in self.findings)
        if not warnings:
            return "Fit to train."
        return f"Fit to train, with {warnings} warning{'s' if warnings > 1 else ''}."


def examine(recipe: Recipe) -> Diagnosis:
    """Read train, valid and test once (and once more for excerpts) and say what is odd in them.

    Tokens are trained the recipe's way for lengths and unknowns. Pairs are kept as hashes of eight
    bytes, not as text. A corpus that cannot be read is an error among the findings, not raised.
    """
    data, diagnosis = recipe.data, Diagnosis()
    tokens: tuple[Tokens, Tokens] | None = None
    try:
        tokens = train_tokens(data)
    except DataError:
        pass  # told below, of the corpus it concerns
    except TokensError as error:
        diagnosis.findings.append(Finding("error", str(error), 1, [], "Mend data.tokens."))
    corpora = {"train": data.train, "valid": data.valid, "test": data.test}
    splits: dict[str, _Split] = {}
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        split = _Split(name, corpus, data.folder, recipe.sound)
        try:
            split.read(tokens)
            check_kind(corpus, recipe)
        except (DataError, TokensError) as error:
            diagnosis.findings.append(
                Finding("error", f"{name}: {error}", 1, [], "Mend the corpus, then check again.")
            )
            continue
        splits[name] = split
        diagnosis.noun = split.noun
        diagnosis.pairs[name] = split.tally.pairs
        diagnosis.lengths += split.length_table()
        alone = _text_alone if split.is_text else _alone
        diagnosis.findings += alone(split, recipe)
    if "train" in splits:
        for name in ("valid", "test"):
            if name in splits and splits[name].is_text:
                diagnosis.findings += _text_against(splits["train"], splits[name])
            elif name in splits:
                labels = RULES[recipe.task].labels != "none"
                diagnosis.findings += _against(splits["train"], splits[name], labels)
    order = ("error", "warning", "note")
    diagnosis.findings.sort(key=lambda finding: order.index(finding.severity))
    return diagnosis


class _Split:
    """One corpus read through: hashes and lengths of every pair, examples of what is odd."""

    def __init__(
        self, name: str, corpus: Corpus, folder: str | None, sound: Sound | None = None
    ) -> None:
        self.name, self.corpus, self.folder, self.sound = name, corpus, folder, sound
        self.unheard: list[str] = []
        self.is_text, self.running = text_of(corpus) is not None, is_running(corpus)
        self.noun = "line" if self.is_text else "pair"
        self.sides = ("target",) if self.is_text else ("source", "target")
        self.tally = Tally()
        self.unit = "words"
        self.characters: dict[str, Counter[str]] = {"source": Counter(), "target": Counter()}
        self.unknown = {"source": 0, "target": 0}
        self.control = array("q")
        self.replacement = array("q")
        self.copies = array("q")
        self._sizes = {
            (side, what): array("i") for side in ("source", "target") for what in ("long", "units")
        }
        self._hashes = {"source": array("Q"), "pair": array("Q")}

    def read(self, tokens: tuple[Tokens, Tokens] | None) -> None:
        self.unit = "tokens" if tokens else "words"
        pairs = read_pairs(self.corpus, self.folder, self.tally)
        number = 0
        while some := list(islice(pairs, AT_ONCE)):
            for pair in some:
                self._look(pair, number)
                number += 1
            if self.sound is not None:
                frames = [self._frames(pair, self.sound) for pair in some]
                self._sizes["source", "units"].extend(frames)
            for side in self.sides if self.sound is None else ("target",):
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

    def _frames(self, pair: Pair, sound: Sound) -> int:
        """How long a recording is by its header; one that has none worth reading is noted."""
        path, start, end = parse_place(pair.source)
        try:
            seconds = min(sound_facts(path).seconds, end or float("inf")) - start
        except DataError as error:
            self.unheard.append(f"{pair.file}:{pair.line}: {error}")
            return 0
        return int(seconds * sound.frames_a_second)

    def _look(self, pair: Pair, number: int) -> None:
        if self.sound is None:
            self.characters["source"].update(pair.source)
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
            if side == "source" and self.sound is not None:
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
        """What people are told of a side: text has but one."""
        return "text" if self.is_text else side

    def excerpts(self, numbers: Iterable[int]) -> list[str]:
        """The first few of these pairs as file:line and a bit of text; reads up to them again."""
        wanted = sorted(int(number) for number in islice(iter(numbers), EXAMPLES))
        found: list[str] = []
        if not wanted:
            return found
        start = 0
        pairs = read_pairs(self.corpus, self.folder)
        for number in wanted:
            pair = next(islice(pairs, number - start, None))
            start = number + 1
            target = _excerpt(pair.target.rstrip("\n"))
            shown = target if self.is_text else f"{_excerpt(pair.source)} → {target}"
            found.append(f"{pair.file}:{pair.line}: {shown}")
        return found


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def _excerpt(text: str) -> str:
    short = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
    # What does not print would upset a terminal.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short)


def _finding(
    split: _Split, severity: Severity, what: str, numbers: Iterable[int], mend: str
) -> list[Finding]:
    """A finding about these pairs of a split, if there are any; `what` goes on after a number."""
    listed = list(numbers)
    if not listed:
        return []
    noun = split.noun if len(listed) == 1 else f"{split.noun}s"
    sentence = f"{split.name}: {len(listed):,} {noun} {what}"
    return [Finding(severity, sentence, len(listed), split.excerpts(listed), mend)]


def _alone(split: _Split, recipe: Recipe) -> list[Finding]:
    """What is odd in a split by itself."""
    name, tally, labels = split.name, split.tally, RULES[recipe.task].labels
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found: list[Finding] = []
    for side, count in (("source", tally.empty_source), ("target", tally.empty_target)):
        if count:
            what = f"{name}: {count:,} {'pair' if count == 1 else 'pairs'} with an empty {side}"
            places = tally.examples[f"empty_{side}"]
            found.append(
                Finding("warning", what, count, places, "They are skipped; or fill them in.")
            )
    if split.unheard:
        noun = "recording" if len(split.unheard) == 1 else "recordings"
        what = f"{name}: {len(split.unheard):,} {noun} that cannot be read"
        places = split.unheard[:EXAMPLES]
        found.append(
            Finding("warning", what, len(split.unheard), places, "They are skipped; or mend them.")
        )
    pair_hashes, source_hashes = split.hashes("pair"), split.hashes("source")
    _, first = np.unique(pair_hashes, return_index=True)
    once = np.zeros(len(pair_hashes), bool)
    once[first] = True
    found += _finding(
        split,
        "warning" if (~once).mean() > 0.1 else "note",
        "repeating an earlier one exactly",
        np.flatnonzero(~once),
        "Remove the repetitions, unless they are meant to weigh more.",
    )
    different = np.sort(first)
    _, first_of_source = np.unique(source_hashes[different], return_index=True)
    other = np.ones(len(different), bool)
    other[first_of_source] = False
    found += _finding(
        split,
        "note",
        "with a source seen before with another target",
        different[other],
        "Nothing, if several targets are right.",
    )
    sources, targets = split.sizes("source"), split.sizes("target")
    if split.unit == "tokens":
        long = np.flatnonzero(np.maximum(sources, targets) > max_length)
        done = "skipped" if overlong == "skip" else "cut"
        found += _finding(
            split,
            "warning" if len(long) > 0.01 * len(sources) or name != "train" else "note",
            f"longer than data.max_length = {max_length} tokens, to be {done}",
            long,
            "Raise data.max_length, split the pairs, or leave it at that.",
        )
    if labels == "words":
        found += _finding(
            split,
            "warning",
            "with another number of labels than of words, to be skipped",
            np.flatnonzero(sources != targets),
            "Give each word one label; white space separates both.",
        )
    elif labels == "none":
        odd = _odd_ratios(sources, targets)
        found += _finding(
            split,
            "warning" if len(odd) > 0.01 * len(sources) else "note",
            f"of unlikely lengths for each other (in {split.unit})",
            odd,
            "Look whether they belong together.",
        )
    found += _finding(
        split,
        "note" if len(split.copies) < 0.1 * len(sources) else "warning",
        "with the same text as source and as target",
        # Where copying is the task there is nothing to tell.
        split.copies if len(split.copies) < len(sources) else [],
        "Remove them if the sides should be of different languages.",
    )
    return found + _odd_characters(split)


def _odd_characters(split: _Split) -> list[Finding]:
    return _finding(
        split,
        "warning",
        "with control characters or odd line breaks",
        split.control,
        "Remove the characters, or write spaces instead.",
    ) + _finding(
        split,
        "warning",
        "with the replacement character U+FFFD, the trace of a wrong conversion",
        split.replacement,
        "Convert the original text again, from its real encoding.",
    )


def _text_alone(split: _Split, recipe: Recipe) -> list[Finding]:
    """What is odd in text by itself; of running text only that it is repeated, or too short."""
    name, sizes = split.name, split.sizes("target")
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found: list[Finding] = []
    total = int(sizes.sum())
    if split.running and split.unit == "tokens" and total <= max_length:
        what = f"{name}: {total:,} tokens of text, less than a block (data.max_length)"
        found.append(Finding("warning", what, 1, [], "Give more text, or lower data.max_length."))
    if empty := split.tally.empty_target:
        what = f"{name}: {empty:,} empty {'line' if empty == 1 else 'lines'}"
        places = split.tally.examples["empty_target"]
        found.append(Finding("note", what, empty, places, "They are skipped."))
    hashes = split.hashes("pair")
    _, first = np.unique(hashes, return_index=True)
    repeated = np.ones(len(hashes), bool)
    repeated[first] = False
    repeated &= _telling(split)
    found += _finding(
        split,
        "warning" if repeated.mean() > 0.1 else "note",
        f"{_kind_of(split)}repeating an earlier one exactly",
        np.flatnonzero(repeated),
        "Remove the repetitions, unless they are meant to weigh more.",
    )
    if not split.running and split.unit == "tokens":
        done = "skipped" if overlong == "skip" else "cut"
        found += _finding(
            split,
            "warning",
            f"longer than data.max_length = {max_length} tokens, to be {done}",
            np.flatnonzero(sizes > max_length),
            "Raise data.max_length, or join the lines (lines: joined).",
        )
    return found + _odd_characters(split)


def _telling(split: _Split) -> NDArray[np.bool_]:
    """The lines that say something if they come twice: in running text, the long ones."""
    lengths = split.sizes("target", "long")
    return lengths >= LONG if split.running else np.ones(len(lengths), bool)


def _kind_of(split: _Split) -> str:
    return f"of {LONG} letters or more " if split.running else ""


def _text_against(train: _Split, other: _Split) -> list[Finding]:
    """What stands in valid or test and in train, and characters that do not."""
    leaked = np.isin(other.hashes("pair"), train.hashes("pair")) & _telling(other)
    return _finding(
        other,
        "warning" if leaked.mean() > 0.01 else "note",
        f"{_kind_of(other)}standing in train as well",
        np.flatnonzero(leaked),
        "Remove them from train, if scores should be of unseen text.",
    ) + _new_characters(train, other)


def _odd_ratios(sources: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Pairs whose log length ratio is far from the median, in median absolute deviations."""
    ratios = np.log(np.maximum(targets, 1) / np.maximum(sources, 1))
    centre = np.median(ratios)
    spread = np.median(np.abs(ratios - centre))
    # Short sentences scatter more than the median one: a factor below two is never odd.
    far = np.abs(ratios - centre) > max(DEVIATIONS * float(spread), np.log(2))
    return np.flatnonzero(far & (np.maximum(sources, targets) >= FEW_TOKENS))


def _against(train: _Split, other: _Split, labels: bool) -> list[Finding]:
    """What stands in valid or test and in train (leakage), or there and not in train."""
    found: list[Finding] = []
    pairs = np.isin(other.hashes("pair"), train.hashes("pair"))
    sources = np.isin(other.hashes("source"), train.hashes("source")) & ~pairs
    found += _finding(
        other,
        "warning",
        "standing in train as well, so that scores on them tell nothing",
        np.flatnonzero(pairs),
        "Remove them from train.",
    )
    found += _finding(
        other,
        "warning" if sources.mean() > 0.01 else "note",
        "with a source that stands in train with another target",
        np.flatnonzero(sources),
        "Remove these sources from train, if scores should be of unseen ones.",
    )
    return found + _new_characters(train, other, labels)


def _new_characters(train: _Split, other: _Split, labels: bool = False) -> list[Finding]:
    """What train has not; of labels, whole ones."""
    found: list[Finding] = []
    for side in other.sides:
        whole = labels and side == "target"
        new = {
            letter: count
            for letter, count in other.characters[side].most_common()
            if letter not in train.characters[side]
        }
        if new and not whole:
            shown = [f"{_excerpt(c)} (U+{ord(c):04X}), {n:,} times" for c, n in new.items()]
            what = (
                f"{other.name}: {len(new):,} {'character' if len(new) == 1 else 'characters'} of "
                f"the {other.called(side)} never seen in train"
            )
            mend = "Write them another way (data.tokens normalize: nfkc), or use level: byte."
            found.append(Finding("note", what, len(new), shown[:EXAMPLES], mend))
        share = other.unknown_share(side)
        if share > 0:
            kind = "labels" if whole else f"{other.called(side)} tokens"
            what = f"{other.name}: {share:.2%} of the {kind} are unknown"
            severity: Severity = "warning" if share > MANY_UNKNOWN else "note"
            mend = "Use a smaller level (subword, character, byte), or raise the size."
            if whole:
                mend = (
                    "Train has none of them, so they count as wrong: add some, or leave them out."
                )
            found.append(Finding(severity, what, other.unknown[side], [], mend))
    return found
