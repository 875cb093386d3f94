"""The decoding steps that search uses on a CPU: in C where the library supports the network, else
those of the network itself, in torch.
"""

from __future__ import annotations

from typing import TypeVar

from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.trainable import TrainableNetwork
from transduce.runtime.c_library import library
from transduce.runtime.recurrent import CRecurrentSteps, has_c_recurrent_steps
from transduce.runtime.transformer import CTransformerSteps, has_c_transformer_steps


def gains_by_packing(network: TrainableNetwork) -> bool:
    """Whether search on a CPU is faster with packed float32 weights: with the C library any
    network that it may support, without it those with large products."""
    if not isinstance(network, EncoderDecoder | LanguageModelNetwork) or not network.as_built:
        return False
    return isinstance(network.decoder, TransformerDecoder) or library() is not None


Network = TypeVar("Network", EncoderDecoder, LanguageModelNetwork)


def steps_of(network: Network) -> CTransformerSteps | CRecurrentSteps | Network:
    """The decoding steps of a packed network."""
    if has_c_transformer_steps(network):
        return CTransformerSteps(network)
    return CRecurrentSteps(network) if has_c_recurrent_steps(network) else network
