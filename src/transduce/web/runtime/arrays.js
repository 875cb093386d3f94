// Rows of numbers: products, norms and softmax in the C library, and small things beside it.

export const BEST = -1; // the fastest kernel

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** x Wᵀ + b of some rows; allocates in the present scope. */
export function multiply(runtime, weight, x, rows) {
  const inputs = runtime.get("Weight", weight, "inputs");
  const outputs = runtime.get("Weight", weight, "outputs");
  const y = runtime.allocate(4 * rows * outputs);
  const size = Number(runtime.call("product_workspace", BigInt(rows), BigInt(inputs)));
  const workspace = runtime.allocate(size);
  runtime.call("multiply", weight, x, BigInt(rows), 0, 0, y, workspace, BEST);
  return y;
}

/** x Wᵀ + b of rows. */
export function linear(runtime, weight, x, rows) {
  return runtime.scoped(() => {
    const outputs = runtime.get("Weight", weight, "outputs");
    const y = multiply(runtime, weight, runtime.newFloats(x), rows);
    return runtime.floats(y, rows * outputs).slice();
  });
}

export function normalised(runtime, norm, x, rows) {
  return runtime.scoped(() => {
    const address = runtime.newFloats(x);
    runtime.call("normalise", norm, address, BigInt(rows), BigInt(x.length / rows), address);
    return runtime.floats(address, x.length).slice();
  });
}

/** The activation of hidden layers; gated, of twice as many columns. */
export function activated(runtime, x, rows, { activation, gated }) {
  return runtime.scoped(() => {
    const hidden = x.length / rows / (gated ? 2 : 1);
    const address = runtime.newFloats(x);
    runtime.call("activate", address, BigInt(rows), BigInt(hidden), activation, Number(gated));
    return runtime.floats(address, rows * hidden).slice();
  });
}

/** Log-probabilities of rows, to an address. */
export function writeLogProbabilities(runtime, head, x, rows, address) {
  const size = runtime.call("product_workspace", BigInt(rows), BigInt(x.length / rows));
  const workspace = runtime.allocate(Number(size));
  runtime.call("find_log_probs", head, runtime.newFloats(x), BigInt(rows), address, workspace, BEST);
}

/** a ⊗ σ(b) of the two halves of each row. */
export function glu(x, rows) {
  const width = x.length / rows / 2;
  const found = new Float32Array(rows * width);
  for (let r = 0; r < rows; r++) {
    for (let i = 0; i < width; i++) {
      found[r * width + i] = x[2 * r * width + i] * sigmoid(x[(2 * r + 1) * width + i]);
    }
  }
  return found;
}

export const sum = (x, y, by = 1) => x.map((value, i) => value + by * y[i]);

/** softmax of query · key of some rows. */
export function dotAttention(query, keys, length) {
  const width = query.length;
  const scores = new Float32Array(length);
  for (let s = 0; s < length; s++) {
    let total = 0;
    for (let i = 0; i < width; i++) total += query[i] * keys[s * width + i];
    scores[s] = total;
  }
  const top = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = scores.map((score) => Math.exp(score - top));
  const all = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / all);
}

/** Rows of several matrices, concatenated. */
export function sideBySide(parts, rows) {
  const widths = parts.map((part) => part.length / rows);
  const whole = widths.reduce((a, b) => a + b, 0);
  const found = new Float32Array(rows * whole);
  for (let r = 0; r < rows; r++) {
    let at = r * whole;
    parts.forEach((part, i) => {
      found.set(part.subarray(r * widths[i], (r + 1) * widths[i]), at);
      at += widths[i];
    });
  }
  return found;
}

export function reversed(states, rows) {
  const width = states.length / rows;
  const found = new Float32Array(states.length);
  for (let r = 0; r < rows; r++) {
    found.set(states.subarray(r * width, (r + 1) * width), (rows - 1 - r) * width);
  }
  return found;
}

export function meanOf(states, length) {
  const width = states.length / length;
  const mean = new Float32Array(width);
  states.forEach((value, i) => (mean[i % width] += value / length));
  return mean;
}

/** Numbers, and others after them. */
export function concatenated(before, after) {
  const found = new Float32Array(before.length + after.length);
  found.set(before);
  found.set(after, before.length);
  return found;
}
