// What was run, kept in this browser only.

import { make } from "../look/look.js";

const NAME = "transduce-history";
const MOST = 50;
const list = document.getElementById("history");
const note = document.getElementById("history-note");
const clear = document.getElementById("clear");

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(NAME) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function write(entries) {
  try {
    localStorage.setItem(NAME, JSON.stringify(entries));
  } catch { /* the storage is full or off: then there is no history */ }
}

export class History {
  constructor(chosen) {
    this.chosen = chosen;
    clear.addEventListener("click", () => { localStorage.removeItem(NAME); this.show(); });
    this.show();
  }

  add(entry) {
    const others = read().filter((one) => one.model !== entry.model || one.input !== entry.input);
    write([entry, ...others].slice(0, MOST));
    this.show();
  }

  show() {
    const entries = read();
    list.replaceChildren(...entries.map((entry) => make("li", {}, make("button", {
      type: "button", disabled: Boolean(entry.audio), onclick: () => this.chosen(entry), title: entry.audio ? "A recording: it was not kept" : "Run it again",
    }, make("span", {}, String(entry.input)), make("span", {}, String(entry.output)), make("span", { class: "model" }, String(entry.model))))));
    clear.hidden = !entries.length;
    note.textContent = entries.length ? "Kept in this browser only." : "Nothing yet. It is kept in this browser only.";
  }
}
