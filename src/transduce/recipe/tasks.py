"""What each task allows in a recipe: keys, metrics, kinds of labels. Its code is in tasks/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transduce.registry import register

TEXT_METRICS = ("bleu", "chrf", "chrf++", "ter", "wer", "cer", "per", "exact", "accuracy")
LANGUAGE_MODEL_METRICS = ("perplexity", "bits_per_character", "bits_per_byte")
SEARCH_KEYS = ("decode", "validation.beam", "validation.decoding")
TEXT_OUTPUT_KEYS = ("data.multiple_references", "bleu_tokenizer", *SEARCH_KEYS)
HEAD_KEYS = ("model.tie_embeddings", "model.output_bias")
LABEL_KEYS = ("model.pooling", "model.characters", "model.ngrams", "model.word_dropout")


@dataclass(frozen=True)
class TaskRules:
    """What a recipe for a task may contain, and what its targets are."""

    about: str
    """The kind of model, in messages after "a": "a tagger"."""
    unused_keys: tuple[str, ...] = ()
    """Keys without a meaning for the task: they may not be set; such encoders or decoders are
    null."""
    metrics: tuple[str, ...] = TEXT_METRICS
    """The metrics that come with transduce."""
    default_metrics: tuple[str, ...] = ("bleu", "chrf")
    """The metrics of a recipe that lists none."""
    labels: Literal["none", "whole", "words"] = "none"
    """Labels: none (the target is text), one for the whole source, or one for each word."""
    source_level: str | None = None
    """The level that the tokens of the source must have; None: any."""

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """The metrics that can be computed; those of plugins compare texts."""
        return (*self.metrics, *(register.metric if self.metrics == TEXT_METRICS else ()))

    @property
    def target_level(self) -> str | None:
        """The level that the tokens of the target must have; None: any."""
        return {"none": None, "whole": "label", "words": "symbol"}[self.labels]

    @property
    def ends(self) -> bool:
        """Whether sequences end with END, as all generated text does."""
        return self.labels == "none"


TASK_RULES: dict[str, TaskRules] = {
    "transduce": TaskRules("sequence-to-sequence model", unused_keys=LABEL_KEYS),
    "classify": TaskRules(
        "classifier",
        unused_keys=(
            "model.decoder",
            *HEAD_KEYS,
            "model.characters",
            *TEXT_OUTPUT_KEYS,
        ),
        metrics=("accuracy", "f1", "calibration"),
        default_metrics=("accuracy", "f1", "calibration"),
        labels="whole",
    ),
    "tag": TaskRules(
        "tagger",
        unused_keys=("model.decoder", *HEAD_KEYS, "model.pooling", *TEXT_OUTPUT_KEYS),
        metrics=("accuracy", "known", "unknown", "f1", "entity_f1", "calibration", "exact"),
        default_metrics=("accuracy", "known", "unknown", "f1"),
        labels="words",
        source_level="symbol",
    ),
    "language_modeling": TaskRules(
        "language model",
        unused_keys=(
            "model.encoder",
            "data.multiple_references",
            "bleu_tokenizer",
            "validation.limit",
            "validation.beam",
            "validation.decoding",
            "decode.coverage_penalty",
            "decode.max_ratio",
            *LABEL_KEYS,
        ),
        metrics=LANGUAGE_MODEL_METRICS,
        default_metrics=LANGUAGE_MODEL_METRICS,
    ),
}
TASK_ALIASES = {"continue": "language_modeling"}
"""Earlier names of tasks, which recipes and model folders may have."""


def task_name(name: str) -> str:
    """The name of a task, also by an earlier one."""
    return TASK_ALIASES.get(name, name)
