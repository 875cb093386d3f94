"""What the doctor knows to be odd: in a corpus by itself, and in one against train."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from transduce.data.doctor.survey import Survey, excerpt
from transduce.data.text.files import LONGEST
from transduce.data.text.pairs import EXAMPLES
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES

Severity = Literal["error", "warning", "note"]
MANY_UNKNOWN = 0.01  # a larger share of unknown tokens is worth a warning
FEW_TOKENS = 3  # shorter sides have wild length ratios
DEVIATIONS = 4
LONG = 40  # letters of a line that hardly comes twice in running text by chance


@dataclass(frozen=True)
class Finding:
    """One thing found: a sentence, how often, where, and how to mend it."""

    severity: Severity
    what: str
    count: int
    examples: list[str]
    mend: str


def _finding(
    split: Survey, severity: Severity, what: str, numbers: Iterable[int], mend: str
) -> list[Finding]:
    """A finding about these pairs of a split, if there are any; `what` goes on after a number."""
    listed = list(numbers)
    if not listed:
        return []
    noun = split.noun if len(listed) == 1 else f"{split.noun}s"
    sentence = f"{split.name}: {len(listed):,} {noun} {what}"
    return [Finding(severity, sentence, len(listed), split.excerpts(listed), mend)]


def _too_long(split: Survey) -> list[Finding]:
    """Lines of which the rest is not read."""
    count = split.tally.too_long
    if not count:
        return []
    noun = split.noun if count == 1 else f"{split.noun}s"
    what = (
        f"{split.name}: {count:,} {noun} of more than {LONGEST:,} letters, whose rest is not read"
    )
    places = split.tally.examples["too_long"]
    return [Finding("warning", what, count, places, "Cut such lines into several.")]


def pairs_alone(split: Survey, recipe: Recipe) -> list[Finding]:
    """What is odd in pairs by themselves."""
    name, tally, labels = split.name, split.tally, TASK_RULES[recipe.task].labels
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found = _too_long(split)
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


def _odd_characters(split: Survey) -> list[Finding]:
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


def text_alone(split: Survey, recipe: Recipe) -> list[Finding]:
    """What is odd in text by itself; of running text only that it is repeated, or too short."""
    name, sizes = split.name, split.sizes("target")
    max_length, overlong = recipe.data.max_length, recipe.data.overlong
    found = _too_long(split)
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


def _telling(split: Survey) -> NDArray[np.bool_]:
    """The lines that say something if they come twice: in running text, the long ones."""
    lengths = split.sizes("target", "long")
    return lengths >= LONG if split.running else np.ones(len(lengths), bool)


def _kind_of(split: Survey) -> str:
    return f"of {LONG} letters or more " if split.running else ""


def text_against(train: Survey, other: Survey) -> list[Finding]:
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


def pairs_against(train: Survey, other: Survey, labels: bool) -> list[Finding]:
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


def _new_characters(train: Survey, other: Survey, labels: bool = False) -> list[Finding]:
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
            shown = [f"{excerpt(c)} (U+{ord(c):04X}), {n:,} times" for c, n in new.items()]
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
