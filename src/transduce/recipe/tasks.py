"""What each task asks of a recipe and of its pairs; the rest of a task is its class in tasks/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TEXT_METRICS = ("bleu", "chrf", "chrf++", "ter", "wer", "cer", "per", "exact", "accuracy")
SURPRISE = ("perplexity", "bits_per_character", "bits_per_byte")
SEARCH = ("decode", "validation.beam")
NOT_OF_LABELS = ("data.multiple_references", "bleu_tokenizer", *SEARCH)
LABELLING = ("model.pooling", "model.characters", "model.ngrams", "model.word_dropout")


@dataclass(frozen=True)
class Rules:
    """What a recipe of a task may say, and what its pairs are like."""

    about: str
    """What such a model is, after "a": sentences to people name it so."""
    without: tuple[str, ...] = ()
    """Keys that mean nothing to the task: they may not be set; parts of a model are left out."""
    metrics: tuple[str, ...] = TEXT_METRICS
    """The metrics that can judge it."""
    judged_by: tuple[str, ...] = ("bleu", "chrf")
    """Those that do where a recipe names none."""
    labels: Literal["none", "whole", "words"] = "none"
    """What a target is: text, or labels; then one for the whole source, or one for each token."""
    source_level: str | None = None
    """The one level that the tokens of the source can have; None: any."""

    @property
    def target_level(self) -> str | None:
        """The one level that the tokens of the target can have."""
        return {"none": None, "whole": "label", "words": "symbol"}[self.labels]

    @property
    def ends(self) -> bool:
        """Whether sequences end with END: where one is written, it must be known to be whole."""
        return self.labels == "none"


RULES: dict[str, Rules] = {
    "transduce": Rules("sequence-to-sequence model", without=LABELLING),
    "classify": Rules(
        "classifier",
        without=("model.decoder", "model.tie_embeddings", "model.characters", *NOT_OF_LABELS),
        metrics=("accuracy", "f1", "calibration"),
        judged_by=("accuracy", "f1", "calibration"),
        labels="whole",
    ),
    "tag": Rules(
        "tagger",
        without=("model.decoder", "model.tie_embeddings", "model.pooling", *NOT_OF_LABELS),
        metrics=("accuracy", "known", "unknown", "f1", "calibration", "exact"),
        judged_by=("accuracy", "known", "unknown", "f1"),
        labels="words",
        source_level="symbol",
    ),
    "continue": Rules(
        "language model",
        without=(
            "model.encoder",
            "data.multiple_references",
            "bleu_tokenizer",
            "validation.limit",
            "validation.beam",
            "decode.coverage_penalty",
            "decode.max_ratio",
            *LABELLING,
        ),
        metrics=SURPRISE,
        judged_by=SURPRISE,
    ),
}
