"""Triton kernels of the loss: softmax cross-entropy and R-Drop, with the gradient written over the
logits.
"""

from __future__ import annotations

from typing import Any


def loss_kernels() -> dict[str, Any]:
    """The loss kernels by name."""
    import triton
    import triton.language as tl

    @triton.jit
    def logit_statistics(x_row, vocabulary, block: tl.constexpr):
        """Max, log-sum-exp and sum of a row's logits."""
        highest = -float("inf")
        mass = 0.0
        total = 0.0
        for start in range(0, vocabulary, block):
            places = start + tl.arange(0, block)
            x = tl.load(x_row + places, mask=places < vocabulary, other=-float("inf"))
            x = x.to(tl.float32)
            total += tl.sum(tl.where(places < vocabulary, x, 0.0))
            higher = tl.maximum(highest, tl.max(x))
            mass = mass * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher))
            highest = higher
        return highest, highest + tl.log(mass), total

    @triton.jit
    def softmax_gradient(
        logits,
        stride,
        targets,
        counted,
        losses,
        nlls,
        hits,
        vocabulary,
        smoothing,
        gradient: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        x_row = logits + row * stride
        target = tl.load(targets + row)
        highest, lse, total = logit_statistics(x_row, vocabulary, block)
        x_target = tl.load(x_row + target).to(tl.float32)
        nll = lse - x_target
        uniform = lse - total / vocabulary
        tl.store(nlls + row, nll)
        tl.store(losses + row, (1 - smoothing) * nll + smoothing * uniform)
        tl.store(hits + row, x_target >= highest)
        if gradient:
            real = tl.load(counted + row)
            for start in range(0, vocabulary, block):
                places = start + tl.arange(0, block)
                inside = places < vocabulary
                x = tl.load(x_row + places, mask=inside, other=-float("inf")).to(tl.float32)
                p = tl.exp(x - lse) - smoothing / vocabulary
                p = tl.where(places == target, p - (1 - smoothing), p)
                p = tl.where(real, p, 0.0)
                tl.store(x_row + places, p.to(logits.dtype.element_ty), mask=inside)

    @triton.jit
    def r_drop_gradient(
        one, other, stride, targets, counted, losses, nlls, hits,
        vocabulary, smoothing, r_drop, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        x_row, y_row = one + row * stride, other + row * stride
        target = tl.load(targets + row)
        x_highest, x_lse, x_total = logit_statistics(x_row, vocabulary, block)
        y_highest, y_lse, y_total = logit_statistics(y_row, vocabulary, block)
        x_target, y_target = tl.load(x_row + target).to(tl.float32), tl.load(y_row + target)
        y_target = y_target.to(tl.float32)
        p_from_q = 0.0
        q_from_p = 0.0
        for start in range(0, vocabulary, block):
            places = start + tl.arange(0, block)
            inside = places < vocabulary
            log_p = tl.load(x_row + places, mask=inside, other=0.0).to(tl.float32) - x_lse
            log_q = tl.load(y_row + places, mask=inside, other=0.0).to(tl.float32) - y_lse
            apart = tl.where(inside, log_p - log_q, 0.0)
            p_from_q += tl.sum(tl.exp(log_p) * apart)
            q_from_p -= tl.sum(tl.exp(log_q) * apart)
        nll = (x_lse - x_target + y_lse - y_target) / 2
        uniform = (x_lse + y_lse - (x_total + y_total) / vocabulary) / 2
        smoothed = (1 - smoothing) * nll + smoothing * uniform
        tl.store(nlls + row, nll)
        tl.store(losses + row, smoothed + r_drop * (p_from_q + q_from_p) / 2)
        hit = (x_target >= x_highest).to(tl.float32) + (y_target >= y_highest).to(tl.float32)
        tl.store(hits + row, hit / 2)
        share = tl.where(tl.load(counted + row), 0.5, 0.0)
        for start in range(0, vocabulary, block):
            places = start + tl.arange(0, block)
            inside = places < vocabulary
            log_p = tl.load(x_row + places, mask=inside, other=0.0).to(tl.float32) - x_lse
            log_q = tl.load(y_row + places, mask=inside, other=0.0).to(tl.float32) - y_lse
            p, q, apart = tl.exp(log_p), tl.exp(log_q), log_p - log_q
            wanted = smoothing / vocabulary + tl.where(places == target, 1 - smoothing, 0.0)
            by_x = p - wanted + r_drop * (p * (apart - p_from_q) + p - q)
            by_y = q - wanted + r_drop * (q * (-apart - q_from_p) + q - p)
            tl.store(x_row + places, (share * by_x).to(one.dtype.element_ty), mask=inside)
            tl.store(y_row + places, (share * by_y).to(one.dtype.element_ty), mask=inside)

    return {
        "softmax_gradient": softmax_gradient,
        "r_drop_gradient": r_drop_gradient,
    }
