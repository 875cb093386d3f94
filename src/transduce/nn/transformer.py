"""Transformer blocks: attention and feed-forward sublayers with residual connections and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Literal, NamedTuple, TypedDict, TypeVar, Unpack

from torch import Tensor, nn

from transduce.nn.activation import ACTIVATIONS
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.positions import Rotary
from transduce.nn.residual import ResidualStream, dropped, keep_and_normalise, normalise
from transduce.nn.watchable import Watch, Watchable

Flow = TypeVar("Flow", Tensor, ResidualStream)


class FeedForward(Watchable):
    """Position-wise feed-forward layer max(0, x W_1 + b_1) W_2 + b_2, or with another activation.

    Vaswani et al. 2017, section 3.3, https://arxiv.org/abs/1706.03762. SwiGLU needs twice the
    columns in W_1, for gate and value.

    Args:
        width: width of inputs and outputs.
        hidden: width between the two matrices.
        activation: "relu", "gelu", "silu", "swiglu" or another of `nn.activation`.
        dropout: of the hidden layer, in training.
    """

    def __init__(
        self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation}."
            )
        self.activation = activation
        self.expand = nn.Linear(width, ACTIVATIONS[activation].columns(hidden))
        self.dropout = dropout
        self.contract = nn.Linear(hidden, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD to the same shape, each position independently."""
        relu = self.activation == "relu"  # ReLU is fused into the matrix product on a GPU
        hidden_BTF = linear(x_BTD, self.expand.weight, self.expand.bias, relu)
        if not relu:
            hidden_BTF = ACTIVATIONS[self.activation](hidden_BTF)
        hidden_BTF = dropped(hidden_BTF, self.dropout, self.training)
        return self.gated(linear(hidden_BTF, self.contract.weight, self.contract.bias))


