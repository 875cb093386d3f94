"""Softmax cross-entropy without storing all logits: with label smoothing, R-Drop or distillation.

The logits of a batch, tokens × vocabulary, are larger than everything else in a small model. They
are computed a chunk of rows at a time and turned into their gradient at once, so only one chunk
exists at any time, whatever the batch and the vocabulary.

The three losses differ in what they make of the logits of a chunk (`softmax_gradient`,
`r_drop_gradient`, `distillation_gradient`); everything around that is `_summed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.linear import column_sums
from transduce.nn.mixed_precision import cast
from transduce.nn.triton import kernels

# Elsewhere the host would have to wait until the device has counted the selected rows.
SELECTING_DEVICES = frozenset({"cpu"})
# Logits held at a time: they fit a cache; they fill a GPU, and are so many that adding to the
# gradient of the output embedding, once for each chunk, takes little of the time.
CHUNK = {"cpu": 2**22, "cuda": 2**28}
TILE = 256  # rows of the largest tile of a product on a GPU


class Loss(NamedTuple):
    """Sums over the tokens of a batch; for a mean, add up batches first, then divide by
    `tokens`.
    """

    total: Tensor
    """The training objective, differentiable: label smoothing, R-Drop and CTC included."""
    nll: Tensor
    """Negative log-likelihood −Σ ln p(target), detached; exp of its mean is the perplexity."""
    correct: Tensor
    """Tokens predicted correctly: the target is the most probable one."""
    tokens: Tensor
    """Number of tokens, padding left out."""


class Output(NamedTuple):
    """What logits are computed from: features weightᵀ + bias."""

    features_BTD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None


def cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """Cross-entropy of softmax(features weightᵀ + bias) against targets, summed over tokens.

    The logits of a batch never exist all at once, which saves memory.

    Args:
        features_BTD: what the decoder gives for each step.
        weight_VD: the output embedding, one row for each token.
        bias_V: a bias for each token, or None.
        targets_BT: the right tokens.
        smoothing: ε of label smoothing: the target distribution is (1 − ε) on the target and ε/V on
            every token, itself included (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, as
            in torch's cross_entropy).
        ignore: targets that do not count, such as padding.
    """
    targets_N, counted_N, features_ND = _rows(targets_BT, ignore, features_BTD)

    def of_chunk(rows: slice, gradient: bool, logits_CV: Tensor) -> tuple[Tensor, ...]:
        return softmax_gradient(logits_CV, targets_N[rows], counted_N[rows], smoothing, gradient)

    size = _chunk_rows(weight_VD, len(features_ND))
    return _summed(of_chunk, features_ND, weight_VD, bias_V, counted_N, size)


def r_drop_cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    r_drop: float,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """The mean cross-entropy of two passes with different dropout, plus `r_drop` times their KL
    divergence (Liang et al. 2021, https://arxiv.org/abs/2106.14448).

    The second half of the rows, along the first dimension that is not 1, is the second pass over
    the same data. The divergence is symmetric, ½ (KL(p‖q) + KL(q‖p)), and summed. See
    `cross_entropy` for the other arguments.
    """
    targets_N, counted_N, features_ND = _rows(targets_BT, ignore, features_BTD)

    def of_chunk(
        rows: slice, _gradient: bool, one_CV: Tensor, other_CV: Tensor
    ) -> tuple[Tensor, ...]:
        return r_drop_gradient(
            one_CV, other_CV, targets_N[rows], counted_N[rows], smoothing, r_drop
        )

    tables = 2 if features_ND.is_cuda else 4
    size = _chunk_rows(weight_VD, len(features_ND) // 2, tables)
    return _summed(of_chunk, features_ND, weight_VD, bias_V, counted_N, size, passes=2)


def distillation_loss(
    student: Output,
    teacher: Output,
    targets_BT: Tensor,
    weight: float,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """Word-level knowledge distillation: the distribution of a teacher as a second target.

    (1 − weight) · cross-entropy + weight · T² · KL(q ‖ p), summed over the tokens, where q and p
    are the distributions of teacher and student, softmax(logits / T). The factor T² keeps the
    gradient of the second term at the size of the first. Only the student has a gradient. See
    `cross_entropy` for smoothing and ignore. Hinton et al. 2015, https://arxiv.org/abs/1503.02531;
    for sequences Kim and Rush 2016, https://arxiv.org/abs/1606.07947.
    """
    targets_N, counted_N, features_ND, taught_NE = _rows(
        targets_BT, ignore, student.features_BTD, teacher.features_BTD.detach()
    )
    teacher_VE = cast(teacher.weight_VD.detach(), features_ND.dtype)
    bias_V = teacher.bias_V
    teacher_bias_V = None if bias_V is None else cast(bias_V.detach(), features_ND.dtype)

    def of_chunk(rows: slice, gradient: bool, logits_CV: Tensor) -> tuple[Tensor, ...]:
        taught_CV = F.linear(taught_NE[rows], teacher_VE, teacher_bias_V)
        return distillation_gradient(
            logits_CV,
            taught_CV,
            targets_N[rows],
            counted_N[rows],
            (weight, temperature, smoothing),
            gradient,
        )

    size = _chunk_rows(student.weight_VD, len(features_ND), tables=4)
    return _summed(of_chunk, features_ND, student.weight_VD, student.bias_V, counted_N, size)


# What a loss makes of one chunk, from the chunk's rows, whether a gradient is wanted, and the
# logits of each pass: loss, negative log-likelihood and correctness of each row, then the gradient
# of each pass's logits.
OfChunk = Callable[..., tuple[Tensor, ...]]


def _rows(targets_BT: Tensor, ignore: int, *features: Tensor) -> tuple[Tensor, ...]:
    """Targets, whether each counts, and features, all as rows, in the type of matrix products.

    Rows that do not count are left out where selecting costs no wait.
    """
    targets_N = targets_BT.flatten()
    counted_N = targets_N != ignore
    rows = [each_BTD.flatten(0, -2) for each_BTD in features]
    device = targets_N.device.type
    if device in SELECTING_DEVICES:
        rows, targets_N = [each_ND[counted_N] for each_ND in rows], targets_N[counted_N]
        counted_N = counted_N[counted_N]
    targets_N = targets_N.masked_fill(~counted_N, 0)  # `ignore` need not be a token: −100, say
    if torch.is_autocast_enabled(device):
        rows = [each_ND.to(torch.get_autocast_dtype(device)) for each_ND in rows]
    return targets_N, counted_N, *rows


def _chunk_rows(weight_VD: Tensor, rows: int, tables: int = 1) -> int:
    """Rows of a chunk, where a loss holds so many tables of the size of its logits.

    On a GPU all chunks have about as many, in whole tiles: a small rest would not fill it.
    """
    most = max(1, CHUNK.get(weight_VD.device.type, 2**25) // tables // weight_VD.shape[0])
    if not weight_VD.is_cuda or most <= TILE:
        return most
    most -= most % TILE
    even = -(-rows // max(1, -(-rows // most)))
    return min(most, -(-even // TILE) * TILE)


def _summed(
    of_chunk: OfChunk,
    features_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    counted_N: Tensor,
    size: int,
    passes: int = 1,
) -> Loss:
    """A loss summed over the rows, `size` of them at a time.

    With two passes, the second half of the rows is a second pass over the first half's data.
    """
    # Decided here: inside, `requires_grad` is also true where no gradient will be asked for.
    learns = wants_gradient(features_ND, weight_VD, bias_V)
    total, nll, correct = _Chunked.apply(  # type: ignore[no-untyped-call]
        features_ND, weight_VD, bias_V, counted_N, of_chunk, size, passes, learns
    )
    return Loss(total, nll, correct, counted_N.sum() // passes)


def wants_gradient(*inputs: Tensor | None) -> bool:
    """Whether a gradient can be asked for; not in validation, under no_grad or inference_mode."""
    wanted = any(tensor is not None and tensor.requires_grad for tensor in inputs)
    return wanted and torch.is_grad_enabled()


class _Chunked(torch.autograd.Function):
    """The loss, and in the same pass its gradient with respect to features, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        counted_N: Tensor,
        of_chunk: OfChunk,
        size: int,
        passes: int,
        gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight_cast_VD = cast(weight_VD, features_ND.dtype)
        bias_cast_V = None if bias_V is None else cast(bias_V, features_ND.dtype)
        found = OutputGradients.zeros(features_ND, weight_VD, bias_V) if gradient else None
        nothing = torch.promote_types(features_ND.dtype, torch.float32)
        parts = [(features_ND.new_empty(0, dtype=nothing),) * 3] if not len(features_ND) else []
        part = len(features_ND) // passes
        for start in range(0, part, size):
            stop = min(start + size, part)
            rows = [slice(at + start, at + stop) for at in range(0, passes * part, part)]
            logits = [F.linear(features_ND[each], weight_cast_VD, bias_cast_V) for each in rows]
            loss_C, nll_C, hit_C, *by_logits = of_chunk(rows[0], gradient, *logits)
            parts.append((loss_C, nll_C, hit_C))
            if found is not None:
                for each, by_logits_CV in zip(rows, by_logits, strict=True):
                    found.add(each, by_logits_CV, features_ND[each], weight_cast_VD)
        ignored_N = ~counted_N[:part]
        of_rows = (torch.cat(each) for each in zip(*parts, strict=True))
        total, nll, correct = (each_N.masked_fill(ignored_N, 0).sum() for each_N in of_rows)
        ctx.found = found
        ctx.mark_non_differentiable(nll, correct)
        return total, nll, correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.found.scaled(gradients[0]), None, None, None, None, None)


class OutputGradients(NamedTuple):
    """What a loss keeps for its backward pass: ∂loss/∂features, ∂loss/∂weight, ∂loss/∂bias."""

    by_features_ND: Tensor
    by_weight_VD: Tensor
    by_bias_V: Tensor | None

    @classmethod
    def zeros(
        cls, features_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None
    ) -> OutputGradients:
        by_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        return cls(torch.zeros_like(features_ND), torch.zeros_like(weight_VD), by_bias_V)

    def add(
        self, rows: slice, by_logits_CV: Tensor, features_CD: Tensor, weight_VD: Tensor
    ) -> None:
        """Add what a chunk of rows contributes; weight_VD is in the type of the features."""
        torch.mm(by_logits_CV, weight_VD, out=self.by_features_ND[rows])
        add_product_(self.by_weight_VD, by_logits_CV.mT, features_CD)
        if self.by_bias_V is not None:
            self.by_bias_V.add_(column_sums(by_logits_CV))

    def scaled(self, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Times the factor by which the caller has scaled the loss."""
        return tuple(None if g is None else g * scale.to(g.dtype) for g in self)


def add_product_(total_VD: Tensor, one_VC: Tensor, other_CD: Tensor) -> None:
    """total += one @ other, accumulated in the type of the total."""
    if total_VD.is_cuda and total_VD.dtype != one_VC.dtype:  # accumulated in float32 directly
        torch.addmm(total_VD, one_VC, other_CD, out_dtype=total_VD.dtype, out=total_VD)
    elif total_VD.dtype == one_VC.dtype:
        total_VD.addmm_(one_VC, other_CD)
    else:
        total_VD += one_VC @ other_CD


def softmax_gradient(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and correctness of each row, in float32 or better; and the
    gradient.

    The softmax is computed in that type too. With `gradient`, the fourth result is ∂loss/∂logits =
    softmax − target distribution in the type of the logits, zero for ignored rows, and the logits
    may be overwritten. The other three are not masked.
    """
    if logits_NV.is_cuda:
        return _softmax_on_cuda(logits_NV, targets_N, counted_N, smoothing, gradient)
    given = logits_NV.dtype
    # Also for bfloat16 logits: otherwise a probability near one could not be told from one.
    logits_NV = logits_NV.to(torch.promote_types(given, torch.float32))
    at_N1 = targets_N[:, None]
    target_N = logits_NV.gather(1, at_N1).squeeze(1)
    hit_N = target_N >= logits_NV.amax(dim=-1)
    p_NV = logits_NV.softmax(dim=-1)
    nll_N = -p_NV.gather(1, at_N1).squeeze(1).log()
    lost_N = nll_N > 60  # such probabilities underflow, and have no logarithm
    if bool(lost_N.any()):
        nll_N[lost_N] = -logits_NV[lost_N].log_softmax(-1).gather(1, at_N1[lost_N])[:, 0]
    loss_N = nll_N
    if smoothing > 0:
        uniform_N = nll_N + target_N - logits_NV.mean(dim=-1)
        loss_N = (1 - smoothing) * nll_N + smoothing * uniform_N
    if gradient:
        if smoothing > 0:
            p_NV.sub_(smoothing / p_NV.shape[1])
        p_NV.scatter_add_(1, at_N1, torch.full_like(target_N[:, None], smoothing - 1))
        if not bool(counted_N.all()):
            p_NV.masked_fill_(~counted_N[:, None], 0.0)
    return loss_N, nll_N, hit_N, p_NV.to(given)


def _softmax_on_cuda(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = logits_NV.shape
    loss_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    nll_N = torch.empty_like(loss_N)
    hit_N = torch.empty(rows, dtype=torch.bool, device=logits_NV.device)
    block = min(1 << (vocabulary - 1).bit_length(), 8192)
    kernels().softmax_gradient[(rows,)](
        logits_NV,
        logits_NV.stride(0),
        targets_N,
        counted_N,
        loss_N,
        nll_N,
        hit_N,
        vocabulary,
        smoothing,
        gradient,
        block,
        num_warps=8,
    )
    return loss_N, nll_N, hit_N, logits_NV


def r_drop_gradient(
    one_NV: Tensor,
    other_NV: Tensor,
    targets_N: Tensor,
    counted_N: Tensor,
    smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and correctness of each pair of rows; the gradient of both
    logits.

    Negative log-likelihood and correctness are means of the two passes; only gradients are masked
    where a row is ignored, and the logits may be overwritten by them.
    """
    if one_NV.is_cuda:
        return _r_drop_on_cuda(one_NV, other_NV, targets_N, counted_N, smoothing, r_drop)
    exact = torch.promote_types(one_NV.dtype, torch.float32)
    log_p_NV, log_q_NV = one_NV.to(exact).log_softmax(-1), other_NV.to(exact).log_softmax(-1)
    p_NV, q_NV, apart_NV = log_p_NV.exp(), log_q_NV.exp(), log_p_NV - log_q_NV
    p_from_q_N1 = (p_NV * apart_NV).sum(-1, keepdim=True)
    q_from_p_N1 = -(q_NV * apart_NV).sum(-1, keepdim=True)
    # ∂KL(p‖q)/∂logits of p = p (ln p/q − KL(p‖q)); ∂KL(q‖p)/∂logits of p = p − q
    apart_by = (
        p_NV * (apart_NV - p_from_q_N1) + p_NV - q_NV,
        q_NV * (-apart_NV - q_from_p_N1) + q_NV - p_NV,
    )
    found = [
        softmax_gradient(logits_NV.to(exact), targets_N, counted_N, smoothing, gradient=True)
        for logits_NV in (one_NV, other_NV)
    ]
    loss_N, nll_N, hit_N = (
        (mine.to(exact) + theirs.to(exact)) / 2
        for mine, theirs in zip(found[0][:3], found[1][:3], strict=True)
    )
    loss_N = loss_N + r_drop * (p_from_q_N1 + q_from_p_N1).squeeze(1) / 2
    by_one_NV, by_other_NV = (
        (each[3] / 2 + (r_drop / 2 * by_NV).masked_fill(~counted_N[:, None], 0.0)).to(one_NV)
        for each, by_NV in zip(found, apart_by, strict=True)
    )
    return loss_N, nll_N, hit_N, by_one_NV, by_other_NV


def _r_drop_on_cuda(
    one_NV: Tensor,
    other_NV: Tensor,
    targets_N: Tensor,
    counted_N: Tensor,
    smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = one_NV.shape
    assert one_NV.stride() == other_NV.stride()
    loss_N, nll_N, hit_N = torch.empty(3, rows, device=one_NV.device).unbind()
    kernels().r_drop_gradient[(rows,)](
        one_NV,
        other_NV,
        one_NV.stride(0),
        targets_N,
        counted_N,
        loss_N,
        nll_N,
        hit_N,
        vocabulary,
        smoothing,
        r_drop,
        block=min(1 << (vocabulary - 1).bit_length(), 4096),
        num_warps=8,
    )
    return loss_N, nll_N, hit_N, one_NV, other_NV


def distillation_gradient(
    logits_NV: Tensor,
    taught_NV: Tensor,
    targets_N: Tensor,
    counted_N: Tensor,
    numbers: tuple[float, float, float],
    gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `softmax_gradient`, with the teacher's logits and with weight, temperature, smoothing."""
    weight, temperature, smoothing = numbers
    given, exact = logits_NV.dtype, torch.promote_types(logits_NV.dtype, torch.float32)
    log_p_NV = (logits_NV.to(exact) / temperature).log_softmax(-1)
    log_q_NV = (taught_NV.to(exact) / temperature).log_softmax(-1)
    q_NV = log_q_NV.exp()
    apart_N = temperature**2 * (q_NV * (log_q_NV - log_p_NV)).sum(-1)
    # ∂ T² KL(q‖p) / ∂ logits = T (p − q)
    by_apart_NV = (log_p_NV.exp() - q_NV).mul_(temperature)
    loss_N, nll_N, hit_N, by_logits_NV = softmax_gradient(
        logits_NV, targets_N, counted_N, smoothing, gradient
    )
    by_apart_NV.mul_(weight).masked_fill_(~counted_N[:, None], 0.0)
    by_NV = by_apart_NV.add_(by_logits_NV, alpha=1 - weight).to(given)
    return (1 - weight) * loss_N + weight * apart_N, nll_N, hit_N, by_NV
