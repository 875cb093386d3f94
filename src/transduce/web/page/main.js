// The page: a text or a recording in, the output and what the model attends to out.

const PANELS = [labelsView, glanceView, headView, playbackView, nbestView, beamView];
const PAUSE = 250; // milliseconds after the last key before the model runs
const FAST = 1; // seconds; a slower model runs on a click only
const AT_ONCE = 1 << 22; // letters of base64 that are decoded at once: a multiple of four

/** The model in its worker; stopping ends the worker and starts another. */
class Engine {
  /** tell: is told how much of the model has been loaded, from 0 to 1. */
  constructor(bytes, wasm, script, tell) {
    this.files = { bytes, wasm };
    this.tell = tell;
    this.script = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.number = 0;
    this.waiting = new Map();
    this.start();
  }

  start() {
    this.worker = new Worker(this.script);
    this.worker.onmessage = ({ data }) => {
      if (data.progress !== undefined) return this.tell(data.progress);
      const { done, failed } = this.waiting.get(data.number);
      this.waiting.delete(data.number);
      if (data.error === undefined) done(data.result);
      else failed(new Error(data.error));
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const { failed } of this.waiting.values()) failed(new Error(event.message));
      this.waiting.clear();
    };
    this.loading = true;
    this.loaded = this.#post("load", this.files).then(() => { this.loading = false; });
  }

  /** The answer of the model, once it is loaded. */
  async ask(task, given) {
    await this.loaded;
    return this.#post(task, given);
  }

  #post(task, given) {
    return new Promise((done, failed) => {
      this.waiting.set(++this.number, { done, failed });
      this.worker.postMessage({ number: this.number, task, ...given });
    });
  }

  stop() {
    if (this.loading) return; // nothing runs yet
    this.worker.terminate();
    for (const { failed } of this.waiting.values()) failed(new Stopped());
    this.waiting.clear();
    this.start();
  }
}

class Stopped extends Error {}

/** Numbers that sampling is asked with: [name, label, value, attributes]. */
const SAMPLING = [
  ["temperature", "Temperature", 1, { min: 0.05, max: 5, step: 0.05 }],
  ["topK", "Top k (0: all)", 0, { min: 0, step: 1 }],
  ["topP", "Top p", 1, { min: 0.01, max: 1, step: 0.01 }],
];

class WebPage {
  constructor(about) {
    this.about = about;
    this.root = document.getElementById("look");
    this.asked = about.audio ? new RecordingInput(about, this) : new TextInput(about, this);
    const beams = [...new Set([1, 2, 4, 8, about.beam])].sort((a, b) => a - b);
    const ways = beams.map((one) => [one, one === 1 ? "greedy" : `beam of ${one}`]);
    if (about.samples) ways.push(["sample", "sampling"]);
    this.way = choice("Search", "beam", ways, about.beam, () => { this.sampling.hidden = this.options().beam !== undefined; this.run(); });
    this.sampling = make("span", { class: "sampling" }, ...SAMPLING.map(([name, label, value, limits]) =>
      make("label", {}, `${label} `, make("input", { type: "number", name, value, ...limits, onchange: () => this.run() }))));
    this.sampling.hidden = true;
    this.go = make("button", { type: "button", "aria-keyshortcuts": "Control+Enter", title: "Ctrl+Enter", onclick: () => this.run() }, "Run");
    this.halt = make("button", { type: "button", "aria-keyshortcuts": "Escape", title: "Escape", disabled: true, onclick: () => this.stop() }, "Stop");
    this.text = make("output", { id: "output", class: "text", for: "source", "aria-live": "polite" });
    this.how = make("p", { class: "note", role: "status" }, "Loading the model …");
    this.loading = make("progress", { max: 1, value: 0, "aria-label": "Loading the model" });
    this.warning = make("p", { class: "warning", role: "alert", hidden: true });
    this.bar = make("div");
    this.views = make("main");
    this.root.replaceChildren(
      make("header", {},
        make("div", { class: "top" }, make("h1", {}, about.title), button("◐", "Switch between light and dark", theme.toggle)),
        make("details", { class: "card" }, make("summary", {}, "About this model"), this.card())),
      make("div", { class: "ask" },
        ...this.asked.elements(),
        make("div", { class: "controls" }, about.searches ? this.way : null, about.searches ? this.sampling : null, this.go, this.halt),
        ...this.asked.examples(),
        make("p", { class: "said" }, this.text), this.warning, this.how, this.loading),
      this.bar, this.views,
      make("footer", {}, "The model runs in this page. Nothing is sent anywhere."));
    document.addEventListener("keydown", (event) => this.pressed(event));
    this.seconds = 0;
    this.turn = 0;
    this.ready = new Promise((done) => { this.loaded = done; });
  }

  /** The tags, and how to search or to sample. */
  options() {
    const way = this.way.querySelector("select").value;
    if (way !== "sample") return { ...this.asked.tags.option, beam: Number(way) };
    const numbers = SAMPLING.map(([name]) => [name, Number(this.sampling.querySelector(`[name=${name}]`).value)]);
    return { ...this.asked.tags.option, sample: true, ...Object.fromEntries(numbers) };
  }

