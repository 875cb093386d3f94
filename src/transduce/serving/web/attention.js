// Attention lines between source and output, one row more for each token.

import { Lines, Table, redraws } from "../look/look.js";

const section = document.getElementById("attention");
const visible = (token) => token.replace(/[ ▁]/g, "␣").replaceAll("\n", "↵");

export class GrowingAttention {
  constructor() {
    this.lines = new Lines("Attention between source and output");
    section.append(this.lines.element);
    this.clear();
  }

  clear() {
    this.source = [];
    this.rows = [];
    this.names = [];
    section.hidden = true;
    redraws.add(this.lines.refresh);
  }

  add({ token, attention, source_tokens: source }) {
    if (source) this.source = source.map(visible);
    if (!attention || attention.length !== this.source.length) return;
    this.rows.push(attention);
    this.names.push(visible(token));
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  draw() {
    if (!this.rows.length) return;
    section.hidden = false;
    section.dataset.rows = this.rows.length;
    this.lines.show(new Table(Float32Array.from(this.rows.flat()), this.names, this.source, "Attention to the source, mean of layers and heads"));
  }
}
