"""Triton kernels of matrix products with few rows, and of column sums (the gradient of a bias)."""

from __future__ import annotations

from typing import Any

from transduce.nn.triton.start import wait_kernel


def product_kernels() -> dict[str, Any]:
    """The kernels of matrix products by name."""
    import triton
    import triton.language as tl

    wait = wait_kernel()

    @triton.jit
    def one_row(
        x_ptr, weight, bias, y_ptr, width, outputs,
        BIAS: tl.constexpr, RELU: tl.constexpr, EARLY: tl.constexpr,
        COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        column, place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, BLOCK)
        there, inside = column < outputs, place < width
        at = column[:, None].to(tl.int64) * width + place[None, :]
        w = tl.load(weight + at, mask=there[:, None] & inside[None, :], other=0.0)
        wait(EARLY)
        x = tl.load(x_ptr + place, mask=inside, other=0.0)
        total = w.to(tl.float32) * x.to(tl.float32)[None, :]
        for start in range(BLOCK, width, BLOCK):
            inside = start + place < width
            x = tl.load(x_ptr + start + place, mask=inside, other=0.0)
            w = tl.load(weight + start + at, mask=there[:, None] & inside[None, :], other=0.0)
            total += w.to(tl.float32) * x.to(tl.float32)[None, :]
        y = tl.sum(total, 1)
        if BIAS:
            y += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
        if RELU:
            y = tl.maximum(y, 0.0)
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=there)

    @triton.jit
    def few_rows(
        x_ptr, weight, bias, y_ptr, rows, width, outputs,
        BIAS: tl.constexpr, RELU: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        column, place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, BLOCK)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there, known, inside = column < outputs, row < rows, place < width
        w_at = column[:, None].to(tl.int64) * width + place[None, :]
        x_at = row[:, None].to(tl.int64) * width + place[None, :]
        w = tl.load(weight + w_at, mask=there[:, None] & inside[None, :], other=0.0)
        wait(EARLY)
        x = tl.load(x_ptr + x_at, mask=known[:, None] & inside[None, :], other=0.0)
        y = tl.dot(x, tl.trans(w))
        for start in range(BLOCK, width, BLOCK):
            inside = start + place < width
            w = tl.load(weight + start + w_at, mask=there[:, None] & inside[None, :], other=0.0)
            x = tl.load(x_ptr + start + x_at, mask=known[:, None] & inside[None, :], other=0.0)
            y = tl.dot(x, tl.trans(w), y)
        if BIAS:
            y += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
        if RELU:
            y = tl.maximum(y, 0.0)
        to = y_ptr + row[:, None].to(tl.int64) * outputs + column[None, :]
        tl.store(to, y.to(y_ptr.dtype.element_ty), mask=known[:, None] & there[None, :])

    @triton.jit
    def some_rows(
        x_ptr, weight, bias, y_ptr, rows, width, outputs,
        BIAS: tl.constexpr, RELU: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        column, place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, BLOCK)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there, known = column < outputs, row < rows
        w_at = column[:, None].to(tl.int64) * width + place[None, :]
        x_at = row[:, None].to(tl.int64) * width + place[None, :]
        y = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        wait(EARLY)
        for start in range(0, width, BLOCK):
            inside = start + place < width
            x = tl.load(x_ptr + start + x_at, mask=known[:, None] & inside[None, :], other=0.0)
            w = tl.load(weight + start + w_at, mask=there[:, None] & inside[None, :], other=0.0)
            y = tl.dot(x, tl.trans(w), y)
        if BIAS:
            y += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
        if RELU:
            y = tl.maximum(y, 0.0)
        to = y_ptr + row[:, None].to(tl.int64) * outputs + column[None, :]
        tl.store(to, y.to(y_ptr.dtype.element_ty), mask=known[:, None] & there[None, :])

    @triton.jit(do_not_specialize=["rows", "count"])
    def column_sums(
        grad_ptr, y_ptr, gated_ptr, shares, done, sums, rows, width, count,
        GATED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        split = tl.program_id(1)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, count, ROWS):
            within = start + tl.arange(0, ROWS)
            row = split * count + within
            inside = ((within < count) & (row < rows))[:, None] & (column < width)[None, :]
            at = row[:, None].to(tl.int64) * width + column[None, :]
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
            if GATED:
                grad = tl.where(tl.load(y_ptr + at, mask=inside, other=0.0) > 0, grad, 0.0)
                tl.store(gated_ptr + at, grad, mask=inside)
            total += grad.to(tl.float32)
        tl.store(shares + split * width + column, tl.sum(total, 0), mask=column < width)
        # The last program to finish adds the partial sums, always in the same order: deterministic.
        tl.debug_barrier()
        before = tl.atomic_add(done + tl.program_id(0), 1, sem="acq_rel")
        if before == SPLITS - 1:
            at = tl.arange(0, SPLITS)[:, None] * width + column[None, :]
            there = (column < width)[None, :]
            share = tl.load(shares + at, mask=there, other=0.0, cache_modifier=".cg")
            tl.store(sums + column, tl.sum(share, 0), mask=column < width)
            tl.store(done + tl.program_id(0), 0)  # for the next launch that counts with it

    return {
        "one_row": one_row,
        "few_rows": few_rows,
        "some_rows": some_rows,
        "column_sums": column_sums,
    }
