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

export interface Output extends Hypothesis {
  sourceTokens: string[];
  /** The n-best list, best first. */
  alternatives: Hypothesis[];
}

export interface Step {
  id: number;
  token: string;
  logProbability: number;
  entropy: number;
  alternatives: { id: number; token: string; logProbability: number }[];
  /** Attention to the source: [layer][head][source token]. */
  attention: Float32Array[][];
}

export class Model {
  /** wasm: files of the runtime, the fastest first. */
  static create(bytes: ArrayBuffer, wasm: ArrayBuffer[]): Promise<Model>;
  readonly card: { name: string; task: string };
  run(text: string, options?: Options, onStep?: ((step: number) => boolean | void) | null): Output;
  /** Attention and alternatives at each token of an output, given its ids. */
  explain(text: string, ids: number[], count?: number): { steps: Step[]; length: number };
}

/** A model from a URL, or in Node from a path. */
export function load(place: string | URL): Promise<Model>;
