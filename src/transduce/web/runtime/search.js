// Greedy and beam search, in which the library chooses the hypotheses, and sampling; a network gives
// log-probabilities.

import { BEGIN, END, PAD } from "./tokens.js";

export const penaltyOf = (length, power) => ((5 + length) / 6) ** power;

/** The structures of one search: of one source, with `beam` hypotheses of up to `target` tokens, of
 * which the first `given` are a prompt. */
class Search {
  constructor(network, memory, { beam, nbest, target, given, minLength, lengthPenalty, maxFinished }) {
    const { runtime } = network;
    this.runtime = runtime;
    this.target = target;
    const zeros = (count) => {
      const address = runtime.allocate(count);
      runtime.bytes(address, count).fill(0);
      return address;
    };
    const lowest = (count) => runtime.newFloats(new Float32Array(count).fill(-Infinity));
    const V = network.size(memory);
    this.logProbs = runtime.allocate(4 * beam * V);
    // A decoder writes log-probabilities, or features where there is more to compute.
    this.head = network.direct ? network.head.weight : 0;
    this.given = this.head ? this.logProbs : runtime.allocate(4 * beam * network.decoder.width);
    this.origins = zeros(4 * beam * (1 + target));
    this.step = runtime.newStructure("Step", {
      max_rows: beam,
      origins: this.origins,
      max_steps: target,
      head: this.head,
      log_probs: this.given,
    });
    this.reached = lowest(beam);
    runtime.floats(this.reached, 1)[0] = 0;
    this.last = runtime.newLongs(new Array(beam).fill(BEGIN));
    this.rowAt = zeros(8 * beam);
    this.tokenAt = zeros(8 * beam);
    this.open = zeros(4);
    runtime.ints(this.open, 1)[0] = 1;
    this.scores = lowest(nbest);
    this.totals = lowest(nbest);
    this.found = zeros(4 * nbest * target);
    this.written = zeros(4 * beam * target);
    this.beam = beam;
    this.nbest = nbest;
    this.vocabulary = V;
    this.prompt = given;
    const lengths = Array.from({ length: target + 2 }, (_, length) => Math.max(0, length - given));
    const penalties = Float32Array.from(lengths, (length) => penaltyOf(length, lengthPenalty));
    this.slots = runtime.newStructure("Slots", {
      slots: 1,
      beam,
      nbest,
      target,
      vocabulary: V,
      pad: PAD,
      begin: BEGIN,
      end: END,
      min_length: given + minLength,
      max_finished: maxFinished,
      penalties: runtime.newFloats(penalties),
      open: this.open,
      steps: runtime.newLongs([0]),
      limits: runtime.newLongs([target]),
      finished: runtime.newLongs([0]),
      reached: this.reached,
      last: this.last,
      written: this.written,
      scores: this.scores,
      totals: this.totals,
      found: this.found,
      row: this.rowAt,
      row_step: zeros(8 * beam),
      row_token: this.tokenAt,
      best: runtime.allocate(4 * beam * 2 * beam),
      best_token: runtime.allocate(8 * beam * 2 * beam),
      old: runtime.allocate(4 * 2 * beam * (target + 1)),
    });
  }

  /** The next token of the first hypothesis is the one after `token`, at a step. */
  place(token, step) {
    this.runtime.setLongs(this.runtime.get("Slots", this.slots, "steps"), [step]);
    this.runtime.setLongs(this.last, [token]);
  }

  /** The rows of the next step. */
  rows() {
    const rows = Number(this.runtime.call("next_rows", this.slots, this.step));
    if (!this.head) this.runtime.set("Step", this.step, { log_probs: this.given });
    return rows;
  }

  /** Choose among the log-probabilities that were computed. */
  choose() {
    if (!this.head) this.runtime.set("Step", this.step, { log_probs: this.logProbs });
    this.runtime.call("end_step", this.slots, this.step);
  }

  /** For decoders that keep a state for each place: where the rows of this step come from. */
  moves(rows, at) {
    const to = this.runtime.longs(this.rowAt, rows);
    const apart = 1 + this.target;
    const origins = this.runtime.ints(this.origins, this.beam * apart);
    const from = to.map((place) => (at ? origins[place * apart + at] : 0));
    for (const place of to) origins[place * apart + 1 + at] = place;
    return { from, to };
  }

  hypotheses() {
    const { runtime, nbest, target } = this;
    const scores = runtime.floats(this.scores, nbest);
    const totals = runtime.floats(this.totals, nbest);
    const found = runtime.ints(this.found, nbest * target);
    const kept = [];
    for (let n = 0; n < nbest; n++) {
      if (scores[n] === -Infinity) continue;
      const tokens = Array.from(found.subarray(n * target + this.prompt, (n + 1) * target));
      kept.push({ ids: tokens.slice(0, tokens.indexOf(END)), score: scores[n], logProbability: totals[n] });
    }
    return kept;
  }
}

