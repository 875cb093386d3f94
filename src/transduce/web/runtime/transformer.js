// Transformers: the library's stack of layers, as an encoder and as a decoder.

import { BEST, multiply } from "./arrays.js";
import { Positions } from "./embedding.js";

class Stack {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.heads = ref.width / ref.head_width;
    this.rotary = ref.rotary && new Positions(file, ref.rotary);
    this.memory = ref.sublayers.filter((one) => one.memory).map((one) => file.product(runtime, one.memory));
    const sublayers = runtime.newStructures(
      "Sublayer",
      ref.sublayers.map((one) => ({
        kind: one.kind,
        norm_before: one.norm_before,
        activation: one.activation ?? 0,
        gated: one.gated ?? 0,
        layer: one.layer,
        norm: file.norm(runtime, one.norm),
        into: file.product(runtime, one.into),
        out_of: file.product(runtime, one.out_of),
      })),
    );
    this.address = runtime.newStructure("Stack", {
      sublayer: sublayers,
      sublayers: ref.sublayers.length,
      layers: ref.layers,
      width: ref.width,
      head_width: ref.head_width,
      last: file.norm(runtime, ref.norm),
      kernel: BEST,
      by_distance: ref.by_distance ? runtime.newFloats(file.floats(ref.by_distance)) : 0,
      reach: ref.reach ?? 0,
    });
  }

  workspace(rows, places) {
    const size = this.runtime.call("stack_workspace", this.address, BigInt(rows), BigInt(places));
    return this.runtime.allocate(Number(size));
  }
}

export class TransformerEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.width = ref.width;
    this.stack = new Stack(runtime, file, ref);
  }

  /** States of one source, given the address of its vectors; with `weights`, its attention
   * [layers][heads][S][S] too. */
  encode(embedded, length, weights) {
    const { runtime, stack } = this;
    const { width, layers } = stack.ref;
    const states = runtime.allocate(4 * length * width);
    const size = layers * stack.heads * length * length;
    const attention = weights ? runtime.newFloats(new Float32Array(size)) : 0;
    const rotary = stack.rotary ? runtime.newFloats(stack.rotary.rows(length)) : 0;
    const call = runtime.newStructure("Sources", {
      sources: 1,
      longest: length,
      tokens: runtime.newLongs(new Array(length).fill(0)), // embedded already
      lengths: runtime.newLongs([length]),
      embedded,
      rotary,
      states,
      attention,
      workspace: stack.workspace(length, length),
    });
    runtime.call("encode", stack.address, call);
    return {
      states,
      length,
      final: null,
      attention: weights
        ? { layers, heads: stack.heads, weights: runtime.floats(attention, size).slice() }
        : null,
    };
  }
}

export class TransformerDecoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.stack = new Stack(runtime, file, ref);
    this.width = ref.width;
  }

  /** What a search over so many hypotheses and steps needs; `step` is its structure. */
  start(memory, rows, steps, { step }) {
    const { runtime, stack } = this;
    const { width, layers } = stack.ref;
    const projected = stack.memory.map((weight) =>
      multiply(runtime, weight, memory.states, memory.length),
    );
    runtime.set("Step", step, {
      past: runtime.allocate(4 * steps * layers * rows * 2 * width),
      max_rows: rows,
      memory: runtime.newPointers(projected),
      memory_length: memory.length,
      lengths: runtime.newLongs([memory.length]),
      rotary: stack.rotary ? runtime.newFloats(stack.rotary.rows(steps)) : 0,
      workspace: stack.workspace(rows, Math.max(steps, memory.length)),
    });
    const embedded = runtime.allocate(4 * rows * width);
    runtime.set("Step", step, { embedded });
    return { embedded, attention: 0, memory, step, steps };
  }

  /** Log-probabilities of the rows of a step, all at position `at`. */
  advance(state, tokens, at, embedding) {
    embedding.write(state.embedded, tokens, at, true);
    this.runtime.call("decoder_step", this.stack.address, state.step);
  }

  /** From now on the attention of up to so many rows is kept. */
  watch(state, rows = 1) {
    const { runtime, stack } = this;
    const each = stack.ref.layers * rows * stack.heads;
    state.watched = rows;
    state.attention = runtime.newFloats(new Float32Array(each * state.memory.length));
    runtime.set("Step", state.step, { attention: state.attention });
    if (rows > 1 || state.memory.length) return;
    state.own = runtime.newFloats(new Float32Array(each * state.steps)); // of a decoder alone
    runtime.set("Step", state.step, { self_attention: state.own });
  }

  /** [layers][heads][S] of the only row; alone, [layers][heads][steps so far]. */
  watched(state, at) {
    const { layers } = this.stack.ref;
    const { heads } = this.stack;
    const { length } = state.memory;
    const [address, apart, seen] = length
      ? [state.attention, length, length]
      : [state.own, state.steps, at + 1];
    const all = this.runtime.floats(address, layers * heads * apart).slice();
    return Array.from({ length: layers }, (_, l) =>
      Array.from({ length: heads }, (_, h) => {
        const first = (l * heads + h) * apart;
        return all.subarray(first, first + seen);
      }),
    );
  }

  /** Where attention to the source of each of some rows is, in the last layer, and how many heads it has. */
  weights(state, rows) {
    const { heads, ref: { layers } } = this.stack;
    return { attention: state.attention + 4 * (layers - 1) * rows * heads * state.memory.length, heads };
  }
}
