// Transducers (RNN-T): search over the states of a recording, and all alignments of a text.

import { logAdd } from "./speech.js";
import { BEGIN, PAD } from "./tokens.js";

const MAX_SYMBOLS = 10; // labels at one state: a network that is not trained might never go on

/** Greedy and beam search (Graves 2012), state by state: what comes later changes nothing. */
export class TransducerSearch {
  /** banned: labels that are never written; limit: the most labels. */
  constructor(network, { beam, banned, limit = Infinity }) {
    Object.assign(this, { network, beam, limit });
    this.banned = new Set([PAD, ...banned]);
    const [{ said, state }] = network.predict([BEGIN], null);
    this.hypotheses = [{ ids: [], logProb: 0, said, state }];
  }

  /** Go on by one state. */
  advance(heard) {
    this.hypotheses = this.beam === 1 ? [this.#greedy(this.hypotheses[0], heard)] : this.#wide(heard);
  }

  /** The most probable label that may follow; -Infinity where none may. */
  #best(hypothesis, logProbs) {
    const found = { label: -1, logProb: -Infinity };
    if (hypothesis.ids.length >= this.limit) return found;
    logProbs.forEach((logProb, label) => {
      if (logProb > found.logProb && !this.banned.has(label)) Object.assign(found, { label, logProb });
    });
    return found;
  }

  /** Labels while they are more probable than the blank. */
  #greedy(hypothesis, heard) {
    for (let number = 0; ; number++) {
      const [logProbs] = this.network.logProbs([[heard, hypothesis.said]]);
      const { label, logProb } = this.#best(hypothesis, logProbs);
      if (number === MAX_SYMBOLS || logProb <= logProbs[PAD]) {
        return { ...hypothesis, logProb: hypothesis.logProb + logProbs[PAD] };
      }
      [hypothesis] = this.#longer([{ hypothesis, label, logProb }]);
    }
  }

  /** Hypotheses with one more label each. */
  #longer(chosen) {
    const found = this.network.predict(
      chosen.map(({ label }) => label),
      chosen.map(({ hypothesis }) => hypothesis.state),
    );
    return chosen.map(({ hypothesis, label, logProb }, row) => ({
      ids: [...hypothesis.ids, label],
      logProb: hypothesis.logProb + logProb,
      ...found[row],
    }));
  }

  #wide(heard) {
    const ended = [];
    let grown = this.hypotheses;
    for (let number = 0; ; number++) {
      const all = this.network.logProbs(grown.map(({ said }) => [heard, said]));
      ended.push(...grown.map((one, row) => ({ ...one, logProb: one.logProb + all[row][PAD] })));
      if (number === MAX_SYMBOLS) break;
      const chosen = grown.flatMap((one, row) => this.#candidates(one, all[row])).sort(better).slice(0, this.beam);
      // What is less probable than as many as the beam that a blank has ended will not come before them.
      const worst = merged(ended).sort((a, b) => b.logProb - a.logProb)[this.beam - 1]?.logProb ?? -Infinity;
      if (!chosen.length || chosen[0].total <= worst) break;
      grown = this.#longer(chosen);
    }
    return merged(ended).sort((a, b) => b.logProb - a.logProb).slice(0, this.beam);
  }

  #candidates(hypothesis, logProbs) {
    if (hypothesis.ids.length >= this.limit) return [];
    const found = Array.from(logProbs, (logProb, label) => ({ hypothesis, label, logProb, total: hypothesis.logProb + logProb }));
    return found.filter(({ label }) => !this.banned.has(label)).sort(better).slice(0, this.beam);
  }
}

const better = (a, b) => b.total - a.total;

/** Hypotheses with the same labels are one. */
function merged(hypotheses) {
  const found = new Map();
  for (const one of hypotheses) {
    const key = one.ids.join();
    const other = found.get(key);
    found.set(key, other ? { ...other, logProb: logAdd(other.logProb, one.logProb) } : one);
  }
  return [...found.values()];
}

// -------------------------------------------------------------------------- all alignments of a text

/**
 * A text over all alignments with the states: ln p of it, ln p of each label and of the end after those
 * before, the probability [labels][states] that each is written at each state, and the log-probabilities
 * of all tokens at the state at which that is highest.
 */
export function aligned(network, heard, ids) {
  const saids = [];
  let states = null;
  for (const label of [BEGIN, ...ids]) {
    const [{ said, state }] = network.predict([label], states);
    saids.push(said);
    states = [state];
  }
  const nodes = heard.map((one) => network.logProbs(saids.map((said) => [one, said])));
  const [S, P] = [heard.length, saids.length];
  const label = (s, u) => (u < ids.length ? nodes[s][u][ids[u]] : -Infinity);
  const table = () => Array.from({ length: S }, () => new Float64Array(P).fill(-Infinity));
  const [before, after] = [table(), table()];
  for (let s = 0; s < S; s++) {
    for (let u = 0; u < P; u++) {
      const across = s ? before[s - 1][u] + nodes[s - 1][u][PAD] : u ? -Infinity : 0;
      before[s][u] = logAdd(across, u ? before[s][u - 1] + label(s, u - 1) : -Infinity);
    }
  }
  for (let s = S - 1; s >= 0; s--) {
    for (let u = P - 1; u >= 0; u--) {
      const end = u === P - 1 ? 0 : -Infinity;
      const across = nodes[s][u][PAD] + (s < S - 1 ? after[s + 1][u] : end);
      after[s][u] = logAdd(across, u < P - 1 ? label(s, u) + after[s][u + 1] : -Infinity);
    }
  }
  const total = before[S - 1][P - 1] + nodes[S - 1][P - 1][PAD];
  const begins = ids.map((_, u) => before.reduce((sum, row, s) => logAdd(sum, row[u] + label(s, u)), -Infinity));
  const emitted = ids.map((_, u) =>
    Float32Array.from(before, (row, s) => Math.exp(row[u] + label(s, u) + after[s][u + 1] - total)),
  );
  const each = [...begins, total].map((value, u, all) => value - (u ? all[u - 1] : 0));
  const places = [...emitted.map((row) => row.indexOf(row.reduce((a, b) => Math.max(a, b)))), S - 1];
  return { total, each, emitted, logProbs: places.map((s, u) => nodes[s][u]) };
}
