"""Check the corpora of a recipe before a model is trained on them."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.ctc_states import states_needed, too_short_for_ctc
from transduce.data.audio.read import audio_info, parse_place
from transduce.data.text.files import LONGEST
from transduce.data.text.pairs import (
    EXAMPLES,
    Pair,
    ReadingCounts,
    check_kind,
    is_running,
    read_pairs,
    text_of,
)
from transduce.data.text.tags import closes, without_tags
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import DataError, TokensError
from transduce.recipe import Audio, Corpus, Recipe
from transduce.recipe.tasks import TASK_RULES


@dataclass
class Diagnosis:
    """All findings. `ok` unless there is an error."""

    pairs: dict[str, int] = field(default_factory=dict)
    """Number of pairs in each split; for text, lines."""
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
    """Read train, valid and test once (and once more for excerpts) and list their problems.

    Tokenizers are trained as the recipe asks, for lengths and unknown tokens. Pairs are kept as
    hashes of eight bytes, not as text. A corpus that cannot be read is an error among the findings,
    not an exception.
    """
    data, diagnosis = recipe.data, Diagnosis()
    tokens: tuple[Tokens, Tokens] | None = None
    try:
        tokens = train_tokens(data)
    except DataError:
        pass  # reported below, with the corpus it concerns
    except TokensError as error:
        diagnosis.findings.append(Finding("error", str(error), 1, [], "Mend data.tokens."))
    corpora = {"train": data.train, "valid": data.valid, "test": data.test}
    splits: dict[str, CorpusStatistics] = {}
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        split = CorpusStatistics(name, corpus, data.folder, recipe.audio)
        try:
            split.read(tokens)
            check_kind(corpus, recipe)
        except (DataError, TokensError) as error:
            diagnosis.findings.append(
                Finding("error", f"{name}: {error}", 1, [], "Correct the corpus, then check again.")
            )
            continue
        splits[name] = split
        diagnosis.noun = split.noun
        diagnosis.pairs[name] = split.counts.pairs
        diagnosis.lengths += split.length_table()
        alone = text_alone if split.is_text else pairs_alone
        diagnosis.findings += alone(split, recipe)
    if "train" in splits:
        for name in ("valid", "test"):
            if name in splits and splits[name].is_text:
                diagnosis.findings += text_against(splits["train"], splits[name])
            elif name in splits:
                labels = TASK_RULES[recipe.task].labels != "none"
                diagnosis.findings += pairs_against(splits["train"], splits[name], labels)
    order = ("error", "warning", "note")
    diagnosis.findings.sort(key=lambda finding: order.index(finding.severity))
    return diagnosis


# ----------------------------------------------------------------------------------------------
# The individual data checks: of a corpus by itself, and of valid or test against train.

Severity = Literal["error", "warning", "note"]
MANY_UNKNOWN = 0.01  # a larger share of unknown tokens is worth a warning
DEVIATIONS = 5  # median absolute deviations of lengths that are unusual
MIN_DEVIATION = 0.5  # also where nearly all pairs have the same ratio
LONG = 40  # characters; so long a line hardly occurs twice in running text by chance


@dataclass(frozen=True)
class Finding:
    """One finding: a sentence, how often, where, and how to fix it."""

    severity: Severity
    what: str
    count: int
    examples: list[str]
    remedy: str


def _finding(
    split: CorpusStatistics, severity: Severity, what: str, numbers: Iterable[int], remedy: str
) -> list[Finding]:
    """A finding about these pairs of a split, if there are any; `what` continues after a number."""
    listed = list(numbers)
    if not listed:
        return []
    noun = split.noun if len(listed) == 1 else f"{split.noun}s"
    sentence = f"{split.name}: {len(listed):,} {noun} {what}"
    return [Finding(severity, sentence, len(listed), split.excerpts(listed), remedy)]


def _too_long(split: CorpusStatistics) -> list[Finding]:
    """Lines that are truncated when they are read."""
    count = split.counts.too_long
    if not count:
        return []
    noun = split.noun if count == 1 else f"{split.noun}s"
    what = f"{split.name}: {count:,} {noun} of more than {LONGEST:,} characters, truncated there"
    places = split.counts.examples["too_long"]
    return [Finding("warning", what, count, places, "Split such lines.")]


def _assumed(split: CorpusStatistics) -> list[Finding]:
    """What was assumed of headers, and columns of ids."""
    return [
        Finding("warning", f"{split.name}: {note}", 1, [], "Say which it is, or correct the file.")
        for note in split.counts.notes
    ]


def _odd_tags(split: CorpusStatistics) -> list[Finding]:
    """Tags with a bracket too many: something else has cut or joined them."""
    odd = {tag: count for tag, count in split.tags.items() if not closes(tag)}
    if not odd:
        return []
    what = f"{split.name}: {len(odd):,} {'tag' if len(odd) == 1 else 'tags'} with brackets that do "
    shown = [f"{excerpt(tag)}, {count:,} times" for tag, count in list(odd.items())[:EXAMPLES]]
    remedy = "Correct the brackets; tags are separated by ; | and spaces outside of brackets."
    return [Finding("warning", f"{what}not match", sum(odd.values()), shown, remedy)]


def pairs_alone(split: CorpusStatistics, recipe: Recipe) -> list[Finding]:
    """Problems of pairs by themselves."""
    name, counts, labels = split.name, split.counts, TASK_RULES[recipe.task].labels
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found = _assumed(split) + _too_long(split) + _odd_tags(split)
    for side, count in (("source", counts.empty_source), ("target", counts.empty_target)):
        if count:
            what = f"{name}: {count:,} {'pair' if count == 1 else 'pairs'} with an empty {side}"
            places = counts.examples[f"empty_{side}"]
            found.append(
                Finding("warning", what, count, places, "They are skipped; or fill them in.")
            )
    if split.unreadable:
        noun = "recording" if len(split.unreadable) == 1 else "recordings"
        what = f"{name}: {len(split.unreadable):,} {noun} that cannot be read"
        places = split.unreadable[:EXAMPLES]
        found.append(
            Finding(
                "warning", what, len(split.unreadable), places, "They are skipped; or correct them."
            )
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
        "whose source occurs earlier with another target",
        different[other],
        "Nothing, if several targets are correct.",
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
            "Raise data.max_length, split the pairs, or accept it.",
        )
    if split.audio is not None and recipe.model.ctc_weight and split.unit == "tokens":
        needed = np.frombuffer(split.ctc_states, np.int32).astype(np.int64)
        samples = sources.astype(np.int64) * split.audio.hop_samples
        readable = np.flatnonzero(sources > 0)
        short = too_short_for_ctc(samples[readable], needed[readable], split.audio)
        found += _finding(
            split,
            "warning" if short.share > 0.01 else "note",
            f"{short.what} ({short.share:.1%})",
            readable[short.rows],
            f"Only attention learns from them; {short.remedy}.",
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
            f"with an unusual length ratio (in {split.unit})",
            odd,
            "Check whether they belong together."
            if split.audio is None
            else "Check whether the transcript is of this recording, and of all of it.",
        )
    found += _finding(
        split,
        "note" if len(split.copies) < 0.1 * len(sources) else "warning",
        "whose source and target are identical",
        # Not reported where copying is the task.
        split.copies if len(split.copies) < len(sources) else [],
        "Remove them if the sides should be in different languages.",
    )
    return found + _odd_characters(split)


def _odd_characters(split: CorpusStatistics) -> list[Finding]:
    return _finding(
        split,
        "warning",
        "with control characters or unusual line breaks",
        split.control,
        "Remove the characters, or write spaces instead.",
    ) + _finding(
        split,
        "warning",
        "with the replacement character U+FFFD, from a wrong encoding conversion",
        split.replacement,
        "Convert the original text again, from its real encoding.",
    )


def text_alone(split: CorpusStatistics, recipe: Recipe) -> list[Finding]:
    """Problems of text by itself; of running text only repetitions and too little text."""
    name, sizes = split.name, split.sizes("target")
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found = _too_long(split)
    total = int(sizes.sum())
    if split.running and split.unit == "tokens" and total <= max_length:
        what = f"{name}: {total:,} tokens of text, less than a block (data.max_length)"
        found.append(Finding("warning", what, 1, [], "Give more text, or lower data.max_length."))
    if empty := split.counts.empty_target:
        what = f"{name}: {empty:,} empty {'line' if empty == 1 else 'lines'}"
        places = split.counts.examples["empty_target"]
        found.append(Finding("note", what, empty, places, "They are skipped."))
    hashes = split.hashes("pair")
    _, first = np.unique(hashes, return_index=True)
    repeated = np.ones(len(hashes), bool)
    repeated[first] = False
    repeated &= _notable(split)
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


def _notable(split: CorpusStatistics) -> NDArray[np.bool_]:
    """The lines whose repetition is a problem: in running text, only long ones."""
    lengths = split.sizes("target", "long")
    return lengths >= LONG if split.running else np.ones(len(lengths), bool)


def _kind_of(split: CorpusStatistics) -> str:
    return f"of {LONG} characters or more " if split.running else ""


def text_against(train: CorpusStatistics, other: CorpusStatistics) -> list[Finding]:
    """Overlap of valid or test with train (leakage), and characters that train lacks."""
    leaked = np.isin(other.hashes("pair"), train.hashes("pair")) & _notable(other)
    return _finding(
        other,
        "warning" if leaked.mean() > 0.01 else "note",
        f"{_kind_of(other)}also in train",
        np.flatnonzero(leaked),
        "Remove them from train, if scores should be on unseen text.",
    ) + _new_characters(train, other)


def _odd_ratios(sources: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Outliers of the length ratio, in median absolute deviations.

    The length of a translation varies like a sum over the words of its source: by the root of its
    length (Gale and Church 1993). So three words for one are usual, thirty for ten are not.
    """
    ratio = np.exp(np.median(np.log(np.maximum(targets, 1) / np.maximum(sources, 1))))
    expected = ratio * sources
    deviations = (targets - expected) / np.sqrt(np.maximum((expected + targets) / 2, 1))
    spread = max(float(np.median(np.abs(deviations))), MIN_DEVIATION)
    far = np.abs(deviations) > DEVIATIONS * spread
    factors = np.maximum(targets, 1) / np.maximum(expected, 1)
    return np.flatnonzero(far & (np.abs(np.log(factors)) > np.log(2)))


