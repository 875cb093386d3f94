"""Mathematics: tensors in, tensors out. No file is opened here, no recipe read, no text known.

Legend. A tensor's name ends in its dimensions:

    B batch    S source length    T target length    D model width    H heads    K width of one head
    F feed-forward width    V vocabulary    M mel bands    N beams    L layers
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
    "KeyValueCache",
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
    from transduce.nn.attention import (
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
    from transduce.nn.augment import SpecAugment
    from transduce.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual
    from transduce.nn.cache import KeyValueCache
    from transduce.nn.cells import GRU, LSTM, Elman, PeepholeLSTM
    from transduce.nn.conformer import ConformerBlock
    from transduce.nn.ctc import ctc_loss
    from transduce.nn.losses import Loss, cross_entropy
    from transduce.nn.masks import Mask, causal, padding
    from transduce.nn.mel import LogMel
    from transduce.nn.multihead import MultiHeadAttention
    from transduce.nn.positions import Fourier, Learned, Positioned, Rotary, Sinusoidal
    from transduce.nn.recurrent import Recurrent
    from transduce.nn.relative import RelativeAttention
    from transduce.nn.subsampling import Subsampling

# The file of each name: one that nobody asks for is not opened.
_FILES = {
    "attention": (
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
    "augment": ("SpecAugment",),
    "blocks": ("DecoderBlock", "EncoderBlock", "FeedForward", "Residual"),
    "cache": ("KeyValueCache",),
    "cells": ("GRU", "LSTM", "Elman", "PeepholeLSTM"),
    "conformer": ("ConformerBlock",),
    "ctc": ("ctc_loss",),
    "losses": ("Loss", "cross_entropy"),
    "masks": ("Mask", "causal", "padding"),
    "mel": ("LogMel",),
    "multihead": ("MultiHeadAttention",),
    "positions": ("Fourier", "Learned", "Positioned", "Rotary", "Sinusoidal"),
    "recurrent": ("Recurrent",),
    "relative": ("RelativeAttention",),
    "subsampling": ("Subsampling",),
}
_WHERE = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'transduce.nn' has no attribute {name!r}")
    return getattr(import_module(f"transduce.nn.{_WHERE[name]}"), name)
