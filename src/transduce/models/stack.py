"""Transformer blocks one upon the other, as a recipe asks."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from transduce import recipe
from transduce.nn.positions import Rotary
from transduce.nn.transformer import DecoderBlock, EncoderBlock, build_norm

Settings = recipe.TransformerEncoder | recipe.TransformerDecoder


def build_stack(
    block: Callable[..., EncoderBlock | DecoderBlock],
    settings: Settings,
    width: int,
    dropout: float,
) -> nn.ModuleList:
    rotary = Rotary(width // settings.heads) if settings.positions == "rotary" else None
    return nn.ModuleList(
        block(
            width,
            settings.heads,
            settings.feed_forward,
            activation=settings.activation,
            norm=settings.norm,
            norm_position=settings.norm_position,
            dropout=dropout,
            attention_dropout=settings.attention_dropout,
            activation_dropout=settings.activation_dropout,
            rotary=rotary,
        )
        for _ in range(settings.layers)
    )


def build_last_norm(settings: Settings, width: int) -> nn.Module:
    """Pre-norm leaves the sum of all sublayers unnormalised: one norm at the top."""
    pre = settings.norm_position == "pre"
    return build_norm(settings.norm, width) if pre else nn.Identity()
