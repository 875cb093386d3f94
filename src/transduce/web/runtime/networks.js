// Networks that write: sources in, log-probabilities of the next token out.

import { ConvolutionalDecoder } from "./convolutional.js";
import { Embedding } from "./embedding.js";
import { ENCODERS, encoded } from "./encoders.js";
import { RecurrentDecoder } from "./recurrent.js";
import { TransformerDecoder } from "./transformer.js";

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
