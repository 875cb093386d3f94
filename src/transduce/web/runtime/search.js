// Greedy and beam search: the library chooses the hypotheses, a network gives log-probabilities.

export const PAD = 0;
export const BEGIN = 2;
export const END = 3;

/** ((5 + length) / 6) ** power, in float32. */
function penalties(count, power) {
  return Float32Array.from({ length: count }, (_, length) => ((5 + length) / 6) ** power);
}

/** The structures of one search: of one source, with `beam` hypotheses of up to `target` tokens. */
class Search {
  constructor(runtime, network, { beam, nbest, target, minLength, lengthPenalty, maxFinished }) {
    this.runtime = runtime;
    this.target = target;
    const zeros = (count) => {
      const address = runtime.allocate(count);
      runtime.bytes(address, count).fill(0);
      return address;
    };
    const lowest = (count) => runtime.newFloats(new Float32Array(count).fill(-Infinity));
    const V = network.vocabulary;
    this.head = network.head;
    this.logProbs = runtime.allocate(4 * beam * V);
    this.origins = zeros(4 * beam * (1 + target));
    this.step = runtime.newStructure("Step", {
      max_rows: beam,
      origins: this.origins,
      max_steps: target,
      head: network.head,
      log_probs: this.logProbs,
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
    this.slots = runtime.newStructure("Slots", {
      slots: 1,
      beam,
      nbest,
      target,
      vocabulary: V,
      pad: PAD,
      begin: BEGIN,
      end: END,
      min_length: minLength,
      max_finished: maxFinished,
      penalties: runtime.newFloats(penalties(target + 2, lengthPenalty)),
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
      const tokens = Array.from(found.subarray(n * target, (n + 1) * target));
      kept.push({ ids: tokens.slice(0, tokens.indexOf(END)), score: scores[n], logProbability: totals[n] });
    }
    return kept;
  }
}

/**
 * The best hypotheses for a source (ids that end with END), best first.
 *
 * settings: beam, nbest, lengthPenalty, minLength, maxLength, maxFinished. onStep(step) may return
 * true to stop. With `beams`, each step's hypotheses and their candidates are added to it.
 */
export function search(network, source, settings, onStep = null, beams = null) {
  const { runtime } = network;
  return runtime.scoped(() => {
    const { beam, nbest, maxLength: target } = settings;
    const run = new Search(runtime, network, { ...settings, beam: Math.max(beam, nbest), target });
    const memory = network.encode(source);
    const state = network.decoder.start(memory, run.beam, target, run);
    for (let at = 0; at < target; at++) {
      const rows = Number(runtime.call("next_rows", run.slots, run.step));
      if (!rows) break;
      network.decoder.advance(state, runtime.longs(run.tokenAt, rows), at, network.target);
      const before = beams && hypothesesOf(run, rows, at);
      runtime.call("end_step", run.slots, run.step);
      if (beams) beams.push(withCandidates(run, before));
      if (onStep && onStep(at)) break;
    }
    return run.hypotheses();
  });
}

/** The hypotheses of a step, in the order of its rows: their tokens and log-probabilities. */
function hypothesesOf(run, rows, at) {
  const { runtime, target } = run;
  const reached = runtime.floats(run.reached, run.beam);
  const written = runtime.ints(run.written, run.beam * target);
  return runtime.longs(run.rowAt, rows).map((place) => ({
    total: reached[place],
    ids: Array.from(written.subarray(place * target, place * target + at)),
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
  const { runtime } = network;
  return runtime.scoped(() => {
    const target = ids.length + 2;
    const run = new Search(runtime, network, {
      beam: 1, nbest: 1, target, minLength: 0, lengthPenalty: 0, maxFinished: 0,
    });
    const memory = network.encode(source, true);
    const state = network.decoder.start(memory, 1, target, run);
    network.decoder.watch(state);
    const steps = [];
    [...ids, END].forEach((wanted, at) => {
      runtime.call("next_rows", run.slots, run.step);
      const before = at ? ids[at - 1] : BEGIN;
      network.decoder.advance(state, [before], at, network.target);
      const logProbs = runtime.floats(run.logProbs, network.vocabulary);
      steps.push({
        id: wanted,
        logProbability: logProbs[wanted],
        alternatives: highest(logProbs, count),
        entropy: entropyOf(logProbs),
        attention: network.decoder.watched(state),
      });
      runtime.setLongs(runtime.get("Slots", run.slots, "steps"), [at + 1]);
    });
    return { steps, encoder: memory.attention, length: memory.length };
  });
}

function entropyOf(logProbs) {
  let sum = 0;
  for (const value of logProbs) if (value > -Infinity) sum -= Math.exp(value) * value;
  return sum;
}

function highest(logProbs, count) {
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
