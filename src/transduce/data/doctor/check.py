"""Check the corpora of a recipe before a model is trained on them."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.ctc_states import states_needed, too_short_for_ctc
from transduce.data.audio.read import audio_info, parse_place
from transduce.data.filters.repetitions import WITH_MORE, Repetitions, repeated
from transduce.data.filters.rules import Dropped, PairRules, Reason, hash_of, hashes_of, rules_of
from transduce.data.text.files import LONGEST
from transduce.data.text.pairs import (
    EXAMPLES,
    Pair,
    PairColumns,
    ReadingCounts,
    check_kind,
    is_running,
    read_pairs,
    text_of,
)
from transduce.data.text.tags import UNKNOWN_TAG, closes, known_tags, parts_of, without_tags
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


def examine(recipe: Recipe, tell: Callable[[str], object] | None = None) -> Diagnosis:
    """Read train, valid and test once (and once more for excerpts) and list their problems.

    Tokenizers are trained as the recipe asks, for lengths and unknown tokens. A corpus that cannot
    be read is an error among the findings, not an exception. The training set may be larger than
    memory: of its pairs, only hashes are kept, in temporary files, and how many have which lengths.
    `tell` is told what goes on.
    """
    with ExitStack() as stack:
        return _examine(recipe, stack, tell or (lambda what: None))


def _examine(recipe: Recipe, stack: ExitStack, tell: Callable[[str], object]) -> Diagnosis:
    data, diagnosis = recipe.data, Diagnosis()
    tokens: tuple[Tokens, Tokens] | None = None
    tell("making the vocabulary")
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
        stack.enter_context(split.hashes)
        try:
            split.read(tokens, rules_of(data) if name == "train" else None, tell)
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
        if name != "train" and "train" in splits:  # of the same file, it is said once
            known = set(splits["train"].counts.notes)
            split.counts.notes = [note for note in split.counts.notes if note not in known]
        alone = text_alone if split.is_text else pairs_alone
        diagnosis.findings += alone(split, recipe)
    if "train" in splits:
        for name in ("valid", "test"):
            if name in splits and splits[name].is_text:
                diagnosis.findings += text_against(splits["train"], splits[name], recipe)
            elif name in splits:
                diagnosis.findings += pairs_against(splits["train"], splits[name], recipe)
                diagnosis.findings += _new_tags(splits["train"], splits[name], recipe)
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
    split: CorpusStatistics, severity: Severity, what: str, some: SomePairs, remedy: str
) -> list[Finding]:
    """A finding about these pairs of a split, if there are any; `what` continues after a number."""
    if not some.count:
        return []
    noun = split.noun if some.count == 1 else f"{split.noun}s"
    sentence = f"{split.name}: {some.count:,} {noun} {what}"
    return [Finding(severity, sentence, some.count, split.excerpts(some.first), remedy)]


def _filtered(split: CorpusStatistics) -> list[Finding]:
    """What data.filters leaves out; repetitions are listed anyway."""
    if split.rules is None:
        return []
    found: list[Finding] = []
    for reason, count in sorted(split.dropped.counts.items()):
        noun = split.noun if count == 1 else f"{split.noun}s"
        what = f"{split.name}: {count:,} {noun} {split.rules.sentence(Reason(reason))}"
        remedy = "Nothing: data.filters asks for it."
        found.append(Finding("note", what, count, split.dropped.places[reason], remedy))
    return found


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
        Finding("warning", f"{split.name}: {note}", 1, [], "If it is not meant, correct the file.")
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
    found = _assumed(split) + _too_long(split) + _odd_tags(split) + _filtered(split)
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
    twice, other = split.repetitions()
    found += _finding(
        split,
        "warning" if twice.count > 0.1 * split.size else "note",
        "repeating an earlier one exactly",
        twice,
        "Remove the repetitions, unless they are meant to weigh more.",
    )
    found += _finding(
        split,
        "note",
        "whose source occurs earlier with another target",
        other,
        "Nothing, if several targets are correct.",
    )
    sources, targets, counts_of_sizes = split.units.columns()
    if split.unit == "tokens":
        long = split.units.some(np.maximum(sources, targets) > max_length)
        done = "skipped" if overlong == "skip" else "cut"
        found += _finding(
            split,
            "warning" if long.count > 0.01 * split.size or name != "train" else "note",
            f"longer than data.max_length = {max_length} tokens, to be {done}",
            long,
            "Raise data.max_length, split the pairs, or accept it.",
        )
    if split.audio is not None and recipe.model.ctc_weight and split.unit == "tokens":
        needed = np.frombuffer(split.ctc_states, np.int32).astype(np.int64)
        frames = np.frombuffer(split.frames, np.int32)
        samples = frames.astype(np.int64) * split.audio.hop_samples
        readable = np.flatnonzero(frames > 0)
        short = too_short_for_ctc(samples[readable], needed[readable], split.audio)
        found += _finding(
            split,
            "warning" if short.share > 0.01 else "note",
            f"{short.what} ({short.share:.1%})",
            SomePairs.of(readable[short.rows]),
            f"Only attention learns from them; {short.remedy}.",
        )
    if labels == "words":
        found += _finding(
            split,
            "warning",
            "with another number of labels than of words, to be skipped",
            split.units.some(sources != targets),
            "Give each word one label; white space separates both.",
        )
    elif labels == "none":
        odd = split.units.some(_odd_ratios(sources, targets, counts_of_sizes))
        found += _finding(
            split,
            "warning" if odd.count > 0.01 * split.size else "note",
            f"with an unusual length ratio (in {split.unit})",
            odd,
            "Check whether they belong together."
            if split.audio is None
            else "Check whether the transcript is of this recording, and of all of it.",
        )
    found += _finding(
        split,
        "note" if split.copies.count < 0.1 * split.size else "warning",
        "whose source and target are identical",
        # Not reported where copying is the task.
        split.copies if split.copies.count < split.size else SomePairs(),
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
    name, (_, sizes, counts_of_sizes) = split.name, split.units.columns()
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found = _too_long(split)
    total = int((sizes * counts_of_sizes).sum())
    if split.running and split.unit == "tokens" and total <= max_length:
        what = f"{name}: {total:,} tokens of text, less than a block (data.max_length)"
        found.append(Finding("warning", what, 1, [], "Give more text, or lower data.max_length."))
    if empty := split.counts.empty_target:
        what = f"{name}: {empty:,} empty {'line' if empty == 1 else 'lines'}"
        places = split.counts.examples["empty_target"]
        found.append(Finding("note", what, empty, places, "They are skipped."))
    twice, _ = split.repetitions()
    found += _finding(
        split,
        "warning" if twice.count > 0.1 * split.size else "note",
        f"{_kind_of(split)}repeating an earlier one exactly",
        twice,
        "Remove the repetitions, unless they are meant to weigh more.",
    )
    if not split.running and split.unit == "tokens":
        done = "skipped" if overlong == "skip" else "cut"
        found += _finding(
            split,
            "warning",
            f"longer than data.max_length = {max_length} tokens, to be {done}",
            split.units.some(sizes > max_length),
            "Raise data.max_length, or join the lines (lines: joined).",
        )
    return found + _odd_characters(split)


def _kind_of(split: CorpusStatistics) -> str:
    return f"of {LONG} characters or more " if split.running else ""


def text_against(train: CorpusStatistics, other: CorpusStatistics, recipe: Recipe) -> list[Finding]:
    """Overlap of valid or test with train (leakage), and characters that train lacks."""
    leaked, _ = other.shared_with(train)
    return _finding(
        other,
        "warning" if leaked.count > 0.01 * other.size else "note",
        f"{_kind_of(other)}also in train",
        leaked,
        "Remove them from train, if scores should be on unseen text.",
    ) + _new_characters(train, other, recipe)


def _odd_ratios(
    sources: NDArray[np.int64], targets: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Outliers of the length ratio, in median absolute deviations; so many pairs have each lengths.

    The length of a translation varies like a sum over the words of its source: by the root of its
    length (Gale and Church 1993). So three words for one are usual, thirty for ten are not.
    """
    ratio = np.exp(quantile(np.log(np.maximum(targets, 1) / np.maximum(sources, 1)), counts, 0.5))
    expected = ratio * sources
    deviations = (targets - expected) / np.sqrt(np.maximum((expected + targets) / 2, 1))
    spread = max(quantile(np.abs(deviations), counts, 0.5), MIN_DEVIATION)
    far = np.abs(deviations) > DEVIATIONS * spread
    factors = np.maximum(targets, 1) / np.maximum(expected, 1)
    return np.asarray(far & (np.abs(np.log(factors)) > np.log(2)), bool)


