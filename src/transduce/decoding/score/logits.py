"""How the logits of a network are computed in parts: whole vocabularies take much memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transduce.models import EncoderDecoder
from transduce.models.language_model import LanguageModelNetwork

AT_ONCE = 1024  # positions whose full distributions are in memory at a time
PLAIN = (EncoderDecoder.logits, LanguageModelNetwork.logits)


def forward_and_head(
    network: EncoderDecoder | LanguageModelNetwork,
) -> tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]:
    """What is called with a batch, and what makes logits of some positions of the result.

    A network with `logits` of its own is asked for these, as they may be more than its head's.
    """
    if type(network).logits in PLAIN:
        return network, network.head
    return network.logits, lambda logits_XV: logits_XV


def token_log_probs(
    head: Callable[[Tensor], Tensor], features_XD: Tensor, wanted_X: Tensor
) -> Tensor:
    """log p of the wanted tokens, in float32 or better."""
    found = [features_XD.new_empty(0)]
    for some_XD, wanted in zip(
        torch.split(features_XD, AT_ONCE), torch.split(wanted_X, AT_ONCE), strict=True
    ):
        logits_XV = head(some_XD)
        exact = torch.promote_types(logits_XV.dtype, torch.float32)
        log_probs_XV = torch.log_softmax(logits_XV.to(exact), dim=-1)
        found.append(log_probs_XV.gather(1, wanted[:, None])[:, 0])
    return torch.cat(found)
