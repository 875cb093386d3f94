"""Why search does not use its fastest implementation; told once."""

from __future__ import annotations

from torch import nn

from transduce.errors import warn_once
from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.transducer import SpeechTransducer
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.runtime.c_library import library


def unsupported(network: nn.Module) -> str | None:
    """What a network has that only its own modules compute; None where it is plain."""
    if isinstance(network, SpeechTransducer):
        return "transducers (model.transducer)"
    attentions = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    if any(one.relative is not None for one in attentions):
        return "relative positions"
    if any(one.inner > one.width for one in attentions):
        return "heads that are wider than width / heads (head_width)"
    return None


def warn_of_torch_steps(network: nn.Module) -> None:
    """Warn where the steps of a network leave C on a CPU because of what it has.

    Where the C library itself is missing, that was told when it was looked for.
    """
    slower = isinstance(getattr(network, "decoder", None), TransformerDecoder)
    if slower and (reason := unsupported(network)) and library():
        warn_once(
            f"search runs in torch and not in the C library, which would be faster: it does not "
            f"support {reason}"
        )


def warn_of_plain_cuda(network: nn.Module) -> None:
    """Warn where a network cannot be searched with CUDA graphs because of what it has."""
    if reason := _without_graphs(network):
        warn_once(
            f"search launches each operation on the GPU and uses no CUDA graphs, which would be "
            f"faster: they do not support {reason}"
        )


def _without_graphs(network: nn.Module) -> str | None:
    if isinstance(network, CopyingEncoderDecoder):
        return "copying from the source (model.decoder.copying)"
    if isinstance(network, EncoderDecoder) and network.is_tag_V is not None:
        return "attention to tags (model.decoder.tag_attention)"
    return unsupported(network)
