"""Triton kernels of a decoding step: attention over the KV cache, and the search.

The search looks at the logits in chunks of tokens. The kernel that makes the logits, or reads them
first, keeps the best token and the log-sum-exp of each chunk. Greedy search needs no more. In beam
search the C best candidates of a sentence are in the C chunks with the best tokens: only these are
read again.
"""

from __future__ import annotations

from typing import Any

from transduce.nn.triton.start import wait_kernel


def step_kernels() -> dict[str, Any]:
    """The decoding-step kernels by name."""
    import triton
    import triton.language as tl

    wait = wait_kernel()

    @triton.jit
    def absorbed(q, k, v, inside, highest, mass, total, ZEROS: tl.constexpr):
        """Online softmax: the running max, normaliser and weighted sum after some more keys and
        values. ZEROS: values that are not inside are 0 already; what an earlier sentence has left
        may be no number.
        """
        score = tl.where(inside, tl.sum(k.to(tl.float32) * q[None, :], 1), -1e30)
        higher = tl.maximum(highest, tl.max(score))
        weight = tl.where(inside, tl.exp(score - higher), 0.0)
        shrink = tl.exp(highest - higher)
        values = v.to(tl.float32)
        if not ZEROS:
            values = tl.where(inside[:, None], values, 0.0)
        total = total * shrink + tl.sum(weight[:, None] * values, 0)
        return higher, mass * shrink + tl.sum(weight), total

    @triton.jit
    def step_attention(
        q_ptr, store_ptr, lengths, origin, out_ptr, T, each, scale,
        OWN: tl.constexpr, ORIGIN: tl.constexpr, EARLY: tl.constexpr,
        H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
        c, t = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
        wide = c < K
        # A constant, so that the distances between addresses are: instructions take as long as the
        # memory here.
        D: tl.constexpr = H * K
        first = store_ptr + (row // each) * T * 2 * D + h * K
        # The KV cache is of earlier steps, and each step begins with the embedding look-up, which
        # waits for all before it: the cache can be prefetched. Only its valid length is not yet
        # known.
        at = first + t[:, None] * 2 * D + c[None, :]
        k = tl.load(at, mask=(t < T)[:, None] & wide[None, :], other=0.0)
        v = tl.load(at + D, mask=(t < T)[:, None] & wide[None, :], other=0.0)
        wait(EARLY)
        from_q = q_ptr + row * (3 * D if OWN else D) + h * K + c
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
            highest, mass, total = absorbed(q, k, v, t < length, highest, mass, total, False)
            begin = BLOCK
        for start in range(begin, length, BLOCK):
            inside = start + t < length
            at = first + (start + t)[:, None] * 2 * D + c[None, :]
            if ORIGIN:
                place = tl.load(origin + row * T + start + t, mask=inside, other=0).to(tl.int64)
                at = store_ptr + (place * T + start + t)[:, None] * 2 * D + h * K + c[None, :]
            k = tl.load(at, mask=inside[:, None] & wide[None, :], other=0.0)
            v = tl.load(at + D, mask=inside[:, None] & wide[None, :], other=0.0)
            highest, mass, total = absorbed(q, k, v, inside, highest, mass, total, True)
        out = total / tl.where(mass == 0.0, 1.0, mass)
        tl.store(out_ptr + row * D + h * K + c, out.to(out_ptr.dtype.element_ty), mask=wide)

    @triton.jit
    def finite(highest):
        """What log-sum-exp subtracts: a chunk of impossible tokens has the sum 0, not NaN."""
        return tl.where(highest > -float("inf"), highest, 0.0)

    @triton.jit
    def best_of_chunks(
        logits, bias, steps, limits, values, tokens, masses, V, each, minimum,
        KEEP: tl.constexpr, PAD: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr,
        BLOCK: tl.constexpr, EARLY: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
        place = chunk * BLOCK + tl.arange(0, BLOCK)
        nothing = -float("inf")
        x = tl.load(logits + row * V + place, mask=place < V, other=nothing)
        x += tl.load(bias + place, mask=place < V, other=0.0)
        highest = finite(tl.max(x))
        tl.store(masses + row * chunks + chunk, tl.log(tl.sum(tl.exp(x - highest))) + highest)
        # NaN ranks below all numbers but above banned tokens: a row must still end. Its
        # log-probability stays NaN, through the normaliser.
        x = tl.where(x == x, x, -3.0e38)
        size = tl.load(steps + row) + 1
        banned = (place == PAD) | (place == BEGIN) | ((place == END) & (size < minimum))
        banned |= (place != END) & (size >= tl.load(limits + row // each))
        x = tl.where(banned, nothing, x)
        tl.store(values + row * chunks + chunk, tl.max(x))
        tl.store(tokens + row * chunks + chunk, (chunk * BLOCK + tl.argmax(x, 0)).to(tl.int64))
        if KEEP:
            tl.store(logits + row * V + place, x, mask=place < V)

    @triton.jit
    def best_tokens(
        x_ptr, weight, bias, steps, limits, values, tokens, masses, logits,
        rows, width, V, each, minimum,
        KEEP: tl.constexpr, PAD: tl.constexpr, BEGIN: tl.constexpr, END: tl.constexpr,
        EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
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
        highest = finite(tl.max(y, 1))
        to = row.to(tl.int64) * chunks + chunk
        mass = tl.log(tl.sum(tl.exp(y - highest[:, None]), 1)) + highest
        tl.store(masses + to, mass, mask=known)
        y = tl.where(y == y, y, -3.0e38)  # as above
        size = tl.load(steps + row, mask=known, other=0) + 1
        last = size >= tl.load(limits + row // each, mask=known, other=0)
        banned = ((token == PAD) | (token == BEGIN))[None, :]
        banned |= (token == END)[None, :] & (size < minimum)[:, None]
        banned |= (token != END)[None, :] & last[:, None]
        y = tl.where(banned, nothing, y)
        tl.store(values + to, tl.max(y, 1), mask=known)
        tl.store(tokens + to, (chunk * COLUMNS + tl.argmax(y, 1)).to(tl.int64), mask=known)
        if KEEP:
            at = row[:, None].to(tl.int64) * V + token[None, :]
            tl.store(logits + at, y, mask=known[:, None] & there[None, :])

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
    def lessened(length, power):
        """The length penalty that a log-probability is divided by."""
        return tl.exp(power * tl.log((5.0 + length) / 6.0))

    @triton.jit
    def picked(values, index, count, WIDTH: tl.constexpr):
        """The `count` greatest values, best first, and their indices: both [WIDTH]. Where nothing
        above -inf is left, the index is -1."""
        number = tl.arange(0, WIDTH)
        best = tl.full((WIDTH,), -float("inf"), dtype=tl.float32)
        found = tl.full((WIDTH,), -1, dtype=tl.int32)
        for place in range(count):
            value, at = tl.max(values, 0), tl.argmax(values, 0)
            new = (number == place) & (value > -float("inf"))
            best, found = tl.where(new, value, best), tl.where(new, at, found)
            values = tl.where(index == at, -float("inf"), values)
        return best, found

    @triton.jit
    def looked_up(table, index, WIDTH: tl.constexpr):
        """table[index], for a table [WIDTH]."""
        here = index[:, None] == tl.arange(0, WIDTH)[None, :]
        return tl.sum(tl.where(here, table[None, :], tl.zeros_like(table)[None, :]), 1)

    @triton.jit
    def settle_beams(
        logits, values, masses, tokens, opens, steps, limits, written, reached, origin,
        ended, whole, total, counts, V, chunks, T, power, maximum,
        N: tl.constexpr, NBEST: tl.constexpr, END: tl.constexpr, EARLY: tl.constexpr,
        ROWS: tl.constexpr, BESTS: tl.constexpr, MADE: tl.constexpr,
        WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        wait(EARLY)
        b = tl.program_id(0).to(tl.int64)
        if tl.load(opens + b) != 0:
            nothing = -float("inf")
            n, number = tl.arange(0, ROWS), tl.arange(0, MADE)
            step, limit = tl.load(steps + b * N), tl.load(limits + b)
            count = tl.load(counts + b)

            # The log-probability of each hypothesis, less its normaliser.
            c = tl.arange(0, WIDTH)
            at = (b * N + n)[:, None] * chunks + c[None, :]
            inside = (n < N)[:, None] & (c < chunks)[None, :]
            mass = tl.load(masses + at, mask=inside, other=nothing)
            highest = tl.max(mass, 1)
            mass = tl.log(tl.sum(tl.exp(mass - highest[:, None]), 1)) + highest
            before = tl.load(reached + b * N + n, mask=n < N, other=nothing) - mass

            # The 2N best candidates, from the 2N chunks with the best tokens. Those without a
            # number for a log-probability count as impossible.
            best = tl.load(values + at, mask=inside, other=nothing) + before[:, None]
            best = tl.reshape(tl.where(inside & (best == best), best, nothing), (ROWS * WIDTH,))
            _, chosen = picked(best, tl.arange(0, ROWS * WIDTH), 2 * N, MADE)
            there = chosen >= 0
            chosen = tl.maximum(chosen, 0)
            token = (chosen % WIDTH)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
            at = (b * N + chosen // WIDTH)[:, None] * V + token
            inside = there[:, None] & (token < V)
            x = tl.load(logits + at, mask=inside, other=nothing).to(tl.float32)
            x += looked_up(before, chosen // WIDTH, ROWS)[:, None]
            x = tl.reshape(tl.where(inside & (x == x), x, nothing), (MADE * CHUNK,))
            made, found = picked(x, tl.arange(0, MADE * CHUNK), 2 * N, MADE)
            found = tl.maximum(found, 0)
            chosen = looked_up(chosen, found // CHUNK, MADE)
            parent, token = chosen // WIDTH, (chosen % WIDTH) * CHUNK + found % CHUNK

            # END counts only in the better half. The best of what has ended, now or before:
            ends = token == END
            last = tl.where(ends & (number < N), made, nothing)
            fresh = last / lessened(step + 1.0, power)
            k = tl.arange(0, BESTS)
            old = tl.load(ended + b * NBEST + k, mask=k < NBEST, other=nothing)
            if tl.max(fresh, 0) > nothing:
                earlier = old
                source = tl.full((BESTS,), 0, dtype=tl.int32)
                for place in range(NBEST):
                    best_old, best_new = tl.max(earlier, 0), tl.max(fresh, 0)
                    here_old, here_new = tl.argmax(earlier, 0), tl.argmax(fresh, 0)
                    newer = best_new > best_old
                    old = tl.where(k == place, tl.maximum(best_old, best_new), old)
                    source = tl.where(
                        k == place, tl.where(newer, BESTS + here_new, here_old), source
                    )
                    fresh = tl.where(newer & (number == here_new), nothing, fresh)
                    earlier = tl.where((best_new <= best_old) & (k == here_old), nothing, earlier)
                is_new, at_new = source >= BESTS, tl.maximum(source - BESTS, 0)
                at_old = tl.where(is_new, 0, source)
                came = tl.load(total + b * NBEST + at_old)
                came = tl.where(is_new, looked_up(last, at_new, MADE), came)
                from_open = (b * N + looked_up(parent, at_new, MADE)) * T
                from_ended = (b * NBEST + at_old) * T
                for start in range(0, step + 1, BLOCK):
                    t = start + tl.arange(0, BLOCK)
                    past = (t < step)[None, :] & is_new[:, None]
                    text = tl.load(written + from_open[:, None] + t[None, :], mask=past, other=END)
                    past = (t <= step)[None, :] & (is_new == 0)[:, None]
                    text = tl.load(whole + from_ended[:, None] + t[None, :], mask=past, other=text)
                    tl.debug_barrier()  # all is read before anything is written
                    to = whole + (b * NBEST + k)[:, None] * T + t[None, :]
                    tl.store(to, text, mask=(k < NBEST)[:, None] & (t <= step)[None, :])
                tl.debug_barrier()
                tl.store(ended + b * NBEST + k, old, mask=k < NBEST)
                tl.store(total + b * NBEST + k, came, mask=k < NBEST)

            # The first N candidates that do not end stay open.
            order = number + tl.where(ends, MADE, 0) + tl.where(number < 2 * N, 0, 2 * MADE)
            rank = tl.sum(tl.where(order[None, :] < order[:, None], 1, 0), 1)
            here = n[:, None] == rank[None, :]
            worth = tl.sum(tl.where(here, made[None, :], 0.0), 1)
            parent = tl.sum(tl.where(here, parent[None, :], 0), 1)
            token = tl.sum(tl.where(here, token[None, :], 0), 1)
            from_row = b * N + parent
            for start in range(0, step + 1, BLOCK):
                t = start + tl.arange(0, BLOCK)
                from_at = from_row[:, None] * T + t[None, :]
                past = (n < N)[:, None] & (t < step)[None, :]
                text = tl.load(written + from_at, mask=past, other=0)
                row = tl.load(origin + from_at, mask=past, other=0)
                # The KV cache is reordered by table: in which row is each step of a hypothesis?
                now = (t == step)[None, :]
                text = tl.where(now, token[:, None].to(tl.int64), text)
                row = tl.where(now, from_row[:, None].to(tl.int32), row)
                tl.debug_barrier()
                to = (b * N + n)[:, None] * T + t[None, :]
                past = (n < N)[:, None] & (t <= step)[None, :]
                tl.store(written + to, text, mask=past)
                tl.store(origin + to, row, mask=past)
            tl.store(reached + b * N + n, worth, mask=n < N)
            tl.store(tokens + b * N + n, token.to(tl.int64), mask=n < N)

            # None of them can enter the n-best list any more, or so many have ended.
            mildest = tl.maximum(lessened(limit * 1.0, power), lessened(step + 2.0, power))
            highest_open = tl.max(tl.where(n < N, worth, nothing), 0)
            lowest_ended = tl.min(tl.where(k < NBEST, old, float("inf")), 0)
            count += tl.sum(tl.where(last > nothing, 1, 0), 0)
            tl.store(counts + b, count)
            done = (lowest_ended >= highest_open / mildest) | (limit <= step + 1)
            if done | (count >= maximum):
                tl.store(opens + b, 0)
            else:
                tl.store(steps + b * N + n, (n * 0 + step + 1), mask=n < N)

    return {
        "step_attention": step_attention,
        "best_of_chunks": best_of_chunks,
        "best_tokens": best_tokens,
        "settle": settle,
        "settle_beams": settle_beams,
    }
