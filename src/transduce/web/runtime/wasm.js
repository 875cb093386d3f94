// The C library as WebAssembly: its memory, its structures and its functions.

import { STRUCTURES } from "./structures.js";

const SIZES = { i32: 4, f32: 4, pointer: 4, i64: 8 };

/** Sizes and offsets as C lays them out for WebAssembly: each field at a multiple of its size. */
function laidOut() {
  const layouts = {};
  for (const [name, fields] of Object.entries(STRUCTURES)) {
    const layout = { offsets: {}, types: fields, align: 1, size: 0 };
    for (const [field, type] of Object.entries(fields)) {
      const size = SIZES[type] ?? layouts[type].size;
      const align = SIZES[type] ?? layouts[type].align;
      layout.size = Math.ceil(layout.size / align) * align;
      layout.offsets[field] = layout.size;
      layout.size += size;
      layout.align = Math.max(layout.align, align);
    }
    layout.size = Math.ceil(layout.size / layout.align) * layout.align;
    layouts[name] = layout;
  }
  return layouts;
}

export const LAYOUTS = laidOut();

/** The library and its memory. Addresses are plain numbers; `scoped` frees what it allocates. */
export class Runtime {
  constructor(instance) {
    this.exports = instance.exports;
    this.allocated = null;
    for (const [table, names] of [
      ["layout", ["Weight", "Norm", "Sublayer", "Stack", "Step", "Sources"]],
      [
        "recurrent_layout",
        ["Cell", "Recurrent", "Sequences", "Attention", "RecurrentDecoder", "RecurrentStart", "RecurrentStep"],
      ],
      ["copying_layout", ["Copying"]],
      ["slots_layout", ["Slots"]],
    ]) {
      const count = Number(this.call(`${table}_length`));
      const address = this.exports[`${table}_web`].value;
      const found = Array.from(new BigInt64Array(this.buffer, address, count), Number);
      const expected = names.flatMap((name) => [
        LAYOUTS[name].size,
        ...Object.values(LAYOUTS[name].offsets),
      ]);
      if (found.join() !== expected.join()) {
        throw new Error("The WebAssembly file is not of this version: build it again (make wasm).");
      }
    }
  }

  /** The first of some files of the library that this browser can run. */
  static async create(files) {
    const file = files.find((one) => WebAssembly.validate(one));
    if (!file) {
      throw new Error(
        "This browser cannot run the model: it needs WebAssembly with SIMD " +
          "(Chrome 91, Firefox 89, Safari 16.4 or later).",
      );
    }
    // The allocator asks for random numbers, and is content with zeros.
    const asked = { wasi_snapshot_preview1: { random_get: () => 0 } };
    // A pending compilation does not keep Node's event loop alive (nodejs/node#36616), and what Node
    // then waits for may wait for Node: a timer keeps it from that.
    const timer = setInterval(() => {}, 1000);
    try {
      const { instance } = await WebAssembly.instantiate(file, asked);
      return new Runtime(instance);
    } finally {
      clearInterval(timer);
    }
  }

  get buffer() {
    return this.exports.memory.buffer;
  }

  call(name, ...values) {
    return this.exports[`${name}_web`](...values);
  }

  /** Memory of so many bytes, aligned to 64 as the library's buffers must be. */
  allocate(bytes) {
    const address = this.exports.malloc(Math.max(bytes, 1) + 64);
    if (!address) throw new Error("The model is too large for the memory of this page.");
    if (this.allocated) this.allocated.push(address);
    return Math.ceil(address / 64) * 64;
  }

  /** The result of f; what it allocates is freed. */
  scoped(f) {
    const outer = this.allocated;
    this.allocated = [];
    try {
      return f();
    } finally {
      for (const address of this.allocated) this.exports.free(address);
      this.allocated = outer;
    }
  }

  /** How much the present scope has allocated; for `release`. */
  get mark() {
    return this.allocated.length;
  }

  /** Free what the present scope has allocated since a mark. */
  release(mark) {
    for (const address of this.allocated.splice(mark)) this.exports.free(address);
  }

  // Views of memory are made anew for each use: memory that grows has another buffer.

  floats(address, count) {
    return new Float32Array(this.buffer, address, count);
  }

  ints(address, count) {
    return new Int32Array(this.buffer, address, count);
  }

  bytes(address, count) {
    return new Uint8Array(this.buffer, address, count);
  }

  /** An int64 array; its numbers are below 2^31. */
  setLongs(address, values) {
    const view = this.ints(address, 2 * values.length);
    values.forEach((value, i) => {
      view[2 * i] = value;
      view[2 * i + 1] = value < 0 ? -1 : 0;
    });
    return address;
  }

  longs(address, count) {
    const view = this.ints(address, 2 * count);
    return Array.from({ length: count }, (_, i) => view[2 * i]);
  }

  newFloats(given) {
    // A view of this memory would be lost where it grows.
    const values = given.buffer === this.buffer ? given.slice() : given;
    const address = this.allocate(4 * values.length);
    this.floats(address, values.length).set(values);
    return address;
  }

  newLongs(values) {
    return this.setLongs(this.allocate(8 * values.length), values);
  }

  newPointers(addresses) {
    const address = this.allocate(4 * addresses.length);
    this.ints(address, addresses.length).set(addresses);
    return address;
  }

  /** A structure in memory, or an array of them; fields that are not given are zero. */
  newStructures(name, all) {
    const { size } = LAYOUTS[name];
    const address = this.allocate(size * all.length);
    this.bytes(address, size * all.length).fill(0);
    all.forEach((fields, i) => this.set(name, address + i * size, fields));
    return address;
  }

  newStructure(name, fields) {
    return this.newStructures(name, [fields]);
  }

  /** Set fields of a structure. A field that is itself a structure is given by its address. */
  set(name, address, fields) {
    const { offsets, types } = LAYOUTS[name];
    const view = new DataView(this.buffer);
    for (const [field, value] of Object.entries(fields)) {
      const at = address + offsets[field];
      const type = types[field];
      if (type === undefined) throw new Error(`${name} has no field ${field}`);
      if (type === "f32") view.setFloat32(at, value, true);
      else if (type === "i64") {
        view.setInt32(at, Number(value), true);
        view.setInt32(at + 4, value < 0 ? -1 : 0, true);
      } else if (type in SIZES) view.setInt32(at, Number(value), true);
      else if (value) {
        const size = LAYOUTS[type].size;
        this.bytes(at, size).set(this.bytes(value, size));
      }
    }
    return address;
  }

  get(name, address, field) {
    return new DataView(this.buffer).getInt32(address + LAYOUTS[name].offsets[field], true);
  }
}
