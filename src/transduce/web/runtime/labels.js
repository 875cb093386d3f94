// Classifiers and taggers.

import { dotAttention, meanOf, sideBySide } from "./arrays.js";
import { ENCODERS } from "./encoders.js";
import { FRONTS } from "./fronts.js";
import { Head } from "./head.js";

/** An encoder alone: log-probabilities of labels, of each token or of the whole source, a text or a
 * recording. */
export class LabelNetwork {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.ref = ref;
    this.source = new FRONTS[ref.source.kind](runtime, file, ref.source);
    this.encoder = new ENCODERS[ref.encoder.kind](runtime, file, ref.encoder);
    this.head = new Head(runtime, file, ref.head);
    this.labels = this.head.vocabulary;
  }

  /** Whether words are read by their letters too. */
  get spells() {
    return Boolean(this.source.letters);
  }

  /** Log-probabilities, a row for each token or one for all; attention of pooling and encoder. spelt:
   * the words of a text, where they are read by their letters. */
  label(source, spelt = []) {
    const { runtime, ref } = this;
    return runtime.scoped(() => {
      const { address, length: count } = this.source.read(source, spelt);
      const memory = this.encoder.encode(address, count, true);
      const { length } = memory;
      const width = this.encoder.width;
      const states = runtime.floats(memory.states, length * width).slice();
      let [features, rows, weights] = [states, length, null];
      if (ref.pool) {
        rows = 1;
        [features, weights] = pooled(ref.pool, states, length, memory.final);
      }
      const found = this.head.logProbabilities(features, rows);
      const each = Array.from({ length: rows }, (_, r) => found.slice(r * this.labels, (r + 1) * this.labels));
      return { logProbs: each, pool: weights, encoder: memory.attention, length };
    });
  }
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
