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
    head_width = width // settings.heads
    rotary = Rotary(head_width) if settings.positions == "rotary" else None
    kept = [{"heads": heads} for heads in settings.kept_heads]
    if isinstance(settings, recipe.TransformerDecoder) and settings.cross_heads is not None:
        for layer, heads in zip(kept, settings.cross_heads, strict=False):
            layer["cross_heads"] = heads
    return nn.ModuleList(
        block(
            width,
            hidden=settings.feed_forward,
            head_width=head_width,
            **layer,
            activation=settings.activation,
            norm=settings.norm,
            norm_position=settings.norm_position,
            dropout=dropout,
            attention_dropout=settings.attention_dropout,
            activation_dropout=settings.activation_dropout,
            rotary=rotary,
        )
        for layer in kept
    )


def build_last_norm(settings: Settings, width: int) -> nn.Module:
    """Pre-norm leaves the sum of all sublayers unnormalised: one norm at the top."""
    pre = settings.norm_position == "pre"
    return build_norm(settings.norm, width) if pre else nn.Identity()
