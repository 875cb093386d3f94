"""The loss of a model on a corpus, with teacher forcing."""

from __future__ import annotations

import torch

from transduce.data.batches.bucketing import ordered
from transduce.data.cache.tokenised import Encoded
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.transduce import Model


@torch.inference_mode()
def loss_and_tokens(
    model: Model, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-likelihood, without label smoothing, and the number of target tokens.

    Rank `rank` of `count` computes every count-th batch of `tokens` tokens.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    seen = 0
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count, TASK_RULES[model.recipe.task].ends):
        total += model.network.batch_loss(batch.to(model.device)).nll.double()
        seen += batch.target_tokens
    model.network.train(training)
    return float(total), seen