def pairs_against(train: CorpusStatistics, other: CorpusStatistics, labels: bool) -> list[Finding]:
    """Overlap of valid or test with train (leakage), and what occurs there and not in train."""
    found: list[Finding] = []
    pairs = np.isin(other.hashes("pair"), train.hashes("pair"))
    sources = np.isin(other.hashes("source"), train.hashes("source")) & ~pairs
    found += _finding(
        other,
        "warning",
        "also in train (leakage), so that scores on them mean nothing",
        np.flatnonzero(pairs),
        "Remove them from train.",
    )
    found += _finding(
        other,
        "warning" if sources.mean() > 0.01 else "note",
        "whose source is in train with another target",
        np.flatnonzero(sources),
        "Remove these sources from train, if scores should be on unseen ones.",
    )
    return found + _new_tags(train, other) + _new_characters(train, other, labels)


def _new_tags(train: CorpusStatistics, other: CorpusStatistics) -> list[Finding]:
    new = {tag: count for tag, count in other.tags.items() if tag not in train.tags}
    if not new:
        return []
    what = f"{other.name}: {len(new):,} {'tag' if len(new) == 1 else 'tags'} that train does not "
    shown = [f"{excerpt(tag)}, {count:,} times" for tag, count in list(new.items())[:EXAMPLES]]
    remedy = "They are read as text: add sources with them to train, or leave them out."
    return [Finding("warning", f"{what}have", sum(new.values()), shown, remedy)]


