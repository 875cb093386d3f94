"""What a validation measures; the processes of a run share the work and agree on the result."""

from __future__ import annotations

from transduce.evaluation.evaluate import loss_and_tokens
from transduce.evaluation.metrics import measure
from transduce.evaluation.surprise import metrics_of
from transduce.recipe import Recipe
from transduce.tasks import LanguageModel
from transduce.training.prepare import Prepared
from transduce.training.ranks import Ranks
from transduce.transducer import Model


def validate(
    model: Model, recipe: Recipe, prepared: Prepared, budget: int, ranks: Ranks
) -> dict[str, float]:
    """The loss and the recipe's metrics on the validation set, the same on every process."""
    own = loss_and_tokens(model, prepared.valid, budget, ranks.rank, ranks.count)
    totals, tokens = zip(*ranks.gather(own), strict=True)
    values = {"loss": sum(totals) / max(sum(tokens), 1)}
    if isinstance(model, LanguageModel) and recipe.metrics:
        assert prepared.given is not None
        parts = ranks.gather(model.surprise(prepared.given.texts, ranks.rank, ranks.count))
        total = sum(nll for nll, _ in parts)
        measured = metrics_of(recipe.metrics, total, prepared.given, model.window)
        values |= {name: metric.value for name, metric in measured.items()}
    elif recipe.metrics:
        texts = _decode(model, recipe, prepared, ranks)
        if ranks.first:
            references = [item.references for item in prepared.items]
            measured = measure(list(recipe.metrics), texts, references, bootstrap=0)
            values |= {name: metric.value for name, metric in measured.items()}
    return ranks.from_first(values)


def _decode(model: Model, recipe: Recipe, prepared: Prepared, ranks: Ranks) -> list[str]:
    """The text of every item, each decoded by one of the processes."""
    sources = [item.source for item in prepared.items]
    outputs = model.run(sources[ranks.rank :: ranks.count], beam=recipe.validation.beam)
    texts = [""] * len(sources)
    for rank, part in enumerate(ranks.gather([output.text for output in outputs])):
        texts[rank :: ranks.count] = part
    return texts
