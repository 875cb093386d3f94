// Encoders by their kind.

import { ConformerEncoder } from "./conformer.js";
import { ConvolutionalEncoder } from "./convolutional.js";
import { RecurrentEncoder } from "./recurrent.js";
import { TransformerEncoder } from "./transformer.js";

class PooledEncoder {
  constructor(runtime, file, ref) {
    this.width = ref.width;
  }

  encode(embedded, length) {
    return { states: embedded, length, final: null, attention: null };
  }
}

export const ENCODERS = {
  transformer: TransformerEncoder,
  recurrent: RecurrentEncoder,
  conformer: ConformerEncoder,
  convolutional: ConvolutionalEncoder,
  pooled: PooledEncoder,
};

export function encoded(runtime, embedding, encoder, tokens, weights) {
  const address = runtime.allocate(4 * tokens.length * embedding.width);
  embedding.write(address, tokens, 0);
  return encoder.encode(address, tokens.length, weights);
}
