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

// ---------------------------------------------------------------- arrays of rows, in and out of C

/** x Wᵀ + b of rows. */
function linear(runtime, weight, x, rows) {
  return runtime.scoped(() => {
    const outputs = runtime.get("Weight", weight, "outputs");
    const y = multiply(runtime, weight, runtime.newFloats(x), rows);
    return runtime.floats(y, rows * outputs).slice();
  });
}

function normalised(runtime, norm, x, rows) {
  return runtime.scoped(() => {
    const address = runtime.newFloats(x);
    runtime.call("normalise", norm, address, BigInt(rows), BigInt(x.length / rows), address);
    return runtime.floats(address, x.length).slice();
  });
}

/** The activation of hidden layers; gated, of twice as many columns. */
function activated(runtime, x, rows, { activation, gated }) {
  return runtime.scoped(() => {
    const hidden = x.length / rows / (gated ? 2 : 1);
    const address = runtime.newFloats(x);
    runtime.call("activate", address, BigInt(rows), BigInt(hidden), activation, Number(gated));
    return runtime.floats(address, rows * hidden).slice();
  });
}

function logProbabilities(runtime, head, x, rows) {
  return runtime.scoped(() => {
    const outputs = runtime.get("Weight", head, "outputs");
    const found = runtime.allocate(4 * rows * outputs);
    writeLogProbabilities(runtime, head, x, rows, found);
    return runtime.floats(found, rows * outputs).slice();
  });
}

function writeLogProbabilities(runtime, head, x, rows, address) {
  const size = runtime.call("product_workspace", BigInt(rows), BigInt(x.length / rows));
  const workspace = runtime.allocate(Number(size));
  runtime.call("find_log_probs", head, runtime.newFloats(x), BigInt(rows), address, workspace, BEST);
}

/** a ⊗ σ(b) of the two halves of each row. */
function glu(x, rows) {
  const width = x.length / rows / 2;
  const found = new Float32Array(rows * width);
  for (let r = 0; r < rows; r++) {
    for (let i = 0; i < width; i++) {
      found[r * width + i] = x[2 * r * width + i] * sigmoid(x[(2 * r + 1) * width + i]);
    }
  }
  return found;
}

const sum = (x, y, by = 1) => x.map((value, i) => value + by * y[i]);

/** softmax of query · key of some rows. */
function dotAttention(query, keys, length) {
  const width = query.length;
  const scores = new Float32Array(length);
  for (let s = 0; s < length; s++) {
    let total = 0;
    for (let i = 0; i < width; i++) total += query[i] * keys[s * width + i];
    scores[s] = total;
  }
  const top = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = scores.map((score) => Math.exp(score - top));
  const all = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / all);
}

// ----------------------------------------------------------------------------------- Conformers

const TOGETHER = 8; // rows that the library lets attend together

class ConformerEncoder {
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

class PooledEncoder {
  constructor(runtime, file, ref) {
    this.width = ref.width;
  }

  encode(embedded, length) {
    return { states: embedded, length, final: null, attention: null };
  }
}

// ------------------------------------------------------------------------ gated convolutions

const HALVED = Math.sqrt(0.5);
const SMALL = 0.1;

class ConvolutionalEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.into = file.product(runtime, ref.into);
    this.outOf = file.product(runtime, ref.out_of);
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

class ConvolutionalDecoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.width = ref.width;
    this.into = file.product(runtime, ref.into);
    this.outOf = file.product(runtime, ref.out_of);
    this.blocks = ref.blocks.map((one) => ({
      product: file.product(runtime, one.product),
      query: file.product(runtime, one.query),
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
      past: new Float32Array(rows * each), // of each place, layers of kernel - 1 inputs
      each,
      attention: null,
    };
  }

  advance(state, tokens, at, embedding) {
    const { runtime, width } = this;
    const rows = tokens.length;
    const { from, to } = state.search.moves(rows, at);
    const past = from.map((place) => state.past.slice(place * state.each, (place + 1) * state.each));
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
      const context = this.#attend(block, h, embedded, rows, state, layer);
      h = sum(h, context).map((value) => value * HALVED);
      x = sum(x, h).map((value) => value * HALVED);
    });
    to.forEach((place, r) => state.past.set(past[r], place * state.each));
    const features = linear(runtime, this.outOf, x, rows).map((value) => value / SMALL);
    runtime.scoped(() => writeLogProbabilities(runtime, state.search.head, features, rows, state.search.logProbs));
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

// ------------------------------------------------------------------------------ the whole network

const ENCODERS = {
  transformer: TransformerEncoder,
  recurrent: RecurrentEncoder,
  conformer: ConformerEncoder,
  convolutional: ConvolutionalEncoder,
  pooled: PooledEncoder,
};
const DECODERS = {
  transformer: TransformerDecoder,
  recurrent: RecurrentDecoder,
  convolutional: ConvolutionalDecoder,
};

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
    return encoded(this.runtime, this.source, this.encoder, read, weights);
  }
}

function encoded(runtime, embedding, encoder, tokens, weights) {
  const address = runtime.allocate(4 * tokens.length * embedding.width);
  embedding.write(address, tokens, 0);
  return encoder.encode(address, tokens.length, weights);
}

// --------------------------------------------------------------------- classifiers and taggers

/** An encoder alone: log-probabilities of labels, of each token or of the whole source. */
export class LabelNetwork {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.source = new Embedding(runtime, file, ref.source);
    this.encoder = new ENCODERS[ref.encoder.kind](runtime, file, ref.encoder);
    this.head = file.product(runtime, ref.head);
    this.labels = runtime.get("Weight", this.head, "outputs");
  }

  /** Log-probabilities, a row for each token or one for all; attention of pooling and encoder. */
  label(tokens) {
    const { runtime, ref } = this;
    return runtime.scoped(() => {
      const memory = encoded(runtime, this.source, this.encoder, tokens, true);
      const { length } = memory;
      const width = this.encoder.width;
      const states = runtime.floats(memory.states, length * width).slice();
      let [features, rows, weights] = [states, length, null];
      if (ref.pool) {
        rows = 1;
        [features, weights] = pooled(ref.pool, states, length, memory.final);
      }
      const found = logProbabilities(runtime, this.head, features, rows);
      const each = Array.from({ length: rows }, (_, r) => found.slice(r * this.labels, (r + 1) * this.labels));
      return { logProbs: each, pool: weights, encoder: memory.attention, length };
    });
  }
}

function meanOf(states, length) {
  const width = states.length / length;
  const mean = new Float32Array(width);
  states.forEach((value, i) => (mean[i % width] += value / length));
  return mean;
}

function pooled(kind, states, length, final) {
  if (kind === "mean") return [meanOf(states, length), null];
  const width = states.length / length;
  if (kind === "last") {
    return [final ? final.at(-1)[0] : states.slice((length - 1) * width), null];
  }
  const context = new Float32Array(states.length);
  const weights = new Float32Array(length);
  for (let t = 0; t < length; t++) {
    const query = states.subarray(t * width, (t + 1) * width);
    dotAttention(query, states, length).forEach((weight, s) => {
      weights[s] += weight / length;
      for (let i = 0; i < width; i++) context[t * width + i] += weight * states[s * width + i];
    });
  }
  return [sideBySide([meanOf(context, length), meanOf(states, length)], 1), weights];
}