def build_norm(kind: str, width: int, epsilon: float | None = None) -> nn.Module:
    """LayerNorm ("layer", Ba et al. 2016) or RMSNorm ("rms", Zhang and Sennrich 2019).

    epsilon: is added to the variance; 1e-5 for LayerNorm and 1e-6 for RMSNorm if not given.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=1e-5 if epsilon is None else epsilon)
    if kind == "rms":
        return nn.RMSNorm(width, eps=1e-6 if epsilon is None else epsilon)
    raise ValueError(f'norm must be "layer" or "rms", not "{kind}".')


class Residual(nn.Module):
    """Residual connection around a sublayer f, with a norm before f (pre-norm) or after the sum.

        post:  norm(x + f(x))       Vaswani et al. 2017
        pre:   x + f(norm(x))       Xiong et al. 2020, https://arxiv.org/abs/2002.04745

    Pre-norm trains without warm-up, but needs a final norm after the last block.

    Args:
        width: width of x.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_position: "pre" or "post".
        dropout: of f's output, in training.
        norm_epsilon: added to the variance in the norm; None is the usual value of the norm.
    """

    def __init__(
        self,
        width: int,
        norm: str = "layer",
        norm_position: str = "pre",
        dropout: float = 0.0,
        norm_epsilon: float | None = None,
    ) -> None:
        super().__init__()
        if norm_position not in ("pre", "post"):
            raise ValueError(f'norm_position must be "pre" or "post", not "{norm_position}".')
        self.norm_position = norm_position
        self.norm = build_norm(norm, width, norm_epsilon)
        self.dropout = dropout

    def forward(
        self, x_BTD: Tensor | ResidualStream, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor | ResidualStream:
        """x_BTD through the sublayer and its residual connection; same shape.

        A `ResidualStream` stays a `ResidualStream` where possible: the next norm adds the change.
        """
        dropout = self.dropout if self.training else 0.0
        if self.norm_position == "pre":
            kept_BTD, normed_BTD = keep_and_normalise(self.norm, x_BTD, half=True)
            stream = ResidualStream(kept_BTD, sublayer(normed_BTD), dropout)
            return stream if isinstance(x_BTD, ResidualStream) else stream.settled()
        if isinstance(x_BTD, ResidualStream):
            x_BTD = x_BTD.settled()
        return normalise(self.norm, ResidualStream(x_BTD, sublayer(x_BTD), dropout), half=False)


class Sublayer(NamedTuple):
    """One sublayer of a block inside its residual connection: all that a runtime has to know
    of it.
    """

    kind: Literal["self_attention", "cross_attention", "feed_forward"]
    body: nn.Module
    residual: Residual

    @property
    def attention(self) -> MultiHeadAttention:
        assert isinstance(self.body, MultiHeadAttention)
        return self.body

    @property
    def feed_forward(self) -> FeedForward:
        assert isinstance(self.body, FeedForward)
        return self.body


Kinds = tuple[Literal["self_attention", "cross_attention", "feed_forward"], ...]


class LayerSettings(TypedDict, total=False):
    """What all blocks of a network have in common.

    Args:
        activation: "relu", "gelu", "silu", "swiglu" or another of `nn.activation`.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_position: "pre" or "post"; see `Residual`.
        norm_epsilon: added to the variance in norms; None is the usual value of the norm.
        dropout: of the output of each sublayer.
        attention_dropout: of the attention weights.
        activation_dropout: of the hidden layer of the feed-forward network.
    """

    activation: str
    norm: str
    norm_position: str
    norm_epsilon: float | None
    dropout: float
    attention_dropout: float
    activation_dropout: float


class BlockSettings(LayerSettings, total=False):
    """Those of `LayerSettings`, and how a block knows of positions.

    Args:
        rotary: rotary positions of the width of one head.
        relative: a bias of the scores by distance (as in T5).
        head_width: width of one head, if it is not width / heads.
    """

    rotary: Rotary | None
    relative: BucketedBias | None
    head_width: int | None


class Block(nn.Module):
    """Sublayers one after the other, each with a residual connection.

    `sublayers` is the only place that says which they are and in which order. The forward passes
    below read it, and so do the runtimes: the C library, ONNX.
    """

    kinds: Kinds

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        activation: str = "relu",
        norm: str = "layer",
        norm_position: str = "pre",
        norm_epsilon: float | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        rotary: Rotary | None = None,
        relative: BucketedBias | None = None,
        head_width: int | None = None,
        cross_heads: int | None = None,
    ) -> None:
        super().__init__()
        residual = partial(Residual, width, norm, norm_position, dropout, norm_epsilon)
        attention = partial(MultiHeadAttention, width, dropout=attention_dropout)
        self.self_attention = attention(
            heads, rotary=rotary, head_width=head_width, relative=relative
        )
        self.self_attention_residual = residual()
        self.cross_attention: MultiHeadAttention | None = None
        if cross_heads is not None:
            # Without rotary: positions in source and target are not on one scale.
            self.cross_attention = attention(cross_heads, head_width=head_width)
            self.cross_attention_residual = residual()
        self.feed_forward = FeedForward(width, hidden, activation, activation_dropout)
        self.feed_forward_residual = residual()

    def last_norm(self) -> nn.Module:
        """The norm after the last block of such: pre-norm leaves the sum of all sublayers
        unnormalised."""
        residual = self.feed_forward_residual
        return deepcopy(residual.norm) if residual.norm_position == "pre" else nn.Identity()

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return tuple(
            Sublayer(kind, getattr(self, kind), getattr(self, f"{kind}_residual"))
            for kind in self.kinds
        )

    def _pass(self, x: Flow, sublayers: Mapping[str, Callable[[Tensor], Tensor]]) -> Flow:
        for kind, _, residual in self.sublayers:
            x = residual(x, sublayers[kind])
        return x


class BlockCache(NamedTuple):
    """What a block keeps of the past, so that it can go on where it was: KV cache and convolution
    cache.
    """

    keys_BP2D: Tensor
    """Keys, without positions, and values of self-attention, side by side."""
    frames_BPD: Tensor | None = None
    """The last frames of a causal convolution."""


class Resumed:
    """A sublayer that also gives what it keeps, as one that does not: a residual connection takes
    only the output."""

    kept: Tensor

    def of(self, sublayer: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        def output(x_BTD: Tensor) -> Tensor:
            y_BTD, self.kept = sublayer(x_BTD)
            return y_BTD

        return output


class EncoderBlock(Block):
    """Encoder layer: self-attention, then feed-forward (Vaswani et al. 2017, section 3.1).

        block = EncoderBlock(64, heads=4, hidden=256)
        y_BSD = block(x_BSD, padding(lengths_B, S))

    Args:
        width: width of inputs and outputs.
        heads: number of attention heads.
        hidden: width of the hidden layer of the feed-forward network.
        **settings: activation, norm and others, as in `BlockSettings`.
    """

    kinds = ("self_attention", "feed_forward")

    def __init__(
        self, width: int, heads: int, hidden: int, **settings: Unpack[BlockSettings]
    ) -> None:
        super().__init__(width, heads, hidden, **settings)

    def forward(self, x_BSD: Flow, mask: Mask | None = None) -> Flow:
        """x_BSD to the same shape; `mask` says which positions each position may attend to."""
        attend = partial(self.self_attention, mask=mask)
        return self._pass(x_BSD, {"self_attention": attend, "feed_forward": self.feed_forward})

    def resume(
        self, x_BTD: Flow, block_cache: BlockCache, visible_BTS: Tensor
    ) -> tuple[Flow, BlockCache]:
        """The positions that follow what was seen before: outputs, and what the next ones need.

        `visible_BTS` is over the keys of the past and of these positions.
        """
        attention = Resumed()
        attend = attention.of(
            partial(
                self.self_attention.resume, past_BP2D=block_cache.keys_BP2D, visible_BTS=visible_BTS
            )
        )
        y_BTD = self._pass(x_BTD, {"self_attention": attend, "feed_forward": self.feed_forward})
        return y_BTD, BlockCache(attention.kept)


class DecoderBlock(Block):
    """Decoder layer: masked self-attention, cross-attention, feed-forward.

    Vaswani et al. 2017, section 3.1. With cross=False there is no memory: a block of a language
    model. The mask is not causal by itself.

        block = DecoderBlock(64, heads=4, hidden=256)
        memory_BS2D = block.project_memory(encoder_states_BSD)     # once for each source
        y_BTD = block(x_BTD, memory_BS2D, padding(lengths_B, S), causal())

    Args:
        width: width of inputs and outputs.
        heads: number of heads of self-attention, and of cross-attention unless told otherwise.
        hidden: width of the hidden layer of the feed-forward network.
        cross: whether the block has cross-attention.
        cross_heads: number of heads of cross-attention, if it is another one.
        **settings: activation, norm and others, as in `BlockSettings`.
    """

    kinds: Kinds = ("self_attention", "cross_attention", "feed_forward")

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        cross: bool = True,
        cross_heads: int | None = None,
        **settings: Unpack[BlockSettings],
    ) -> None:
        across = (cross_heads or heads) if cross else None
        super().__init__(width, heads, hidden, cross_heads=across, **settings)
        if not cross:
            self.kinds = ("self_attention", "feed_forward")

    def project_memory(self, memory_BSD: Tensor) -> Tensor:
        """Encoder outputs to the keys and values [B, S, 2D] that `forward` takes as memory."""
        if self.cross_attention is None:
            raise ValueError("This decoder block was built with cross=False and reads no memory.")
        return self.cross_attention.project(memory_BSD)

    def forward(
        self,
        x_BTD: Flow,
        memory_BS2D: Tensor | None = None,
        memory_mask: Mask | None = None,
        mask: Mask | None = None,
        cache: KVCache | None = None,
        watch: Watch = None,
    ) -> Flow:
        """x_BTD to the same shape.

        The mask is not causal by itself: pass `causal()`. watch: is called with the weights of
        cross-attention [B, H, T, S]. Raises ValueError when there is memory
        without cross-attention or cross-attention without memory.
        """
        if (memory_BS2D is None) != (self.cross_attention is None):
            raise ValueError(
                "A decoder block with cross=True needs memory, from project_memory, and one with "
                "cross=False takes none."
            )

        inner: dict[str, Callable[[Tensor], Tensor]] = {
            "self_attention": partial(self.self_attention, mask=mask, cache=cache),
            "feed_forward": self.feed_forward,
        }
        if memory_BS2D is not None and self.cross_attention is not None:
            watched = {} if watch is None else {"watch": watch}
            inner["cross_attention"] = partial(
                self.cross_attention, memory_BS2D=memory_BS2D, mask=memory_mask, **watched
            )
        return self._pass(x_BTD, inner)

    def step(
        self,
        x_R1D: Flow,
        own: StaticSelfAttentionCache,
        source: StaticCrossAttentionCache | None = None,
    ) -> Flow:
        """One decoding step [R, 1, D] with KV caches: the same as `forward` at that position."""
        inner: dict[str, Callable[[Tensor], Tensor]] = {
            "self_attention": partial(self.self_attention.step, cache=own),
            "feed_forward": self.feed_forward,
        }
        if source is not None and self.cross_attention is not None:
            inner["cross_attention"] = partial(self.cross_attention.step, cache=source)
        return self._pass(x_R1D, inner)
