"""Metrics: BLEU, chrF, TER, WER, CER, accuracy, with bootstrap confidence intervals."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from transduce.data.text.unicode import composed
from transduce.data.tokens.bleu_tokenizer import DEFAULT, fitting_tokenizer, make_bleu
from transduce.errors import DataError, PluginError, RecipeError
from transduce.evaluation.bootstrap import Score, Statistics, in_brackets, interval
from transduce.registry import register

HIGHER_IS_BETTER: dict[str, bool] = {
    "loss": False,
    "bleu": True,
    "chrf": True,
    "chrf++": True,
    "ter": False,
    "wer": False,
    "cer": False,
    "per": False,
    "exact": True,
    "accuracy": True,
    "known": True,
    "unknown": True,
    "f1": True,
    "entity_f1": True,
    "calibration": False,
    "perplexity": False,
    "bits_per_character": False,
    "bits_per_byte": False,
}

# Names of the metrics. BLEU and chrF are by custom shown without a per cent sign.
TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "wer": "WER",
    "cer": "CER",
    "per": "PER",
    "exact": "exact match",
    "accuracy": "accuracy",
    "known": "accuracy on known words",
    "unknown": "accuracy on unknown words",
    "f1": "macro F1",
    "entity_f1": "entity F1",
    "calibration": "calibration error",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
}
_BARE_NUMBERS = {
    "bleu": 1,
    "chrf": 1,
    "chrf++": 1,
    "ter": 1,
    "loss": 4,
    "perplexity": 3,
    "bits_per_character": 4,
    "bits_per_byte": 4,
}
"""Metrics that are not percentages, and their decimals."""

Details = dict[str, Any]
Edit = tuple[str, str]
"""A word of the reference and what stands for it; empty: it is missing, or was inserted."""
SHOWN_CONFUSIONS = 20


def is_metric(name: str) -> bool:
    """Whether there is a metric of this name."""
    return name in HIGHER_IS_BETTER or name in register.metric


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better; a plugin says so of its own (default: yes)."""
    if name in register.metric:
        return bool(register.metric[name].options.get("higher_is_better", True))
    return HIGHER_IS_BETTER[name]


def is_perfect(name: str, value: float) -> bool:
    """Whether no output is wrong at all; of the metrics of plugins it is not known."""
    if name in register.metric:
        return False
    return value == (100.0 if higher_is_better(name) else 0.0)


class Measured(NamedTuple):
    """What a metric has counted: rows of which a corpus score is made, and how."""

    statistics: Statistics
    """One row an item, but where a metric cannot be had item by item."""
    score: Score
    """Of the sum of rows."""
    details: Details
    item_score: Score | None = None
    """Of the row of one item alone, where that is another one."""
    edits: Sequence[Sequence[Edit]] | None = None
    """Of word error rates, the errors of each item."""

    def of_items(self) -> list[float]:
        """The score of each item by itself."""
        score = self.item_score or self.score
        return [score(row) for row in self.statistics]


def decimals(name: str) -> int:
    """The number of decimals with which a value of this metric is shown."""
    return max(_BARE_NUMBERS.get(name, 2), 2)


