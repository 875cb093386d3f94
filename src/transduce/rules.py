"""What each task asks of a recipe: the first half of a task; the other is its class in tasks/."""

from __future__ import annotations

from dataclasses import dataclass

WORDS = ("bleu", "chrf", "ter", "wer", "cer", "per", "exact", "accuracy")
SURPRISE = ("perplexity", "bits_per_character", "bits_per_byte")


@dataclass(frozen=True)
class Rules:
    """What a recipe of a task may say."""

    about: str
    """What such a model is, after "a": sentences to people name it so."""
    without: tuple[str, ...] = ()
    """Keys that mean nothing to the task: they may not be set; parts of a model are left out."""
    metrics: tuple[str, ...] = WORDS
    """The metrics that can judge it."""
    judged_by: tuple[str, ...] = ("bleu", "chrf")
    """Those that do where a recipe names none."""


RULES: dict[str, Rules] = {
    "transduce": Rules("sequence-to-sequence model"),
    "continue": Rules(
        "language model",
        without=(
            "model.encoder",
            "data.alternatives",
            "validation.limit",
            "validation.beam",
            "decode.coverage",
            "decode.max_ratio",
        ),
        metrics=SURPRISE,
        judged_by=SURPRISE,
    ),
}
