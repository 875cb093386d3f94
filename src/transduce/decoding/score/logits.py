"""How the logits of a network are computed in parts: whole vocabularies take much memory."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from transduce.models import EncoderDecoder
from transduce.models.language_model import LanguageModelNetwork

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
