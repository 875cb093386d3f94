// Recurrent networks.

import { BEST, linear, meanOf, multiply, reversed, sideBySide, sigmoid, sum } from "./arrays.js";

const NO_ATTENTION = 0;
const LSTM_CELLS = 2; // from this kind of cell on, a state has two parts
const GRU = 1;
const ELMAN = 0;

export class RecurrentEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width * ref.directions;
    this.cells = ref.cells.map((cell) => ({
      input: file.product(runtime, cell.from_input),
      state: file.product(runtime, cell.from_state),
      peepholes: cell.peepholes && cell.peepholes.map((name) => file.floats(name)),
    }));
    this.sum = file.product(runtime, ref.sum);
  }

  encode(embedded, length) {
    const { runtime, ref } = this;
    const given = runtime.floats(embedded, length * ref.input_width).slice();
    const x = ref.reverse ? reversed(given, length) : given;
    const outputs = [];
    const final = [];
    for (let layer = 0; layer < ref.layers; layer++) {
      const below = outputs.at(-1);
      const input = !below ? x : ref.skip ? sideBySide([x, below], length) : below;
      const both = [];
      const ends = [];
      for (let way = 0; way < ref.directions; way++) {
        const cell = this.cells[layer * ref.directions + way];
        const { states, end } = this.#run(cell, input, length, way === 1);
        both.push(states);
        ends.push(end);
      }
      outputs.push(both.length > 1 ? sideBySide(both, length) : both[0]);
      // Forward and backward states of a layer, side by side.
      final.push(ends[0].map((_, part) => sideBySide(ends.map((end) => end[part]), 1)));
    }
    let states = outputs.at(-1);
    if (this.sum) {
      const at = multiply(runtime, this.sum, runtime.newFloats(sideBySide(outputs, length)), length);
      states = runtime.floats(at, length * ref.width * ref.directions).slice();
    }
    if (ref.reverse) states = reversed(states, length);
    return { states: runtime.newFloats(states), length, final, attention: null };
  }

  /** One cell over a sequence, perhaps from its end: the states in the order of the sequence. */
  #run(cell, input, length, backward) {
    const { runtime, ref } = this;
    const { width } = ref;
    return runtime.scoped(() => {
      const kind = ref.cell;
      const fromInput = multiply(runtime, cell.input, runtime.newFloats(input), length);
      const count = runtime.get("Weight", cell.input, "outputs");
      const gatesOfInput = runtime.floats(fromInput, length * count).slice();
      const states = new Float32Array(length * width);
      const h = new Float32Array(width);
      const c = new Float32Array(kind >= LSTM_CELLS ? width : 0);
      const at = runtime.allocate(4 * width);
      const gates = runtime.allocate(4 * count);
      const size = Number(runtime.call("product_workspace", 1n, BigInt(width)));
      const workspace = runtime.allocate(size);
      for (let step = 0; step < length; step++) {
        const t = backward ? length - 1 - step : step;
        runtime.floats(at, width).set(h);
        runtime.call("multiply", cell.state, at, 1n, 0, 0, gates, workspace, BEST);
        const g = runtime.floats(gates, count);
        const x = gatesOfInput.subarray(t * count, (t + 1) * count);
        for (let i = 0; i < width; i++) {
          if (kind === ELMAN) h[i] = Math.tanh(x[i] + g[i]);
          else if (kind === GRU) {
            const reset = sigmoid(x[i] + g[i]);
            const update = sigmoid(x[width + i] + g[width + i]);
            const fresh = Math.tanh(x[2 * width + i] + reset * g[2 * width + i]);
            h[i] = (1 - update) * fresh + update * h[i];
          } else {
            const p = cell.peepholes;
            const into = sigmoid(x[i] + g[i] + (p ? p[0][i] * c[i] : 0));
            const forget = sigmoid(x[width + i] + g[width + i] + (p ? p[1][i] * c[i] : 0));
            const fresh = Math.tanh(x[2 * width + i] + g[2 * width + i]);
            c[i] = forget * c[i] + into * fresh;
            const out = sigmoid(x[3 * width + i] + g[3 * width + i] + (p ? p[2][i] * c[i] : 0));
            h[i] = out * Math.tanh(c[i]);
          }
        }
        states.set(h, t * width);
      }
      return { states, end: c.length ? [h, c] : [h] };
    });
  }
}

export class RecurrentDecoder {
  constructor(runtime, file, ref, target) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.parts = ref.cell >= LSTM_CELLS ? 2 : 1;
    this.bridge = file.product(runtime, ref.bridge);
    const by = ref.attention;
    this.keys = by ? file.product(runtime, by.keys) : 0;
    this.location = by?.filters
      ? {
          filters: file.floats(by.filters), // [filters][kernel]
          kernel: by.kernel,
          projection: file.product(runtime, by.location),
        }
      : null;
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
    this.net = runtime.newStructure("Recurrent", {
      cell: cells,
      layers: ref.layers,
      width: ref.width,
      kind: ref.cell,
      skip: ref.skip,
      score: by ? by.score : NO_ATTENTION,
      normalised: by ? by.normalised : 0,
      scale: by ? by.scale : 1,
      context_in_input: ref.context_in_input,
      context_in_output: ref.context_in_output,
      query: by ? file.product(runtime, by.query) : 0,
      energy: by && by.energy !== null ? runtime.newFloats(file.floats(by.energy)) : 0,
      readout: file.product(runtime, ref.readout),
      sum: file.product(runtime, ref.sum),
      table: runtime.newFloats(target.table),
      vocabulary: target.tokens,
      table_scale: target.scale,
      kernel: BEST,
    });
  }

  start(memory, rows, steps, search) {
    const { runtime, ref, width, parts } = this;
    let layers = memory.final;
    if (this.bridge) layers = this.#bridged(memory);
    if (!layers) layers = this.#zeros(); // of a decoder alone
    const keys = this.#prepared(memory);
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

  /** The part of the attention score that depends on the keys alone. */
  #prepared(memory) {
    const { runtime, ref, width } = this;
    if (this.keys) return multiply(runtime, this.keys, memory.states, memory.length);
    if (!ref.attention?.normalised) return memory.states;
    const keys = runtime.newFloats(runtime.floats(memory.states, memory.length * width));
    normaliseRows(runtime.floats(keys, memory.length * width), width);
    return keys;
  }

  #bridged(memory) {
    const { runtime, width, parts } = this;
    const mean = meanOf(runtime.floats(memory.states, memory.length * width), memory.length);
    const all = multiply(runtime, this.bridge, runtime.newFloats(mean), 1);
    const count = this.ref.layers * parts * width;
    const start = runtime.floats(all, count).map(Math.tanh);
    return Array.from({ length: this.ref.layers }, (_, l) =>
      Array.from({ length: parts }, (_, p) =>
        start.slice((l * parts + p) * width, (l * parts + p + 1) * width),
      ),
    );
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

function normaliseRows(x, width) {
  for (let at = 0; at < x.length; at += width) {
    let squares = 0;
    for (let i = 0; i < width; i++) squares += x[at + i] ** 2;
    const size = Math.max(Math.sqrt(squares), 1e-12);
    for (let i = 0; i < width; i++) x[at + i] /= size;
  }
}
