"""Single-head attention: score functions, masked softmax, weighted sum of values, attention
pooling; then scaled dot-product attention once more, in fused kernels.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from transduce.errors import PluginError
from transduce.nn.masks import Mask
from transduce.nn.watchable import Watch, Watchable
from transduce.registry import register

# Not cuDNN's kernel: it makes a new plan for each size, and hardly two batches of sequences have
# the same size.
PLANLESS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Score(nn.Module):
    """An attention score function: how well queries match keys. Base class of the scores below.

    `prepare` does the part of the work that depends on the keys alone, once for each source.

    Args:
        query_width: width of the queries, the states s_t of a decoder.
        key_width: width of the keys, the states h_i of an encoder.
    """

    same_width: ClassVar[bool] = False
    """Whether queries and keys are compared number by number."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.query_width = query_width
        self.key_width = key_width
        if self.same_width and query_width != key_width:
            raise ValueError(
                f"{type(self).__name__} compares queries and keys number by number, but queries "
                f"are {query_width} wide and keys {key_width}: make them equal, or use the general "
                f"or additive score, which learn a projection."
            )

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        """Prepared keys, which `forward` takes; a decoder computes them once for all its steps."""
        return keys_BSD

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        """Queries [B, T, query width] and prepared keys [B, S, ·] to scores [B, T, S]."""
        raise NotImplementedError


class Cosine(Score):
    """cosine[s_t, h_i]: content-based addressing, Graves et al. 2014, https://arxiv.org/abs/1410.5401."""

    same_width = True

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        return F.normalize(keys_BSD, dim=-1)

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        return F.normalize(query_BTD, dim=-1) @ prepared_BSD.mT


class Additive(Score):
    """v_aᵀ tanh(W_a[s_t; h_i]), Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473.

    W_a[s; h] is written as W_s s + W_h h, so that W_h h is computed once for each source.
    """

    def __init__(self, query_width: int, key_width: int, *, hidden: int | None = None) -> None:
        super().__init__(query_width, key_width)
        hidden = query_width if hidden is None else hidden
        self.query_projection = nn.Linear(query_width, hidden, bias=False)
        self.key_projection = nn.Linear(key_width, hidden, bias=False)
        self.energy = nn.Linear(hidden, 1, bias=False)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        projected_BSF: Tensor = self.key_projection(keys_BSD)
        return projected_BSF

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        query_BT1F = self.query_projection(query_BTD).unsqueeze(2)
        keys_B1SF = prepared_BSD.unsqueeze(1)
        scores_BTS1: Tensor = self.energy(torch.tanh(query_BT1F + keys_B1SF))
        return scores_BTS1.squeeze(-1)


class AdditiveFree(Score):
    """Σ tanh(query + key): the additive score without parameters."""

    same_width = True

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        return torch.tanh(query_BTD.unsqueeze(2) + prepared_BSD.unsqueeze(1)).sum(-1)


class Location(Score):
    """W_a s_t: from the target state alone, Luong et al. 2015, https://arxiv.org/abs/1508.04025.

    Row i of W_a scores source position i, so there is a longest source: `max_length`.
    """

    def __init__(self, query_width: int, key_width: int, *, max_length: int = 512) -> None:
        super().__init__(query_width, key_width)
        self.max_length = max_length
        self.position_projection = nn.Linear(query_width, max_length, bias=False)

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        S = prepared_BSD.shape[1]
        if self.max_length < S:
            raise ValueError(
                f"The location score knows {self.max_length} source positions, but this source has "
                f"{S}: raise max_length and train again, or use a score that reads the keys."
            )
        return F.linear(query_BTD, self.position_projection.weight[:S])


class General(Score):
    """s_tᵀ W_a h_i, Luong et al. 2015, https://arxiv.org/abs/1508.04025."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__(query_width, key_width)
        self.key_projection = nn.Linear(key_width, query_width, bias=False)

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        projected_BSD: Tensor = self.key_projection(keys_BSD)
        return projected_BSD

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        return query_BTD @ prepared_BSD.mT


class Dot(Score):
    """s_tᵀ h_i, Luong et al. 2015, https://arxiv.org/abs/1508.04025."""

    same_width = True

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        return query_BTD @ prepared_BSD.mT


class ScaledDot(Score):
    """s_tᵀ h_i / √n, Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.

    The dot product of two unit-normal vectors of width n has standard deviation √n; unscaled, it
    saturates the softmax, and its gradient vanishes.
    """

    same_width = True

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        return query_BTD @ prepared_BSD.mT / math.sqrt(self.key_width)


