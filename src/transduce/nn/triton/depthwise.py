"""Triton kernels of depthwise convolutions, along rows or packed sequences."""

from __future__ import annotations

from typing import Any


def depthwise_kernels() -> dict[str, Any]:
    """The kernels of depthwise convolutions by name."""
    import triton
    import triton.language as tl

    @triton.jit
    def borders(starts, ends, row, known, length, SEGMENTS: tl.constexpr):
        """First position of the sequence of each row, and the first after it."""
        start = row // length * length
        end = start + length
        if SEGMENTS:
            start = tl.load(starts + row, mask=known, other=0)
            end = tl.load(ends + row, mask=known, other=0)
        return start, end

    @triton.jit(do_not_specialize=["rows", "length"])
    def depthwise(
        x_ptr, weight, bias, starts, ends, y_ptr, rows, length, width, left,
        TAPS: tl.constexpr, SEGMENTS: tl.constexpr, BACKWARD: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        known, there = row < rows, column < width
        start, end = borders(starts, ends, row, known, length, SEGMENTS)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        if not BACKWARD:
            total += tl.load(bias + column, mask=there, other=0.0)[None, :]
        for tap in tl.static_range(TAPS):
            off = tap - left
            if BACKWARD:
                off = -off
            inside = known & (row + off >= start) & (row + off < end)
            at = (row + off)[:, None].to(tl.int64) * width + column[None, :]
            x = tl.load(x_ptr + at, mask=inside[:, None] & there[None, :], other=0.0)
            w = tl.load(weight + column * TAPS + tap, mask=there, other=0.0)
            total += x.to(tl.float32) * w[None, :]
        at = row[:, None].to(tl.int64) * width + column[None, :]
        y = total.to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + at, y, mask=known[:, None] & there[None, :])

    @triton.jit(do_not_specialize=["rows", "length", "count"])
    def depthwise_weight(
        x_ptr, grad_ptr, starts, ends, shares, rows, length, width, count, left,
        SEGMENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        split, tap, taps = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
        there = column < width
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for first in range(0, count, ROWS):
            within = first + tl.arange(0, ROWS)
            row = split * count + within
            known = (within < count) & (row < rows)
            start, end = borders(starts, ends, row, known, length, SEGMENTS)
            other = row + tap - left
            inside = (known & (other >= start) & (other < end))[:, None] & there[None, :]
            at = row[:, None].to(tl.int64) * width + column[None, :]
            grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
            at = other[:, None].to(tl.int64) * width + column[None, :]
            total += grad * tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        to = shares + (split * taps + tap) * width + column
        tl.store(to, tl.sum(total, 0), mask=there)

    return {"depthwise": depthwise, "depthwise_weight": depthwise_weight}
