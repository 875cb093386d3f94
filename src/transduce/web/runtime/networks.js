// Networks that write: sources or prompts in, log-probabilities of the next token out.

import { linear } from "./arrays.js";
import { ConvolutionalDecoder } from "./convolutional.js";
import { Embedding } from "./embedding.js";
import { ENCODERS } from "./encoders.js";
import { Copying, Head } from "./head.js";
import { RecurrentDecoder } from "./recurrent.js";
import { CtcPrefix, SpeechFront } from "./speech.js";
import { UNKNOWN } from "./tokens.js";
import { TransformerDecoder } from "./transformer.js";

const DECODERS = {
  transformer: TransformerDecoder,
  recurrent: RecurrentDecoder,
  convolutional: ConvolutionalDecoder,
};

/** A decoder with its embeddings and its output head. */
class Writer {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.target = new Embedding(runtime, file, ref.target);
    this.decoder = new DECODERS[ref.decoder.kind](runtime, file, ref.decoder, this.target);
    this.head = new Head(runtime, file, ref.head);
  }

  /** Whether a step of the decoder writes log-probabilities; otherwise it writes features. */
  get direct() {
    return !this.head.narrow;
  }

  /** How many tokens there are to choose from. */
  size(memory) {
    return this.head.vocabulary;
  }

  start(memory, rows, steps, search) {
    return this.decoder.start(memory, rows, steps, search);
  }

  /** Log-probabilities of the tokens after these, of as many rows, to where the search reads them. */
  advance(search, state, tokens, at) {
    this.decoder.advance(state, tokens, at, this.target);
    if (this.direct) return;
    const rows = tokens.length;
    this.head.write(this.features(search, rows), rows, search.logProbs);
  }

  features(search, rows) {
    return this.runtime.floats(search.given, rows * this.decoder.width).slice();
  }
}

export class EncoderDecoder extends Writer {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.sourceEnd = ref.source_end;
    this.source = new Embedding(runtime, file, ref.source);
    this.encoder = new ENCODERS[ref.encoder.kind](runtime, file, ref.encoder);
    this.copying = ref.copying && new Copying(runtime, file, ref.copying);
    this.tags = ref.tags && new Set(ref.tags); // tokens that the decoder reads, and the encoder does not
  }

  get direct() {
    return super.direct && !this.copying;
  }

  size(memory) {
    return this.head.vocabulary + (this.copying ? memory.copies.length : 0);
  }

  /** Encoder states of a source; tokens end with END. */
  encode(tokens, weights = false) {
    const read = this.sourceEnd ? tokens : tokens.slice(0, Math.max(1, tokens.length - 1));
    const known = read.map((id) => (id < this.source.tokens ? id : UNKNOWN));
    const memory = this.tags ? this.#encodeApart(known, tokens, weights) : this.#encodeAll(known, weights);
    if (this.copying) memory.copies = this.copying.numbers(read, this.head.vocabulary);
    return memory;
  }

  #encodeAll(tokens, weights) {
    const { address, length } = this.source.read(tokens);
    return this.encoder.encode(address, length, weights);
  }

  /** The encoder reads the letters, the decoder the tags that the source begins with. */
  #encodeApart(read, tokens, weights) {
    const others = read.findIndex((id) => !this.tags.has(id));
    const count = others < 0 ? read.length : others;
    const tags = this.source.read(read.slice(0, count));
    // Without a letter it reads END, which nothing attends to where END is not read.
    const letters = this.source.read(count < read.length ? read.slice(count) : tokens.slice(count));
    const memory = this.encoder.encode(letters.address, letters.length, weights, count);
    return { ...memory, length: read.length, tags };
  }

  start(memory, rows, steps, search) {
    const state = super.start(memory, rows, steps, search);
    if (!this.copying) return state;
    this.decoder.watch(state, rows);
    state.copied = this.copying.start(this.head, memory, rows);
    return state;
  }

  advance(search, state, tokens, at) {
    if (!this.copying) return super.advance(search, state, tokens, at);
    const rows = tokens.length;
    const known = tokens.map((id) => (id < this.head.vocabulary ? id : UNKNOWN));
    this.decoder.advance(state, known, at, this.target);
    this.copying.write(state.copied, this.head, this.decoder.weights(state, rows), search, rows);
  }
}

/** What hears: features of a recording and their encoder; perhaps CTC, by which it alone writes. */
class SpeechEncoder {
  constructor(runtime, file, ref) {
    this.runtime = runtime;
    this.source = new SpeechFront(runtime, file, ref.source);
    this.encoder = new ENCODERS[ref.encoder.kind](runtime, file, ref.encoder);
    this.ctc = ref.ctc && new Head(runtime, file, { vocabulary: ref.ctc, narrow: null });
  }

