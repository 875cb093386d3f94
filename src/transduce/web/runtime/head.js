// From features to log-probabilities: the output head, and copying from the source.

import { linear, sigmoid, writeLogProbabilities } from "./arrays.js";

const TINY = 2 ** -126; // the smallest number of float32 that is not denormal

export class Head {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.weight = file.product(runtime, ref.vocabulary);
    this.narrow = file.product(runtime, ref.narrow); // 0: features have the width of embeddings
    this.vocabulary = runtime.get("Weight", this.weight, "outputs");
  }

  /** Write log-probabilities [rows][vocabulary] to an address. */
  write(features, rows, address) {
    const { runtime, narrow } = this;
    const x = narrow ? linear(runtime, narrow, features, rows) : features;
    runtime.scoped(() => writeLogProbabilities(runtime, this.weight, x, rows, address));
  }

  logProbabilities(features, rows) {
    const { runtime } = this;
    return runtime.scoped(() => {
      const address = runtime.allocate(4 * rows * this.vocabulary);
      this.write(features, rows, address);
      return runtime.floats(address, rows * this.vocabulary).slice();
    });
  }
}

/**
 * The pointer-generator: p(w) = g p_vocabulary(w) + (1 - g) Σ α_s over the places s of w in the
 * source. Ids from the size of the vocabulary on are places of the source.
 */
export class Copying {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.gate = file.product(runtime, ref.gate);
    this.copiedAs = ref.copied_as;
  }

  /** The number of each source token in the extended vocabulary; -1 where it is not copied. */
  numbers(source, vocabulary) {
    const size = this.copiedAs.length;
    return source.map((id) => {
      if (id >= size) return id - size;
      return this.copiedAs[id] === vocabulary ? vocabulary + source.indexOf(id) : this.copiedAs[id];
    });
  }

  /** Log-probabilities over the extended vocabulary, of one row. */
  mix(logProbs, feature, weights, numbers) {
    const [gate] = linear(this.runtime, this.gate, feature, 1);
    const copied = new Float64Array(logProbs.length + numbers.length).fill(-1);
    let left = 0;
    numbers.forEach((number, place) => {
      if (number < 0) left += weights[place];
      else copied[number] = Math.max(copied[number], 0) + weights[place];
    });
    const generated = Math.log(sigmoid(gate) + sigmoid(-gate) * Math.max(left, TINY));
    const copies = Math.log(Math.max(sigmoid(-gate), TINY));
    return Float32Array.from(copied, (weight, id) => {
      const written = id < logProbs.length ? logProbs[id] + generated : -Infinity;
      if (weight < 0) return written;
      const pointed = Math.log(Math.max(weight, TINY)) + copies;
      const top = Math.max(written, pointed);
      return top + Math.log(Math.exp(written - top) + Math.exp(pointed - top));
    });
  }
}
