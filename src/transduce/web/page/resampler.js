// Sound at another rate, while it is recorded.

const ZEROS = 16; // of the sinc on each side

/** Blocks of samples at another rate, as they come: a windowed sinc, without seams. */
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    this.cut = Math.min(1, to / from); // of the frequencies, those that both rates have
    this.side = Math.ceil(ZEROS / this.cut);
    this.waiting = new Float32Array(this.side); // silence before the first sample
    this.place = this.side; // of the next result
  }

  push(blocks) {
    const whole = [this.waiting, ...blocks];
    const x = new Float32Array(whole.reduce((all, one) => all + one.length, 0));
    whole.reduce((at, one) => (x.set(one, at), at + one.length), 0);
    const count = Math.max(0, Math.ceil((x.length - this.side - this.place) / this.step));
    const found = Float32Array.from({ length: count }, (_, n) => this.#at(x, this.place + n * this.step));
    this.place += count * this.step;
    const used = Math.max(0, Math.floor(this.place) - this.side);
    this.waiting = x.slice(used);
    this.place -= used;
    return found;
  }

  #at(x, place) {
    const { side, cut } = this;
    let sum = 0;
    for (let i = Math.ceil(place - side); i < place + side; i++) {
      const turns = Math.PI * cut * (i - place);
      const window = 0.5 + 0.5 * Math.cos((Math.PI * (i - place)) / side);
      sum += x[i] * window * cut * (turns ? Math.sin(turns) / turns : 1);
    }
    return sum;
  }
}