def _new_characters(
    train: CorpusStatistics, other: CorpusStatistics, labels: bool = False
) -> list[Finding]:
    """Characters (or labels) that train does not have."""
    found: list[Finding] = []
    for side in other.sides:
        whole = labels and side == "target"
        new = {
            letter: count
            for letter, count in other.characters[side].most_common()
            if letter not in train.characters[side]
        }
        if new and not whole:
            shown = [f"{excerpt(c)} (U+{ord(c):04X}), {n:,} times" for c, n in new.items()]
            what = (
                f"{other.name}: {len(new):,} {'character' if len(new) == 1 else 'characters'} of "
                f"the {other.called(side)} never seen in train"
            )
            known = train.characters[side]
            folded = [
                c for c in new if (same := normalize("NFKC", c)) != c and set(same) <= set(known)
            ]
            remedy = "They are unknown tokens; level: byte has none. Rare ones do little harm."
            if folded:
                listed = ", ".join(map(excerpt, folded[:EXAMPLES]))
                remedy = f"Normalise them ({listed}) with data.tokens normalize: nfkc. {remedy}"
            found.append(Finding("note", what, len(new), shown[:EXAMPLES], remedy))
        share = other.unknown_share(side)
        if share > 0:
            kind = "labels" if whole else f"{other.called(side)} tokens"
            what = f"{other.name}: {share:.2%} of the {kind} are unknown"
            severity: Severity = "warning" if share > MANY_UNKNOWN else "note"
            remedy = "Use smaller units (level: subword, character or byte), or raise the size."
            if whole:
                remedy = (
                    "Train has none of them, so they count as wrong: add some, or leave them out."
                )
            found.append(Finding(severity, what, other.unknown[side], [], remedy))
    return found


# ----------------------------------------------------------------------------------------------
# Statistics of one corpus for the data checks: lengths, hashes, and which pairs are unusual.

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
        self.ctc_states = array("i")
        """Of audio, encoder states that CTC needs for each transcript."""
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
                if tokens:
                    said = tokens[0].encode_batch([pair.transcript or pair.target for pair in some])
                    offsets = np.cumsum([0, *map(len, said)], dtype=np.int64)
                    ids = np.array([number for row in said for number in row], np.int32)
                    self.ctc_states.extend(states_needed(ids, offsets).tolist())
            for side in self.sides if self.audio is None else ("target",):
                texts = [str(getattr(pair, side)) for pair in some]
                self._sizes[side, "long"].extend(map(len, texts))
                if tokens:
                    rows = tokens[side == "target"].encode_batch(texts)
                    self._sizes[side, "units"].extend(map(len, rows))
                    self.unknown[side] += sum(row.count(UNKNOWN) for row in rows)
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
