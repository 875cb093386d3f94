// Conformers.

import { activated, glu, linear, normalised, sigmoid, sum } from "./arrays.js";
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
    let x = runtime.floats(embedded, length * this.width).slice();
    const kept = [];
    for (const block of this.blocks) {
      x = sum(x, this.#feedForward(block.first, x, length), 0.5);
      x = sum(x, this.#attend(block.attention, x, length, kept));
      x = sum(x, this.#convolve(block.convolution, x, length));
      x = sum(x, this.#feedForward(block.last, x, length), 0.5);
      x = normalised(runtime, block.norm, x, length);
    }
    const { heads } = this.blocks[0].attention;
    const all = weights && new Float32Array(kept.flatMap((one) => Array.from(one)));
    return {
      states: runtime.newFloats(x),
      length,
      final: null,
      attention: weights ? { layers: this.blocks.length, heads, weights: all } : null,
    };
  }

  #feedForward(part, x, length) {
    const { runtime } = this;
    const hidden = linear(runtime, part.into, normalised(runtime, part.norm, x, length), length);
    return linear(runtime, part.out_of, activated(runtime, hidden, length, part), length);
  }

  #attend(part, x, length, kept) {
    const { runtime } = this;
    const projected = linear(runtime, part.into, normalised(runtime, part.norm, x, length), length);
    const inner = projected.length / length / 3;
    const context = part.relative
      ? this.#relative(part, projected, length, inner, kept)
      : this.#fused(part, projected, length, inner, kept);
    return linear(runtime, part.out_of, context, length);
  }

  #fused(part, projected, length, inner, kept) {
    const { runtime } = this;
    return runtime.scoped(() => {
      const first = runtime.newFloats(projected);
      const size = inner / part.heads;
      if (this.rotary) {
        const table = runtime.newFloats(this.rotary.rows(length));
        for (let s = 0; s < length; s++) {
          const at = first + 4 * s * 3 * inner;
          runtime.call("rotate", at, BigInt(2 * inner), table + 4 * s * size, BigInt(size));
        }
      }
      const places = runtime.newPointers(
        Array.from({ length }, (_, s) => first + 4 * (s * 3 * inner + inner)),
      );
      const stride = Math.ceil(length / 4) * 4;
      const scores = runtime.allocate(4 * TOGETHER * part.heads * stride);
      const context = runtime.allocate(4 * length * inner);
      const weights = new Float32Array(part.heads * length * length);
      for (let s = 0; s < length; s += TOGETHER) {
        const some = Math.min(TOGETHER, length - s);
        const query = first + 4 * s * 3 * inner;
        const numbers = [some, 3 * inner].map(BigInt);
        const sizes = [length, inner, part.heads].map(BigInt);
        runtime.call("attend", query, ...numbers, places, ...sizes, scores, context + 4 * s * inner);
        const found = runtime.floats(scores, some * part.heads * stride);
        for (let r = 0; r < some; r++) {
          for (let h = 0; h < part.heads; h++) {
            const row = (r * part.heads + h) * stride;
            weights.set(found.subarray(row, row + length), (h * length + s + r) * length);
          }
        }
      }
      kept.push(weights);
      return runtime.floats(context, length * inner).slice();
    });
  }

  /** Scores by content and by distance (Transformer-XL). */
  #relative(part, projected, length, inner, kept) {
    const { heads, relative } = part;
    const size = inner / heads;
    const ahead = relative.distances.rows(length); // of distance d; sines change their sign for -d
    const width = relative.distances.width;
    const table = new Float32Array((2 * length - 1) * width);
    for (let d = -(length - 1); d < length; d++) {
      for (let i = 0; i < width; i++) {
        const value = ahead[Math.abs(d) * width + i];
        table[(d + length - 1) * width + i] = d < 0 && i % 2 === 0 ? -value : value;
      }
    }
    const distances = linear(this.runtime, relative.projection, table, 2 * length - 1);
    const context = new Float32Array(length * inner);
    const weights = new Float32Array(heads * length * length);
    const scale = 1 / Math.sqrt(size);
    for (let h = 0; h < heads; h++) {
      for (let t = 0; t < length; t++) {
        const row = weights.subarray((h * length + t) * length, (h * length + t + 1) * length);
        for (let s = 0; s < length; s++) {
          let score = 0;
          for (let i = 0; i < size; i++) {
            const query = projected[t * 3 * inner + h * size + i];
            const key = projected[s * 3 * inner + inner + h * size + i];
            const distance = distances[(t - s + length - 1) * inner + h * size + i];
            score += (query + relative.content[h * size + i]) * key;
            score += (query + relative.distance[h * size + i]) * distance;
          }
          row[s] = score * scale;
        }
        const top = row.reduce((a, b) => Math.max(a, b), -Infinity);
        let all = 0;
        for (let s = 0; s < length; s++) all += row[s] = Math.exp(row[s] - top);
        for (let s = 0; s < length; s++) {
          row[s] /= all;
          for (let i = 0; i < size; i++) {
            context[t * inner + h * size + i] += row[s] * projected[s * 3 * inner + 2 * inner + h * size + i];
          }
        }
      }
    }
    kept.push(weights);
    return context;
  }

  #convolve(part, x, length) {
    const { runtime, width } = this;
    const gated = glu(linear(runtime, part.expand, normalised(runtime, part.norm, x, length), length), length);
    const y = new Float32Array(length * width);
    for (let t = 0; t < length; t++) {
      y.set(part.bias, t * width);
      for (let k = 0; k < part.kernel; k++) {
        const s = t + k - part.left;
        if (s < 0 || s >= length) continue;
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
