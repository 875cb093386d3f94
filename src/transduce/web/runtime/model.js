// A model: run it, look inside.

import { LabelNetwork } from "./labels.js";
import { LiveSession } from "./live.js";
import { EncoderDecoder, LanguageModelNetwork, SpeechNetwork, TransducerNetwork } from "./networks.js";
import { drawn, entropyOf, explain, follow, highest, likeliest, penaltyOf, search } from "./search.js";
import { PathReader } from "./speech.js";
import { aligned, TransducerSearch } from "./transducer.js";
import { BEGIN, END, SPECIALS, Tokens, UNKNOWN, UNKNOWN_TAG, wordsOf } from "./tokens.js";
import { Runtime } from "./wasm.js";
import { ModelFile } from "./weights.js";

const FORMAT = "transduce web 5";
const FRAMES_BEFORE = 6; // of the last one that an encoder state sees
const QUIET = 0.1; // seconds of a place at which a recording may be cut
const MOST_NAMED = 8; // letters or words that a warning names
const TAGS_NAMED = 20; // tags that an error names

/** A token that shows nothing by the numbers of its characters. */
const readable = (token) =>
  /^[\p{C}\p{Z}]+$/u.test(token)
    ? Array.from(token, (one) => `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ")
    : token;

const whole = (least) => [(value) => Number.isInteger(value) && value >= least, `a whole number, ${least} or more`];
const between = (fits, range) => [(value) => Number.isFinite(value) && fits(value), range];

/** What each number of the options must be: whether one fits, and what to say. */
const NUMBERS = {
  beam: whole(1),
  nbest: whole(1),
  minLength: whole(0),
  maxLength: whole(1),
  topK: whole(0),
  lengthPenalty: between(() => true, "a number"),
  temperature: between((value) => value > 0, "a number above 0"),
  topP: between((value) => value > 0 && value <= 1, "a number above 0, and 1 at most"),
  ctcWeight: between((value) => value >= 0 && value <= 1, "a number from 0 to 1"),
};

function checkNumbers(options) {
  for (const [name, [fits, range]] of Object.entries(NUMBERS)) {
    const value = options[name] ?? null;
    if (value !== null && !fits(value)) throw new Error(`${name} is ${value}; it must be ${range}.`);
  }
  if (options.minLength > options.maxLength) {
    throw new Error(`minLength is ${options.minLength}, above maxLength, ${options.maxLength}: lower it.`);
  }
}

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
   * first; tell: is told the progress, from 0 to 1. */
  static async create(bytes, wasm, tell = null) {
    const file = new ModelFile(bytes, tell);
    const { format, network } = file.description;
    if (format !== FORMAT) {
      throw new Error(`The model has the format ${format}, and this page reads ${FORMAT}: export it again.`);
    }
    const runtime = await Runtime.create(wasm);
    const [Kind, Network] = KINDS[network.kind];
    return new Kind(runtime, file, Network);
  }

  /** Samples a second of recordings; undefined where sources are texts. */
  get rate() {
    return this.description.network.source?.mel?.rate;
  }

  /** Throws for a source that is not of the kind that the model reads. */
  checkSource(source) {
    if (!this.rate) {
      if (typeof source !== "string") throw new Error("This model reads texts: give it a string.");
    } else if (!(source instanceof Float32Array)) {
      throw new Error(`This model hears recordings: give it samples, a Float32Array with ${this.rate} a second.`);
    } else if (!source.every(Number.isFinite)) {
      throw new Error("The recording holds samples that are not numbers (NaN or infinite): record it again.");
    }
  }

  /** Why there is nothing to hear in a recording; empty: there is. */
  unheard(samples) {
    const { frame } = this.description.network.source.mel;
    const ms = (count) => `${Math.round((1000 * count) / this.rate)} ms`;
    if (samples.length < frame) return `The recording has ${ms(samples.length)}, less than one frame of ${ms(frame)}.`;
    const { silent } = this.description.limits;
    return samples.some((value) => Math.abs(value) >= silent) ? "" : "The recording is silent.";
  }

  /** The ids of tags, each by name or several together, such as V;PST. */
  tagIds(tags = []) {
    return tags.flatMap((tag) => {
      const ids = this.source.tagIds(tag);
      if (ids) return ids;
      const known = [...this.source.tags.keys()].filter((one) => one !== UNKNOWN_TAG);
      if (!known.length) throw new Error(`The model was trained without tags, so ${tag} is unknown: leave it out.`);
      const some = known.slice(0, TAGS_NAMED).join(", ");
      throw new Error(`The model has no tag ${tag}: its tags are ${some}${known.length > TAGS_NAMED ? ", …" : ""}.`);
    });
  }

  /** A text that begins with tags. */
  tagged(text, tags = []) {
    const before = this.tagIds(tags).map((id) => `${this.source.names[id]} `);
    return wordsOf(text).length ? before.join("") + text : text;
  }

  /** What is worth a warning about a text that was read as ids. */
  warning(text, ids, read) {
    const found = [];
    const tags = [...this.source.tags.values()];
    if (this.description.limits.tagged && ids.length && !tags.includes(ids[0])) {
      found.push("The input has no tag, but all in training had one or more.");
    } else if (ids.includes(this.source.tags.get(UNKNOWN_TAG))) {
      found.push(`The input has a tag that training does not have, which is read as <${UNKNOWN_TAG}>: check how its tags are written.`);
    }
    const unknown = this.network.spells ? [] : this.source.unknown(text);
    if (unknown.length) {
      const some = unknown.slice(0, MOST_NAMED).map(readable).join(" ");
      const more = unknown.length > MOST_NAMED ? ` and ${unknown.length - MOST_NAMED} more` : "";
      found.push(`Not in the vocabulary: ${some}${more}.`);
    }
    if (read < ids.length) found.push(`The input has ${ids.length} tokens; the first ${read} were read.`);
    return found.join(" ");
  }
}

/** The hypothesis of a search that was stopped before it had one. */
const UNFINISHED = { ids: [], score: -Infinity, logProbability: -Infinity };

/** What models that write have in common. */
class Generator extends Model {
  /** The settings of a search or of sampling; `most`: the maximum length, END included, where none is
   * asked for. */
  settings(options, most) {
    const { decode } = this.description;
    checkNumbers(options);
    const sample = Boolean(options.sample);
    const nbest = options.nbest ?? 1;
    const beam = Math.max(options.beam ?? decode.beam, nbest);
    const drawing = { temperature: options.temperature ?? 1, topK: options.topK ?? 0, topP: options.topP ?? 1 };
    const given = Object.values({ temperature: 1, topK: 0, topP: 1 }).join() !== Object.values(drawing).join();
    const { patience } = decode; // null: search ends where no hypothesis can become better
    if (given && !sample) throw new Error("temperature, topK and topP are for sampling: set sample as well.");
    return {
      sample,
      drawing,
      beam,
      nbest,
      count: nbest,
      lengthPenalty: options.lengthPenalty ?? decode.length_penalty,
      minLength: options.minLength ?? 0,
      maxLength: options.maxLength ?? most,
      maxFinished: beam === 1 ? 1 : patience === null ? 0 : Math.max(nbest, Math.round(patience * beam)),
    };
  }
}

/** An encoder-decoder. */
class Transducer extends Generator {
  /** What a text is for the network: ids with END, cut where the model has no more positions; what
   * stands there, for a model that copies; and a warning. */
  #read(text) {
    const given = wordsOf(text).length ? text : "";
    const ids = this.source.encode(given);
    const read = ids.slice(0, this.description.limits.source);
    const spelt = this.network.copying ? this.source.spelt(given, read) : [];
    return { ids: [...this.#numbered(read, spelt), END], spelt, warning: this.warning(given, ids, read.length) };
  }

  /** The ids of a model that copies: a token that the vocabulary has not is known by its number in
   * the target, or else by its first place. */
  #numbered(ids, spelt) {
    if (!this.network.copying) return ids;
    return ids.map((id, place) => {
      if (id !== UNKNOWN || !spelt[place]) return id;
      const known = this.target.names.indexOf(spelt[place]);
      const first = ids.findIndex((other, at) => other === UNKNOWN && spelt[at] === spelt[place]);
      const there = known >= 0 && !this.target.special.has(known);
      return this.source.size + (there ? known : this.target.size + first);
    });
  }

  /**
   * The output for a text: { text, score, tokens, ids, logProbability, alternatives, warning }.
   *
   * options: tags, such as ["V;PST"], which are put before the text; beam, nbest, lengthPenalty,
   * minLength, maxLength, by default as in the recipe; sample, temperature, topK, topP. onStep(number) is called after each token and may return true to stop;
   * beams: an array that is filled with the hypotheses of each step.
   */
  run(text, options = {}, onStep = null, beams = null) {
    this.checkSource(text);
    const { decode, limits } = this.description;
    const { ids, spelt, warning } = this.#read(this.tagged(text, options.tags));
    const most = Math.floor(ids.length * decode.max_ratio) + decode.max_extra;
    const settings = this.settings(options, most);
    settings.maxLength = Math.min(settings.maxLength, limits.target);
    if (ids.length === 1) return this.#nothing();
    const found = settings.sample
      ? follow(this.network, ids, settings, (logProbs) => drawn(logProbs, settings.drawing), onStep)
      : search(this.network, ids, settings, onStep, beams);
    const outputs = found.map((one) => this.#output(one, spelt));
    const best = outputs[0] ?? this.#output(UNFINISHED);
    return { ...best, sourceTokens: this.#pieces(ids, spelt), alternatives: outputs, warning };
  }

  /** The tokens of a source; those that the vocabulary has not as they stand there. */
  #pieces(ids, spelt) {
    const pieces = this.source.pieces(ids);
    return pieces.map((piece, place) => (ids[place] >= this.source.size ? spelt[place] : piece));
  }

  /** The output for nothing, which is nothing. */
  #nothing() {
    const output = this.#output({ ids: [], score: 0, logProbability: 0 });
    return { ...output, sourceTokens: ["</s>"], alternatives: [output], warning: "" };
  }

  #output({ ids, score, logProbability }, spelt = []) {
    const tokens = this.target.pieces([...ids, END], spelt);
    return { text: this.target.decode(ids, spelt), score, logProbability, ids, tokens };
  }

  /** What the model attended to when it wrote ids for a text, and what else was probable. */
  explain(text, ids, count = 5, { tags } = {}) {
    const { ids: source, spelt } = this.#read(this.tagged(text, tags));
    const found = explain(this.network, source, ids, count);
    return { ...found, steps: named(found.steps, (some) => this.target.pieces(some, spelt)) };
  }
}

function named(steps, pieces) {
  return steps.map((step) => ({
    ...step,
    token: pieces([step.id])[0],
    alternatives: step.alternatives.map((one) => ({ ...one, token: pieces([one.id])[0] })),
  }));
}

/** A language model: it continues a prompt. */
class LanguageModel extends Generator {
  /** As of a transducer; `text` is the prompt and what follows it, `ids` and `tokens` are what
   * follows. */
  run(text, options = {}, onStep = null, beams = null) {
    this.checkSource(text);
    const { decode, limits } = this.description;
    const ids = this.source.encode(text);
    const settings = this.settings(options, decode.max_extra + 1);
    Object.assign(settings, { prompt: ids, endless: limits.endless, window: limits.window });
    const fits = ids.length + settings.maxLength - 1 <= limits.window;
    if (!settings.sample && settings.beam > 1 && !fits) {
      throw new Error(
        `Beam search reads one context window, ${limits.window} tokens, and this prompt with its ` +
          `continuation may have ${ids.length + settings.maxLength - 1}: choose greedy search or sampling, or a lower maximum length.`,
      );
    }
    const one = settings.sample ? (logProbs) => drawn(logProbs, settings.drawing) : likeliest;
    const found = settings.sample || settings.beam === 1
      ? follow(this.network, ids, settings, one, onStep)
      : search(this.network, ids, settings, onStep, beams);
    const outputs = (found.length ? found : [UNFINISHED]).map(({ ids: more, score, logProbability }) => ({
      text: this.target.continued(text, ids, more),
      score,
      logProbability,
      ids: more,
      tokens: this.target.pieces(more),
    }));
    const warning = this.warning(text, ids, ids.length);
    return { ...outputs[0], sourceTokens: this.source.pieces(ids), alternatives: outputs, warning };
  }

  /** What the network attended to at each token of a prompt and its continuation. */
  explain(text, ids, count = 5) {
    const read = [...this.source.encode(text), ...ids];
    const { window } = this.description.limits;
    const found = explain(this.network, [], read.slice(-window), count);
    return { ...found, steps: named(found.steps, (some) => this.target.pieces(some)) };
  }
}

/** Speech recognition and translation: a recording in, text out. */
class SpeechModel extends Generator {
  /** The output for samples of ±1 at `rate` samples a second; options also: tags, a list of names,
   * and ctcWeight. What is longer than a recording of training is cut at quiet places. */
  run(samples, options = {}, onStep = null, beams = null) {
    this.checkSource(samples);
    checkNumbers(options);
    const { decode, limits } = this.description;
    const tags = this.tagNumbers(options.tags);
    const ctcWeight = options.ctcWeight ?? decode.ctc_weight;
    if (ctcWeight && !limits.ctc) throw new Error("ctcWeight needs a model that was trained with CTC on its output.");
    const unheard = this.unheard(samples);
    if (unheard) {
      const output = { text: "", score: 0, logProbability: 0, ids: [], tokens: [] };
      return { ...output, sourceTokens: [], alternatives: [output], warning: unheard, source: null };
    }
    const parts = cutAtQuiet(samples, Math.round(limits.seconds * this.rate), this.rate);
    const heard = parts.filter((part) => !this.unheard(part));
    let stopped = false;
    const told = onStep && ((step) => (stopped = Boolean(onStep(step))));
    const each = [];
    for (const part of heard) {
      if (stopped) break;
      const source = { samples: part, tags, ctcWeight };
      const most = Math.floor(this.states(part.length) * decode.max_ratio) + decode.max_extra;
      const settings = this.settings(options, most);
      settings.maxLength = Math.min(settings.maxLength, limits.target);
      const found = this.decoded(source, settings, told, parts.length === 1 ? beams : null);
      each.push((found.length ? found : [UNFINISHED]).map((one) => this.#output(one)));
    }
    const best = each.length === 1 ? each[0][0] : joined(each.map((outputs) => outputs[0]));
    const cut = parts.length > 1 ? `The recording was cut into ${parts.length} parts.` : "";
    return { ...best, sourceTokens: [], alternatives: each.length === 1 ? each[0] : [], warning: cut, source: parts.length === 1 ? parts[0] : null };
  }

  /** The hypotheses of one recording, best first. */
  decoded(source, settings, onStep, beams) {
    return settings.sample
      ? follow(this.network, source, settings, (logProbs) => drawn(logProbs, settings.drawing), onStep)
      : search(this.network, source, settings, onStep, beams);
  }

  /** What the encoder alone reads, by CTC: fast enough for a transcript while somebody speaks. */
  partial(samples) {
    this.checkSource(samples);
    const { speech, runtime } = this.network;
    if (!this.description.limits.ctc) throw new Error("A transcript by the encoder alone needs a model that was trained with CTC.");
    if (this.unheard(samples)) return "";
    return runtime.scoped(() => {
      const memory = speech.encode({ samples });
      const logProbs = speech.logProbs(speech.statesOf(memory));
      return this.target.decode(new PathReader().read(logProbs, memory.length));
    });
  }

  /** Whether it was trained to read while somebody speaks. */
  get streams() {
    return Boolean(this.description.limits.chunk);
  }

  /** A session: write(samples) gives the transcript so far, end() that of all. */
  live() {
    if (!this.streams) throw new Error("A live session needs a model with a streaming encoder (model.encoder.chunk).");
    return new LiveSession(this, this.never?.() ?? []);
  }

  /** Samples that one encoder state sees. */
  get seen() {
    const { mel } = this.description.network.source;
    return FRAMES_BEFORE * mel.hop + mel.frame;
  }

  /** Encoder states of so many samples. */
  states(samples) {
    const { mel, factor } = this.description.network.source;
    const frames = Math.max(0, Math.floor((samples - mel.frame) / mel.hop) + 1);
    const once = Math.floor((frames - 1) / 2);
    return Math.max(1, factor === 4 ? Math.floor((once - 1) / 2) : once - 2);
  }

  /** Tags by their numbers among all tags. */
  tagNumbers(given) {
    const all = [...this.source.tags.values()];
    return this.tagIds(given).map((id) => all.indexOf(id));
  }

  #output({ ids, score, logProbability }) {
    return { text: this.target.decode(ids), score, logProbability, ids, tokens: this.target.pieces([...ids, END]) };
  }

  /** Attention of each token of an output to the states of a recording, and alternatives. */
  explain(samples, ids, count = 5, { tags } = {}) {
    const found = explain(this.network, { samples, tags: this.tagNumbers(tags) }, ids, count);
    return { ...found, steps: named(found.steps, (some) => this.target.pieces(some)) };
  }
}

/** A transducer of speech (RNN-T). */
class SpeechTransducer extends SpeechModel {
  /** Labels that are never written. */
  never() {
    return [BEGIN, END, ...this.target.tags.values()];
  }

  decoded({ samples, tags }, settings, onStep) {
    if (settings.sample || settings.minLength) throw new Error("A transducer neither samples nor has a minimum length: leave them out.");
    const { network } = this;
    return network.runtime.scoped(() => {
      const heard = this.#heard(samples, tags);
      const limit = settings.maxLength - 1; // without END
      const found = new TransducerSearch(network, { beam: settings.beam, banned: this.never(), limit });
      for (const [place, one] of heard.entries()) {
        found.advance(one);
        if (onStep && onStep(place)) break;
      }
      // Scored over all alignments, of which search has seen some.
      const outputs = found.hypotheses.map(({ ids }) => ({ ids, logProbability: aligned(network, heard, ids).total }));
      const scored = outputs.map((one) => ({ ...one, score: one.logProbability / penaltyOf(one.ids.length + 1, settings.lengthPenalty) }));
      return scored.sort((a, b) => b.score - a.score).slice(0, settings.nbest);
    });
  }

  /** The share of each state of a recording in the joint network. */
  #heard(samples, tags = []) {
    const { speech } = this.network;
    const memory = speech.encode({ samples, tags });
    const all = this.network.heard(speech.statesOf(memory));
    const wide = all.length / memory.length;
    return Array.from({ length: memory.length }, (_, s) => all.subarray(s * wide, (s + 1) * wide));
  }

  /** When each token is written: as "attention", the probability of each state. */
  explain(samples, ids, count = 5, { tags } = {}) {
    return this.network.runtime.scoped(() => {
      const heard = this.#heard(samples, this.tagNumbers(tags));
      const { each, emitted, logProbs } = aligned(this.network, heard, ids);
      const end = new Float32Array(heard.length);
      end[heard.length - 1] = 1;
      const steps = [...ids, END].map((id, at) => ({
        id,
        logProbability: each[at],
        alternatives: highest(logProbs[at], count),
        entropy: entropyOf(logProbs[at]),
        attention: [[emitted[at] ?? end]],
      }));
      return { steps: named(steps, (some) => this.target.pieces(some)), encoder: null, length: heard.length };
    });
  }
}

/** One output of several, one after the other. */
function joined(outputs) {
  const texts = outputs.map(({ text }) => text.trim()).filter(Boolean);
  const sum = (name) => outputs.reduce((all, one) => all + one[name], 0);
  return {
    text: texts.join(" "),
    score: sum("score"),
    logProbability: sum("logProbability"),
    ids: outputs.flatMap(({ ids }) => ids),
    tokens: outputs.flatMap(({ tokens }) => tokens),
  };
}

/** Parts of at most so many samples, each cut where the second half of it is quietest. */
function cutAtQuiet(samples, longest, rate) {
  const parts = [];
  const step = Math.max(1, Math.round(QUIET * rate));
  let rest = samples;
  while (rest.length > longest) {
    let [best, least] = [longest, Infinity];
    for (let at = longest - step; at >= longest / 2; at -= step) {
      const loud = rest.subarray(at, at + step).reduce((sum, value) => sum + value * value, 0);
      if (loud < least) [best, least] = [at + Math.round(step / 2), loud];
    }
    parts.push(rest.subarray(0, best));
    rest = rest.subarray(best);
  }
  return [...parts, rest];
}

/** A classifier, with a label for a text, or a tagger, with one for each word. */
class LabelModel extends Model {
  /** The output: { text, score, tokens, probabilities, sourceTokens, alternatives, warning }; options: nbest. */
  run(text, { nbest = 1 } = {}) {
    return this.labelled(text, nbest).output;
  }

  /** The ids of a text, of a tagger one for each word; and the words, for their letters. */
  #read(text, pooled) {
    const words = wordsOf(text);
    const read = pooled ? this.source.encode(words.length ? text : "") : words.map((word) => this.source.encode(word)[0] ?? UNKNOWN);
    const ids = read.slice(0, this.description.limits.source);
    const sourceTokens = pooled ? this.source.pieces(ids) : words.slice(0, ids.length);
    const word = (id, place) => (id === UNKNOWN && !pooled ? this.source.normalize(words[place]) : this.source.word(id));
    return { ids, spelt: ids.map(word), sourceTokens, warning: this.warning(text, read, ids.length) };
  }

  #heard(samples) {
    const most = Math.round(this.description.limits.seconds * this.rate);
    const unheard = this.unheard(samples);
    if (unheard) return { ids: [], sourceTokens: [], warning: unheard };
    const warning = samples.length > most ? `The first ${this.description.limits.seconds.toFixed(1)} s were heard.` : "";
    return { ids: samples.subarray(0, most), sourceTokens: [], warning };
  }

  /** The same, and what was computed: log-probabilities, attention. */
  labelled(text, nbest = 1) {
    this.checkSource(text);
    checkNumbers({ nbest });
    const pooled = this.description.network.pool !== null;
    const heard = this.description.network.source.kind === "speech";
    const { ids, spelt, sourceTokens, warning } = heard ? this.#heard(text) : this.#read(text, pooled);
    if (!ids.length) return { output: { text: "", score: 0, tokens: [], probabilities: [], sourceTokens, alternatives: [], warning }, found: null };
    const found = this.network.label(ids, spelt);
    const orders = found.logProbs.map((row) => Array.from(row.keys()).sort((a, b) => row[b] - row[a]));
    const piece = (label) => this.target.pieces([label + SPECIALS])[0];
    if (!pooled) {
      const tokens = orders.map(([best]) => piece(best));
      const values = orders.map(([best], row) => found.logProbs[row][best]);
      const score = values.reduce((all, value) => all + value, 0);
      const output = { text: tokens.join(" "), score, tokens, sourceTokens, probabilities: values.map(Math.exp), alternatives: [], warning };
      return { output, found, orders };
    }
    const outputs = orders[0].slice(0, nbest).map((label) => {
      const probability = Math.exp(found.logProbs[0][label]);
      return { text: piece(label), score: probability, tokens: [piece(label)], sourceTokens, probabilities: [probability] };
    });
    return { output: { ...outputs[0], alternatives: outputs, warning }, found, orders };
  }
}

const KINDS = {
  "encoder-decoder": [Transducer, EncoderDecoder],
  "language-model": [LanguageModel, LanguageModelNetwork],
  speech: [SpeechModel, SpeechNetwork],
  transducer: [SpeechTransducer, TransducerNetwork],
  labels: [LabelModel, LabelNetwork],
};
