// The spectrogram of sound that arrives, or of a recording in windows, and the words over where they
// were heard.

import { make, redraws, shade, theme } from "../look/look.js";

const SIZE = 1024; // samples of one spectrum
const BANDS = 48;
const LOWEST = 80; // Hz
const HIGHEST = 7600;
export const SHOWN = 10; // seconds
const WORDS = 22; // pixels above for the words
const HEIGHT = 110;
const QUIET = -75; // dB that is drawn as nothing
const LOUD = -15;
const REST = 90; // milliseconds from one drawing to the next

export class Spectrum {
  constructor(rate) {
    this.rate = rate;
    this.rest = new Float32Array(0);
    this.count = 0; // spectra so far
    this.words = [];
    this.drawn = 0;
    // One pixel a number, the newest in the place of the oldest; it is drawn larger.
    this.ring = make("canvas", { width: Math.ceil((SHOWN * rate) / SIZE), height: BANDS });
    this.element = make("canvas", { class: "spectrum", width: 1200, height: WORDS + HEIGHT, role: "img", "aria-label": "Spectrogram of the microphone, with the words where they were heard" });
    this.redraw = () => this.draw();
    redraws.add(this.redraw);
  }

  get seconds() { return (this.count * SIZE) / this.rate; }

  add(samples) {
    const all = new Float32Array(this.rest.length + samples.length);
    all.set(this.rest);
    all.set(samples, this.rest.length);
    const context = this.ring.getContext("2d");
    let at = 0;
    for (; at + SIZE <= all.length; at += SIZE, this.count++) {
      bands(all.subarray(at, at + SIZE), this.rate).forEach((level, band) => {
        context.fillStyle = shade(level);
        context.fillRect(this.count % this.ring.width, BANDS - 1 - band, 1, 1);
      });
    }
    this.rest = all.slice(at);
    if (performance.now() - this.drawn > REST) this.draw();
  }

  /** The words of a final transcript; those before them are kept as long as they are in sight. */
  show(words) {
    this.words = [...this.words.filter((word) => word.end > this.seconds - SHOWN), ...words];
    this.draw(); // the last ones come when there is no more sound
  }

  draw() {
    this.drawn = performance.now();
    const { element, ring } = this;
    const context = element.getContext("2d");
    const columns = Math.min(this.count, ring.width);
    const first = this.count - columns;
    const scale = element.width / ring.width;
    const x = (second) => ((second * this.rate) / SIZE - first) * scale;
    context.fillStyle = theme.color("paper");
    context.fillRect(0, 0, element.width, element.height);
    context.imageSmoothingEnabled = false;
    const place = first % ring.width;
    const late = Math.min(columns, ring.width - place); // columns up to the end of the ring
    if (late) context.drawImage(ring, place, 0, late, BANDS, 0, WORDS, late * scale, HEIGHT);
    if (columns > late) context.drawImage(ring, 0, 0, columns - late, BANDS, late * scale, WORDS, (columns - late) * scale, HEIGHT);
    drawWords(context, this.words, x);
  }

  close() { redraws.delete(this.redraw); }
}

/** The spectrogram of a whole recording, in windows where it is long; a click on it is a `seek`. */
export class Windows {
  constructor(samples, rate, words, seconds, seek) {
    Object.assign(this, { samples, rate, words, seconds });
    this.length = samples.length / rate;
    this.count = Math.max(1, Math.ceil(this.length / seconds));
    this.canvas = make("canvas", { class: "spectrum", width: 1200, height: WORDS + HEIGHT, role: "img", "aria-label": "Spectrogram of the recording, with the words where they were heard" });
    this.canvas.addEventListener("click", ({ offsetX }) => seek(this.start + (offsetX / this.canvas.clientWidth) * this.shown));
    this.before = make("button", { type: "button" }, "◀ Earlier");
    this.after = make("button", { type: "button" }, "Later ▶");
    this.before.addEventListener("click", () => this.show(this.number - 1));
    this.after.addEventListener("click", () => this.show(this.number + 1));
    this.place = make("span", { class: "note" });
    const controls = make("div", { class: "controls" });
    controls.append(this.before, this.after, this.place);
    controls.hidden = this.count === 1;
    this.element = make("div", { class: "windows" });
    this.element.append(this.canvas, controls);
    this.redraw = () => this.draw();
    redraws.add(this.redraw);
    this.show(0);
  }

  get start() { return this.number * this.seconds; }

