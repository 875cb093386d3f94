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