SCORES: dict[str, type[Score]] = {
    "cosine": Cosine,
    "additive": Additive,
    "location": Location,
    "general": General,
    "dot": Dot,
    "scaled-dot": ScaledDot,
    "additive-free": AdditiveFree,
}


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the last axis with a mask; masked positions get weight and gradient zero.

    A fully masked row gives zeros. Filling with −∞ would give NaN there, so masked scores are set
    to the least finite number and their weights to zero afterwards.
    """
    if visible is None:
        return scores.softmax(dim=-1)
    hidden = ~visible
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(hidden, 0.0)


@overload
def attend(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    mask: Mask | None = None,
    score: Score | None = None,
    weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attend(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    mask: Mask | None = None,
    score: Score | None = None,
    *,
    weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attend(
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    mask: Mask | None = None,
    score: Score | None = None,
    weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention without parameters: the values averaged by how well their keys match each query.

        context_BTD, weights_BTS = attend(query_BTD, keys_BSD, values_BSD, causal(), weights=True)

    Args:
        query_BTD: queries.
        keys_BSD: keys.
        values_BSD: values, as many as keys.
        mask: which keys each query may attend to; None: all.
        score: the score function; None: the scaled dot product.
        weights: also return the weights [B, T, S]; each row is a distribution over the keys.

    Returns:
        The context [B, T, D], or (context, weights).
    """
    if score is None and not weights:
        query_B1TD, keys_B1SD = query_BTD.unsqueeze(1), keys_BSD.unsqueeze(1)
        return fused_attention(query_B1TD, keys_B1SD, values_BSD.unsqueeze(1), mask).squeeze(1)
    score = score or ScaledDot(query_BTD.shape[-1], keys_BSD.shape[-1])
    scores_BTS: Tensor = score(query_BTD, score.prepare(keys_BSD))
    weights_BTS = masked_softmax(scores_BTS, _visible(mask, scores_BTS))
    context_BTD = weights_BTS @ values_BSD
    return (context_BTD, weights_BTS) if weights else context_BTD


