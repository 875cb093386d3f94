// Networks: sources in, log-probabilities of the next token out, through the C library.

const NO_ATTENTION = 0;
const LSTM_CELLS = 2; // from this kind of cell on, a state has two parts
const GRU = 1;
const ELMAN = 0;
const BEST = -1; // the fastest kernel

/** Vectors of positions: a learned table, or sinusoids by frequency. */
class Positions {
  constructor(file, ref) {
    this.width = ref.width;
    this.ref = ref;
    this.learned = ref.table === undefined ? null : file.floats(ref.table);
  }

  /** The longest sequence that they know. */
  get limit() {
    return this.learned ? this.learned.length / this.width : Infinity;
  }

  rows(count) {
    if (this.learned) return this.learned.subarray(0, count * this.width);
    const { frequencies, sine_first: sineFirst } = this.ref;
    const found = new Float32Array(count * this.width);
    for (let t = 0; t < count; t++) {
      frequencies.forEach((frequency, pair) => {
        const sine = Math.sin(t * frequency);
        const cosine = Math.cos(t * frequency);
        found[t * this.width + 2 * pair] = sineFirst ? sine : cosine;
        found[t * this.width + 2 * pair + 1] = sineFirst ? cosine : sine;
      });
    }
    return found;
  }
}

/** Token embeddings: rows of a table, scaled, with positions added. */
export class Embedding {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.width = ref.width;
    this.tokens = ref.tokens;
    this.scale = ref.scale;
    this.table = file.floats(ref.table);
    this.positions = ref.positions && new Positions(file, ref.positions);
    this.known = new Float32Array(0);
    this.norm = file.norm(runtime, ref.norm);
  }

  /** Write the vectors of tokens to an address; the first, or with `together` all, at position
   * `start`. */
  write(address, tokens, start, together = false) {
    const { width, scale, table } = this;
    const x = this.runtime.floats(address, tokens.length * width);
    const end = start + (together ? 1 : tokens.length);
    if (this.positions && end * width > this.known.length) {
      this.known = this.positions.rows(Math.min(2 * end, this.positions.limit));
    }
    tokens.forEach((token, row) => {
      const at = (start + (together ? 0 : row)) * width;
      for (let i = 0; i < width; i++) {
        let value = Math.fround(table[token * width + i] * scale);
        if (this.positions) value += this.known[at + i];
        x[row * width + i] = value;
      }
    });
    if (this.norm) {
      const rows = BigInt(tokens.length);
      this.runtime.call("normalise", this.norm, address, rows, BigInt(width), address);
    }
  }
}

/** x Wᵀ + b of some rows; allocates in the present scope. */
function multiply(runtime, weight, x, rows) {
  const inputs = runtime.get("Weight", weight, "inputs");
  const outputs = runtime.get("Weight", weight, "outputs");
  const y = runtime.allocate(4 * rows * outputs);
  const size = Number(runtime.call("product_workspace", BigInt(rows), BigInt(inputs)));
  const workspace = runtime.allocate(size);
  runtime.call("multiply", weight, x, BigInt(rows), 0, 0, y, workspace, BEST);
  return y;
}

// ------------------------------------------------------------------------------- Transformers

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
    });
  }

  workspace(rows, places) {
    const size = this.runtime.call("stack_workspace", this.address, BigInt(rows), BigInt(places));
    return this.runtime.allocate(Number(size));
  }
}

class TransformerEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.stack = new Stack(runtime, file, ref);
  }

  /** Encoder states of one source; with `weights`, its attention [layers][heads][S][S] too. */
  encode(embedding, tokens, weights) {
    const { runtime, stack } = this;
    const { width, layers } = stack.ref;
    const length = tokens.length;
    const embedded = runtime.allocate(4 * length * width);
    embedding.write(embedded, tokens, 0);
    const states = runtime.allocate(4 * length * width);
    const size = layers * stack.heads * length * length;
    const attention = weights ? runtime.newFloats(new Float32Array(size)) : 0;
    const rotary = stack.rotary ? runtime.newFloats(stack.rotary.rows(length)) : 0;
    const call = runtime.newStructure("Sources", {
      sources: 1,
      longest: length,
      tokens: runtime.newLongs(tokens),
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

class TransformerDecoder {
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
    return { embedded, attention: 0, memory, step };
  }

  /** Log-probabilities of the rows of a step, all at position `at`. */
  advance(state, tokens, at, embedding) {
    embedding.write(state.embedded, tokens, at, true);
    this.runtime.call("decoder_step", this.stack.address, state.step);
  }

  /** From now on the attention of a single row is kept. */
  watch(state) {
    state.size = this.stack.ref.layers * this.stack.heads * state.memory.length;
    state.attention = this.runtime.newFloats(new Float32Array(state.size));
    this.runtime.set("Step", state.step, { attention: state.attention });
  }

  /** [layers][heads][S] of the only row. */
  watched(state) {
    const all = this.runtime.floats(state.attention, state.size).slice();
    const { heads } = this.stack;
    const { length } = state.memory;
    return Array.from({ length: this.stack.ref.layers }, (_, l) =>
      Array.from({ length: heads }, (_, h) =>
        all.subarray((l * heads + h) * length, (l * heads + h + 1) * length),
      ),
    );
  }
}

// -------------------------------------------------------------------------- recurrent networks

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

class RecurrentEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.cells = ref.cells.map((cell) => ({
      input: file.product(runtime, cell.from_input),
      state: file.product(runtime, cell.from_state),
      peepholes: cell.peepholes && cell.peepholes.map((name) => file.floats(name)),
    }));
    this.sum = file.product(runtime, ref.sum);
  }

  encode(embedding, tokens) {
    const { runtime, ref } = this;
    const length = tokens.length;
    const order = ref.reverse ? [...tokens].reverse() : tokens;
    const start = runtime.allocate(4 * length * embedding.width);
    embedding.write(start, order, 0);
    const x = runtime.floats(start, length * embedding.width).slice();
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

/** Rows of several matrices, concatenated. */
function sideBySide(parts, rows) {
  const widths = parts.map((part) => part.length / rows);
  const whole = widths.reduce((a, b) => a + b, 0);
  const found = new Float32Array(rows * whole);
  for (let r = 0; r < rows; r++) {
    let at = r * whole;
    parts.forEach((part, i) => {
      found.set(part.subarray(r * widths[i], (r + 1) * widths[i]), at);
      at += widths[i];
    });
  }
  return found;
}

function reversed(states, rows) {
  const width = states.length / rows;
  const found = new Float32Array(states.length);
  for (let r = 0; r < rows; r++) {
    found.set(states.subarray(r * width, (r + 1) * width), (rows - 1 - r) * width);
  }
  return found;
}

class RecurrentDecoder {
  constructor(runtime, file, ref, target) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.parts = ref.cell >= LSTM_CELLS ? 2 : 1;
    this.bridge = file.product(runtime, ref.bridge);
    const by = ref.attention;
    this.keys = by ? file.product(runtime, by.keys) : 0;
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
    const keys = this.#prepared(memory);
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
      source: runtime.newLongs(new Array(rows).fill(0)),
      keys: ref.attention ? keys : 0,
      values: ref.attention ? memory.states : 0,
      longest: ref.attention ? memory.length : 0,
      lengths: runtime.newLongs([memory.length]),
      head: search.head,
      log_probs: search.logProbs,
      workspace: runtime.allocate(Number(size)),
    });
    return { call, states, each, memory, attention: 0, search };
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
    const mean = new Float32Array(width);
    const states = runtime.floats(memory.states, memory.length * width);
    states.forEach((value, i) => (mean[i % width] += value / memory.length));
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
    runtime.setLongs(address("tokens"), tokens);
    runtime.set("RecurrentStep", call, { rows, attention: state.attention });
    runtime.call("recurrent_step", this.net, call);
    to.forEach((place, r) => {
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

  watch(state) {
    const { length } = state.memory;
    if (this.ref.attention) state.attention = this.runtime.newFloats(new Float32Array(length));
  }

  watched(state) {
    if (!state.attention) return [];
    return [[this.runtime.floats(state.attention, state.memory.length).slice()]];
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

// ------------------------------------------------------------------------------ the whole network

const ENCODERS = { transformer: TransformerEncoder, recurrent: RecurrentEncoder };
const DECODERS = { transformer: TransformerDecoder, recurrent: RecurrentDecoder };

export class EncoderDecoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.sourceEnd = ref.source_end;
    this.source = new Embedding(runtime, file, ref.source);
    this.encoder = new ENCODERS[ref.encoder.kind](runtime, file, ref.encoder);
    this.target = new Embedding(runtime, file, ref.target);
    this.decoder = new DECODERS[ref.decoder.kind](runtime, file, ref.decoder, this.target);
    this.head = file.product(runtime, ref.head);
    this.vocabulary = runtime.get("Weight", this.head, "outputs");
  }

  /** The most tokens of a source and of a target that there are positions for. */
  get limits() {
    const of = (embedding) => embedding.positions?.limit ?? Infinity;
    return { source: of(this.source), target: of(this.target) };
  }

  /** Encoder states of a source; tokens end with END. */
  encode(tokens, weights = false) {
    const read = this.sourceEnd ? tokens : tokens.slice(0, Math.max(1, tokens.length - 1));
    return this.encoder.encode(this.source, read, weights);
  }
}
