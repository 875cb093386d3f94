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