class Attention(Watchable):
    """Single-head attention with a given score function, for recurrent decoders.

        attention = Attention(General(64, 32))
        prepared_BSD = attention.prepare(keys_BSD)         # once for each source
        context_BTD = attention(query_BTD, prepared_BSD, values_BSD, padding(lengths_B, S))

    While `watch` is set to a function, it is called with the attention weights [B, 1, T, S] of
    every forward pass.

    Args:
        score: a score function.
    """

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def prepare(self, keys_BSD: Tensor) -> Tensor:
        """Prepared keys, which `forward` takes."""
        return self.score.prepare(keys_BSD)

    def forward(
        self,
        query_BTD: Tensor,
        prepared_keys_BSD: Tensor,
        values_BSD: Tensor,
        mask: Mask | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """Queries [B, T, ·], prepared keys [B, S, ·] and values [B, S, D] to context [B, T, D].

        watch: is called with the weights [B, 1, T, S] of this call.
        """
        scores_BTS: Tensor = self.score(query_BTD, prepared_keys_BSD)
        weights_BTS = masked_softmax(scores_BTS, _visible(mask, scores_BTS))
        self.show(weights_BTS.unsqueeze(1), watch)
        return self._read(weights_BTS, values_BSD)

    def _read(self, weights_BTS: Tensor, values_BSD: Tensor) -> Tensor:
        """The values averaged by the weights, through the gate where there is one."""
        gate = self.gate
        if gate is None:
            return weights_BTS @ values_BSD
        context_B1TD = (weights_BTS @ gate.on_values(values_BSD)).unsqueeze(1)
        return gate.on_output(gate.on_heads(context_B1TD).squeeze(1))


def attention_pool(
    query_BTD: Tensor,
    values_BSD: Tensor,
    mask: Mask | None = None,
    query_mask: Mask | None = None,
) -> Tensor:
    """Attention pooling of two sequences into one vector [B, 2D], by dot-product attention.

    `mask` says which values a query may attend to; `query_mask` (from `padding`) which queries are
    not padding and count in the means.
    """
    scores_BTS = query_BTD @ values_BSD.mT
    weights_BTS = masked_softmax(scores_BTS, _visible(mask, scores_BTS))
    weighted_BTD = weights_BTS @ values_BSD
    average_BD = _average(weighted_BTD, query_mask)
    query_average_BD = _average(query_BTD, query_mask)
    return torch.cat((average_BD, query_average_BD), dim=-1)


def _average(x_BTD: Tensor, mask: Mask | None) -> Tensor:
    # An average is attention with all scores equal.
    equal_B1T = x_BTD.new_zeros(x_BTD.shape[0], 1, x_BTD.shape[1])
    return (masked_softmax(equal_B1T, _visible(mask, equal_B1T)) @ x_BTD).squeeze(1)


def _visible(mask: Mask | None, scores_BTS: Tensor) -> Tensor | None:
    T, S = scores_BTS.shape[-2:]
    return None if mask is None else mask.dense(T, S, scores_BTS.device)


# -------------------------------------------------------------------------------- the same, faster


def fused_attention(
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    mask: Mask | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention softmax(QKᵀ/√K) V in one fused kernel; context [B, H, T, K].

    The attention weights are never stored. A fully masked row gives zeros with zero gradient, as in
    `masked_softmax`: torch's kernels do this by themselves, and a test checks it.
    """
    T, S = query_BHTK.shape[-2], keys_BHSK.shape[-2]
    half = query_BHTK.is_cuda and query_BHTK.dtype in (torch.bfloat16, torch.float16)
    if mask is not None and mask.only_segments and half and dropout == 0.0:
        return _segmented_attention(query_BHTK, keys_BHSK, values_BHSK, mask)
    if mask is not None and mask.only_causal and T == S and T > 1:
        return _kernel(query_BHTK, keys_BHSK, values_BHSK, None, dropout, is_causal=True)
    visible_BTS = None if mask is None else mask.dense(T, S, query_BHTK.device)
    visible_B1TS = None if visible_BTS is None else visible_BTS.unsqueeze(1)
    return _kernel(query_BHTK, keys_BHSK, values_BHSK, visible_B1TS, dropout)


def _kernel(
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    visible_B1TS: Tensor | None,
    dropout: float,
    is_causal: bool = False,
) -> Tensor:
    """torch's kernel; in float32 when training in bfloat16 on a CPU, where the bfloat16 backward
    pass is seven times as slow.
    """
    inputs = (query_BHTK, keys_BHSK, values_BHSK)
    dtype = query_BHTK.dtype
    how = {"attn_mask": visible_B1TS, "dropout_p": dropout, "is_causal": is_causal}
    if query_BHTK.is_cuda:
        with sdpa_kernel(PLANLESS):
            return F.scaled_dot_product_attention(*inputs, **how)  # type: ignore[arg-type]
    if dtype != torch.bfloat16 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(*inputs, **how)  # type: ignore[arg-type]
    with torch.autocast("cpu", enabled=False):
        exact = (x_BHTK.float() for x_BHTK in inputs)
        return F.scaled_dot_product_attention(*exact, **how).to(dtype)  # type: ignore[arg-type]


def _segmented_attention(
    query_1HTK: Tensor, keys_1HSK: Tensor, values_1HSK: Tensor, mask: Mask
) -> Tensor:
    """Attention over packed sequences (several in one row), with torch's variable-length kernel."""
    # Imported here, as it imports torch's compiler: more than two seconds.
    from torch.nn.attention.varlen import varlen_attn

    assert mask.segments is not None
    query_THK, keys_SHK, values_SHK = (
        x_1HTK.squeeze(0).transpose(0, 1) for x_1HTK in (query_1HTK, keys_1HSK, values_1HSK)
    )
    context_THK = varlen_attn(
        query_THK,
        keys_SHK,
        values_SHK,
        mask.segments.query_offsets,
        mask.segments.key_offsets,
        mask.segments.longest,
        mask.segments.longest,
        window_size=(-1, 0) if mask.causal else (-1, -1),
    )
    assert isinstance(context_THK, Tensor)
    return context_THK.transpose(0, 1)[None]


# ------------------------------------------------------------------------------- scores of plugins


class _OtherScore(Score):
    """A score of a plugin that is no subclass of `Score`: it need only map queries and keys."""

    def __init__(self, inner: nn.Module, width: int, name: str) -> None:
        super().__init__(width, width)
        self.inner, self.name = inner, name

    def forward(self, query_BTD: Tensor, prepared_BSD: Tensor) -> Tensor:
        scores_BTS: Tensor = self.inner(query_BTD, prepared_BSD)
        expected = (*query_BTD.shape[:2], prepared_BSD.shape[1])
        if scores_BTS.shape != expected:
            raise PluginError(
                f"the attention score {self.name} gave {list(scores_BTS.shape)} for queries "
                f"{list(query_BTD.shape)} and keys {list(prepared_BSD.shape)}; it must be "
                f"{list(expected)}"
            )
        return scores_BTS


def build_registered_score(name: str, width: int) -> Score:
    """A plugin's score. Raises PluginError where it cannot be built, or is no module."""
    registered = register.attention_score[name]
    try:
        module = registered.part(width, width)
    except Exception as error:
        raise PluginError(
            f"the attention score {name} of {registered.origin} cannot be built: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise PluginError(f"the attention score {name} is no torch.nn.Module")
    return module if isinstance(module, Score) else _OtherScore(module, width, name)
