// A model: run it, look inside.

import { LabelNetwork } from "./labels.js";
import { EncoderDecoder } from "./networks.js";
import { END, explain, search } from "./search.js";
import { SPECIALS, Tokens } from "./tokens.js";
import { Runtime } from "./wasm.js";
import { ModelFile } from "./weights.js";

const FORMAT = "transduce web 1";

/** What all models have: a card, tokens of source and target, a network. */
export class Model {
  constructor(runtime, file, Network) {
    const { description } = file;
    this.description = description;
    this.card = description.card;
    this.network = new Network(runtime, file, description.network);
    const { source, target } = description.tokens;
    this.source = new Tokens(source.file, source.form);
    this.target = target ? new Tokens(target.file, target.form) : this.source;
  }

  /** The model of a file. bytes: an ArrayBuffer with it; wasm: those with the runtime, the fastest
   * first. */
  static async create(bytes, wasm) {
    const file = new ModelFile(bytes);
    const { format, network } = file.description;
    if (format !== FORMAT) {
      throw new Error(`The model has the format ${format}, and this page reads ${FORMAT}: export it again.`);
    }
    const runtime = await Runtime.create(wasm);
    if (network.kind === "labels") return new LabelModel(runtime, file, LabelNetwork);
    return new Transducer(runtime, file, EncoderDecoder);
  }
}

/** An encoder-decoder. */
class Transducer extends Model {
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

/** A classifier, with a label for a text, or a tagger, with one for each word. */
class LabelModel extends Model {
  /** The output: { text, score, tokens, probabilities, alternatives }; options: nbest. */
  run(text, { nbest = 1 } = {}) {
    return this.labelled(text, nbest).output;
  }

  /** The same, and what was computed: log-probabilities, attention. */
  labelled(text, nbest = 1) {
    const pooled = this.description.network.pool !== null;
    const { source: limit } = this.description.limits;
    const words = text.split(/\s+/u).filter(Boolean);
    const read = pooled ? this.source.encode(text.trim() ? text : "") : words.map((word) => this.source.encode(word)[0] ?? 1);
    const ids = read.slice(0, limit);
    const sourceTokens = pooled ? this.source.pieces(ids) : words.slice(0, limit);
    if (!ids.length) return { output: { text: "", score: 0, tokens: [], sourceTokens, alternatives: [] }, found: null };
    const found = this.network.label(ids);
    const orders = found.logProbs.map((row) => Array.from(row.keys()).sort((a, b) => row[b] - row[a]));
    const piece = (label) => this.target.pieces([label + SPECIALS])[0];
    if (!pooled) {
      const tokens = orders.map(([best]) => piece(best));
      const values = orders.map(([best], row) => found.logProbs[row][best]);
      const score = values.reduce((all, value) => all + value, 0);
      const output = { text: tokens.join(" "), score, tokens, sourceTokens, probabilities: values.map(Math.exp), alternatives: [] };
      return { output, found, orders };
    }
    const outputs = orders[0].slice(0, nbest).map((label) => {
      const probability = Math.exp(found.logProbs[0][label]);
      return { text: piece(label), score: probability, tokens: [piece(label)], sourceTokens, probabilities: [probability] };
    });
    return { output: { ...outputs[0], alternatives: outputs }, found, orders };
  }
}
