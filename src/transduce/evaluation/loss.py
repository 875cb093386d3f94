"""The loss of a model on a corpus, with teacher forcing."""

from __future__ import annotations

import torch

from transduce.data.batches.batch import ordered
from transduce.data.cache.tokenised import Encoded
from transduce.recipe.tasks import RULES
from transduce.tasks.transduce import Model


@torch.inference_mode()
def loss_and_tokens(
    model: Model, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-probability, without smoothing, of so many target tokens.

    Process `rank` of `count` sees every count-th batch of `tokens` places.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    seen = 0
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count, RULES[model.recipe.task].ends):
        total += model.network.batch_loss(batch.to(model.device)).nll.double()
        seen += batch.target_tokens
    model.network.train(training)
    return float(total), seen