def pairs_against(
    train: CorpusStatistics, other: CorpusStatistics, recipe: Recipe
) -> list[Finding]:
    """Overlap of valid or test with train (leakage), and what occurs there and not in train."""
    found: list[Finding] = []
    pairs, sources = other.shared_with(train)
    found += _finding(
        other,
        "warning",
        "also in train (leakage), so that scores on them mean nothing",
        pairs,
        "Remove them from train.",
    )
    found += _finding(
        other,
        "warning" if sources.count > 0.01 * other.size else "note",
        "whose source is in train with another target",
        sources,
        "Remove these sources from train, if scores should be on unseen ones.",
    )
    return found + _new_characters(train, other, recipe)


def _new_tags(train: CorpusStatistics, other: CorpusStatistics, recipe: Recipe) -> list[Finding]:
    known = {
        part for tag in train.tags for part in (parts_of(tag) if recipe.data.split_tags else [tag])
    }
    new = {tag: count for tag, count in other.tags.items() if known_tags(tag, known) is None}
    if not new:
        return []
    what = f"{other.name}: {len(new):,} {'tag' if len(new) == 1 else 'tags'} that train does not "
    shown = [f"{excerpt(tag)}, {count:,} times" for tag, count in list(new.items())[:EXAMPLES]]
    read = f"the tag <{UNKNOWN_TAG}>" if recipe.data.unknown_tags else "text"
    remedy = f"They are read as {read}: add sources with them to train, or leave them out."
    return [Finding("warning", f"{what}have", sum(new.values()), shown, remedy)]


