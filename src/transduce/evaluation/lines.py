"""A language model line by line: what each line of a text counts in every metric."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from transduce.data.text.pairs import Pair
from transduce.decoding.output import perplexity
from transduce.evaluation.bootstrap import Score, Statistics
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured
from transduce.evaluation.perplexity import text_to_score
from transduce.tasks import LanguageModel


def line_rows(
    model: LanguageModel, pairs: Sequence[Pair], running: bool, names: Sequence[str]
) -> dict[str, Measured]:
    """A row a line: its −log p, and how many tokens, characters and bytes it has.

    Lines of a running text are scored with the text before them.
    """
    given = text_to_score(pairs, model.target_tokens, running)
    values = model.log_probabilities(given.texts)
    if running:
        lines = [(pair.target, pair.line == 1) for pair in pairs]
        lengths = [len(ids) for ids in model.target_tokens.encode_lines(lines)]
        values = np.split(values[0], np.cumsum(lengths)[:-1])
    breaks = 0 if running else 1
    statistics = np.array(
        [
            [-of_line.sum(), len(of_line), len(text) + breaks, len(text.encode("utf-8")) + breaks]
            for of_line, text in zip(values, (pair.target for pair in pairs), strict=True)
        ]
    )
    details = {"tokens": given.tokens, "unknown_tokens": given.unknown}
    return {name: Measured(statistics, _SURPRISE[name], dict(details)) for name in names}


def line_items(pairs: Sequence[Pair]) -> list[Item]:
    """The lines as items, each with its text as the source."""
    return [
        Item(text := pair.target.rstrip("\n"), [text], place=(pair.file, pair.line))
        for pair in pairs
    ]


def _bits_per(column: int) -> Score:
    def score(total: Statistics) -> float:
        return float(total[0] / math.log(2) / max(total[column], 1.0))

    return score


_SURPRISE: dict[str, Score] = {
    "perplexity": lambda total: perplexity(-float(total[0]), int(total[1])),
    "bits_per_character": _bits_per(2),
    "bits_per_byte": _bits_per(3),
}