@dataclass(frozen=True)
class Metric:
    """One metric, with its 95 % bootstrap confidence interval if there is one.

    From 0 to 100, except for perplexity and bits per character or byte.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    higher_is_better: bool
    details: Details = field(default_factory=dict)

    def __str__(self) -> str:
        bare = self.name in _BARE_NUMBERS or self.name in register.metric
        decimals, unit = (_BARE_NUMBERS.get(self.name, 2), "") if bare else (2, " %")
        text = f"{TITLES.get(self.name, self.name)} {self.value:.{decimals}f}{unit}"
        return text + in_brackets(self.low, self.high, f".{decimals}f")

    @property
    def with_interval(self) -> str:
        """The value and its interval: 31.25 [29.10, 33.40]."""
        return f"{self.value:.2f}{in_brackets(self.low, self.high)}"

    def to_json(self) -> dict[str, Any]:
        """Everything about the metric, in types that `json.dumps` takes."""
        return asdict(self)


def measure(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    bootstrap: int = 1000,
    seed: int = 1,
    bleu_tokenizer: str = "auto",
) -> dict[str, Metric]:
    """Measure hypotheses against references by each of the named metrics, over the whole corpus.

    `references[i]` holds all accepted references of item i. The 95 % intervals come from
    `bootstrap` resamples of the items (Koehn 2004, https://aclanthology.org/W04-3250); 0 for none.
    The same seed draws the same items for every metric.

    Both are compared in the Unicode form NFC: é is one character, however it was written.

    - bleu, chrf, chrf++, ter: sacrebleu's, with its defaults but for BLEU's tokenizer, which is
      chosen by the script of the references, unless one is given (see
      data/tokens/bleu_tokenizer.py); `details["signature"]` says which. chrF++ counts words and
      pairs of words too (Popović 2017, https://aclanthology.org/W17-4770).
    - wer, cer, per: edits per 100 words, characters (spaces inside count) or phones (what white
      space separates) of the closest reference: the one with fewest edits, the first of equals.
    - exact: per cent of items that equal one of their references, runs of white space being one.
    - accuracy: per cent of positions where hypothesis and reference have the same token, both cut
      at white space; the longer of the two says how many positions an item has. Of several
      references the one with the largest share counts.

    Raises `DataError` where items or references are missing, `RecipeError` for an unknown name.
    """
    if bleu_tokenizer == "auto":
        bleu_tokenizer = fitting_tokenizer(one for of_item in references for one in of_item)
    rows = rows_of(names, hypotheses, references, bleu_tokenizer)
    return {name: metric_of(name, one, bootstrap, seed) for name, one in rows.items()}


def rows_of(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    bleu_tokenizer: str = DEFAULT,
) -> dict[str, Measured]:
    """What each of the named metrics counts in every item; arguments and errors as of `measure`."""
    _check(names, hypotheses, references)
    hypotheses = [composed(text) for text in hypotheses]
    references = [[composed(text) for text in accepted] for accepted in references]
    bleu: Measure = partial(_translation_score, tokenizer=bleu_tokenizer)
    measures = {**_MEASURES, "bleu": bleu, **dict.fromkeys(register.metric, _registered)}
    found = {}
    for name in dict.fromkeys(names):
        found[name] = measures[name](name, hypotheses, references)
        found[name].details["unicode"] = "NFC"
    return found


def metric_of(name: str, rows: Measured, bootstrap: int = 1000, seed: int = 1) -> Metric:
    """The metric of a corpus, and its interval."""
    low, high = interval(rows.statistics, rows.score, bootstrap, seed)
    value = rows.score(rows.statistics.sum(axis=0))
    return Metric(name, value, low, high, higher_is_better(name), rows.details)


def _check(
    names: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> None:
    known = [*_MEASURES, *register.metric]
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f": {', '.join(known)}."
            raise RecipeError(f"{name} is not one of the metrics{hint}")
    if len(hypotheses) != len(references):
        raise DataError(
            f"There are {len(hypotheses)} hypotheses but references for {len(references)} items."
        )
    if not hypotheses:
        raise DataError("There is nothing to measure: the list of hypotheses is empty.")
    for number, accepted in enumerate(references, start=1):
        # A string is also a sequence of strings, and would be read letter by letter.
        if isinstance(accepted, str):
            raise DataError(f"The references of item {number} are a string instead of a list.")
        if not accepted:
            raise DataError(f"Item {number} has no reference.")


# ----------------------------------------------------------------------------------- sacrebleu

Measure = Callable[[str, Sequence[str], Sequence[Sequence[str]]], Measured]


def _sacrebleu(name: str, tokenizer: str) -> Any:
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return make_bleu(tokenizer)
    return TER() if name == "ter" else CHRF(word_order=2 if name == "chrf++" else 0)


def _translation_score(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenizer: str = DEFAULT,
) -> Measured:
    metric = _sacrebleu(name, tokenizer)
    # sacrebleu wants stream j to hold the j-th reference of every item, None where there is none.
    streams = list(zip_longest(*references))

    # Two of sacrebleu's internal methods, which its own significance tests call: its public ones
    # give no rows to resample, or score the corpus a second time. A test compares the results with
    # the public calls.
    rows = metric._extract_corpus_statistics(list(hypotheses), streams)
    statistics = np.array(rows, dtype=np.float64)

    def score(total: Statistics) -> float:
        return float(metric._compute_score_from_stats(total.tolist()).score)

    details: Details = {"signature": str(metric.get_signature())}
    if name == "bleu":
        corpus = metric._compute_score_from_stats(statistics.sum(axis=0).tolist())
        details |= {
            "brevity_penalty": float(corpus.bp),
            "hypothesis_length": int(corpus.sys_len),
            "reference_length": int(corpus.ref_len),
        }
        # Of one sentence, n-grams longer than it are left out, as sacrebleu's sentence BLEU does.
        alone = make_bleu(tokenizer, effective_order=True)

        def item_score(row: Statistics) -> float:
            return float(alone._compute_score_from_stats(row.tolist()).score)

        return Measured(statistics, score, details, item_score)
    return Measured(statistics, score, details)


# --------------------------------------------------------------------------------- error rates


def _error_rate(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Measured:
    import jiwer

    # Every hypothesis with each of its references, so that jiwer is called once.
    owners = [i for i, accepted in enumerate(references) for _ in accepted]
    accepted_texts = [text for accepted in references for text in accepted]
    hypothesis_texts = [hypotheses[i] for i in owners]
    output: jiwer.CharacterOutput | jiwer.WordOutput
    if name == "cer":
        output = jiwer.process_characters(accepted_texts, hypothesis_texts)
    else:
        # jiwer splits at spaces only; a phone or word may be separated by a tab as well.
        output = jiwer.process_words(
            [_one_space(text) for text in accepted_texts],
            [_one_space(text) for text in hypothesis_texts],
        )

    kinds = ("substitute", "delete", "insert", "equal")
    closest: dict[int, list[int]] = {}
    edits: dict[int, list[Edit]] = {}
    for place, (owner, chunks) in enumerate(zip(owners, output.alignments, strict=True)):
        counts = dict.fromkeys(kinds, 0)
        for chunk in chunks:
            # An insertion has no length in the reference, a deletion none in the hypothesis.
            counts[chunk.type] += max(
                chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
            )
        row = list(counts.values())
        if owner not in closest or sum(row[:3]) < sum(closest[owner][:3]):
            closest[owner] = row
            if name != "cer":
                sides = output.references[place], output.hypotheses[place]
                edits[owner] = _edits(chunks, *sides)
    statistics = np.array([closest[i] for i in range(len(hypotheses))], dtype=np.float64)

    def score(total: Statistics) -> float:
        substitutions, deletions, insertions, hits = (float(count) for count in total)
        # Where all references are empty each insertion counts as one whole error, as in jiwer.
        length = max(substitutions + deletions + hits, 1.0)
        return 100.0 * (substitutions + deletions + insertions) / length

    if not edits:
        return Measured(statistics, score, edit_counts(statistics))
    of_items = [edits[i] for i in range(len(hypotheses))]
    details = edit_counts(statistics) | {"confused": confused(of_items)}
    return Measured(statistics, score, details, edits=of_items)


def edit_counts(statistics: Statistics) -> Details:
    """The errors of the rows of an error rate."""
    substitutions, deletions, insertions, hits = (int(count) for count in statistics.sum(axis=0))
    return {
        "substitutions": substitutions,
        "deletions": deletions,
        "insertions": insertions,
        "hits": hits,
        "reference_length": substitutions + deletions + hits,
    }


def confused(edits: Iterable[Sequence[Edit]], most: int = SHOWN_CONFUSIONS) -> list[list[Any]]:
    """The commonest errors: a word of the reference, what stands for it, how often. Empty is a word
    that is missing, or one that was inserted."""
    counts = Counter(edit for of_item in edits for edit in of_item)
    found = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [[reference, predicted, count] for (reference, predicted), count in found[:most]]


def _edits(chunks: Sequence[Any], reference: Sequence[str], predicted: Sequence[str]) -> list[Edit]:
    found: list[Edit] = []
    for chunk in chunks:
        if chunk.type != "equal":
            words = reference[chunk.ref_start_idx : chunk.ref_end_idx]
            others = predicted[chunk.hyp_start_idx : chunk.hyp_end_idx]
            found += zip_longest(words, others, fillvalue="")
    return found


# ------------------------------------------------------------------------- exact and accuracy


def _exact(name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Measured:
    rows = [
        [_one_space(hypothesis) in {_one_space(text) for text in accepted}, 1]
        for hypothesis, accepted in zip(hypotheses, references, strict=True)
    ]
    statistics = np.array(rows, dtype=np.float64)
    correct, items = (int(count) for count in statistics.sum(axis=0))
    return Measured(statistics, percentage, {"correct": correct, "items": items})


def _accuracy(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Measured:
    rows = []
    for hypothesis, accepted in zip(hypotheses, references, strict=True):
        tokens = hypothesis.split()
        candidates = []
        for text in accepted:
            expected = text.split()
            same = sum(a == b for a, b in zip(tokens, expected, strict=False))
            candidates.append((same, max(len(tokens), len(expected))))
        rows.append(max(candidates, key=lambda row: row[0] / row[1] if row[1] else 1.0))
    statistics = np.array(rows, dtype=np.float64)
    correct, positions = (int(count) for count in statistics.sum(axis=0))
    return Measured(statistics, percentage, {"correct": correct, "positions": positions})


def _registered(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Measured:
    """A metric of a plugin: the mean of what it says of each item."""
    function, origin = register.metric[name].part, register.metric[name].origin
    rows = []
    for number, (hypothesis, accepted) in enumerate(zip(hypotheses, references, strict=True), 1):
        try:
            value = float(function(hypothesis, list(accepted)))
        except Exception as error:
            raise PluginError(
                f"the metric {name} of {origin} failed at item {number}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            raise PluginError(f"the metric {name} of {origin} gave {value} for item {number}")
        rows.append([value, 1.0])
    return Measured(np.array(rows, dtype=np.float64), _mean, {"items": len(rows)})


def _mean(total: Statistics) -> float:
    return float(total[0] / total[1])


def percentage(total: Statistics) -> float:
    right, count = (float(part) for part in total)
    # An empty reference and an empty hypothesis match.
    return 100.0 * right / count if count else 100.0


def _one_space(text: str) -> str:
    return " ".join(text.split())


_MEASURES: dict[str, Measure] = {
    "bleu": _translation_score,
    "chrf": _translation_score,
    "chrf++": _translation_score,
    "ter": _translation_score,
    "wer": _error_rate,
    "cer": _error_rate,
    "per": _error_rate,
    "exact": _exact,
    "accuracy": _accuracy,
}