def _new_characters(
    train: CorpusStatistics, other: CorpusStatistics, recipe: Recipe
) -> list[Finding]:
    """Characters (or labels) that train does not have."""
    found: list[Finding] = []
    labels = TASK_RULES[recipe.task].labels != "none"
    for side in other.sides:
        whole = labels and side == "target"
        new = {
            letter: count
            for letter, count in other.characters[side].most_common()
            if letter not in train.characters[side]
        }
        if new and not whole:
            named = {c: "space" if c == " " else excerpt(c) for c in new}
            shown = [f"{named[c]} (U+{ord(c):04X}), {n:,} times" for c, n in new.items()]
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
            tokens = recipe.data.tokens.both or getattr(recipe.data.tokens, side)
            remedy = "Use smaller units (level: subword, character or byte), or raise the size."
            if side == "source" and recipe.model.characters is not None:
                severity, remedy = "note", "The model knows them by their letters."
            elif tokens is not None and tokens.level == "character":
                remedy = "Add rows that have them to train; level: byte has no unknown tokens."
            elif whole:
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


@dataclass
class SomePairs:
    """Some pairs of a corpus: how many, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, numbers: NDArray[np.int64]) -> SomePairs:
        """These pairs."""
        some = numbers if len(numbers) <= EXAMPLES else np.partition(numbers, EXAMPLES)[:EXAMPLES]
        return cls(len(numbers), sorted(some.tolist()))

    def add(self, number: int) -> None:
        """One more, after all others."""
        self.count += 1
        if len(self.first) < EXAMPLES:
            self.first.append(number)

    def join(self, other: SomePairs) -> None:
        """Others, in any order."""
        self.count += other.count
        self.first = sorted([*self.first, *other.first])[:EXAMPLES]


class SizeCounts:
    """How many pairs have which lengths, and the first pairs of each."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], SomePairs] = {}

    def add(self, source: int, target: int, number: int) -> None:
        self._found.setdefault((source, target), SomePairs()).add(number)

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Each source length and target length, and how many pairs have both."""
        sizes = np.array(list(self._found), np.int64).reshape(-1, 2)
        counts = np.array([some.count for some in self._found.values()], np.int64)
        return sizes[:, 0], sizes[:, 1], counts

    def some(self, wanted: NDArray[np.bool_]) -> SomePairs:
        """The pairs with the lengths in these rows of `columns`."""
        found = SomePairs()
        for is_wanted, some in zip(wanted.tolist(), self._found.values(), strict=True):
            if is_wanted:
                found.join(some)
        return found


def quantile(
    values: NDArray[np.float64] | NDArray[np.int64], counts: NDArray[np.int64], share: float
) -> float:
    """numpy's quantile of values that occur so many times each."""
    order = np.argsort(values)
    ends = np.cumsum(counts[order])
    place = share * (int(ends[-1]) - 1)
    low, high = (
        float(values[order[np.searchsorted(ends, whole, side="right")]])
        for whole in (int(place), min(int(place) + 1, int(ends[-1]) - 1))
    )
    return low + (high - low) * (place - int(place))


