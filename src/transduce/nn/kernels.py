"""Kernels by hand, where those of torch or its compiler would read memory more often.

They are Triton's language rather than Python, so nothing here is typed; they are made when first
used, as a machine without a GPU has no Triton. Each is called from the file that explains it.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace


@cache
def kernels() -> SimpleNamespace:
    """softmax_gradient, attention, attention_backward, norm, norm_backward, add, drop."""
    import triton
    import triton.language as tl

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
        lse = highest + tl.log(mass)
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
    def attention_weights(
        q, k, visible, b, t, s, S, scale, VISIBLE: tl.constexpr, CAUSAL: tl.constexpr
    ):
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (s < S)[None, :]
        if VISIBLE:
            seen = seen & (tl.load(visible + b * S + s, mask=s < S, other=0) != 0)[None, :]
        if CAUSAL:
            seen = seen & (s[None, :] <= t[:, None])
        scores = tl.where(seen, scores, -1e30)
        p = tl.where(seen, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
        mass = tl.sum(p, 1)
        return p / tl.where(mass == 0.0, 1.0, mass)[:, None]

    @triton.jit
    def attention(
        q_ptr, k_ptr, v_ptr, visible, out_ptr,
        qb, qh, qt, kb, kh, ks, vb, vh, vs,
        H, T, S, scale,
        VISIBLE: tl.constexpr, CAUSAL: tl.constexpr, K: tl.constexpr,
        BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
    ):  # fmt: skip
        b = (tl.program_id(0) // H).to(tl.int64)
        h = tl.program_id(0) % H
        t, s, c = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S), tl.arange(0, K)
        in_t, in_s = (t < T)[:, None], (s < S)[:, None]
        q = tl.load(q_ptr + b * qb + h * qh + t[:, None] * qt + c[None, :], mask=in_t, other=0.0)
        k = tl.load(k_ptr + b * kb + h * kh + s[:, None] * ks + c[None, :], mask=in_s, other=0.0)
        v = tl.load(v_ptr + b * vb + h * vh + s[:, None] * vs + c[None, :], mask=in_s, other=0.0)
        p = attention_weights(q, k, visible, b, t, s, S, scale, VISIBLE, CAUSAL)
        out = tl.dot(p.to(v.dtype), v)
        place = ((b * T + t[:, None]) * H + h) * K + c[None, :]
        tl.store(out_ptr + place, out.to(v.dtype), mask=in_t)

    @triton.jit
    def attention_backward(
        q_ptr, k_ptr, v_ptr, visible, grad_ptr, dq_ptr, dk_ptr, dv_ptr,
        qb, qh, qt, kb, kh, ks, vb, vh, vs,
        H, T, S, scale,
        VISIBLE: tl.constexpr, CAUSAL: tl.constexpr, K: tl.constexpr,
        BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
    ):  # fmt: skip
        b = (tl.program_id(0) // H).to(tl.int64)
        h = tl.program_id(0) % H
        t, s, c = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_S), tl.arange(0, K)
        in_t, in_s = (t < T)[:, None], (s < S)[:, None]
        q = tl.load(q_ptr + b * qb + h * qh + t[:, None] * qt + c[None, :], mask=in_t, other=0.0)
        k = tl.load(k_ptr + b * kb + h * kh + s[:, None] * ks + c[None, :], mask=in_s, other=0.0)
        v = tl.load(v_ptr + b * vb + h * vh + s[:, None] * vs + c[None, :], mask=in_s, other=0.0)
        to_t = ((b * T + t[:, None]) * H + h) * K + c[None, :]
        to_s = ((b * S + s[:, None]) * H + h) * K + c[None, :]
        grad = tl.load(grad_ptr + to_t, mask=in_t, other=0.0)
        p = attention_weights(q, k, visible, b, t, s, S, scale, VISIBLE, CAUSAL)
        dv = tl.dot(tl.trans(p.to(grad.dtype)), grad)
        dp = tl.dot(grad, tl.trans(v))
        ds = (p * (dp - tl.sum(dp * p, 1)[:, None]) * scale).to(q.dtype)
        dq = tl.dot(ds, k)
        dk = tl.dot(tl.trans(ds), q)
        tl.store(dq_ptr + to_t, dq.to(q.dtype), mask=in_t)
        tl.store(dk_ptr + to_s, dk.to(q.dtype), mask=in_s)
        tl.store(dv_ptr + to_s, dv.to(q.dtype), mask=in_s)

    @triton.jit
    def norm(x_ptr, weight, bias, y_ptr, mean_ptr, spread_ptr, width, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, BLOCK)
        inside = place < width
        x = tl.load(x_ptr + row * width + place, mask=inside, other=0.0)
        mean = tl.sum(x) / width
        off = tl.where(inside, x - mean, 0.0)
        spread = 1.0 / tl.sqrt(tl.sum(off * off) / width + eps)
        w = tl.load(weight + place, mask=inside, other=0.0)
        b = tl.load(bias + place, mask=inside, other=0.0)
        y = off * spread * w + b
        tl.store(y_ptr + row * width + place, y.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_ptr + row, mean)
        tl.store(spread_ptr + row, spread)

    @triton.jit
    def norm_backward(
        grad_ptr, x_ptr, weight, mean_ptr, spread_ptr, dx_ptr, dweight, dbias,
        rows, programs, width, BLOCK: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        place = tl.arange(0, BLOCK)
        inside = place < width
        w = tl.load(weight + place, mask=inside, other=0.0)
        by_weight = tl.zeros((BLOCK,), dtype=tl.float32)
        by_bias = tl.zeros((BLOCK,), dtype=tl.float32)
        for row in range(program, rows, programs):
            start = row.to(tl.int64) * width
            grad = tl.load(grad_ptr + start + place, mask=inside, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + start + place, mask=inside, other=0.0)
            spread = tl.load(spread_ptr + row)
            normed = tl.where(inside, (x - tl.load(mean_ptr + row)) * spread, 0.0)
            by_weight += grad * normed
            by_bias += grad
            scaled = grad * w
            share = tl.sum(scaled * normed) / width
            dx = (scaled - tl.sum(scaled) / width - normed * share) * spread
            tl.store(dx_ptr + start + place, dx, mask=inside)
        tl.store(dweight + program * width + place, by_weight, mask=inside)
        tl.store(dbias + program * width + place, by_bias, mask=inside)

    @triton.jit
    def add_part(x_ptr, change_ptr, out_ptr, place, count, random, dropout):
        inside = place < count
        change = tl.load(change_ptr + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=inside, other=0.0)
        kept = tl.where(random >= dropout, change / (1 - dropout), 0.0)
        tl.store(out_ptr + place, x + kept, mask=inside)

    @triton.jit
    def drop_part(grad_ptr, out_ptr, place, count, random, dropout):
        inside = place < count
        grad = tl.load(grad_ptr + place, mask=inside, other=0.0)
        kept = tl.where(random >= dropout, grad / (1 - dropout), 0.0)
        tl.store(out_ptr + place, kept.to(out_ptr.dtype.element_ty), mask=inside)

    # A draw of the generator gives four numbers: each program does four parts with them.
    @triton.jit
    def add(x_ptr, change_ptr, seed_ptr, out_ptr, count, dropout, PART: tl.constexpr):
        program = tl.program_id(0)
        within = tl.arange(0, PART)
        r0, r1, r2, r3 = tl.rand4x(tl.load(seed_ptr), program * PART + within)
        place = program.to(tl.int64) * (4 * PART) + within
        add_part(x_ptr, change_ptr, out_ptr, place, count, r0, dropout)
        add_part(x_ptr, change_ptr, out_ptr, place + PART, count, r1, dropout)
        add_part(x_ptr, change_ptr, out_ptr, place + 2 * PART, count, r2, dropout)
        add_part(x_ptr, change_ptr, out_ptr, place + 3 * PART, count, r3, dropout)

    @triton.jit
    def drop(grad_ptr, seed_ptr, out_ptr, count, dropout, PART: tl.constexpr):
        program = tl.program_id(0)
        within = tl.arange(0, PART)
        r0, r1, r2, r3 = tl.rand4x(tl.load(seed_ptr), program * PART + within)
        place = program.to(tl.int64) * (4 * PART) + within
        drop_part(grad_ptr, out_ptr, place, count, r0, dropout)
        drop_part(grad_ptr, out_ptr, place + PART, count, r1, dropout)
        drop_part(grad_ptr, out_ptr, place + 2 * PART, count, r2, dropout)
        drop_part(grad_ptr, out_ptr, place + 3 * PART, count, r3, dropout)

    return SimpleNamespace(
        softmax_gradient=softmax_gradient,
        attention=attention,
        attention_backward=attention_backward,
        norm=norm,
        norm_backward=norm_backward,
        add=add,
        drop=drop,
    )
