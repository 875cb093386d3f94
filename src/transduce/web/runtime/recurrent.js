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

export class RecurrentEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width * ref.directions;
    this.parts = ref.cell >= LSTM_CELLS ? 2 : 1;
    this.stack = newStack(runtime, file, ref);
  }

  encode(embedded, length) {
    const { runtime, ref, width, parts } = this;
    const states = runtime.allocate(4 * length * width);
    const count = ref.layers * width;
    const ends = Array.from({ length: parts }, () => runtime.newFloats(new Float32Array(count)));
    runtime.scoped(() => {
      const size = [length, 1, length].map(BigInt);
      const x = ref.reverse ? this.#turned(embedded, ref.input_width, length) : embedded;
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
    const read = ref.reverse ? this.#turned(states, width, length) : states;
    return { states: read, length, final, attention: null };
  }

  #turned(address, width, length) {
    const { runtime } = this;
    return runtime.newFloats(reversed(runtime.floats(address, length * width), length));
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
      score: by ? by.score : NO_ATTENTION,
      normalised: by ? by.normalised : 0,
      scale: by ? by.scale : 1,
      context_in_input: ref.context_in_input,
      context_in_output: ref.context_in_output,
      keys: by ? file.product(runtime, by.keys) : 0,
      query: by ? file.product(runtime, by.query) : 0,
      energy: by && by.energy !== null ? runtime.newFloats(file.floats(by.energy)) : 0,
      readout: file.product(runtime, ref.readout),
      bridge: file.product(runtime, ref.bridge),
      table: runtime.newFloats(target.table),
      vocabulary: target.tokens,
      table_scale: target.scale,
      kernel: BEST,
    });
  }

  start(memory, rows, steps, search) {
    const { runtime, ref, width, parts } = this;
    const { keys, layers } = this.#begun(memory);
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
      values: ref.attention ? this.#repeated(memory, once) : 0,
      longest: ref.attention ? memory.length : 0,
      lengths: runtime.newLongs(new Array(once).fill(memory.length)),
      head: search.head,
      log_probs: search.given,
      workspace: runtime.allocate(Number(size)),
    });
    const state = { call, states, each, memory, attention: 0, search, located };
    if (located) this.watch(state, rows);
    return state;
  }

  #zeros() {
    const { ref, width, parts } = this;
    return Array.from({ length: ref.layers }, () =>
      Array.from({ length: parts }, () => new Float32Array(width)),
    );
  }

  /** The states of the source, so many times. */
  #repeated(memory, times) {
    if (times === 1) return memory.states;
    const one = this.runtime.floats(memory.states, memory.length * this.width).slice();
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
  #begun(memory) {
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
    runtime.set("RecurrentStep", call, { rows, attention: state.attention });
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
    const count = rows * state.memory.length;
    if (this.ref.attention && !state.attention) {
      state.attention = this.runtime.newFloats(new Float32Array(count));
    }
  }

  watched(state) {
    if (!state.attention) return [];
    return [[this.runtime.floats(state.attention, state.memory.length).slice()]];
  }

  weights(state, rows) {
    const { length } = state.memory;
    const all = this.runtime.floats(state.attention, rows * length).slice();
    return Array.from({ length: rows }, (_, r) => all.subarray(r * length, (r + 1) * length));
  }
}
