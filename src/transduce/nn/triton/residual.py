"""Triton kernels of the residual stream: embedding, and residual addition with the norm after
it.
"""

from __future__ import annotations

from typing import Any

from transduce.nn.triton.start import wait_kernel


def residual_kernels() -> dict[str, Any]:
    """The residual kernels by name."""
    import triton
    import triton.language as tl

    wait = wait_kernel()

    @triton.jit
    def kept_tile(seed, first, dropout, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        """Dropout mask [ROWS, BLOCK] of 0 and 1 / (1 − dropout), always the same for the same rows
        and seed.

        One draw of the generator gives four numbers, for four neighbouring elements.
        """
        row, four = first + tl.arange(0, ROWS), tl.arange(0, BLOCK // 4)
        at = row[:, None] * (BLOCK // 4) + four[None, :]
        r0, r1, r2, r3 = tl.rand4x(tl.load(seed), at)
        random = tl.reshape(tl.join(tl.join(r0, r1), tl.join(r2, r3)), (ROWS, BLOCK))
        return tl.where(random >= dropout, 1.0 / (1.0 - dropout), 0.0)

    @triton.jit(do_not_specialize=["rows"])
    def embed(
        tokens, table, positions, places, seed, x_ptr, rows, width, scale, dropout,
        POSITIONS: tl.constexpr, DROPS: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        first = tl.program_id(0) * ROWS
        row, place = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (place < width)[None, :]
        token = tl.load(tokens + row, mask=row < rows, other=0).to(tl.int64)
        at = token[:, None] * width + place[None, :]
        x = tl.load(table + at, mask=inside, other=0.0).to(tl.float32) * scale
        x = x.to(table.dtype.element_ty).to(tl.float32)  # as torch rounds it
        if POSITIONS:
            position = tl.load(places + row, mask=row < rows, other=0).to(tl.int64)
            at = position[:, None] * width + place[None, :]
            x += tl.load(positions + at, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            x *= kept_tile(seed, first, dropout, ROWS, BLOCK)
        to = x_ptr + row[:, None].to(tl.int64) * width + place[None, :]
        tl.store(to, x.to(x_ptr.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["rows"])
    def embed_backward(
        grad_ptr, seed, by_rows, rows, width, scale, dropout,
        DROPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        first = tl.program_id(0) * ROWS
        row, place = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (place < width)[None, :]
        at = row[:, None].to(tl.int64) * width + place[None, :]
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32) * scale
        if DROPS:
            grad *= kept_tile(seed, first, dropout, ROWS, BLOCK)
        tl.store(by_rows + at, grad, mask=inside)

    @triton.jit(do_not_specialize=["rows"])
    def norm(
        x_ptr, change_ptr, seed, sum_ptr, weight, bias, y_ptr, mean_ptr, spread_ptr,
        rows, width, eps, dropout,
        ADDS: tl.constexpr, DROPS: tl.constexpr, CENTRED: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        first = tl.program_id(0) * ROWS
        row, place = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (place < width)[None, :]
        at = row[:, None].to(tl.int64) * width + place[None, :]
        w = tl.load(weight + place, mask=place < width, other=0.0).to(tl.float32)
        b = w
        if CENTRED:
            b = tl.load(bias + place, mask=place < width, other=0.0).to(tl.float32)
        wait(EARLY)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if ADDS:
            change = tl.load(change_ptr + at, mask=inside, other=0.0).to(tl.float32)
            if DROPS:
                change *= kept_tile(seed, first, dropout, ROWS, BLOCK)
            x += change
            tl.store(sum_ptr + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
        off = x
        if CENTRED:
            mean = tl.sum(x, 1) / width
            tl.store(mean_ptr + row, mean, mask=row < rows)
            off = tl.where(inside, x - mean[:, None], 0.0)
        spread = 1.0 / tl.sqrt(tl.sum(off * off, 1) / width + eps)
        tl.store(spread_ptr + row, spread, mask=row < rows)
        y = off * spread[:, None] * w[None, :]
        if CENTRED:
            y += b[None, :]
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["rows", "programs"])
    def norm_backward(
        grad_ptr, kept_ptr, x_ptr, seed, weight, mean_ptr, spread_ptr, dx_ptr, dchange_ptr,
        shares, rows, programs, width, dropout,
        KEPT: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr, CENTRED: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        place = tl.arange(0, BLOCK)
        w = tl.load(weight + place, mask=place < width, other=0.0)[None, :]
        by_weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        by_bias = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        by_change = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        # Two stages: the next rows are read while these are computed.
        for first in tl.range(program * ROWS, rows, programs * ROWS, num_stages=2):
            row = first + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (place < width)[None, :]
            at = row[:, None].to(tl.int64) * width + place[None, :]
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
            normed = tl.load(x_ptr + at, mask=inside, other=0.0)
            spread = tl.load(spread_ptr + row, mask=row < rows, other=0.0)[:, None]
            if CENTRED:
                normed -= tl.load(mean_ptr + row, mask=row < rows, other=0.0)[:, None]
            normed = tl.where(inside, normed * spread, 0.0)
            by_weight += grad * normed
            by_bias += grad
            scaled = grad * w
            dx = scaled - normed * (tl.sum(scaled * normed, 1) / width)[:, None]
            if CENTRED:
                dx -= (tl.sum(scaled, 1) / width)[:, None]
            dx *= spread
            if KEPT:
                dx += tl.load(kept_ptr + at, mask=inside, other=0.0)
            tl.store(dx_ptr + at, dx, mask=inside)
            if ADDS:
                if DROPS:
                    dx *= kept_tile(seed, first, dropout, ROWS, BLOCK)
                tl.store(dchange_ptr + at, dx.to(dchange_ptr.dtype.element_ty), mask=inside)
                by_change += tl.where(inside, dx, 0.0)
        to = shares + program * 3 * width + place
        tl.store(to, tl.sum(by_weight, 0), mask=place < width)
        tl.store(to + width, tl.sum(by_bias, 0), mask=place < width)
        tl.store(to + 2 * width, tl.sum(by_change, 0), mask=place < width)

    return {
        "embed": embed,
        "embed_backward": embed_backward,
        "norm": norm,
        "norm_backward": norm_backward,
    }