  card() {
    return make("dl", {}, ...this.about.card.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  }

  async open() {
    const began = performance.now();
    const [bytes, ...wasm] = [await bytesOf("model", (share) => this.told(share / 2)), await bytesOf("relaxed"), await bytesOf("wasm")];
    this.engine = new Engine(bytes, wasm, document.getElementById("worker").textContent, (share) => this.told((1 + share) / 2));
    await this.engine.loaded;
    this.loaded();
    document.documentElement.dataset.loaded = "yes";
    this.loading.remove();
    this.how.textContent = `Ready after ${seconds((performance.now() - began) / 1000)}.`;
    await this.run();
    document.documentElement.dataset.ready = "yes";
  }

  told(share) {
    if (!this.loading.isConnected) return; // a run was stopped, and the model is loaded again
    this.loading.value = share;
    this.how.textContent = `Loading the model: ${Math.round(100 * share)} %`;
  }

  changed() {
    clearTimeout(this.timer);
    if (this.seconds < FAST) this.timer = setTimeout(() => this.run(), PAUSE);
  }

  /** Run what was given. One run at a time: of those that are asked for meanwhile, only the last. */
  async run() {
    clearTimeout(this.timer);
    const source = this.asked.source();
    if (source === null) return;
    const turn = ++this.turn;
    if (this.about.asks === "Input" && typeof source === "string" && !source.trim()) return this.empty();
    this.halt.disabled = false;
    let slow;
    try {
      await this.ready;
      const waited = () => { if (turn === this.turn) this.how.textContent = "Running …"; };
      slow = setTimeout(waited, this.about.audio || this.seconds >= FAST ? 0 : PAUSE);
      await this.running;
      await this.engine.loaded; // again, after a stop
      if (turn !== this.turn) return;
      const answer = this.engine.ask("look", { source, options: this.options() });
      this.running = answer.catch(() => {});
      const found = await answer;
      if (turn !== this.turn) return;
      this.seconds = found.seconds;
      this.text.textContent = found.look.text;
      const rate = Math.round(found.tokens / Math.max(found.seconds, 1e-4)).toLocaleString("en");
      const how = found.look.how ? `${found.look.how}; score ${fixed(found.look.score)}; ` : "";
      this.how.textContent = `${how}${seconds(found.seconds)}, ${rate} tokens a second.`;
      this.warn(found.look.warning);
      this.show(arranged(found.look));
    } catch (error) {
      if (turn !== this.turn || error instanceof Stopped) return;
      this.text.textContent = "";
      this.how.textContent = `This did not work: ${error.message}`;
    } finally {
      clearTimeout(slow);
      if (turn === this.turn) this.idle();
    }
  }

  /** Nothing is given, and nothing is shown. */
  empty() {
    this.idle();
    this.text.textContent = "";
    this.how.textContent = "Type an input: the model runs when you pause.";
    this.warn("");
    this.tabs?.leave();
    this.tabs = null;
    this.bar.replaceChildren();
    this.views.replaceChildren();
  }

  stop() {
    this.turn += 1;
    this.engine?.stop();
    this.idle();
    this.how.textContent = "Stopped.";
  }

  /** There is nothing to stop: the focus would be lost with the button. */
  idle() {
    if (document.activeElement === this.halt) this.go.focus();
    this.halt.disabled = true;
  }

  warn(sentence) {
    this.warning.textContent = sentence;
    this.warning.hidden = !sentence;
  }

  show(look) {
    const before = this.tabs?.active;
    this.tabs?.leave();
    redraws.clear();
    this.tabs = new Tabs(PANELS, [look]);
    this.bar.replaceChildren(this.tabs.list);
    this.views.replaceChildren(this.tabs.body);
    this.tabs.show(before?.id ?? "head");
  }

  pressed(event) {
    const { tagName, id } = event.target;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || id === "tags")) this.run();
    if (event.key === "Escape" && !this.halt.disabled) this.stop();
    if (event.ctrlKey || event.metaKey || event.altKey || ["TEXTAREA", "SELECT", "INPUT"].includes(tagName)) return;
    if (event.key === " " && tagName === "BUTTON") return;
    if (this.tabs?.active?.pressed?.(event, this.tabs.shared)) event.preventDefault();
  }
}

const seconds = (value) => (value < 1 ? `${Math.max(1, Math.round(1000 * value))} ms` : `${value.toFixed(1)} s`);

/** The bytes in an element of the page; some at a time, so that the page can say how far it is. */
async function bytesOf(id, tell = null) {
  const text = document.getElementById(id).textContent;
  const bytes = new Uint8Array(atob(text.slice(-4)).length + (3 * (text.length - 4)) / 4);
  let at = 0;
  for (let start = 0; start < text.length; start += AT_ONCE) {
    const letters = atob(text.slice(start, start + AT_ONCE));
    for (let i = 0; i < letters.length; i++) bytes[at++] = letters.charCodeAt(i);
    if (!tell) continue;
    tell(at / bytes.length);
    await new Promise((done) => setTimeout(done));
  }
  return bytes.buffer;
}

const OLD = "This browser cannot run the model: it needs WebAssembly with SIMD (Chrome 91, Firefox 89, Safari 16.4 or later).";

if (typeof WebAssembly === "undefined" || typeof Worker === "undefined") {
  document.getElementById("look").textContent = OLD;
} else {
  const page = new WebPage(JSON.parse(document.getElementById("data").textContent));
  page.open().catch((error) => {
    page.loading.remove();
    page.how.textContent = `The model could not be opened: ${error.message}`;
  });
}
