// What the views of `transduce look` show, of a model that runs here.

import { END, SPECIALS } from "./tokens.js";

const TOP = 8; // alternatives at each step
const FRAMES_SEEN = 6; // before the last one that a state sees
const FULL = 65535; // of a weight of 1
const SIGNS = { " ": "␣", "▁": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };

/** A token as a label: white space made visible. */
function visible(token) {
  return token ? Array.from(token, (letter) => SIGNS[letter] ?? letter).join("") : "∅";
}

/** Run a source, a text or samples, and collect what was computed; options as in model.run. */
export function lookAt(model, source, options = {}) {
  return model.description.network.kind === "labels" ? lookAtLabels(model, source) : lookAtOutput(model, source, options);
}

const EMPTY = { warning: "", given: false, times: [], cells: [], embeddings: [], attribution: [], no_beam: "", beam: null };

const LONG = 120; // states of a recording; of longer ones the encoder's attention is not shown

function lookAtOutput(model, source, options) {
  const beam = options.beam ?? model.description.decode.beam;
  const { kind } = model.description.network;
  const beams = beam > 1 && !options.sample && kind !== "transducer" ? [] : null;
  const start = performance.now();
  const output = model.run(source, { nbest: options.sample ? 1 : beam, ...options, beam }, null, beams);
  const seconds = (performance.now() - start) / 1000;
  const inside = explained(model, source, output, options);
  const prompted = kind === "language-model";
  const prompt = prompted ? Math.max(0, inside.steps.length - output.tokens.length) : 0;
  const target = inside.steps.map((step) => visible(step.token));
  const read = model.rate ? timesOf(model, inside.length) : output.sourceTokens.slice(0, inside.length).map(visible);
  const look = {
    ...EMPTY,
    model: model.card.name,
    task: model.card.task,
    source: model.rate ? "" : model.tagged(source, options.tags),
    text: output.text,
    warning: output.warning,
    how: options.sample ? "sampled" : beam === 1 ? "greedy search" : `beam search, ${beam} hypotheses`,
    score: finite(output.score),
    log_probability: finite(output.logProbability),
    axes: { source: read, target, prefix: ["<s>", ...target.slice(0, -1)], pooled: ["pooled"] },
    attention: attentionOf(inside, ATTENTION[kind], Boolean(model.network.tags)),
    steps: inside.steps.map(stepOf),
    nbest: output.alternatives.map((one) => ({
      text: one.text,
      score: finite(one.score),
      log_probability: finite(one.logProbability),
      tokens: one.tokens.map(visible),
    })),
    beam: beams && beams.length ? treeOf(model, beams, output, beam) : null,
    no_beam: beams ? "" : kind === "transducer" ? "The beam of a transducer is not shown." : "Greedy search and sampling keep one hypothesis: there is no beam.",
    labels: [],
    ...(prompted && { prompt }),
  };
  return { look, seconds, tokens: output.tokens.length };
}

/** What was computed at each token that is shown. Of a recording that was cut in parts, nothing. */
function explained(model, source, output, options) {
  const nothing = { steps: [], encoder: null, length: 0 };
  if (model.rate && !output.source) return nothing;
  const found = model.explain(source, output.ids, TOP, options);
  if (model.description.network.kind !== "language-model") return found;
  // END was not written where a text goes on without end, or was cut there.
  return { ...found, steps: found.steps.slice(0, -1) };
}

/** When each encoder state of a recording begins. */
function timesOf(model, count) {
  const { mel, factor } = model.description.network.source;
  const step = factor * mel.hop;
  const first = (FRAMES_SEEN * mel.hop + mel.frame - step) / 2;
  return Array.from({ length: count }, (_, s) => `${((s * step + first) / mel.rate).toFixed(2)} s`);
}

function lookAtLabels(model, given) {
  const start = performance.now();
  const { output, found, orders } = model.labelled(given);
  const seconds = (performance.now() - start) / 1000;
  const source = model.rate ? timesOf(model, found?.length ?? 0) : output.sourceTokens.map(visible);
  const name = (label) => visible(model.target.pieces([label + SPECIALS])[0]);
  const pooled = model.description.network.pool !== null;
  const length = source.length;
  const attention = found?.encoder ? encoderAttention(found.encoder, length) : [];
  if (found?.pool) {
    const weights = packedWeights(1, 1, length, (h, r, c) => found.pool[c]);
    attention.push({ name: "pool", kind: "pool", layer: 0, rows: "pooled", columns: "source", weights });
  }
  const steps = (found?.logProbs ?? []).map((row, t) => ({
    log_probability: row[orders[t][0]],
    alternatives: orders[t].slice(0, TOP).map((label) => [name(label), Math.exp(row[label])]),
    chosen: 0,
    entropy: row.reduce((all, value) => (value > -Infinity ? all - Math.exp(value) * value : all), 0),
  }));
  const look = {
    ...EMPTY,
    model: model.card.name,
    task: model.card.task,
    source: model.rate ? "" : given,
    text: output.text,
    warning: output.warning,
    how: "",
    score: finite(output.score),
    log_probability: null,
    axes: { source, target: output.tokens.map(visible), prefix: [], pooled: ["pooled"] },
    attention,
    steps,
    nbest: [],
    labels: pooled && found ? orders[0].map((label) => [name(label), Math.exp(found.logProbs[0][label])]) : [],
  };
  return { look, seconds, tokens: length };
}

