// Recurrent networks.

import { BEST, linear, reversed, sideBySide, sum } from "./arrays.js";

const NO_ATTENTION = 0;
const LSTM_CELLS = 2; // from this kind of cell on, a state has two parts

/** A stack of cells as a structure of the library. */
function newStack(runtime, file, ref) {
  const peepholes = (cell) =>
    cell.peepholes
      ? runtime.newFloats(sideBySide(cell.peepholes.map((name) => file.floats(name)), 1))
      : 0;
  const cells = runtime.newStructures(
    "Cell",
    ref.cells.map((cell) => ({
      from_input: file.product(runtime, cell.from_input),
      from_state: file.product(runtime, cell.from_state),
      peepholes: peepholes(cell),
    })),
  );
  return runtime.newStructure("Recurrent", {
    cell: cells,
    layers: ref.layers,
    directions: ref.directions,
    width: ref.width,
    kind: ref.cell,
    skip: ref.skip,
    sum: file.product(runtime, ref.sum),
    kernel: BEST,
  });
}

/** Attention as a structure of the library; without one, that to nothing. */
function newAttention(runtime, file, ref) {
  if (!ref) return runtime.newStructure("Attention", { score: NO_ATTENTION });
  return runtime.newStructure("Attention", {
    score: ref.score,
    normalised: ref.normalised,
    scale: ref.scale,
    keys: file.product(runtime, ref.keys),
    query: file.product(runtime, ref.query),
    energy: ref.energy === null ? 0 : runtime.newFloats(file.floats(ref.energy)),
  });
}

export class RecurrentEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width * ref.directions;
    this.parts = ref.cell >= LSTM_CELLS ? 2 : 1;
    this.stack = newStack(runtime, file, ref);
  }

  /** The states of a source, and of as many places before it zeros: those of tags that the decoder reads. */
  encode(embedded, length, weights = false, before = 0) {
    const { runtime, ref, width, parts } = this;
    const all = runtime.newFloats(new Float32Array((before + length) * width));
    const states = all + 4 * before * width;
    const count = ref.layers * width;
    const ends = Array.from({ length: parts }, () => runtime.newFloats(new Float32Array(count)));
    runtime.scoped(() => {
      const size = [length, 1, length].map(BigInt);
      const x = ref.reverse ? runtime.newFloats(this.#reversed(embedded, ref.input_width, length)) : embedded;
      const call = runtime.newStructure("Sequences", {
        sequences: 1,
        longest: length,
        x,
        lengths: runtime.newLongs([length]),
        outputs: states,
        h: ends[0],
        c: ends[1] ?? 0,
        workspace: runtime.allocate(Number(runtime.call("sequences_workspace", this.stack, ...size))),
      });
      runtime.call("read_sequences", this.stack, call);
    });
    // Forward and backward states of a layer are side by side.
    const final = Array.from({ length: ref.layers }, (_, layer) =>
      ends.map((end) => runtime.floats(end + 4 * layer * width, width).slice()),
    );
    if (ref.reverse) runtime.floats(states, length * width).set(this.#reversed(states, width, length));
    return { states: all, length: before + length, final, attention: null };
  }

  #reversed(address, width, length) {
    return reversed(this.runtime.floats(address, length * width), length);
  }
}

