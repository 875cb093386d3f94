// Speech: a waveform in; log-mel features, normalised and subsampled, out; and CTC.

import { linear } from "./arrays.js";
import { Positions } from "./embedding.js";
import { END, PAD } from "./tokens.js";

const FULL_SCALE = 32768;
const MIN_DEVIATION = 1e-5; // of a band that never changes
const REACH = 7; // frames that a vector sees

const mel = (hertz) => 1127 * Math.log1p(hertz / 700);

/** Log-mel features equal to Kaldi's: frames of a waveform of ±1. */
class LogMel {
  constructor(runtime, ref) {
    Object.assign(this, { runtime, ref });
    const { frame, padded } = ref;
    const window = Float32Array.from({ length: frame }, (_, n) =>
      (0.5 - 0.5 * Math.cos((2 * Math.PI * n) / (frame - 1))) ** 0.85,
    );
    this.window = runtime.newFloats(window);
    this.filters = runtime.newFloats(this.#filters());
    const turns = Array.from({ length: padded / 2 }, (_, k) => (-2 * Math.PI * k) / padded);
    this.turns = runtime.allocate(8 * padded);
    const view = new Float64Array(runtime.buffer, this.turns, padded);
    turns.forEach((angle, k) => view.set([Math.cos(angle), Math.sin(angle)], 2 * k));
  }

  /** Triangles that are straight in mel; the highest frequency belongs to none. */
  #filters() {
    const { rate, padded, bands, low, high } = this.ref;
    const step = (mel(high) - mel(low)) / (bands + 1);
    const filters = new Float32Array((padded / 2 + 1) * bands);
    for (let c = 0; c < padded / 2; c++) {
      for (let m = 0; m < bands; m++) {
        const centre = mel(low) + (m + 1) * step;
        const apart = Math.abs(mel((c * rate) / padded) - centre) / step;
        filters[c * bands + m] = Math.max(0, 1 - apart);
      }
    }
    return filters;
  }

  frames(samples) {
    return Math.max(0, Math.floor((samples - this.ref.frame) / this.ref.hop) + 1);
  }

  /** [frames][bands] of samples. */
  features(samples) {
    const { runtime } = this;
    const { frame, hop, padded, bands } = this.ref;
    const frames = this.frames(samples.length);
    return runtime.scoped(() => {
      const found = runtime.allocate(4 * frames * bands);
      const workspace = runtime.allocate(16 * padded);
      const sizes = [frames, frame, hop, padded].map(BigInt);
      const tables = [this.window, this.filters, BigInt(bands), this.turns];
      runtime.call("mel_features", runtime.newFloats(samples), ...sizes, ...tables, found, workspace);
      return runtime.floats(found, frames * bands).slice();
    });
  }
}

/** What an encoder reads of a waveform. */
export class SpeechFront {
  constructor(runtime, file, ref) {
    Object.assign(this, { runtime, ref });
    this.mel = new LogMel(runtime, ref.mel);
    this.norm = ref.norm && { mean: file.floats(ref.norm.mean), deviation: file.floats(ref.norm.deviation) };
    this.first = file.product(runtime, ref.first);
    this.second = file.product(runtime, ref.second);
    this.projection = file.product(runtime, ref.projection);
    this.tags = ref.tags === null ? null : file.floats(ref.tags); // [width][tags]
    this.positions = ref.positions && new Positions(file, ref.positions);
  }

  /** Samples of 16 bits, as in training. */
  static rounded(samples) {
    return samples.map((value) => Math.min(Math.max(Math.round(value * FULL_SCALE), -FULL_SCALE), FULL_SCALE - 1) / FULL_SCALE);
  }

  /** Vectors of a waveform: their address and how many there are. tags: numbers of its tags. */
  read(samples, tags = []) {
    const { runtime, ref } = this;
    const bands = ref.mel.bands;
    const features = this.#normalised(this.mel.features(SpeechFront.rounded(samples)), bands);
    const missing = Math.max(0, REACH - features.length / bands);
    const padded = new Float32Array(features.length + missing * bands);
    padded.set(features);
    const { x, length } = this.#subsampled(padded, padded.length / bands, bands);
    const content = x.length / length;
    const of = (i) => tags.reduce((sum, tag) => sum + this.tags[(i % content) * ref.tag_count + tag], 0);
    const scaled = x.map((value, i) => value * ref.scale + (this.tags ? of(i) : 0));
    return { address: runtime.newFloats(this.#placed(scaled, length, content)), length };
  }

  #normalised(x, bands) {
    if (this.norm) {
      return x.map((value, i) => (value - this.norm.mean[i % bands]) / this.norm.deviation[i % bands]);
    }
    const frames = Math.max(1, x.length / bands);
    const [mean, squares] = [new Float64Array(bands), new Float64Array(bands)];
    x.forEach((value, i) => (mean[i % bands] += value / frames));
    x.forEach((value, i) => (squares[i % bands] += (value - mean[i % bands]) ** 2 / frames));
    return x.map((value, i) => (value - mean[i % bands]) / Math.max(Math.sqrt(squares[i % bands]), MIN_DEVIATION));
  }

  /** Two convolutions of 3 x 3 with stride 2 and ReLU, and a projection. */
  #subsampled(x, frames, bands) {
    const one = this.#convolved(this.first, x, frames, bands, 1, 2);
    const two = this.#convolved(this.second, one.x, one.frames, one.bands, one.channels, this.ref.factor / 2);
    const length = Math.max(1, two.frames);
    return { x: linear(this.runtime, this.projection, two.x, length), length };
  }