/**
 * The best hypotheses for a source (ids that end with END), best first.
 *
 * settings: beam, nbest, lengthPenalty, minLength, maxLength, maxFinished; of a language model also
 * prompt, its ids, and endless, whether END never comes before the maximum length, where it is free.
 * onStep(step) may return true to stop. With `beams`, each step's hypotheses and their candidates
 * are added to it.
 */
export function search(network, source, settings, onStep = null, beams = null) {
  const { runtime } = network;
  const { prompt = null, endless = false } = settings;
  return runtime.scoped(() => {
    const memory = network.encode(source);
    const read = prompt ? [BEGIN, ...prompt] : [BEGIN];
    const given = read.length - 1;
    const target = given + settings.maxLength;
    const beam = Math.max(settings.beam, settings.nbest);
    const run = new Search(network, memory, { ...settings, beam, target, given });
    const state = network.start(memory, run.beam, target, run);
    read.slice(0, -1).forEach((token, at) => {
      run.place(token, at);
      run.rows();
      network.advance(run, state, [token], at);
    });
    run.place(read.at(-1), given);
    for (let at = given; at < target; at++) {
      const rows = run.rows();
      if (!rows) break;
      network.advance(run, state, runtime.longs(run.tokenAt, rows), at);
      const before = beams && hypothesesOf(run, rows, at);
      if (prompt) openEnd(run, rows, at === target - 1, endless);
      run.choose();
      if (beams) beams.push(withCandidates(run, before));
      if (onStep && onStep(at - given)) break;
    }
    return run.hypotheses();
  });
}

/** A continuation that stops at its maximum length does not pay for END; endless, it ends nowhere
 * else. */
function openEnd(run, rows, last, endless) {
  if (!last && !endless) return;
  const logProbs = run.runtime.floats(run.logProbs, rows * run.vocabulary);
  for (let r = 0; r < rows; r++) logProbs[r * run.vocabulary + END] = last ? 0 : -Infinity;
}

// ------------------------------------------------------------------------ one token after another

/** A single hypothesis that is given its tokens; allocates in the present scope. */
class Walk {
  constructor(network, memory, steps, watched = false) {
    this.network = network;
    const settings = { beam: 1, nbest: 1, given: 0, minLength: 0, lengthPenalty: 0, maxFinished: 0 };
    this.run = new Search(network, memory, { ...settings, target: steps });
    this.state = network.start(memory, 1, steps, this.run);
    if (watched) network.decoder.watch(this.state);
    this.at = -1;
  }

  /** Log-probabilities of what follows one more token, from BEGIN on: a view of memory. */
  next(token) {
    const { network, run, state } = this;
    this.at += 1;
    run.place(token, this.at);
    run.rows();
    network.advance(run, state, [token], this.at);
    return network.runtime.floats(run.logProbs, run.vocabulary);
  }

  attention() {
    return this.network.decoder.watched(this.state, this.at);
  }
}

/** A language model that reads a text of any length in windows of `size` tokens; each further one
 * begins half a window later. */
class SlidingWalk {
  constructor(network, size, prompt) {
    const half = Math.max(1, Math.floor(size / 2));
    const over = prompt.length < size ? 0 : half * (Math.floor((prompt.length - size) / half) + 1);
    const { mark } = network.runtime;
    Object.assign(this, { network, size, half, mark, tokens: prompt.slice(over) });
    this.#open();
  }

  /** The first token, BEGIN, stands for the prompt. */
  next(token) {
    if (token !== BEGIN) {
      this.tokens.push(token);
      if (this.tokens.length >= this.size) {
        this.tokens = this.tokens.slice(this.half);
        this.#open();
      } else this.waiting = token;
    }
    return this.walk.next(this.waiting);
  }

  /** Read a window, but for its last token; the memory of the one before is freed. */
  #open() {
    this.network.runtime.release(this.mark);
    this.walk = new Walk(this.network, this.network.encode(), this.size + 1);
    const read = [BEGIN, ...this.tokens];
    for (const token of read.slice(0, -1)) this.walk.next(token);
    this.waiting = read.at(-1);
  }
}

/**
 * Hypotheses that are chosen one token at a time, best first: as many as `count`, each of its own.
 *
 * settings: count, lengthPenalty, minLength, maxLength; of a language model also prompt, endless and
 * window. choose(logProbs) gives a token. onStep: as for `search`.
 */
