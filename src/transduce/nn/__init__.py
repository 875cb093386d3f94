"""Neural network layers and losses: tensors in, tensors out. No files, recipes or text here.

Legend. A tensor's name ends in its dimensions:

    B batch   S source length   T target length   D model width   H heads   K width of one head
    F feed-forward width   V vocabulary   M mel bands   N beams   L layers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "GRU",
    "LSTM",
    "Additive",
    "AdditiveFree",
    "Attention",
    "ConformerBlock",
    "Cosine",
    "DecoderBlock",
    "Dot",
    "Elman",
    "EncoderBlock",
    "FeedForward",
    "Fourier",
    "General",
    "KVCache",
    "Learned",
    "Location",
    "LogMel",
    "Loss",
    "Mask",
    "MultiHeadAttention",
    "PeepholeLSTM",
    "Positioned",
    "Recurrent",
    "RelativeAttention",
    "Residual",
    "Rotary",
    "ScaledDot",
    "Score",
    "Sinusoidal",
    "SpecAugment",
    "Subsampling",
    "attend",
    "causal",
    "cross_entropy",
    "ctc_loss",
    "padding",
]

if TYPE_CHECKING:
    from transduce.nn.attention.attention import (
        Additive,
        AdditiveFree,
        Attention,
        Cosine,
        Dot,
        General,
        Location,
        ScaledDot,
        Score,
        attend,
    )
    from transduce.nn.attention.kv_cache import KVCache
    from transduce.nn.attention.multihead import MultiHeadAttention
    from transduce.nn.attention.relative import RelativeAttention
    from transduce.nn.conformer import ConformerBlock
    from transduce.nn.ctc.loss import ctc_loss
    from transduce.nn.loss import Loss, cross_entropy
    from transduce.nn.masks import Mask, causal, padding
    from transduce.nn.positions import Fourier, Learned, Positioned, Rotary, Sinusoidal
    from transduce.nn.recurrent.cells import GRU, LSTM, Elman, PeepholeLSTM
    from transduce.nn.recurrent.stack import Recurrent
    from transduce.nn.speech.mel import LogMel
    from transduce.nn.speech.spec_augment import SpecAugment
    from transduce.nn.speech.subsampling import Subsampling
    from transduce.nn.transformer import DecoderBlock, EncoderBlock, FeedForward, Residual

# The module of each name; a module is imported only when one of its names is used.
_FILES = {
    "attention.attention": (
        "Additive",
        "AdditiveFree",
        "Attention",
        "Cosine",
        "Dot",
        "General",
        "Location",
        "ScaledDot",
        "Score",
        "attend",
    ),
    "speech.spec_augment": ("SpecAugment",),
    "transformer": ("DecoderBlock", "EncoderBlock", "FeedForward", "Residual"),
    "attention.kv_cache": ("KVCache",),
    "recurrent.cells": ("GRU", "LSTM", "Elman", "PeepholeLSTM"),
    "conformer": ("ConformerBlock",),
    "ctc.loss": ("ctc_loss",),
    "loss": ("Loss", "cross_entropy"),
    "masks": ("Mask", "causal", "padding"),
    "speech.mel": ("LogMel",),
    "attention.multihead": ("MultiHeadAttention",),
    "positions": ("Fourier", "Learned", "Positioned", "Rotary", "Sinusoidal"),
    "recurrent.stack": ("Recurrent",),
    "attention.relative": ("RelativeAttention",),
    "speech.subsampling": ("Subsampling",),
}
_WHERE = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'transduce.nn' has no attribute {name!r}")
    return getattr(import_module(f"transduce.nn.{_WHERE[name]}"), name)
