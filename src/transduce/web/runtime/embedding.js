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

/** Token embeddings: rows of a table, scaled, with positions added or concatenated. */
export class Embedding {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.tokens = ref.tokens;
    this.scale = Math.fround(ref.scale); // in float32, as in Python
    this.table = file.floats(ref.table).map((value) => value * this.scale); // scaled once for all
    this.own = ref.width; // of a row of the table
    this.content = ref.width + (ref.letters?.width ?? 0);
    this.positions = ref.positions && new Positions(file, ref.positions);
    this.concatenated = ref.concatenated;
    this.width = this.content + (ref.concatenated ? this.positions.width : 0);
    this.known = new Float32Array(0);
    this.tags = ref.tags && new Set(ref.tags); // their position is 0, and those after count from 1
    this.norm = file.norm(runtime, ref.norm);
  }

  /** The vectors of a source: their address and how many there are. spelt: see WordEmbedding. */
  read(tokens, spelt = []) {
    const address = this.runtime.allocate(4 * tokens.length * this.width);
    this.write(address, tokens, 0, false, spelt);
    return { address, length: tokens.length };
  }

  /** Write what tokens are, without their positions, to the first `content` columns of x. */
  fill(x, tokens, spelt) {
    const { width, own, table } = this;
    tokens.forEach((token, row) => x.set(table.subarray(token * own, (token + 1) * own), row * width));
  }

  /** Write the vectors of tokens to an address; the first, or with `together` all, at position
   * `start`. */
  write(address, tokens, start, together = false, spelt = []) {
    const { width, content, positions } = this;
    const x = this.runtime.floats(address, tokens.length * width);
    this.fill(x, tokens, spelt);
    const end = start + (together ? 1 : tokens.length + (this.tags ? 1 : 0));
    let tags = 0;
    if (positions && end * positions.width > this.known.length) {
      this.known = positions.rows(Math.min(2 * end, positions.limit));
    }
    if (positions) tokens.forEach((token, row) => {
      let place = start + (together ? 0 : row);
      if (this.tags) {
        if (this.tags.has(token)) tags += 1;
        place = Math.max(0, place - tags + 1);
      }
      const at = place * positions.width;
      const position = this.known.subarray(at, at + positions.width);
      if (this.concatenated) x.set(position, row * width + content);
      else for (let i = 0; i < width; i++) x[row * width + i] += position[i];
    });
    if (this.norm) {
      const rows = BigInt(tokens.length);
      this.runtime.call("normalise", this.norm, address, rows, BigInt(width), address);
    }
  }
}
