"""Validation: loss and metrics; the ranks share the work and agree on the result."""

from __future__ import annotations

import math
from typing import Any

import torch

from transduce.data.batches.bucketing import ordered
from transduce.data.cache.tokenised import Encoded
from transduce.decoding.output import Output
from transduce.decoding.speech.confidence import Calibration
from transduce.evaluation.perplexity import metrics_of
from transduce.evaluation.score import Answer, score
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import AudioInputModel, LanguageModel
from transduce.tasks.speech import DIAGONAL_SAMPLE, SpeechModel
from transduce.tasks.transduce import Model
from transduce.training.distributed.processes import Processes
from transduce.training.prepare import Prepared


def validate(
    model: Model, recipe: Recipe, prepared: Prepared, budget: int, ranks: Processes
) -> dict[str, float]:
    """The loss and the recipe's metrics on the validation set, the same on every rank."""
    own = loss_and_tokens(model, prepared.valid, budget, ranks.rank, ranks.count)
    totals, tokens = zip(*ranks.all_gather(own), strict=True)
    values = {"loss": sum(totals) / max(sum(tokens), 1)}
    warning_rate: float | None = None
    if isinstance(model, AudioInputModel):
        model.calibration = None  # an earlier calibration is out of date
    if isinstance(model, LanguageModel) and recipe.metrics:
        assert prepared.given is not None
        parts = ranks.all_gather(
            model.negative_log_likelihood(prepared.given.texts, ranks.rank, ranks.count)
        )
        total = sum(nll for nll, _ in parts)
        measured = metrics_of(recipe.metrics, total, prepared.given, model.window)
        values |= {name: metric.value for name, metric in measured.items()}
    elif recipe.metrics:
        answers, warning_rate = _answers(model, recipe, prepared, ranks)
        if ranks.first:
            measured = score(model, prepared.items, answers, recipe.metrics, bootstrap=0)
            values |= {name: metric.value for name, metric in measured.items()}
            # No value if there was nothing to measure, such as unknown words.
            values.setdefault(recipe.validation.metric, math.nan)
    if isinstance(model, AudioInputModel) and model.calibration is not None:
        values["confidence"] = 100 * model.calibration.usual
    if isinstance(model, SpeechModel) and ranks.first:
        # "alarms" is the name in the logs there are.
        values |= {} if warning_rate is None else {"alarms": warning_rate}
        moved = model.diagonal(prepared.valid)
        # a percentage, as other metrics
        values |= {} if moved is None else {"diagonal": 100 * moved}
    return ranks.broadcast(values)


@torch.inference_mode()
def loss_and_tokens(
    model: Model, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-likelihood, without label smoothing, and the tokens it is of.

    Rank `rank` of `count` computes every count-th batch of `tokens` tokens.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=model.device)
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count, TASK_RULES[model.recipe.task].ends):
        loss = model.network.batch_loss(batch.to(model.device))
        sums += torch.stack([loss.nll.double(), loss.tokens.double()])
    model.network.train(training)
    total, tokens = sums.tolist()
    return total, int(tokens)


def _answers(
    model: Model, recipe: Recipe, prepared: Prepared, ranks: Processes
) -> tuple[list[Answer], float]:
    """The outputs of all items, each computed by one of the ranks; and the percentage with a
    warning.
    """
    sources = [item.source for item in prepared.items]
    searches = "validation.beam" not in TASK_RULES[recipe.task].unused_keys
    settings: dict[str, Any] = {"beam": recipe.validation.beam} if searches else {}
    if recipe.audio is not None and recipe.audio.prompt is not None:
        settings["fallback"] = False  # samples would hide how a checkpoint is, and take their time
    own = sources[ranks.rank :: ranks.count]
    outputs: list[Output] = []
    if isinstance(model, SpeechModel):  # some of them with all details
        outputs += model.run(own[:DIAGONAL_SAMPLE], times=True, **settings)
    outputs += model.run(own[len(outputs) :], **settings)
    answers = [Answer("", [], [])] * len(sources)
    for rank, part in enumerate(ranks.all_gather([Answer.of(output) for output in outputs])):
        answers[rank :: ranks.count] = [Answer(*values) for values in part]
    warned = ranks.all_gather([sum(bool(output.warning) for output in outputs)])
    if isinstance(model, AudioInputModel):
        sure = [output.confidence for output in outputs if output.text]
        parts_of_all = ranks.all_gather([value for value in sure if value is not None])
        model.calibration = Calibration.of([value for part in parts_of_all for value in part])
    return answers, 100 * sum(count for (count,) in warned) / max(len(answers), 1)
