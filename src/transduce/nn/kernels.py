"""Kernels by hand, where those of torch or its compiler would read memory more often.

They are Triton's language rather than Python, so nothing here is typed; they are made when first
used, as a machine without a GPU has no Triton. Each is called from the file that explains it.

Those of a decoding step are so short that starting them counts. With EARLY one is started while the
one before still works; it fetches what that one does not write, the weights, and then waits for its
end.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch


@cache
def early(device: torch.device, learning: bool = False) -> dict[str, Any]:
    """How kernels of a decoding step are started: early where the device can, from Hopper on.

    Not while the network learns: the one before might be writing the weights.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    can = capable and not learning
    return {"EARLY": can, "launch_pdl": can}


@cache
def kernels() -> SimpleNamespace:
    """Those of the loss, attention, products, norms and sums, decoding steps: by name."""
    import triton
    import triton.language as tl

    @triton.jit
    def wait(EARLY: tl.constexpr):
        """For the end of the kernel before; the next one may be started meanwhile."""
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()

    @triton.jit
    def mass_of(x_row, vocabulary, block: tl.constexpr):
        """The highest of a row's logits, the log-sum of their exponentials, and their sum."""
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
        highest, lse, total = mass_of(x_row, vocabulary, block)
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
    def agreeing_gradient(
        one, other, stride, targets, counted, losses, nlls, hits,
        vocabulary, smoothing, agreement, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        x_row, y_row = one + row * stride, other + row * stride
        target = tl.load(targets + row)
        x_highest, x_lse, x_total = mass_of(x_row, vocabulary, block)
        y_highest, y_lse, y_total = mass_of(y_row, vocabulary, block)
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
        tl.store(losses + row, smoothed + agreement * (p_from_q + q_from_p) / 2)
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
            by_x = p - wanted + agreement * (p * (apart - p_from_q) + p - q)
            by_y = q - wanted + agreement * (q * (-apart - q_from_p) + q - p)
            tl.store(x_row + places, (share * by_x).to(one.dtype.element_ty), mask=inside)
            tl.store(y_row + places, (share * by_y).to(one.dtype.element_ty), mask=inside)

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
        """Where the sequence starts, and how long it is."""
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
        """[BLOCK, BLOCK] of 0 and 1 / (1 − dropout), other numbers in every program."""
        at = (tl.program_id(0) * BLOCK + t[:, None]) * BLOCK + t[None, :]
        return tl.where(tl.rand(tl.load(seed), at) >= dropout, 1.0 / (1.0 - dropout), 0.0)

    @triton.jit
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

    @triton.jit
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
            # What is not there has no gradient: the tiles can be added up whole.
            c = h * K + tl.arange(0, K)
            tl.store(q_sums + b * q_row + c, tl.sum(dq, 0))
            tl.store(k_sums + b * k_row + c, tl.sum(dk, 0))
            tl.store(v_sums + b * k_row + c, tl.sum(dv, 0))

    @triton.jit
    def absorbed(q, k, v, inside, highest, mass, total):
        """What attention has come to, after some more keys and values."""
        score = tl.where(inside, tl.sum(k.to(tl.float32) * q[None, :], 1), -1e30)
        higher = tl.maximum(highest, tl.max(score))
        weight = tl.where(inside, tl.exp(score - higher), 0.0)
        shrink = tl.exp(highest - higher)
        values = tl.where(inside[:, None], v.to(tl.float32), 0.0)
        total = total * shrink + tl.sum(weight[:, None] * values, 0)
        return higher, mass * shrink + tl.sum(weight), total

    @triton.jit
    def step_attention(
        q_ptr, store_ptr, lengths, origin, out_ptr,
        q_row, H, T, each, scale,
        OWN: tl.constexpr, ORIGIN: tl.constexpr, EARLY: tl.constexpr,
        K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
        c, t = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
        wide = c < K
        D = H * K
        first = store_ptr + (row // each) * T * 2 * D + h * K
        # The past is of earlier steps, and each begins with a kernel of torch's own, the look-up of
        # embeddings, which waits for all before it: it can be fetched early. Only how much of it
        # counts is not yet known.
        at = first + t[:, None] * 2 * D + c[None, :]
        k = tl.load(at, mask=(t < T)[:, None] & wide[None, :], other=0.0)
        v = tl.load(at + D, mask=(t < T)[:, None] & wide[None, :], other=0.0)
        wait(EARLY)
        from_q = q_ptr + row * q_row + h * K + c
        q = tl.load(from_q, mask=wide, other=0.0).to(tl.float32) * scale
        length = tl.load(lengths + row // each)
        highest = -1e30
        mass = 0.0
        total = tl.zeros((WIDTH,), dtype=tl.float32)
        if OWN:
            new_k = tl.load(from_q + D, mask=wide, other=0.0)
            new_v = tl.load(from_q + 2 * D, mask=wide, other=0.0)
            to = store_ptr + (row * T + length) * 2 * D + h * K + c
            tl.store(to, new_k, mask=wide)
            tl.store(to + D, new_v, mask=wide)
            highest = tl.sum(q * new_k.to(tl.float32))
            mass = 1.0
            total = new_v.to(tl.float32)
        begin = 0
        if not ORIGIN:
            highest, mass, total = absorbed(q, k, v, t < length, highest, mass, total)
            begin = BLOCK
        for start in range(begin, length, BLOCK):
            inside = start + t < length
            at = first + (start + t)[:, None] * 2 * D + c[None, :]
            if ORIGIN:
                place = tl.load(origin + row * T + start + t, mask=inside, other=0).to(tl.int64)
                at = store_ptr + (place * T + start + t)[:, None] * 2 * D + h * K + c[None, :]
            k = tl.load(at, mask=inside[:, None] & wide[None, :], other=0.0)
            v = tl.load(at + D, mask=inside[:, None] & wide[None, :], other=0.0)
            highest, mass, total = absorbed(q, k, v, inside, highest, mass, total)
        out = total / tl.where(mass == 0.0, 1.0, mass)
        tl.store(out_ptr + row * D + h * K + c, out.to(out_ptr.dtype.element_ty), mask=wide)

    @triton.jit
    def top_tokens(
        logits, bias, steps, limits, values, tokens, masses, V, each, least,
        C: tl.constexpr, PAD: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr,
        BLOCK: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
        place = chunk * BLOCK + tl.arange(0, BLOCK)
        nothing = -float("inf")
        x = tl.load(logits + row * V + place, mask=place < V, other=nothing)
        x += tl.load(bias + place, mask=place < V, other=0.0)
        highest = tl.max(x)
        tl.store(masses + row * chunks + chunk, tl.log(tl.sum(tl.exp(x - highest))) + highest)
        size = tl.load(steps + row) + 1
        banned = (place == PAD) | (place == BEGIN) | ((place == END) & (size < least))
        banned |= (place != END) & (size >= tl.load(limits + row // each))
        x = tl.where(banned, nothing, x)
        to = (row * chunks + chunk) * C
        for number in range(C):
            best = tl.argmax(x, 0)
            tl.store(values + to + number, tl.max(x))
            tl.store(tokens + to + number, (chunk * BLOCK + best).to(tl.int64))
            x = tl.where(place == chunk * BLOCK + best, nothing, x)

    @triton.jit
    def best_tokens(
        x_ptr, weight, bias, steps, limits, values, tokens, masses, rows, width, V, least,
        PAD: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        chunk, chunks = tl.program_id(1), tl.num_programs(1)
        row, place = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
        token = chunk * COLUMNS + tl.arange(0, COLUMNS)
        known, there = row < rows, token < V
        x_at = row[:, None].to(tl.int64) * width + place[None, :]
        w_at = token[:, None].to(tl.int64) * width + place[None, :]
        y = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, width, BLOCK):
            inside = start + place < width
            x = tl.load(x_ptr + start + x_at, mask=known[:, None] & inside[None, :], other=0.0)
            w = tl.load(weight + start + w_at, mask=there[:, None] & inside[None, :], other=0.0)
            y = tl.dot(x, tl.trans(w), y)
        nothing = -float("inf")
        y += tl.load(bias + token, mask=there, other=0.0).to(tl.float32)[None, :]
        y = tl.where(there[None, :], y, nothing)
        highest = tl.max(y, 1)
        to = row.to(tl.int64) * chunks + chunk
        mass = tl.log(tl.sum(tl.exp(y - highest[:, None]), 1)) + highest
        tl.store(masses + to, mass, mask=known)
        size = tl.load(steps + row, mask=known, other=0) + 1
        last = size >= tl.load(limits + row, mask=known, other=0)
        banned = ((token == PAD) | (token == BEGIN))[None, :]
        banned |= (token == END)[None, :] & (size < least)[:, None]
        banned |= (token != END)[None, :] & last[:, None]
        y = tl.where(banned, nothing, y)
        tl.store(values + to, tl.max(y, 1), mask=known)
        tl.store(tokens + to, (chunk * COLUMNS + tl.argmax(y, 1)).to(tl.int64), mask=known)

    @triton.jit
    def settle(
        values, found, masses, tokens, opens, steps, written, reached, ended, total,
        chunks, T, power, END: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        row = tl.program_id(0).to(tl.int64)
        if tl.load(opens + row) != 0:
            c = tl.arange(0, WIDTH)
            at = row * chunks + c
            value = tl.load(values + at, mask=c < chunks, other=-float("inf"))
            mass = tl.load(masses + at, mask=c < chunks, other=-float("inf"))
            highest = tl.max(mass)
            mass = tl.log(tl.sum(tl.exp(mass - highest))) + highest
            token = tl.load(found + row * chunks + tl.argmax(value, 0))
            worth = tl.load(reached + row) + tl.max(value) - mass
            step = tl.load(steps + row)
            tl.store(tokens + row, token)
            tl.store(written + row * T + step, token)
            tl.store(reached + row, worth)
            if token == END:
                tl.store(opens + row, 0)
                tl.store(ended + row, worth / tl.exp(power * tl.log((6.0 + step) / 6.0)))
                tl.store(total + row, worth)
            else:
                tl.store(steps + row, step + 1)

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
        # Whoever is last adds up the shares, in the same order whoever it is.
        tl.debug_barrier()
        before = tl.atomic_add(done + tl.program_id(0), 1, sem="acq_rel")
        if before == SPLITS - 1:
            at = tl.arange(0, SPLITS)[:, None] * width + column[None, :]
            there = (column < width)[None, :]
            share = tl.load(shares + at, mask=there, other=0.0, cache_modifier=".cg")
            tl.store(sums + column, tl.sum(share, 0), mask=column < width)
            tl.store(done + tl.program_id(0), 0)

    @triton.jit
    def kept_tile(seed, first, dropout, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        """[ROWS, BLOCK] of 0 and 1 / (1 − dropout), the same for the same rows every time.

        A draw of the generator gives four numbers, for four places side by side.
        """
        row, four = first + tl.arange(0, ROWS), tl.arange(0, BLOCK // 4)
        at = row[:, None] * (BLOCK // 4) + four[None, :]
        r0, r1, r2, r3 = tl.rand4x(tl.load(seed), at)
        random = tl.reshape(tl.join(tl.join(r0, r1), tl.join(r2, r3)), (ROWS, BLOCK))
        return tl.where(random >= dropout, 1.0 / (1.0 - dropout), 0.0)

    @triton.jit
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
        x = tl.load(table + at, mask=inside, other=0.0) * scale
        if POSITIONS:
            position = tl.load(places + row, mask=row < rows, other=0).to(tl.int64)
            at = position[:, None] * width + place[None, :]
            x += tl.load(positions + at, mask=inside, other=0.0)
        if DROPS:
            x *= kept_tile(seed, first, dropout, ROWS, BLOCK)
        tl.store(x_ptr + row[:, None].to(tl.int64) * width + place[None, :], x, mask=inside)

    @triton.jit
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

    @triton.jit
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

    @triton.jit
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
        for first in range(program * ROWS, rows, programs * ROWS):
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

    return SimpleNamespace(
        softmax_gradient=softmax_gradient,
        agreeing_gradient=agreeing_gradient,
        attention=attention,
        attention_backward=attention_backward,
        step_attention=step_attention,
        top_tokens=top_tokens,
        best_tokens=best_tokens,
        settle=settle,
        one_row=one_row,
        few_rows=few_rows,
        column_sums=column_sums,
        embed=embed,
        embed_backward=embed_backward,
        norm=norm,
        norm_backward=norm_backward,
    )
