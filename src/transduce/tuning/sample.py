"""What to try next, and what mattered: Optuna's TPE sampler and its PED-ANOVA."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from transduce.errors import ModelError, load_package
from transduce.evaluation.metrics import higher_is_better
from transduce.tuning.rungs import REDUCTION, Trial
from transduce.tuning.space import Range, Searched, Space, own_values
from transduce.tuning.study import Study

RANDOM = 6  # trials before the sampler has seen enough to choose
FEWEST = 3 * REDUCTION  # trials of which can be said what mattered


def optuna() -> Any:
    """The package. Raises ModelError with how to install it."""
    package = load_package("optuna", "tune", "`transduce tune`", ModelError)
    package.logging.set_verbosity(package.logging.WARNING)
    return package


def next_values(study: Study, trials: Sequence[Trial]) -> dict[str, Any]:
    """The values of the next trial: the recipe's own for the first, then by TPE.

    The sampler is seeded by the recipe's seed and the number of the trial: a search by one process
    gives the same trials again.
    """
    number = len(trials)
    if number == 0 and (own := own_values(study.recipe, study.space)) is not None:
        return own
    package = optuna()
    sampler = package.samplers.TPESampler(
        n_startup_trials=RANDOM, seed=(study.recipe.seed + 1_000_003 * number) % 2**32
    )
    seen = _as_optuna(study, trials, sampler)
    trial = seen.ask(_distributions(study.space))
    return {key: _plain(study.space[key], trial.params[key]) for key in study.space}


def _as_optuna(study: Study, trials: Sequence[Trial], sampler: Any) -> Any:
    """The trials as a study of Optuna.

    One that was stopped at a rung is pruned, as is one that failed, the worst of all; one that is
    trained now is running, so that processes side by side do not try the same.
    """
    package = optuna()
    direction = "maximize" if higher_is_better(study.metric) else "minimize"
    found = package.create_study(sampler=sampler, direction=direction)
    states, distributions = package.trial.TrialState, _distributions(study.space)
    for trial in trials:
        scores = {rung: score for rung, score in enumerate(trial.scores) if score is not None}
        done = trial.finished and trial.scores[-1] is not None
        state = states.COMPLETE if done else states.PRUNED
        if trial.on_its_way and not scores:
            state = states.RUNNING
        found.add_trial(
            package.trial.create_trial(
                state=state,
                value=trial.scores[-1] if done else None,
                params={key: _index(study.space[key], trial.values[key]) for key in study.space},
                distributions=distributions,
                intermediate_values=scores,
            )
        )
    return found


def _distributions(space: Space) -> dict[str, Any]:
    kinds = optuna().distributions
    found: dict[str, Any] = {}
    for key, one in space.items():
        if not isinstance(one, Range):
            # By their place: Optuna takes no lists as choices.
            found[key] = kinds.CategoricalDistribution(tuple(range(len(one.values))))
        elif one.whole:
            found[key] = kinds.IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            found[key] = kinds.FloatDistribution(one.low, one.high, log=one.log)
    return found


def _plain(searched: Searched, value: Any) -> Any:
    """A value of the sampler as one of the recipe."""
    return searched.rounded(value) if isinstance(searched, Range) else searched.values[value]


def _index(searched: Searched, value: Any) -> Any:
    return value if isinstance(searched, Range) else searched.values.index(value)


def importance(study: Study, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each key mattered for being among the best third at the first rung, in shares of 1.

    PED-ANOVA (Watanabe et al. 2023, https://arxiv.org/abs/2304.10255). All trials are compared at
    the first rung, which all have reached. Empty where there are too few.
    """
    scored = [trial for trial in trials if trial.scores and trial.scores[0] is not None]
    if len(scored) < FEWEST or len(study.space) < 2:
        return {}
    package = optuna()
    direction = "maximize" if higher_is_better(study.metric) else "minimize"
    seen = package.create_study(direction=direction)
    for trial in scored:
        seen.add_trial(
            package.trial.create_trial(
                value=trial.scores[0],
                params={key: _index(study.space[key], trial.values[key]) for key in study.space},
                distributions=_distributions(study.space),
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is marked as experimental
        judge = package.importance.PedAnovaImportanceEvaluator(target_quantile=1 / REDUCTION)
        found: Mapping[str, float] = package.importance.get_param_importances(seen, evaluator=judge)
    if not all(map(math.isfinite, found.values())):
        return {}
    return {key: float(found.get(key, 0.0)) for key in study.space}
