"""Triton kernels of a decoding step: attention over the KV cache, and top-k of the tokens."""

from __future__ import annotations

from typing import Any

from transduce.nn.triton.start import wait_kernel


def step_kernels() -> dict[str, Any]:
    """The decoding-step kernels by name."""
    import triton
    import triton.language as tl

    wait = wait_kernel()

    @triton.jit
    def absorbed(q, k, v, inside, highest, mass, total):
        """Online softmax: the running max, normaliser and weighted sum after some more keys and
        values.
        """
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
        # The KV cache is of earlier steps, and each step begins with a kernel of torch's own, the
        # embedding look-up, which waits for all before it: the cache can be prefetched. Only its
        # valid length is not yet known.
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
        logits, bias, steps, limits, values, tokens, masses, V, each, minimum,
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
        # NaN ranks below all numbers but above banned tokens: a row must still end. Its
        # log-probability stays NaN, through the normaliser.
        x = tl.where(x == x, x, -3.0e38)
        size = tl.load(steps + row) + 1
        banned = (place == PAD) | (place == BEGIN) | ((place == END) & (size < minimum))
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
        x_ptr, weight, bias, steps, limits, values, tokens, masses, rows, width, V, minimum,
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
        y = tl.where(y == y, y, -3.0e38)  # as above
        size = tl.load(steps + row, mask=known, other=0) + 1
        last = size >= tl.load(limits + row, mask=known, other=0)
        banned = ((token == PAD) | (token == BEGIN))[None, :]
        banned |= (token == END)[None, :] & (size < minimum)[:, None]
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

    return {
        "step_attention": step_attention,
        "top_tokens": top_tokens,
        "best_tokens": best_tokens,
        "settle": settle,
    }