class CorpusStatistics:
    """Statistics of one corpus: how many pairs have which lengths, examples of unusual ones; and
    hashes of all pairs, most of them in files."""

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
        self.control, self.replacement, self.copies = SomePairs(), SomePairs(), SomePairs()
        self.frames, self.ctc_states = array("i"), array("i")
        """Of audio, the length of each, and encoder states that CTC needs for each transcript."""
        self.size = 0
        """Number of pairs."""
        self.units = SizeCounts()
        self.hashes = Repetitions(WITH_MORE)
        """Of sources, and of pairs."""
        self.rules: PairRules | None = None
        self.dropped = Dropped()
        self._sizes: dict[tuple[str, str], Counter[int]] = {
            (side, what): Counter() for side in ("source", "target") for what in ("long", "units")
        }

    def read(
        self,
        tokens: tuple[Tokens, Tokens] | None,
        rules: PairRules | None = None,
        tell: Callable[[str], object] = lambda what: None,
    ) -> None:
        self.unit, self.rules = "tokens" if tokens else "words", rules
        pairs = read_pairs(self.corpus, self.folder, self.counts)
        while some := list(islice(pairs, AT_ONCE)):
            first, self.size = self.size, self.size + len(some)
            tell(f"{self.name}: {self.size:,} {self.noun}s are read")
            self._hash(some, first)
            for number, pair in enumerate(some, start=first):
                self._look(pair, number)
            if rules is not None:
                columns = PairColumns.of(some)
                self.dropped.add(rules.reasons(columns), columns)
            units = {"source": [0] * len(some), "target": [0] * len(some)}
            if self.audio is not None:
                units["source"] = [self._frames(pair, self.audio) for pair in some]
                self.frames.extend(units["source"])
                if tokens:
                    said = tokens[0].encode_batch([pair.transcript or pair.target for pair in some])
                    offsets = np.cumsum([0, *map(len, said)], dtype=np.int64)
                    ids = np.array([number for row in said for number in row], np.int32)
                    self.ctc_states.extend(states_needed(ids, offsets).tolist())
            for side in self.sides if self.audio is None else ("target",):
                texts = [str(getattr(pair, side)) for pair in some]
                self._sizes[side, "long"].update(map(len, texts))
                if tokens:
                    ids, offsets = tokens[side == "target"].encode_flat(texts)
                    units[side] = np.diff(offsets).tolist()
                    self.unknown[side] += int(np.count_nonzero(ids == UNKNOWN))
                else:
                    units[side] = [len(text.split()) for text in texts]
            for side in self.sides:
                self._sizes[side, "units"].update(units[side])
            both = zip(units["source"], units["target"], strict=True)
            for number, (source, target) in enumerate(both, start=first):
                self.units.add(source, target, number)
        if rules is not None:
            self.dropped.check_some_left(rules)
        if not self.size:
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
        both = pair.source + pair.target
        if CONTROL.search(both):
            self.control.add(number)
        if REPLACEMENT in both:
            self.replacement.add(number)
        if pair.source == pair.target and not self.is_text:
            self.copies.add(number)

    def _hash(self, pairs: Sequence[Pair], first: int) -> None:
        """In running text, only of lines whose repetition is a problem: long ones."""
        for number, pair in enumerate(pairs, start=first) if self.running else ():
            if len(pair.target) >= LONG:
                self._hash_all([pair], number)
        if not self.running:
            self._hash_all(pairs, first)

    def _hash_all(self, pairs: Sequence[Pair], first: int) -> None:
        sources = np.array([hash_of(pair.source) for pair in pairs], np.uint64)
        self.hashes.add(sources, first, hashes_of(PairColumns.of(pairs)))

    def repetitions(self) -> tuple[SomePairs, SomePairs]:
        """Pairs that occur earlier, and those whose source occurs earlier with another target."""
        twice, other = SomePairs(), SomePairs()
        for part in self.hashes.parts():
            pairs = repeated(part, "more")
            twice.join(SomePairs.of(pairs))
            other.join(SomePairs.of(np.setdiff1d(repeated(part), pairs)))
        return twice, other

    def shared_with(self, train: CorpusStatistics) -> tuple[SomePairs, SomePairs]:
        """Pairs that are also in train, and those whose source is there with another target."""
        own = np.concatenate(list(self.hashes.parts()))
        pairs, sources = np.zeros(len(own), bool), np.zeros(len(own), bool)
        for part in train.hashes.parts():
            pairs |= np.isin(own["more"], part["more"])
            sources |= np.isin(own["hash"], part["hash"])
        return SomePairs.of(own["place"][pairs]), SomePairs.of(own["place"][sources & ~pairs])

    def unknown_share(self, side: str) -> float:
        total = sum(size * count for size, count in self._sizes[side, "units"].items())
        return self.unknown[side] / max(1, total)

    def length_table(self) -> list[Lengths]:
        table = []
        for side in self.sides:
            units = [("long", "characters"), ("units", self.unit)]
            if side == "source" and self.audio is not None:
                units = [("units", "frames")]
            for what, unit in units:
                found = sorted(self._sizes[side, what].items())
                sizes, counts = (np.array(column, np.int64) for column in zip(*found, strict=True))
                table.append(
                    Lengths(
                        split=self.name,
                        side=self.called(side),
                        unit=unit,
                        least=int(sizes.min()),
                        median=quantile(sizes, counts, 0.5),
                        mean=float((sizes * counts).sum() / self.size),
                        most_below=quantile(sizes, counts, 0.95),
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


def excerpt(text: str) -> str:
    short = text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
    # Unprintable characters would upset a terminal.
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short)