export class RecurrentDecoder {
  constructor(runtime, file, ref, target) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.parts = ref.cell >= LSTM_CELLS ? 2 : 1;
    const by = ref.attention;
    this.location = by?.filters
      ? {
          filters: file.floats(by.filters), // [filters][kernel]
          kernel: by.kernel,
          projection: file.product(runtime, by.location),
        }
      : null;
    this.net = runtime.newStructure("RecurrentDecoder", {
      stack: newStack(runtime, file, ref),
      context_in_input: ref.context_in_input,
      context_in_output: ref.context_in_output,
      source: newAttention(runtime, file, by),
      tags: newAttention(runtime, file, ref.tags?.attention),
      tag_values: file.product(runtime, ref.tags?.values),
      tag_sum: file.product(runtime, ref.tags?.sum),
      readout: file.product(runtime, ref.readout),
      bridge: file.product(runtime, ref.bridge),
      table: runtime.newFloats(target.table),
      vocabulary: target.tokens,
      table_scale: 1, // scaled already
      kernel: BEST,
    });
  }

  start(memory, rows, steps, search) {
    const { runtime, ref, width, parts } = this;
    const tags = this.#roomForTags(memory);
    const { keys, layers } = this.#begun(memory, tags);
    // With location-aware attention each row has keys of its own.
    const located = this.location && {
      keys: runtime.floats(keys, memory.length * width).slice(),
      address: runtime.allocate(4 * rows * memory.length * width),
      before: new Float32Array(rows * memory.length), // the last weights of each place
    };
    const once = located ? rows : 1;
    // [places][layers][parts][width] and the query of each place: hypotheses move between places.
    const each = (ref.layers * parts + 1) * width;
    const states = new Float32Array(rows * each);
    layers.flat().forEach((part, i) => states.set(part, i * width));
    states.set(layers.at(-1)[0], ref.layers * parts * width);
    const size = runtime.call("recurrent_workspace", this.net, BigInt(rows), BigInt(memory.length));
    const call = runtime.newStructure("RecurrentStep", {
      tokens: runtime.allocate(8 * rows),
      h: runtime.allocate(4 * ref.layers * rows * width),
      c: parts > 1 ? runtime.allocate(4 * ref.layers * rows * width) : 0,
      query: runtime.allocate(4 * rows * width),
      source: runtime.newLongs(Array.from({ length: rows }, (_, r) => (located ? r : 0))),
      keys: ref.attention ? located?.address ?? keys : 0,
      values: ref.attention ? this.#repeated(memory.states, memory.length, once) : 0,
      longest: ref.attention ? memory.length : 0,
      lengths: runtime.newLongs(new Array(once).fill(memory.length)),
      ...this.#readTags(tags, once),
      head: search.head,
      log_probs: search.given,
      workspace: runtime.allocate(Number(size)),
    });
    const state = { call, states, each, memory, attention: 0, tagAttention: 0, search, located };
    if (located) this.watch(state, rows);
    return state;
  }

  /** Of tags that the decoder reads: their vectors, and where the start writes what it makes of them. */
  #roomForTags({ tags }) {
    const { runtime, ref, width } = this;
    if (!ref.tags) return {};
    const room = (rows) => runtime.allocate(4 * rows * width);
    return {
      tags: runtime.newLongs([tags.length]),
      most_tags: tags.length,
      embedded_tags: tags.address,
      tag_keys: room(tags.length),
      tag_values: room(tags.length),
      tag_input: room(1),
    };
  }

  /** What each step reads of them, so many times. */
  #readTags({ most_tags: count, tag_keys: keys, tag_values: values, tag_input: input }, times) {
    if (!this.ref.tags) return {};
    return {
      tags: this.runtime.newLongs(new Array(times).fill(count)),
      most_tags: count,
      tag_keys: this.#repeated(keys, count, times),
      tag_values: this.#repeated(values, count, times),
      tag_input: this.#repeated(input, 1, times),
    };
  }

  #zeros() {
    const { ref, width, parts } = this;
    return Array.from({ length: ref.layers }, () =>
      Array.from({ length: parts }, () => new Float32Array(width)),
    );
  }

  /** Rows, so many times. */
  #repeated(address, rows, times) {
    if (times === 1) return address;
    const one = this.runtime.floats(address, rows * this.width).slice();
    return this.runtime.newFloats(sideBySide(new Array(times).fill(one), 1));
  }

  /** Keys of each row: those of the source, and what its last weights add (Chorowski 2015). */
  #locate(state, from) {
    const { runtime, width, location } = this;
    const { length } = state.memory;
    const { filters, kernel, projection } = location;
    const count = filters.length / kernel;
    const side = (kernel - 1) / 2;
    from.forEach((place, r) => {
      const before = state.located.before.subarray(place * length, (place + 1) * length);
      const features = new Float32Array(length * count);
      for (let s = 0; s < length; s++) {
        for (let k = Math.max(0, side - s); k < kernel && s + k - side < length; k++) {
          for (let f = 0; f < count; f++) {
            features[s * count + f] += filters[f * kernel + k] * before[s + k - side];
          }
        }
      }
      const keys = sum(linear(runtime, projection, features, length), state.located.keys);
      runtime.floats(state.located.address + 4 * r * length * width, length * width).set(keys);
    });
  }

  /** Prepared keys, and the states of each layer before the first step. */
  #begun(memory, tags) {
    const { runtime, ref, width, parts } = this;
    const { states, length, final } = memory;
    if (!length) return { keys: 0, layers: this.#zeros() }; // of a decoder alone
    const own = ref.attention?.keys || ref.attention?.normalised;
    const keys = own ? runtime.allocate(4 * length * width) : states;
    const count = ref.layers * parts * width;
    const layers = runtime.scoped(() => {
      const start = runtime.allocate(4 * count);
      const size = runtime.call("start_workspace", this.net, 1n, BigInt(length));
      const call = runtime.newStructure("RecurrentStart", {
        sources: 1,
        longest: length,
        states,
        lengths: runtime.newLongs([length]),
        keys,
        start,
        ...tags,
        workspace: runtime.allocate(Number(size)),
      });
      runtime.call("start_decoder", this.net, call);
      if (!ref.bridge) return final;
      const part = (i) => runtime.floats(start + 4 * i * width, width).slice();
      return Array.from({ length: ref.layers }, (_, l) =>
        Array.from({ length: parts }, (_, p) => part(l * parts + p)),
      );
    });
    return { keys, layers };
  }

  advance(state, tokens, at) {
    const { runtime, ref, width, parts } = this;
    const rows = tokens.length;
    const { call, each } = state;
    // The place of each row's hypothesis a step before, and now.
    const { from, to } = state.search.moves(rows, at);
    const address = (field) => runtime.get("RecurrentStep", call, field);
    const layer = rows * width;
    const views = [address("h"), address("c")].slice(0, parts);
    from.forEach((place, r) => {
      for (let l = 0; l < ref.layers; l++) {
        views.forEach((view, p) => {
          const first = place * each + (l * parts + p) * width;
          const kept = state.states.subarray(first, first + width);
          runtime.floats(view + 4 * (l * layer + r * width), width).set(kept);
        });
      }
      const first = place * each + ref.layers * parts * width;
      const kept = state.states.subarray(first, first + width);
      runtime.floats(address("query") + 4 * r * width, width).set(kept);
    });
    if (state.located) this.#locate(state, from);
    runtime.setLongs(address("tokens"), tokens);
    runtime.set("RecurrentStep", call, { rows, attention: state.attention, tag_attention: state.tagAttention });
    runtime.call("recurrent_step", this.net, call);
    const { length } = state.memory;
    to.forEach((place, r) => {
      if (state.located) {
        const weights = runtime.floats(state.attention + 4 * r * length, length);
        state.located.before.set(weights, place * length);
      }
      for (let l = 0; l < ref.layers; l++) {
        views.forEach((view, p) => {
          const first = place * each + (l * parts + p) * width;
          state.states.set(runtime.floats(view + 4 * (l * layer + r * width), width), first);
        });
      }
      const first = place * each + ref.layers * parts * width;
      state.states.set(runtime.floats(address("query") + 4 * r * width, width), first);
    });
  }

  watch(state, rows = 1) {
    const room = (places) => this.runtime.newFloats(new Float32Array(rows * places));
    const { length, tags } = state.memory;
    if (this.ref.attention && !state.attention) state.attention = room(length);
    if (this.ref.tags && !state.tagAttention) state.tagAttention = room(tags.length);
  }

  /** Attention of the only row to the source; and that to the tags, the first of its places. */
  watched(state) {
    if (!state.attention) return [];
    const { length, tags } = state.memory;
    const found = [[this.runtime.floats(state.attention, length).slice()]];
    if (!this.ref.tags) return found;
    const ofTags = new Float32Array(length);
    ofTags.set(this.runtime.floats(state.tagAttention, tags.length));
    return [...found, [ofTags]];
  }

  /** Where attention to the source of each row is, and how many heads it has. */
  weights(state) {
    return { attention: state.attention, heads: 1 };
  }
}
