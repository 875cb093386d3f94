"""Triton kernels of attention over short sequences, one program for each head: forward and
backward.
"""

from __future__ import annotations

from typing import Any


def attention_kernels() -> dict[str, Any]:
    """The attention kernels by name."""
    import triton
    import triton.language as tl

    @triton.jit
    def load_tile(start_ptr, row, places, length, K: tl.constexpr):
        """[BLOCK, K] of one head; rows past the sequence's end are zeros."""
        at = places[:, None].to(tl.int64) * row + tl.arange(0, K)[None, :]
        return tl.load(start_ptr + at, mask=(places < length)[:, None], other=0.0)

    @triton.jit
    def store_tile(start_ptr, row, places, length, tile, K: tl.constexpr):
        at = places[:, None].to(tl.int64) * row + tl.arange(0, K)[None, :]
        tile = tile.to(start_ptr.dtype.element_ty)
        tl.store(start_ptr + at, tile, mask=(places < length)[:, None])

    @triton.jit
    def bounds(offsets, b, length, PACKED: tl.constexpr):
        """Start and length of the sequence of this program."""
        start = b * length
        if PACKED:
            start = tl.load(offsets + b).to(tl.int64)
            length = (tl.load(offsets + b + 1) - start).to(tl.int32)
        return start, length

    @triton.jit
    def attention_weights(q, k, t, T, S, scale, CAUSAL: tl.constexpr):
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (t < S)[None, :]
        if CAUSAL:
            seen = seen & (t[None, :] <= t[:, None])
        scores = tl.where(seen, scores, -1e30)
        p = tl.where(seen, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
        mass = tl.sum(p, 1)
        return p / tl.where(mass == 0.0, 1.0, mass)[:, None]

    @triton.jit
    def kept_share(seed, t, dropout, BLOCK: tl.constexpr):
        """Dropout mask [BLOCK, BLOCK] of 0 and 1 / (1 − dropout), different in every program."""
        at = (tl.program_id(0) * BLOCK + t[:, None]) * BLOCK + t[None, :]
        return tl.where(tl.rand(tl.load(seed), at) >= dropout, 1.0 / (1.0 - dropout), 0.0)

    @triton.jit(do_not_specialize=["T", "S"])
    def attention(
        q_ptr, k_ptr, v_ptr, q_offsets, k_offsets, seed, out_ptr,
        q_row, k_row, H, T, S, scale, dropout,
        PACKED: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
        K: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
        q_start, T = bounds(q_offsets, b, T, PACKED)
        k_start, S = bounds(k_offsets, b, S, PACKED)
        if T > 0:
            t = tl.arange(0, BLOCK)
            q = load_tile(q_ptr + q_start * q_row + h * K, q_row, t, T, K)
            k = load_tile(k_ptr + k_start * k_row + h * K, k_row, t, S, K)
            v = load_tile(v_ptr + k_start * k_row + h * K, k_row, t, S, K)
            p = attention_weights(q, k, t, T, S, scale, CAUSAL)
            if DROPS:
                p = p * kept_share(seed, t, dropout, BLOCK)
            out = tl.dot(p.to(v.dtype), v)
            store_tile(out_ptr + (q_start * H + h) * K, H * K, t, T, out, K)

    @triton.jit(do_not_specialize=["T", "S"])
    def attention_backward(
        q_ptr, k_ptr, v_ptr, q_offsets, k_offsets, seed,
        grad_ptr, dq_ptr, dk_ptr, dv_ptr, q_sums, k_sums, v_sums,
        q_row, k_row, H, T, S, scale, dropout,
        PACKED: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
        K: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
        q_start, T = bounds(q_offsets, b, T, PACKED)
        k_start, S = bounds(k_offsets, b, S, PACKED)
        c = h * K + tl.arange(0, K)
        if T + S > 0:
            t = tl.arange(0, BLOCK)
            q_at, k_at = q_start * q_row + h * K, k_start * k_row + h * K
            q = load_tile(q_ptr + q_at, q_row, t, T, K)
            k = load_tile(k_ptr + k_at, k_row, t, S, K)
            v = load_tile(v_ptr + k_at, k_row, t, S, K)
            grad = load_tile(grad_ptr + (q_start * H + h) * K, H * K, t, T, K)
            p = attention_weights(q, k, t, T, S, scale, CAUSAL)
            dp = tl.dot(grad, tl.trans(v))
            dropped = p
            if DROPS:
                kept = kept_share(seed, t, dropout, BLOCK)
                dropped = p * kept
                dp = dp * kept
            dv = tl.dot(tl.trans(dropped.to(grad.dtype)), grad)
            ds = (p * (dp - tl.sum(dp * p, 1)[:, None]) * scale).to(q.dtype)
            dq = tl.dot(ds, k)
            dk = tl.dot(tl.trans(ds), q)
            store_tile(dq_ptr + q_at, q_row, t, T, dq, K)
            store_tile(dk_ptr + k_at, k_row, t, S, dk, K)
            store_tile(dv_ptr + k_at, k_row, t, S, dv, K)
            # Rows beyond the end have zero gradient, so whole tiles can be summed.
            tl.store(q_sums + b * q_row + c, tl.sum(dq, 0))
            tl.store(k_sums + b * k_row + c, tl.sum(dk, 0))
            tl.store(v_sums + b * k_row + c, tl.sum(dv, 0))
        else:
            nothing = tl.zeros((K,), dtype=tl.float32)
            tl.store(q_sums + b * q_row + c, nothing)
            tl.store(k_sums + b * k_row + c, nothing)
            tl.store(v_sums + b * k_row + c, nothing)

    return {
        "attention": attention,
        "attention_backward": attention_backward,
    }
