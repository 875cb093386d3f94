// From features to log-probabilities: the output head, and copying from the source.

import { BEST, linear, multiply, writeLogProbabilities } from "./arrays.js";

export class Head {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.weight = file.product(runtime, ref.vocabulary);
    this.narrow = file.product(runtime, ref.narrow); // 0: features have the width of embeddings
    this.vocabulary = runtime.get("Weight", this.weight, "outputs");
  }

  /** Where the features at an address are as the head reads them; allocates in the present scope. */
  projected(address, rows) {
    return this.narrow ? multiply(this.runtime, this.narrow, address, rows) : address;
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

  /** What a search over so many rows needs. */
  start(head, { copies }, rows) {
    const { runtime } = this;
    const extended = head.vocabulary + copies.length;
    const width = runtime.get("Weight", this.gate, "inputs");
    return runtime.newStructure("Copying", {
      longest: copies.length,
      head: head.weight,
      gate: this.gate,
      source: runtime.newLongs(new Array(rows).fill(0)),
      lengths: runtime.newLongs([copies.length]),
      copies: runtime.newLongs(copies),
      gates: runtime.allocate(4 * rows),
      copied: runtime.allocate(4 * extended),
      workspace: runtime.allocate(Number(runtime.call("product_workspace", BigInt(rows), BigInt(width)))),
      kernel: BEST,
    });
  }

  /** Write log-probabilities over the extended vocabulary. weights: of a decoder; given, logProbs:
   * where its features are, and where the log-probabilities go. */
  write(call, head, weights, { given, logProbs }, rows) {
    const { runtime } = this;
    runtime.scoped(() => {
      const projected = head.projected(given, rows);
      runtime.set("Copying", call, { rows, ...weights, features: given, projected, log_probs: logProbs });
      runtime.call("find_copied", call);
    });
  }
}
