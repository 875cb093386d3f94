"""What the time is used for that is left once the first model has had all its updates.

The time is counted in runs as the first one. Models for the tags come first: they decode as fast as
one model. Then further seeds for an ensemble, then one model that learns from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from transduce.recipe import Recipe
from transduce.training.run_directory.checkpoint import TrainingState

MAX_MODELS = 5  # models: decoding takes as many times as long, and more bring little
DISTILLED_FROM = 4.0  # runs that there is time for: two of further seeds, two of distillation
DISTILLATION = 2.0  # runs that it takes: each update asks all teachers
# Updates of the models for the tags, as a share of those of the one for all, by the share of the
# rows that a tag has; a tag with few rows needs more than its share.
FINE_TUNING = 0.5
MIN_SHARE = 0.25


@dataclass(frozen=True)
class Uses:
    """What is tried."""

    fine_tuned: bool = False
    """The first model, trained further for each tag."""
    by_tag: bool = False
    """A model for each tag alone."""
    seeds: int = 0
    """Further seeds for an ensemble with the first."""
    distilled: bool = False
    """One model that learns from all of the ensemble."""

    @property
    def any(self) -> bool:
        return self.fine_tuned or self.seeds > 0

    def sentence(self) -> str:
        """In words, without a full stop."""
        said = []
        if self.fine_tuned:
            also = ", and one for each tag alone" if self.by_tag else ""
            said.append(f"the model fine-tuned for each tag{also}")
        if self.seeds:
            many = "seed" if self.seeds == 1 else "seeds"
            said.append(f"{self.seeds} more {many} for an ensemble")
        if self.distilled:
            said.append("one model that learns from it")
        return ", then ".join(said)


def runs_of_tags(shares: Collection[float]) -> float:
    """How many runs the models for tags with these shares of the rows take, each alone."""
    return sum(max(share, MIN_SHARE) for share in shares)


def uses_of(runs: float, distills: bool, shares: Collection[float] = ()) -> Uses:
    """What is tried in the time of so many runs. distills: whether distillation is possible.
    shares: of the rows, of tags that could have models of their own."""
    each = runs_of_tags(shares)
    fine_tuned = bool(shares) and runs >= FINE_TUNING * each
    by_tag = bool(shares) and runs >= (1 + FINE_TUNING) * each
    runs -= each * (FINE_TUNING * fine_tuned + by_tag)
    distilled = distills and runs >= DISTILLED_FROM
    seeds = min(MAX_MODELS - 1, int(runs - DISTILLATION if distilled else runs))
    return Uses(fine_tuned, by_tag, seeds, distilled)


def can_teach(recipe: Recipe) -> bool:
    """Whether models of a recipe can be distilled into one (train.teacher)."""
    return recipe.audio is None and not recipe.model.copies


def runs_left(state: TrainingState, minutes: float) -> float:
    """Of how many runs as that one there is time left."""
    return (60 * minutes - state.elapsed) / max(state.elapsed, 1.0)


def has_time_left(state: TrainingState, minutes: float) -> bool:
    return runs_left(state, minutes) >= 1


def minutes_of_ensemble(state: TrainingState) -> int:
    """Minutes in which three seeds are trained, each as that one."""
    return math.ceil(3.2 * state.elapsed / 60)


def minutes_of_tags(state: TrainingState, shares: Collection[float]) -> int:
    """Minutes in which models for tags are trained too, fine-tuned and alone."""
    return math.ceil((1 + 1.1 * (1 + FINE_TUNING) * runs_of_tags(shares)) * state.elapsed / 60)
