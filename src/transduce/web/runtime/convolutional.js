// Gated convolutions.

import { dotAttention, glu, linear, sum, writeLogProbabilities } from "./arrays.js";

const HALVED = Math.sqrt(0.5);
const SMALL = 0.1;

/** What encoder and decoder have: products into and out of the blocks. */
class Convolutional {
  constructor(runtime, file, ref) {
    Object.assign(this, { runtime, ref, width: ref.width });
    this.into = file.product(runtime, ref.into);
    this.outOf = file.product(runtime, ref.out_of);
  }
}

export class ConvolutionalEncoder extends Convolutional {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.products = ref.products.map((one) => file.product(runtime, one));
  }

  encode(embedded, length) {
    const { runtime, width } = this;
    const { kernel } = this.ref;
    const side = (kernel - 1) / 2;
    const x = runtime.floats(embedded, length * width).slice();
    let z = linear(runtime, this.into, x.map((value) => SMALL * value), length);
    for (const product of this.products) {
      const windows = new Float32Array(length * kernel * width);
      for (let t = 0; t < length; t++) {
        for (let k = 0; k < kernel; k++) {
          const s = t + k - side;
          if (s < 0 || s >= length) continue;
          windows.set(z.subarray(s * width, (s + 1) * width), (t * kernel + k) * width);
        }
      }
      const h = glu(linear(runtime, product, windows, length), length);
      z = sum(z, h).map((value) => value * HALVED);
    }
    z = linear(runtime, this.outOf, z, length).map((value) => value / SMALL);
    const values = sum(z, x).map((value) => value * HALVED);
    return { states: runtime.newFloats(z), length, final: null, attention: null, values };
  }
}

export class ConvolutionalDecoder extends Convolutional {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.blocks = ref.blocks.map((one) => ({
      product: file.product(runtime, one.product),
      query: file.product(runtime, one.query), // 0 of a decoder alone
      context: file.product(runtime, one.context),
    }));
  }

  start(memory, rows, steps, search) {
    const keys = this.runtime.floats(memory.states, memory.length * this.width).slice();
    const values = memory.values ?? keys;
    const each = this.blocks.length * (this.ref.kernel - 1) * this.width;
    return {
      memory,
      search,
      keys: keys.map((value) => SMALL * value),
      values: values.map((value) => SMALL * value),
      states: new Float32Array(rows * each), // of each place, layers of kernel - 1 inputs
      each,
      attention: null,
    };
  }

  advance(state, tokens, at, embedding) {
    const { runtime, width } = this;
    const rows = tokens.length;
    const { from, to } = state.search.moves(rows, at);
    const past = from.map((place) => state.states.slice(place * state.each, (place + 1) * state.each));
    const embedded = runtime.scoped(() => {
      const address = runtime.allocate(4 * rows * width);
      embedding.write(address, tokens, at, true);
      return runtime.floats(address, rows * width).map((value) => SMALL * value);
    });
    let x = linear(runtime, this.into, embedded, rows);
    const before = this.ref.kernel - 1;
    this.blocks.forEach((block, layer) => {
      const windows = new Float32Array(rows * this.ref.kernel * width);
      for (let r = 0; r < rows; r++) {
        const seen = past[r].subarray(layer * before * width, (layer + 1) * before * width);
        const now = x.subarray(r * width, (r + 1) * width);
        const window = windows.subarray(r * this.ref.kernel * width, (r + 1) * this.ref.kernel * width);
        window.set(seen);
        window.set(now, before * width);
        seen.set(window.subarray(width)); // what the next step sees of this one
      }
      let h = glu(linear(runtime, block.product, windows, rows), rows);
      if (block.query) {
        const context = this.#attend(block, h, embedded, rows, state, layer);
        h = sum(h, context).map((value) => value * HALVED);
      }
      x = sum(x, h).map((value) => value * HALVED);
    });
    to.forEach((place, r) => state.states.set(past[r], place * state.each));
    const features = linear(runtime, this.outOf, x, rows).map((value) => value / SMALL);
    const { head, given } = state.search;
    if (head) runtime.scoped(() => writeLogProbabilities(runtime, head, features, rows, given));
    else runtime.floats(given, features.length).set(features);
  }

  #attend(block, h, embedded, rows, state, layer) {
    const { width } = this;
    const { length } = state.memory;
    const query = sum(linear(this.runtime, block.query, h, rows), embedded).map((value) => value * HALVED);
    const context = new Float32Array(rows * width);
    const scale = Math.sqrt(Math.max(1, length));
    for (let r = 0; r < rows; r++) {
      const weights = dotAttention(query.subarray(r * width, (r + 1) * width), state.keys, length);
      if (state.attention) state.attention[layer] = [weights];
      weights.forEach((weight, s) => {
        for (let i = 0; i < width; i++) context[r * width + i] += scale * weight * state.values[s * width + i];
      });
    }
    return linear(this.runtime, block.context, context, rows);
  }

  watch(state) {
    state.attention = [];
  }

  watched(state) {
    return [...state.attention];
  }
}
