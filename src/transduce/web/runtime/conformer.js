// Conformers.

import { activated, concatenated, glu, linear, normalised, sigmoid, sum } from "./arrays.js";
import { Positions } from "./embedding.js";

const TOGETHER = 8; // rows that the library lets attend together

export class ConformerEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.rotary = ref.rotary && new Positions(file, ref.rotary);
    const feedForward = (one) => ({
      ...one,
      norm: file.norm(runtime, one.norm),
      into: file.product(runtime, one.into),
      out_of: file.product(runtime, one.out_of),
    });
    this.blocks = ref.blocks.map((one) => ({
      first: feedForward(one.first),
      last: feedForward(one.last),
      attention: {
        norm: file.norm(runtime, one.attention.norm),
        into: file.product(runtime, one.attention.into),
        out_of: file.product(runtime, one.attention.out_of),
        heads: one.attention.heads,
        relative: one.attention.relative && {
          distances: new Positions(file, one.attention.relative.sinusoids),
          projection: file.product(runtime, one.attention.relative.projection),
          content: file.floats(one.attention.relative.content),
          distance: file.floats(one.attention.relative.distance),
        },
      },
      convolution: {
        norm: file.norm(runtime, one.convolution.norm),
        expand: file.product(runtime, one.convolution.expand),
        contract: file.product(runtime, one.convolution.contract),
        weight: file.floats(one.convolution.weight),
        bias: file.floats(one.convolution.bias),
        left: one.convolution.left,
        kernel: one.convolution.kernel,
        inner: file.norm(runtime, one.convolution.inner),
        batch: one.convolution.batch && {
          scale: file.floats(one.convolution.batch.scale),
          shift: file.floats(one.convolution.batch.shift),
        },
      },
      norm: file.norm(runtime, one.norm),
    }));
  }

  encode(embedded, length, weights) {
    const { runtime } = this;
    const [x, kept] = this.#pass(runtime.floats(embedded, length * this.width).slice(), length);
    const { heads } = this.blocks[0].attention;
    const all = weights && new Float32Array(kept.flatMap((one) => Array.from(one)));
    return {
      states: runtime.newFloats(x),
      length,
      final: null,
      attention: weights ? { layers: this.blocks.length, heads, weights: all } : null,
    };
  }

  /** What each block keeps of the chunks before: keys and values, and frames of the convolution. */
  open() {
    return this.blocks.map(({ convolution }) => ({
      memory: new Float32Array(0),
      frames: new Float32Array(convolution.left * this.width),
    }));
  }

  /** The states of a chunk, which sees those before it: as many as `past` are kept of them. */
  resume(embedded, length, caches, past) {
    return this.#pass(this.runtime.floats(embedded, length * this.width).slice(), length, caches, past)[0];
  }

  /** All blocks: the states, and the attention weights of each. */
  #pass(x, length, caches = null, past = 0) {
    const kept = [];
    this.blocks.forEach((block, number) => {
      const cache = caches?.[number] ?? null;
      x = sum(x, this.#feedForward(block.first, x, length), 0.5);
      x = sum(x, this.#attend(block.attention, x, length, kept, cache, past));
      x = sum(x, this.#convolve(block.convolution, x, length, cache));
      x = sum(x, this.#feedForward(block.last, x, length), 0.5);
      x = normalised(this.runtime, block.norm, x, length);
    });
    return [x, kept];
  }

  #feedForward(part, x, length) {
    const { runtime } = this;
    const hidden = linear(runtime, part.into, normalised(runtime, part.norm, x, length), length);
    return linear(runtime, part.out_of, activated(runtime, hidden, length, part), length);
  }

  #attend(part, x, length, kept, cache, past) {
    const { runtime } = this;
    const projected = linear(runtime, part.into, normalised(runtime, part.norm, x, length), length);
    const inner = projected.length / length / 3;
    const query = columns(projected, length, 0, inner);
    const own = columns(projected, length, inner, 3 * inner);
    const memory = cache ? concatenated(cache.memory, own) : own;
    if (cache) cache.memory = memory.slice(Math.max(0, memory.length - past * 2 * inner));
    const found = part.relative
      ? this.#relative(part, query, memory, length, inner)
      : this.#fused(part, query, memory, length, inner);
    kept.push(found.weights);
    return linear(runtime, part.out_of, found.context, length);
  }

  /** The queries are the last `length` of all places, whose keys and values are the memory. */
  #fused(part, query, memory, length, inner) {
    const { runtime } = this;
    const count = memory.length / inner / 2;
    return runtime.scoped(() => {
      const queries = runtime.newFloats(query);
      const first = runtime.newFloats(memory);
      const size = inner / part.heads;
      if (this.rotary) {
        const table = runtime.newFloats(this.rotary.rows(count));
        const turn = (at, place) => runtime.call("rotate", at, BigInt(inner), table + 4 * place * size, BigInt(size));
        for (let s = 0; s < count; s++) turn(first + 4 * s * 2 * inner, s);
        for (let t = 0; t < length; t++) turn(queries + 4 * t * inner, count - length + t);
      }
      const places = runtime.newPointers(Array.from({ length: count }, (_, s) => first + 4 * s * 2 * inner));
      const stride = Math.ceil(count / 4) * 4;
      const scores = runtime.allocate(4 * TOGETHER * part.heads * stride);
      const context = runtime.allocate(4 * length * inner);
      const weights = new Float32Array(part.heads * length * count);
      for (let s = 0; s < length; s += TOGETHER) {
        const some = Math.min(TOGETHER, length - s);
        const sizes = [count, inner, part.heads].map(BigInt);
        runtime.call("attend", queries + 4 * s * inner, BigInt(some), BigInt(inner), places, ...sizes, 0, 0n, 0n, scores, context + 4 * s * inner);
        const found = runtime.floats(scores, some * part.heads * stride);
        for (let r = 0; r < some; r++) {
          for (let h = 0; h < part.heads; h++) {
            const row = (r * part.heads + h) * stride;
            weights.set(found.subarray(row, row + count), (h * length + s + r) * count);
          }
        }
      }
      return { context: runtime.floats(context, length * inner).slice(), weights };
    });
  }

  /** Scores by content and by distance (Transformer-XL). */
  #relative(part, queries, memory, length, inner) {
    const { heads, relative } = part;
    const size = inner / heads;
    const count = memory.length / inner / 2;
    const ahead = relative.distances.rows(count); // of distance d; sines change their sign for -d
    const width = relative.distances.width;
    const table = new Float32Array((count + length - 1) * width);
    for (let d = -(length - 1); d < count; d++) {
      for (let i = 0; i < width; i++) {
        const value = ahead[Math.abs(d) * width + i];
        table[(d + length - 1) * width + i] = d < 0 && i % 2 === 0 ? -value : value;
      }
    }
    const distances = linear(this.runtime, relative.projection, table, count + length - 1);
    const context = new Float32Array(length * inner);
    const weights = new Float32Array(heads * length * count);
    const scale = 1 / Math.sqrt(size);
    for (let h = 0; h < heads; h++) {
      for (let t = 0; t < length; t++) {
        const row = weights.subarray((h * length + t) * count, (h * length + t + 1) * count);
        for (let s = 0; s < count; s++) {
          let score = 0;
          for (let i = 0; i < size; i++) {
            const query = queries[t * inner + h * size + i];
            const key = memory[s * 2 * inner + h * size + i];
            const distance = distances[(count - 1 + t - s) * inner + h * size + i];
            score += (query + relative.content[h * size + i]) * key;
            score += (query + relative.distance[h * size + i]) * distance;
          }
          row[s] = score * scale;
        }
        const top = row.reduce((a, b) => Math.max(a, b), -Infinity);
        let all = 0;
        for (let s = 0; s < count; s++) all += row[s] = Math.exp(row[s] - top);
        for (let s = 0; s < count; s++) {
          row[s] /= all;
          for (let i = 0; i < size; i++) {
            context[t * inner + h * size + i] += row[s] * memory[s * 2 * inner + inner + h * size + i];
          }
        }
      }
    }
    return { context, weights };
  }

  #convolve(part, x, length, cache) {
    const { runtime, width } = this;
    const own = glu(linear(runtime, part.expand, normalised(runtime, part.norm, x, length), length), length);
    const gated = cache ? concatenated(cache.frames, own) : own;
    if (cache) cache.frames = gated.slice(gated.length - cache.frames.length);
    const [before, count] = [cache ? part.left : 0, gated.length / width];
    const y = new Float32Array(length * width);
    for (let t = 0; t < length; t++) {
      y.set(part.bias, t * width);
      for (let k = 0; k < part.kernel; k++) {
        const s = before + t + k - part.left;
        if (s < 0 || s >= count) continue;
        for (let i = 0; i < width; i++) {
          y[t * width + i] += part.weight[i * part.kernel + k] * gated[s * width + i];
        }
      }
    }
    const normed = part.batch
      ? y.map((value, i) => value * part.batch.scale[i % width] + part.batch.shift[i % width])
      : normalised(runtime, part.inner, y, length);
    return linear(runtime, part.contract, normed.map((value) => value * sigmoid(value)), length);
  }
}

/** Some columns of rows. */
function columns(x, rows, from, to) {
  const width = x.length / rows;
  const found = new Float32Array(rows * (to - from));
  for (let r = 0; r < rows; r++) found.set(x.subarray(r * width + from, r * width + to), r * (to - from));
  return found;
}
