// The data of the page: read from its JSON block, arrays inflated.

const KIND_TITLES = {
  cross: "Decoder to source (cross-attention)",
  tags: "Decoder to tags",
  decoder: "Decoder self-attention",
  encoder: "Encoder self-attention",
  pool: "Pooling",
  rollout: "Rollout through all layers",
  ctc: "CTC, its best path outlined",
  emission: "When each token is written",
};

/** Numbers that Python packed: {shape, scale, values}. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  const values = packed.bits === 8 ? new Uint8Array(buffer) : new Uint16Array(buffer);
  return { shape: packed.shape, scale: packed.scale, values };
}

/** A table of numbers of either sign; its largest is that of the numbers without their signs. */
async function unpackSigned(packed, rowNames, columnNames, about) {
  const { values, scale } = await unpack(packed);
  const numbers = Float32Array.from(values, (value) => ((2 * value) / scale - 1) * packed.signed);
  const table = new Table(numbers, rowNames, columnNames, about);
  table.signed = true;
  table.largest = packed.signed;
  return table;
}

/** The largest of some numbers, at least `least`. */
function largest(values, least = 0) {
  let found = least;
  for (const value of values) if (value > found) found = value;
  return found;
}

/** A table of numbers from 0 to 1 with names for its rows and columns. */
class Table {
  constructor(values, rowNames, columnNames, about) {
    this.values = values;
    this.rowNames = rowNames;
    this.columnNames = columnNames;
    this.rows = rowNames.length;
    this.columns = columnNames.length;
    this.about = about;
    this.largest = largest(values);
  }

  /** The largest weight of nine rows in ten is at most this: one sharp row does not pale the others. */
  get usual() {
    const tops = Array.from({ length: this.rows }, (_, row) => largest(this.row(row)));
    tops.sort((a, b) => a - b);
    return tops[Math.floor(0.9 * (tops.length - 1))] || this.largest;
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  row(row) {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }
}

/** All attention of one kind: layers of heads. */
class Group {
  constructor(kind, parts, axes) {
    this.kind = kind;
    this.title = KIND_TITLES[kind] || kind;
    this.parts = parts;
    this.rowNames = axes[parts[0].rows];
    this.columnNames = axes[parts[0].columns];
    this.ofSource = parts[0].columns === "source";
    this.layers = parts.length;
    this.kept = new Map();
  }

  heads(layer) {
    const some = layer < 0 ? this.parts : [this.parts[layer]];
    return Math.min(...some.map((part) => part.weights.shape[0]));
  }

  name(layer, head) {
    if (["rollout", "ctc", "emission"].includes(this.kind)) return this.title;
    const ofLayer = layer < 0 ? "mean of layers" : `layer ${layer}`;
    return `${this.title}, ${ofLayer}, ${head < 0 ? "mean of heads" : `head ${head}`}`;
  }

  /** The weights of a layer and a head; -1 is the mean of all. */
  table(layer, head) {
    const key = `${layer} ${head}`;
    if (!this.kept.has(key)) {
      if (this.kept.size > 24) this.kept.clear();
      const size = this.rowNames.length * this.columnNames.length;
      const sum = new Float32Array(size);
      let count = 0;
      for (const part of layer < 0 ? this.parts : [this.parts[layer]]) {
        const { values, scale, shape } = part.weights;
        for (let one = head < 0 ? 0 : head; one < (head < 0 ? shape[0] : head + 1); one++) {
          const start = one * size;
          for (let i = 0; i < size; i++) sum[i] += values[start + i] / scale;
          count++;
        }
      }
      for (let i = 0; i < size; i++) sum[i] /= count;
      this.kept.set(key, new Table(sum, this.rowNames, this.columnNames, this.name(layer, head)));
    }
    return this.kept.get(key);
  }
}

/** What was collected of one model and one input, ready to be drawn. */
async function openLook(raw) {
  for (const part of raw.attention) part.weights = await unpack(part.weights);
  for (const one of raw.cells) {
    const { values, scale } = await unpack(one.values);
    const numbers = Float32Array.from(values, (value) => value / scale);
    one.table = new Table(numbers, one.rows, raw.axes[one.columns], "recurrent cells");
  }
  for (const one of raw.attribution) {
    one.table = await unpackSigned(one.values, one.row_names, one.column_names, `attribution to the ${one.columns}`);
  }
  for (const one of raw.embeddings) {
    if (!one.positions?.values) continue;
    const { values, rows, columns } = one.positions;
    one.positions.table = await unpackSigned(values, rows, columns, "positional encoding");
  }
  if (raw.audio) raw.audio.picture = await unpack(raw.audio.spectrogram);
  if (raw.ctc) {
    const part = { rows: "target", columns: "source", weights: await unpack(raw.ctc.probabilities) };
    raw.ctc.group = new Group("ctc", [part], raw.axes);
  }
  return arranged(raw);
}

/** The same, with its arrays unpacked already. */
function arranged(raw) {
  raw.groups = Object.keys(KIND_TITLES)
    .map((kind) => raw.attention.filter((part) => part.kind === kind))
    .filter((parts) => parts.length)
    .map((parts) => new Group(parts[0].kind, parts, raw.axes));
  raw.audible = raw.times.length > 0;
  raw.label = raw.model;
  return raw;
}