const finite = (value) => (Number.isFinite(value) ? value : null);

function stepOf({ id, logProbability, alternatives, entropy }) {
  return {
    log_probability: finite(logProbability),
    alternatives: alternatives.map((one) => [visible(one.token), Math.exp(one.logProbability)]),
    chosen: alternatives.findIndex((one) => one.id === id),
    entropy,
  };
}

/** Weights [heads][rows][columns] as the views read them. */
function packedWeights(heads, rows, columns, at) {
  const values = new Uint16Array(heads * rows * columns);
  for (let h = 0; h < heads; h++) {
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        values[(h * rows + r) * columns + c] = Math.round(FULL * at(h, r, c));
      }
    }
  }
  return { shape: [heads, rows, columns], scale: FULL, values };
}

/** What the attention of a network's outputs is, and to what. */
const ATTENTION = {
  "encoder-decoder": ["cross", "source"],
  speech: ["cross", "source"],
  transducer: ["emission", "source"],
  "language-model": ["decoder", "prefix"],
};

/** Attention to the source, or of a language model to the tokens so far; and of the encoder. apart:
 * whether the last is attention to the tags. */
function attentionOf({ steps, encoder, length }, [of, columns], apart) {
  const found = [];
  const layers = steps[0]?.attention.length ?? 0;
  const count = columns === "prefix" ? steps.length : length;
  for (let layer = 0; layer < layers; layer++) {
    const kind = apart && layer === layers - 1 ? "tags" : of;
    const heads = steps[0].attention[layer].length;
    const weights = packedWeights(heads, steps.length, count, (h, r, c) => steps[r].attention[layer][h][c] ?? 0);
    found.push({ name: `${kind} ${layer}`, kind, layer, rows: "target", columns, weights });
  }
  return encoder && length <= LONG ? [...found, ...encoderAttention(encoder, length)] : found;
}

function encoderAttention({ layers, heads, weights }, length) {
  const size = length * length;
  return Array.from({ length: layers }, (_, layer) => ({
    name: `encoder ${layer}`,
    kind: "encoder",
    layer,
    rows: "source",
    columns: "source",
    weights: packedWeights(heads, length, length, (h, r, c) => weights[(layer * heads + h) * size + r * length + c]),
  }));
}

/** The beam as a tree, with copied tokens as they stand in the source: [parent, token, log-probability, fate, rank, score, place, reason]. */
function treeOf(model, beams, { alternatives: outputs, sourceTokens }, size) {
  const nodes = [[null, "", 0, "kept", null, null, null, null]];
  const index = new Map([["", 0]]);
  const places = new Map(outputs.map((one, place) => [[...one.ids, END].join(), place]));
  const power = model.description.decode.length_penalty;
  beams.forEach((hypotheses, number) => {
    const following = beams[number + 1] && new Set(beams[number + 1].map((one) => one.ids.join()));
    const candidates = hypotheses
      .flatMap((one) => one.candidates.map(({ id, logProbability }) => ({ prefix: one.ids, id, total: one.total + logProbability })))
      .sort((a, b) => b.total - a.total)
      .slice(0, 2 * size);
    let open = 0;
    candidates.forEach(({ prefix, id, total }, at) => {
      const whole = [...prefix, id];
      const key = whole.join();
      if (index.has(key) || !index.has(prefix.join())) return;
      const place = places.get(key) ?? null;
      let fate = "pruned";
      let score = null;
      if (id === END) {
        fate = at < size ? "ended" : "end pruned";
        score = place === null ? total / ((5 + whole.length) / 6) ** power : outputs[place].score;
      } else if (!following) fate = open++ < size ? "open" : "pruned";
      else if (following.has(key)) fate = "kept";
      index.set(key, nodes.length);
      const [token] = model.target.pieces([id], sourceTokens);
      nodes.push([index.get(prefix.join()), visible(token), total, fate, at + 1, score, place, null]);
    });
  });
  outputs.forEach((one, place) => {
    // An END that had to come, at the length limit.
    const before = index.get(one.ids.join());
    if (before === undefined || index.has([...one.ids, END].join())) return;
    nodes.push([before, "</s>", one.logProbability, "ended", null, one.score, place, null]);
  });
  return { size, phrases: false, banned: false, nodes };
}
