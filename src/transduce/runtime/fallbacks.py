"""Why search does not use its fastest implementation for a Transformer; told once."""

from __future__ import annotations

from torch import nn

from transduce.errors import warn_once
from transduce.models.decoders import TransformerDecoder
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.runtime.c_library import library


def unsupported_attention(network: nn.Module) -> str | None:
    """What an attention layer has that only its own module computes; None where it is plain."""
    attentions = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    if any(one.relative is not None for one in attentions):
        return "relative positions"
    if any(one.inner > one.width for one in attentions):
        return "heads that are wider than width / heads (head_width)"
    return None


def warn_of_torch_steps(network: nn.Module) -> None:
    """Warn where the steps of a Transformer leave C on a CPU because of what it has.

    Where the C library itself is missing, that was told when it was looked for.
    """
    reason = unsupported_attention(network)
    if isinstance(getattr(network, "decoder", None), TransformerDecoder) and reason and library():
        warn_once(
            f"search runs in torch and not in the C library, which would be faster: it does not "
            f"support {reason}"
        )


def warn_of_plain_cuda(network: nn.Module) -> None:
    """Warn where a Transformer cannot be searched with CUDA graphs because of what it has."""
    if reason := unsupported_attention(network):
        warn_once(
            f"search launches each operation on the GPU and uses no CUDA graphs, which would be "
            f"faster: they do not support {reason}"
        )
