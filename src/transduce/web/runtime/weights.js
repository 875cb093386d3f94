// The file of a model: tensors in the format of safetensors, and its description in the header.

const BLOCK = 16; // outputs in one block of the library's layout
const PADDED = 64; // outputs, and inputs in int8, are padded to a multiple of this

const STEP = 0.02; // of the weights, after which progress is told again

const padded = (count) => Math.ceil(count / PADDED) * PADDED;

export class ModelFile {
  /** tell: is told how much of the weights has been laid out, from 0 to 1. */
  constructor(buffer, tell = null) {
    this.tell = tell;
    this.told = 0;
    this.read = 0;
    const view = new DataView(buffer);
    let header;
    try {
      const length = Number(view.getBigUint64(0, true));
      header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
      this.start = 8 + length;
      this.description = JSON.parse(header.__metadata__.transduce_web);
    } catch {
      throw new Error(
        "This is not a model for the browser: write one with transduce export MODEL --to web.",
      );
    }
    this.buffer = buffer;
    this.header = header;
    const ends = Object.values(header).map((one) => one.data_offsets?.[1] ?? 0);
    const whole = this.start + ends.reduce((most, end) => Math.max(most, end), 0);
    if (buffer.byteLength < whole) {
      throw new Error(
        `The model file is cut off: it has ${buffer.byteLength} of ${whole} bytes. Copy or download it again.`,
      );
    }
  }

  tensor(name) {
    const { dtype, shape, data_offsets: [from, to] } = this.header[name];
    const bytes = this.buffer.slice(this.start + from, this.start + to);
    this.#count(to - from);
    return { shape, data: dtype === "I8" ? new Int8Array(bytes) : new Float32Array(bytes) };
  }

  #count(bytes) {
    this.read += bytes;
    const share = Math.min(1, this.read / (this.buffer.byteLength - this.start));
    if (!this.tell || share - this.told < STEP) return;
    this.told = share;
    this.tell(share);
  }

  /** Rows of a matrix, or a vector, as float32; int8 is dequantized. */
  floats(name, first = 0, last = undefined) {
    const { shape, data } = this.tensor(name);
    const width = shape.slice(1).reduce((product, size) => product * size, 1);
    const some = data.subarray(first * width, (last ?? shape[0]) * width);
    if (data instanceof Float32Array) return some;
    const scale = this.tensor(`${name}.scale`).data;
    const found = new Float32Array(some.length);
    for (let i = 0; i < some.length; i++) {
      found[i] = some[i] * scale[first + Math.floor(i / width)];
    }
    return found;
  }

  /** A large matrix of which few rows are read: a function from the number of a row to it. */
  rows(name) {
    const { shape: [, width], data } = this.tensor(name);
    const scale = data instanceof Int8Array ? this.tensor(`${name}.scale`).data : null;
    return (row) => {
      const found = Float32Array.from(data.subarray(row * width, (row + 1) * width));
      return scale ? found.map((value) => value * scale[row]) : found;
    };
  }

  /** A weight for products in the library, packed in int8 or float32: the address of a Weight. */
  product(runtime, ref) {
    if (!ref) return 0;
    const { weight, bias, rows: [first, last], int8 } = ref;
    const outputs = last - first;
    const inputs = this.tensor(weight).shape[1];
    const wide = padded(outputs);
    const bias_F = new Float32Array(wide);
    if (bias !== null) bias_F.set(this.floats(bias, first, last));
    const fields = { bias: runtime.newFloats(bias_F), outputs, inputs, threads: 1 };
    if (int8) Object.assign(fields, this.#int8(runtime, weight, first, outputs, inputs));
    else fields.numbers = this.#float32(runtime, weight, first, outputs, inputs);
    return runtime.newStructure("Weight", fields);
  }

  /** [outputs / 16][inputs][16]. */
  #float32(runtime, name, first, outputs, inputs) {
    const from = this.floats(name, first, first + outputs);
    const packed = new Float32Array(padded(outputs) * inputs);
    for (let f = 0; f < outputs; f++) {
      const block = Math.floor(f / BLOCK) * BLOCK * inputs + (f % BLOCK);
      for (let d = 0; d < inputs; d++) packed[block + d * BLOCK] = from[f * inputs + d];
    }
    return runtime.newFloats(packed);
  }

  /** [outputs / 16][inputs / 4][16][4], or in blocks of 8 outputs, and shifted, as the library wants
   * them; the sum of each output's levels, and its scale. */
  #int8(runtime, name, first, outputs, inputs) {
    const from = this.tensor(name).data.subarray(first * inputs, (first + outputs) * inputs);
    const scale = this.tensor(`${name}.scale`).data.subarray(first, first + outputs);
    const wide = padded(outputs);
    const deep = padded(inputs);
    const levels = runtime.allocate(wide * deep);
    const offset = runtime.call("weight_offset");
    const size = runtime.call("weight_block");
    const packed = new Int8Array(runtime.buffer, levels, wide * deep).fill(offset);
    const totals = new Int32Array(wide);
    for (let f = 0; f < outputs; f++) {
      const block = Math.floor(f / size) * size * deep + (f % size) * 4;
      let total = 0;
      for (let d = 0; d < inputs; d++) {
        const level = from[f * inputs + d];
        packed[block + (d >> 2) * 4 * size + (d & 3)] = level + offset;
        total += level;
      }
      totals[f] = total;
    }
    const scales = new Float32Array(wide);
    scales.set(scale);
    const at = runtime.allocate(4 * wide);
    runtime.ints(at, wide).set(totals);
    return { levels, totals: at, scale: runtime.newFloats(scales) };
  }

  norm(runtime, ref) {
    if (!ref) return 0;
    return runtime.newStructure("Norm", {
      weight: runtime.newFloats(this.floats(ref.weight)),
      bias: ref.bias === null ? 0 : runtime.newFloats(this.floats(ref.bias)),
      epsilon: ref.epsilon,
    });
  }
}