  /** [frames][bands][channels], over windows of three frames and three bands. */
  #convolved(weight, x, frames, bands, channels, stride) {
    const { runtime } = this;
    const outputs = runtime.get("Weight", weight, "outputs");
    const left = Math.floor((frames - 3) / stride) + 1;
    const across = Math.floor((bands - 3) / 2) + 1;
    const found = new Float32Array(left * across * outputs);
    for (let t = 0; t < left; t++) {
      const windows = new Float32Array(across * 9 * channels);
      for (let g = 0; g < across; g++) {
        for (let k = 0; k < 3; k++) {
          const at = ((t * stride + k) * bands + 2 * g) * channels;
          windows.set(x.subarray(at, at + 3 * channels), (g * 9 + 3 * k) * channels);
        }
      }
      const y = linear(runtime, weight, windows, across);
      found.set(y.map((value) => Math.max(0, value)), t * across * outputs);
    }
    return { x: found, frames: left, bands: across, channels: outputs };
  }

  #placed(x, length, content) {
    if (!this.positions) return x;
    const { width, limit } = this.positions;
    if (length > limit) throw new Error(`The recording has ${length} states, and the model positions for ${limit}.`);
    const places = this.positions.rows(length);
    if (!this.ref.concatenated) return x.map((value, i) => value + places[i]);
    const found = new Float32Array(length * (content + width));
    for (let s = 0; s < length; s++) {
      found.set(x.subarray(s * content, (s + 1) * content), s * (content + width));
      found.set(places.subarray(s * width, (s + 1) * width), s * (content + width) + content);
    }
    return found;
  }
}

// -------------------------------------------------------------------------------------- CTC

/** The best path without repetitions and blanks, of states that come some at a time. */
export class PathReader {
  constructor() {
    this.ids = [];
    this.before = PAD;
  }

  /** logProbs: [states][vocabulary]. */
  read(logProbs, length) {
    const size = logProbs.length / length;
    for (let s = 0; s < length; s++) {
      let best = 0;
      for (let id = 1; id < size; id++) if (logProbs[s * size + id] > logProbs[s * size + best]) best = id;
      if (best !== this.before && best !== PAD) this.ids.push(best);
      this.before = best;
    }
    return this.ids;
  }
}

export const logAdd = (a, b) => {
  const top = Math.max(a, b);
  return top === -Infinity ? top : top + Math.log(Math.exp(a - top) + Math.exp(b - top));
};

/** ln p that a transcript begins with a prefix (Watanabe et al. 2017, algorithm 2): of one prefix,
 * what the frames up to each give exactly it, ending in a label or in a blank. */
export class CtcPrefix {
  constructor(ctc, label, blank, last, total) {
    Object.assign(this, { ctc, label, blank, last, total });
  }

  /** The empty prefix. ctc: { logProbs, probs, length, size } of a recording. */
  static empty(ctc) {
    const blank = new Float64Array(ctc.length + 1);
    for (let s = 0; s < ctc.length; s++) blank[s + 1] = blank[s] + ctc.logProbs[s * ctc.size + PAD];
    return new CtcPrefix(ctc, new Float64Array(ctc.length + 1).fill(-Infinity), blank, PAD, 0);
  }

  /** ln p of each next token; END: of the end of the transcript. */
  next() {
    const { logProbs, probs, length, size } = this.ctc;
    const ready = this.label.map((value, e) => logAdd(value, this.blank[e]));
    const top = Math.max(ready.subarray(0, length).reduce((a, b) => Math.max(a, b), -Infinity), -1e30);
    const sums = new Float64Array(size);
    let again = -Infinity; // a token follows itself only after a blank
    for (let s = 0; s < length; s++) {
      const weight = Math.exp(ready[s] - top);
      if (weight) for (let id = 0; id < size; id++) sums[id] += weight * probs[s * size + id];
      again = logAdd(again, this.blank[s] + logProbs[s * size + this.last]);
    }
    const total = Math.max(this.total, -1e30);
    const found = Float32Array.from(sums, (sum) => Math.log(sum) + top - total);
    found[this.last] = again - total;
    found[PAD] = -Infinity;
    found[END] = ready[length] - total;
    return found;
  }

  /** The prefix with one more token. */
  with(token) {
    const { logProbs, length, size } = this.ctc;
    const label = new Float64Array(length + 1).fill(-Infinity);
    const blank = new Float64Array(length + 1).fill(-Infinity);
    let total = -Infinity;
    for (let s = 0; s < length; s++) {
      const ready = token === this.last ? this.blank[s] : logAdd(this.label[s], this.blank[s]);
      const said = logProbs[s * size + token];
      total = logAdd(total, ready + said);
      label[s + 1] = said + logAdd(label[s], ready);
      blank[s + 1] = logProbs[s * size + PAD] + logAdd(blank[s], label[s]);
    }
    return new CtcPrefix(this.ctc, label, blank, token, total);
  }
}
