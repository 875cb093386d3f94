/** A model of transduce in a browser or in Node. */

export interface Options {
  /** Hypotheses that beam search keeps; 1 is greedy search. Default: as in the model's recipe. */
  beam?: number;
  /** Outputs that are returned in `alternatives`. */
  nbest?: number;
  lengthPenalty?: number;
  /** Minimum and maximum number of output tokens, END included. */
  minLength?: number;
  maxLength?: number;
  /** Draw tokens at random: `nbest` samples, of the `topK` most probable (0: all) within the
   * probability `topP`. */
  sample?: boolean;
  temperature?: number;
  topK?: number;
  topP?: number;
  /** The tags of the source by name, each by itself or several together: ["V;PST"]. */
  tags?: string[];
  /** Of recordings: the weight of CTC, from 0 to 1. */
  ctcWeight?: number;
}

export interface Hypothesis {
  text: string;
  /** Log-probability divided by the length penalty. */
  score: number;
  logProbability: number;
  ids: number[];
  /** The tokens as text, END included. */
  tokens: string[];
}

/** The output of a model that writes. */
export interface Output extends Hypothesis {
  sourceTokens: string[];
  /** The n-best list, best first. */
  alternatives: Hypothesis[];
  /** What the vocabulary does not have, or what was not read; empty: nothing. */
  warning: string;
}

/** A label of a classifier; of a tagger one for each word. */
export interface Labels {
  text: string;
  /** The probability of a classifier's label; of a tagger the sum of log-probabilities. */
  score: number;
  tokens: string[];
  probabilities: number[];
  sourceTokens: string[];
}

/** The output of a classifier or tagger. */
export interface LabelOutput extends Labels {
  /** The n-best list, best first; of a tagger empty. */
  alternatives: Labels[];
  warning: string;
}

export interface Step {
  id: number;
  token: string;
  logProbability: number;
  entropy: number;
  alternatives: { id: number; token: string; logProbability: number }[];
  /** Attention to the source: [layer][head][source token]; where the decoder reads tags by attention of
   * their own, that is the last layer; of a language model to the tokens so far. */
  attention: Float32Array[][];
}

/** A text, or the samples of a recording: mono, within ±1, at `model.rate` samples a second. */
export type Source = string | Float32Array;

/** What all models have. */
export class Model {
  /** wasm: files of the runtime, the fastest first. tell: is told the progress, from 0 to 1. */
  static create<M extends Model = GenerativeModel>(
    bytes: ArrayBuffer,
    wasm: ArrayBuffer[],
    tell?: ((share: number) => void) | null,
  ): Promise<M>;
  readonly card: { name: string; task: string };
  /** Samples a second of recordings; undefined where sources are texts. */
  readonly rate: number | undefined;
}

/** A transducer, a language model, or a model of speech. */
export interface GenerativeModel extends Model {
  run(source: Source, options?: Options, onStep?: ((step: number) => boolean | void) | null): Output;
  /** Attention and alternatives at each token of an output, given its ids. */
  explain(source: Source, ids: number[], count?: number, options?: { tags?: string[] }): { steps: Step[]; length: number };
  /** Of speech with a streaming encoder (`streams`): a transcript while somebody speaks. */
  readonly streams?: boolean;
  live?(): LiveSession;
  /** Of speech alone, trained with CTC: the transcript by the encoder alone, fast enough while somebody speaks. */
  partial?(samples: Float32Array): string;
}

/** Speech as it comes: each chunk of it is computed once. */
export interface LiveSession {
  /** The transcript after more samples. */
  write(samples: Float32Array): string;
  /** The transcript of all of them; the session is over. */
  end(): string;
}

/** A classifier or a tagger: load<LabelModel>("model.bin"). */
export interface LabelModel extends Model {
  /** Of the options, a classifier knows nbest. */
  run(source: Source, options?: { nbest?: number }): LabelOutput;
}

/** A model from a URL, or in Node from a path. */
export function load<M extends Model = GenerativeModel>(place: string | URL): Promise<M>;
