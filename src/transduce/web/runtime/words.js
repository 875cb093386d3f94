// Words as vectors: beside those of a table, features of their letters, and n-grams.

import { linear } from "./arrays.js";
import { Embedding } from "./embedding.js";
import { RecurrentEncoder } from "./recurrent.js";
import { BEGIN, UNKNOWN } from "./tokens.js";

const NEW_LETTER = 1; // 0 is none

/** Features of the letters of a word. */
class Letters {
  constructor(runtime, file, ref) {
    Object.assign(this, { runtime, ref });
    this.numbers = new Map(ref.letters.map((letter, number) => [letter, number + NEW_LETTER + 1]));
    this.table = file.floats(ref.table);
    this.recurrent = ref.recurrent && new RecurrentEncoder(runtime, file, ref.recurrent);
    this.convolution = file.product(runtime, ref.convolution); // [outputs][span][inputs]
  }

  /** Rows of letters; of a longer word so many at its beginning and at its end. */
  #read(word) {
    const { longest, width } = this.ref;
    const all = Array.from(word);
    const half = Math.floor(longest / 2);
    const letters = all.length > longest ? [...all.slice(0, half), ...all.slice(-half)] : all;
    const x = new Float32Array(letters.length * width);
    letters.forEach((letter, place) => {
      const number = this.numbers.get(letter) ?? NEW_LETTER;
      x.set(this.table.subarray(number * width, (number + 1) * width), place * width);
    });
    return { x, count: letters.length };
  }

  /** Zeros for an empty word. */
  features(word) {
    const { x, count } = this.#read(word);
    if (!count) return new Float32Array(this.ref.width);
    return this.recurrent ? this.#last(x, count) : this.#highest(x, count);
  }

  /** The last states of both directions. */
  #last(x, count) {
    const { runtime } = this;
    return runtime.scoped(() => this.recurrent.encode(runtime.newFloats(x), count).final.at(-1)[0]);
  }

  /** The maximum over the places of a word, after ReLU. */
  #highest(x, count) {
    const { width, span } = this.ref;
    const side = (span - 1) / 2;
    const windows = new Float32Array(count * span * width);
    for (let t = 0; t < count; t++) {
      for (let k = 0; k < span; k++) {
        const s = t + k - side;
        if (s >= 0 && s < count) windows.set(x.subarray(s * width, (s + 1) * width), (t * span + k) * width);
      }
    }
    const y = linear(this.runtime, this.convolution, windows, count);
    const found = new Float32Array(width);
    y.forEach((value, i) => (found[i % width] = Math.max(found[i % width], value)));
    return found;
  }
}

/** For each token, the sum of the vectors of the n-grams that end there. */
class NGrams {
  constructor(file, ref) {
    this.ref = ref;
    this.row = file.rows(ref.table);
    this.size = BigInt(ref.size);
    [this.prime, this.multiplier, this.scatter] = ref.hash.map(BigInt);
  }

  /** The row of the table for the n tokens that end at a place. */
  #hash(tokens, place, n) {
    let hash = BigInt(n);
    for (let back = n - 1; back >= 0; back--) {
      const token = place < back ? BEGIN : tokens[place - back];
      hash = (hash * this.multiplier + BigInt(token)) % this.prime;
    }
    return Number(((hash * this.scatter) % this.prime) % this.size);
  }

  at(tokens, place) {
    const { longest, scale } = this.ref;
    let found = null;
    for (let n = 2; n <= longest; n++) {
      const row = this.row(this.#hash(tokens, place, n));
      found = found ? found.map((value, i) => value + row[i]) : row;
    }
    return found.map((value) => value * scale);
  }
}

/** What classifiers and taggers read: words. */
export class WordEmbedding extends Embedding {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.letters = ref.letters && new Letters(runtime, file, ref.letters);
    this.ngrams = ref.ngrams && new NGrams(file, ref.ngrams);
  }

  /** spelt: each token as a word, for its letters; special ones are empty. */
  fill(x, tokens, spelt) {
    const { width, own, content, scale } = this;
    const known = tokens.map((token) => (token < this.tokens ? token : UNKNOWN));
    super.fill(x, known, spelt);
    known.forEach((token, row) => {
      const first = row * width;
      if (this.letters) x.set(this.letters.features(spelt[row]), first + own);
      if (!this.ngrams) return;
      const added = this.ngrams.at(known, row);
      for (let i = 0; i < content; i++) x[first + i] += added[i] * scale;
    });
  }
}