  encode({ samples, tags = [] }, weights = false) {
    const { address, length } = this.source.read(samples, tags);
    return this.encoder.encode(address, length, weights);
  }

  /** CTC's log-probabilities of states. */
  logProbs(states) {
    return this.ctc.logProbabilities(states, states.length / this.encoder.width);
  }

  statesOf({ states, length }) {
    return this.runtime.floats(states, length * this.encoder.width).slice();
  }
}

/** An encoder-decoder of recordings. */
export class SpeechNetwork extends Writer {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.speech = new SpeechEncoder(runtime, file, ref);
  }

  /** source: { samples, tags, ctcWeight }. */
  encode(source, weights = false) {
    const memory = this.speech.encode(source, weights);
    return source.ctcWeight ? { ...memory, ctcWeight: source.ctcWeight, ctc: this.#ctcOf(memory) } : memory;
  }

  #ctcOf(memory) {
    const logProbs = this.speech.logProbs(this.speech.statesOf(memory));
    return { logProbs, probs: logProbs.map(Math.exp), length: memory.length, size: this.speech.ctc.vocabulary };
  }

  start(memory, rows, steps, search) {
    const state = super.start(memory, rows, steps, search);
    if (memory.ctc) state.prefixes = new Array(rows).fill(CtcPrefix.empty(memory.ctc)); // of each place
    return state;
  }

  /** With CTC, its share of the log-probabilities is added (joint CTC/attention decoding). */
  advance(search, state, tokens, at) {
    super.advance(search, state, tokens, at);
    const { ctc, ctcWeight } = state.memory;
    if (!ctc) return;
    const { from, to } = search.moves(tokens.length, at);
    const prefixes = from.map((place, r) => (at ? state.prefixes[place].with(tokens[r]) : state.prefixes[place]));
    to.forEach((place, r) => {
      state.prefixes[place] = prefixes[r];
      const logProbs = this.runtime.floats(search.logProbs + 4 * r * search.vocabulary, search.vocabulary);
      prefixes[r].next().forEach((value, id) => {
        logProbs[id] = (ctcWeight < 1 ? (1 - ctcWeight) * logProbs[id] : 0) + ctcWeight * value;
      });
    });
  }
}

/** A transducer (RNN-T): the decoder alone is its prediction network, and a joint network gives the next
 * label, or a blank, of a state and of the labels so far. */
export class TransducerNetwork extends Writer {
  constructor(runtime, file, ref) {
    super(runtime, file, ref);
    this.speech = new SpeechEncoder(runtime, file, ref);
    this.joint = { states: file.product(runtime, ref.joint.states), features: file.product(runtime, ref.joint.features) };
  }

  encode(source) {
    return this.speech.encode(source);
  }

  /** The share of states in the joint network. */
  heard(states) {
    return linear(this.runtime, this.joint.states, states, states.length / this.speech.encoder.width);
  }

  /** What the prediction network makes of one more label each: { said, state } of each row. states: null
   * before the first label. */
  predict(labels, states) {
    const { runtime, decoder } = this;
    const rows = labels.length;
    const every = labels.map((_, row) => row);
    return runtime.scoped(() => {
      const given = runtime.allocate(4 * rows * decoder.width);
      const place = { head: 0, given, moves: () => ({ from: every, to: every }) };
      const kept = decoder.start(NOTHING, rows, 1, place);
      states?.forEach((state, row) => kept.states.set(state, row * kept.each));
      decoder.advance(kept, labels, 0, this.target);
      const said = linear(runtime, this.joint.features, runtime.floats(given, rows * decoder.width).slice(), rows);
      const wide = said.length / rows;
      return every.map((row) => ({
        said: said.slice(row * wide, (row + 1) * wide),
        state: kept.states.slice(row * kept.each, (row + 1) * kept.each),
      }));
    });
  }

  /** Log-probabilities of each token, the blank among them, for pairs of what was heard and said. */
  logProbs(pairs) {
    const wide = pairs[0][0].length;
    const x = new Float32Array(pairs.length * wide);
    pairs.forEach(([heard, said], row) => {
      for (let i = 0; i < wide; i++) x[row * wide + i] = Math.tanh(heard[i] + said[i]);
    });
    const found = this.head.logProbabilities(x, pairs.length);
    const size = this.head.vocabulary;
    return pairs.map((_, row) => found.subarray(row * size, (row + 1) * size));
  }
}

const NOTHING = { states: 0, length: 0, final: null, attention: null };

/** A decoder alone. */
export class LanguageModelNetwork extends Writer {
  encode() {
    return NOTHING;
  }
}
