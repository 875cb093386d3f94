// transduce in a browser or in Node: const model = await load("model.bin"); model.run("knight").text

import { Model } from "./model.js";

export { Model };

// A module with one instruction of relaxed SIMD: a browser that has them takes it.
const RELAXED = Uint8Array.from([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 16, 1, 14, 0, 65, 0, 253, 15, 65, 0,
  253, 15, 253, 128, 2, 26, 11,
]);

/** A model from a file: load("model.bin"), in a browser or in Node. */
export async function load(place) {
  const relaxed = WebAssembly.validate(RELAXED);
  const name = relaxed ? "./transduce-relaxed.wasm" : "./transduce.wasm";
  const wasm = await bytesOf(new URL(name, import.meta.url));
  return Model.create(await bytesOf(await urlOf(place)), [wasm]);
}

/** A path is taken from the page, or in Node from the current folder. */
async function urlOf(place) {
  if (typeof process === "undefined" || /^\w+:/.test(String(place))) {
    return new URL(place, globalThis.document?.baseURI ?? import.meta.url);
  }
  const { pathToFileURL } = await import("node:url");
  return pathToFileURL(String(place));
}

async function bytesOf(url) {
  if (url.protocol === "file:" && typeof process !== "undefined") {
    const { readFile } = await import("node:fs/promises");
    const found = await readFile(url);
    return found.buffer.slice(found.byteOffset, found.byteOffset + found.byteLength);
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url} cannot be read: ${answer.status}.`);
  return answer.arrayBuffer();
}