  /** Seconds of the window. */
  get shown() { return Math.min(this.seconds, this.length - this.start); }

  /** The samples of the window. */
  get part() { return this.samples.subarray(Math.floor(this.start * this.rate), Math.floor((this.start + this.shown) * this.rate)); }

  show(number) {
    this.number = Math.max(0, Math.min(this.count - 1, number));
    this.before.disabled = this.number === 0;
    this.after.disabled = this.number === this.count - 1;
    this.place.textContent = `${this.start.toFixed(1)}–${(this.start + this.shown).toFixed(1)} s of ${this.length.toFixed(1)} s`;
    this.draw();
  }

  /** The window in which a second is. */
  turnTo(second) {
    const number = Math.floor(second / this.seconds);
    if (number !== this.number) this.show(number);
  }

  draw() {
    const { canvas, part, rate, start, shown } = this;
    const context = canvas.getContext("2d");
    const columns = Math.max(1, Math.floor(part.length / SIZE));
    const ring = make("canvas", { width: columns, height: BANDS });
    const pixels = ring.getContext("2d");
    for (let column = 0; (column + 1) * SIZE <= part.length; column++) {
      bands(part.subarray(column * SIZE, (column + 1) * SIZE), rate).forEach((level, band) => {
        pixels.fillStyle = shade(level);
        pixels.fillRect(column, BANDS - 1 - band, 1, 1);
      });
    }
    context.fillStyle = theme.color("paper");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = false;
    const width = ((columns * SIZE) / rate / shown) * canvas.width;
    context.drawImage(ring, 0, 0, columns, BANDS, 0, WORDS, Math.min(width, canvas.width), HEIGHT);
    drawWords(context, this.words.filter((word) => word.end > start && word.start < start + shown), (second) => ((second - start) / shown) * canvas.width);
  }
}

/** Each word above the spectrogram, between its edges; narrower where there is little room. */
function drawWords(context, words, x) {
  context.font = "15px ui-sans-serif, system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  words.forEach(({ text, start, end }, place) => {
    const middle = (start + end) / 2;
    const others = [words[place - 1], words[place + 1]].filter(Boolean);
    const room = Math.min(...others.map((one) => Math.abs(x((one.start + one.end) / 2) - x(middle))), context.canvas.width);
    context.fillStyle = theme.color("ink");
    context.fillText(text, x(middle), WORDS / 2, Math.max(8, room - 4));
    context.fillStyle = theme.color("accent");
    for (const edge of [start, end]) context.fillRect(x(edge), WORDS - 4, 1, HEIGHT + 4);
  });
}

/** How loud each band is, from 0 to 1. */
function bands(samples, rate) {
  const real = new Float32Array(SIZE);
  const imaginary = new Float32Array(SIZE);
  for (let i = 0; i < SIZE; i++) real[i] = samples[i] * (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / SIZE)); // Hann
  fft(real, imaginary);
  const top = Math.min(HIGHEST, rate / 2);
  const edge = (band) => (LOWEST * (top / LOWEST) ** (band / BANDS) * SIZE) / rate;
  return Array.from({ length: BANDS }, (_, band) => {
    const begin = Math.max(1, Math.floor(edge(band)));
    const end = Math.max(begin + 1, Math.floor(edge(band + 1)));
    let power = 0;
    for (let i = begin; i < end; i++) power = Math.max(power, real[i] ** 2 + imaginary[i] ** 2);
    const decibels = 10 * Math.log10(power / (SIZE / 4) ** 2 + 1e-12);
    return Math.max(0, Math.min(1, (decibels - QUIET) / (LOUD - QUIET)));
  });
}

/** The fast Fourier transform of Cooley and Tukey, in place; the length is a power of two. */
function fft(real, imaginary) {
  const size = real.length;
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j], real[i]];
      [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
    }
  }
  for (let length = 2; length <= size; length <<= 1) {
    for (let k = 0; k < length / 2; k++) {
      const cosine = Math.cos((2 * Math.PI * k) / length);
      const sine = -Math.sin((2 * Math.PI * k) / length);
      for (let i = k; i < size; i += length) {
        const j = i + length / 2;
        const re = real[j] * cosine - imaginary[j] * sine;
        const im = real[j] * sine + imaginary[j] * cosine;
        [real[j], imaginary[j]] = [real[i] - re, imaginary[i] - im];
        [real[i], imaginary[i]] = [real[i] + re, imaginary[i] + im];
      }
    }
  }
}
