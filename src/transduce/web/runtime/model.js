// A model: run it, look inside.

import { EncoderDecoder } from "./networks.js";
import { END, explain, search } from "./search.js";
import { Tokens } from "./tokens.js";
import { Runtime } from "./wasm.js";
import { ModelFile } from "./weights.js";

const NETWORKS = { "encoder-decoder": EncoderDecoder };
const FORMAT = "transduce web 1";

export class Model {
  constructor(runtime, file) {
    const { description } = file;
    if (description.format !== FORMAT) {
      throw new Error(
        `The model has the format ${description.format}, and this page reads ${FORMAT}: export it again.`,
      );
    }
    this.description = description;
    this.card = description.card;
    this.network = new NETWORKS[description.kind](runtime, file, description.network);
    const { source, target } = description.tokens;
    this.source = new Tokens(source.file, source.form);
    this.target = target ? new Tokens(target.file, target.form) : this.source;
  }

  /** bytes: an ArrayBuffer with the model; wasm: one with the runtime. */
  static async create(bytes, wasm) {
    return new Model(await Runtime.create(wasm), new ModelFile(bytes));
  }

  /** The ids of a source, END included, cut where the model has no more positions. */
  #ids(text) {
    const ids = this.source.encode(text.trim() ? text : "");
    return [...ids.slice(0, this.description.limits.source), END];
  }

  /**
   * The output for a text: { text, score, tokens, ids, logProbability, alternatives }.
   *
   * options: beam, nbest, lengthPenalty, minLength, maxLength; by default as in the recipe.
   * onStep(number) is called after each token and may return true to stop; beams: an array that is
   * filled with the hypotheses of each step.
   */
  run(text, options = {}, onStep = null, beams = null) {
    const { decode, limits } = this.description;
    const ids = this.#ids(text);
    const nbest = options.nbest ?? 1;
    const beam = Math.max(options.beam ?? decode.beam, nbest);
    const most = Math.floor(ids.length * decode.max_ratio) + decode.max_extra;
    if (ids.length === 1) return this.#nothing();
    const found = search(
      this.network,
      ids,
      {
        beam,
        nbest,
        lengthPenalty: options.lengthPenalty ?? decode.length_penalty,
        minLength: options.minLength ?? 0,
        maxLength: Math.min(options.maxLength ?? most, limits.target),
        maxFinished: beam === 1 ? 1 : Math.max(nbest, Math.round(decode.patience * beam)),
      },
      onStep,
      beams,
    );
    const outputs = found.map((one) => this.#output(one));
    const best = outputs[0] ?? this.#output({ ids: [], score: -Infinity, logProbability: -Infinity });
    const read = this.source.pieces(ids.slice(0, -1));
    return { ...best, sourceTokens: [...read, "</s>"], alternatives: outputs };
  }

  /** The output for nothing, which is nothing. */
  #nothing() {
    const output = this.#output({ ids: [], score: 0, logProbability: 0 });
    return { ...output, sourceTokens: ["</s>"], alternatives: [output] };
  }

  #output({ ids, score, logProbability }) {
    const tokens = this.target.pieces([...ids, END]);
    return { text: this.target.decode(ids), score, logProbability, ids, tokens };
  }

  /** What the model attended to when it wrote ids for a text, and what else was probable. */
  explain(text, ids, count = 5) {
    const found = explain(this.network, this.#ids(text), ids, count);
    for (const step of found.steps) {
      step.token = this.target.pieces([step.id])[0];
      for (const one of step.alternatives) one.token = this.target.pieces([one.id])[0];
    }
    return found;
  }
}
