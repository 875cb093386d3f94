// Tokens and positions as vectors.

/** Vectors of positions: a learned table, or sinusoids by frequency. */
export class Positions {
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
