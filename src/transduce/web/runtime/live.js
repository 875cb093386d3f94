// A transcript while somebody speaks, by a streaming encoder: each chunk of audio is computed once.

import { concatenated } from "./arrays.js";
import { PathReader } from "./speech.js";
import { TransducerSearch } from "./transducer.js";

export class LiveSession {
  /** model: one of speech with a streaming encoder, and CTC or a transducer. banned: labels that a
   * transducer never writes. */
  constructor(model, banned) {
    const { network, description } = model;
    const { mel, factor } = description.network.source;
    const { states, left } = description.limits.chunk;
    const step = factor * mel.hop;
    Object.assign(this, { model, network, speech: network.speech, past: left * states });
    this.advance = states * step;
    this.needed = (states - 1) * step + model.seen; // the states of a chunk see the first of the next
    this.caches = this.speech.encoder.open();
    this.waiting = new Float32Array(0);
    this.ended = false;
    this.search = network.joint ? new TransducerSearch(network, { beam: 1, banned }) : new PathReader();
  }

  /** The transcript after more samples. */
  write(samples) {
    if (this.ended) throw new Error("This session has ended: begin another.");
    this.model.checkSource(samples);
    this.waiting = concatenated(this.waiting, samples);
    while (this.waiting.length >= this.needed) {
      this.#chunk(this.waiting.subarray(0, this.needed));
      this.waiting = this.waiting.slice(this.advance);
    }
    return this.text;
  }

  /** The transcript of all that was said. */
  end() {
    if (!this.ended && this.waiting.length >= this.model.seen) this.#chunk(this.waiting);
    this.ended = true;
    this.waiting = new Float32Array(0);
    return this.text;
  }

  get text() {
    const ids = this.network.joint ? this.search.hypotheses[0].ids : this.search.ids;
    return this.model.target.decode(ids);
  }

  #chunk(samples) {
    const { speech, network } = this;
    network.runtime.scoped(() => {
      const { address, length } = speech.source.read(samples);
      const states = speech.encoder.resume(address, length, this.caches, this.past);
      if (!network.joint) return this.search.read(speech.logProbs(states), length);
      const heard = network.heard(states);
      const wide = heard.length / length;
      for (let s = 0; s < length; s++) this.search.advance(heard.subarray(s * wide, (s + 1) * wide));
    });
  }
}