export function follow(network, source, settings, choose, onStep = null) {
  const { runtime } = network;
  const { count, prompt = null, endless = false, window, minLength, maxLength } = settings;
  const one = (memory) => {
    const walk = prompt ? new SlidingWalk(network, window, prompt) : new Walk(network, memory, maxLength + 1);
    const ids = [];
    let total = 0;
    let token = BEGIN;
    for (let at = 0; at < maxLength && token !== END; at++) {
      const logProbs = walk.next(token).slice();
      const last = at === maxLength - 1;
      logProbs[PAD] = logProbs[BEGIN] = -Infinity;
      if (at + 1 < minLength || (endless && !last)) logProbs[END] = -Infinity;
      if (last && prompt) logProbs[END] = 0;
      token = last ? END : choose(logProbs);
      total += logProbs[token];
      if (token !== END) ids.push(token);
      if (onStep && onStep(at)) break;
    }
    return { ids, score: total / penaltyOf(ids.length + 1, settings.lengthPenalty), logProbability: total };
  };
  return runtime.scoped(() => {
    const memory = network.encode(source);
    const found = Array.from({ length: count }, () => runtime.scoped(() => one(memory)));
    return found.sort((a, b) => b.score - a.score);
  });
}

/** The most probable token. */
export function likeliest(logProbs) {
  let best = 0;
  for (let id = 1; id < logProbs.length; id++) if (logProbs[id] > logProbs[best]) best = id;
  return best;
}

/** A token at random, of the topK most probable (0: of all) within the probability topP. */
export function drawn(logProbs, { temperature, topK, topP }) {
  const top = logProbs[likeliest(logProbs)];
  const all = Array.from(logProbs, (value, id) => ({ id, weight: Math.exp((value - top) / temperature) }));
  const ordered = all.sort((a, b) => b.weight - a.weight).slice(0, topK || all.length);
  const whole = ordered.reduce((sum, { weight }) => sum + weight, 0);
  let [kept, mass] = [0, 0];
  while (kept < ordered.length && (kept === 0 || mass / whole < topP)) mass += ordered[kept++].weight;
  let left = Math.random() * mass;
  for (const { id, weight } of ordered.slice(0, kept)) {
    left -= weight;
    if (left < 0) return id;
  }
  return ordered[0].id;
}

// ------------------------------------------------------------------------------ what was computed

/** The hypotheses of a step, in the order of its rows: their tokens and log-probabilities. */
function hypothesesOf(run, rows, at) {
  const { runtime, target } = run;
  const reached = runtime.floats(run.reached, run.beam);
  const written = runtime.ints(run.written, run.beam * target);
  return runtime.longs(run.rowAt, rows).map((place) => ({
    total: reached[place],
    ids: Array.from(written.subarray(place * target + run.prompt, place * target + at)),
  }));
}

/** The same with the most probable tokens of each, among which search has chosen. */
function withCandidates(run, hypotheses) {
  const { runtime } = run;
  const each = Math.min(2 * run.beam, run.vocabulary);
  const best = runtime.floats(runtime.get("Slots", run.slots, "best"), hypotheses.length * each);
  const tokens = runtime.longs(runtime.get("Slots", run.slots, "best_token"), hypotheses.length * each);
  hypotheses.forEach((one, row) => {
    one.candidates = Array.from({ length: each }, (_, c) => ({
      id: tokens[row * each + c],
      logProbability: best[row * each + c],
    })).filter(({ logProbability }) => logProbability > -Infinity);
  });
  return hypotheses;
}

/**
 * What a network attends to and what else it might have written, for given output ids (forced
 * decoding): for each token, END included, its attention [layers][heads][source] and the most
 * probable tokens.
 */
export function explain(network, source, ids, count = 5) {
  return network.runtime.scoped(() => {
    const memory = network.encode(source, true);
    const walk = new Walk(network, memory, ids.length + 2, true);
    const steps = [...ids, END].map((wanted, at) => {
      const logProbs = walk.next(at ? ids[at - 1] : BEGIN);
      return {
        id: wanted,
        logProbability: logProbs[wanted],
        alternatives: highest(logProbs, count),
        entropy: entropyOf(logProbs),
        attention: walk.attention(),
      };
    });
    return { steps, encoder: memory.attention, length: memory.length };
  });
}

export function entropyOf(logProbs) {
  let sum = 0;
  for (const value of logProbs) if (value > -Infinity) sum -= Math.exp(value) * value;
  return sum;
}

export function highest(logProbs, count) {
  const best = [];
  logProbs.forEach((value, id) => {
    if (best.length < count || value > best.at(-1).logProbability) {
      const at = best.findIndex((one) => value > one.logProbability);
      best.splice(at < 0 ? best.length : at, 0, { id, logProbability: value });
      if (best.length > count) best.pop();
    }
  });
  return best;
}
