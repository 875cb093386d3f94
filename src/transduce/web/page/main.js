// The page: a text in, the output and what the model attends to out.

const PANELS = [labelsView, glanceView, headView, playbackView, nbestView, beamView];
const PAUSE = 250; // milliseconds after the last key before the model runs
const FAST = 1; // seconds; a slower model runs on a click only

/** The model in its worker; stopping ends the worker and starts another. */
class Engine {
  constructor(bytes, wasm, script) {
    this.files = { bytes, wasm };
    this.script = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.number = 0;
    this.waiting = new Map();
    this.start();
  }

  start() {
    this.worker = new Worker(this.script);
    this.worker.onmessage = ({ data }) => {
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
    this.loaded = this.ask("load", this.files);
  }

  ask(task, given) {
    return new Promise((done, failed) => {
      this.waiting.set(++this.number, { done, failed });
      this.worker.postMessage({ number: this.number, task, ...given });
    });
  }

  stop() {
    this.worker.terminate();
    for (const { failed } of this.waiting.values()) failed(new Stopped());
    this.waiting.clear();
    this.start();
  }
}

class Stopped extends Error {}

class WebPage {
  constructor(about) {
    this.about = about;
    this.root = document.getElementById("look");
    this.source = make("textarea", { id: "source", rows: 2, spellcheck: "false", autocomplete: "off", oninput: () => this.typed() });
    this.source.value = about.examples[0] ?? "";
    const beams = [...new Set([1, 2, 4, 8, about.beam])].sort((a, b) => a - b);
    this.beam = choice("Beam", "beam", beams.map((one) => [one, one === 1 ? "1 (greedy)" : String(one)]), about.beam, () => this.run());
    this.go = make("button", { type: "button", onclick: () => this.run() }, "Run");
    this.halt = make("button", { type: "button", disabled: true, onclick: () => this.engine.stop() }, "Stop");
    this.text = make("output", { id: "output", class: "text", for: "source", "aria-live": "polite" });
    this.how = make("p", { class: "note", role: "status" }, "Loading the model …");
    this.bar = make("div");
    this.views = make("main");
    const examples = about.examples.slice(0, 6).map((one) => make("button", { type: "button", class: "token", onclick: () => { this.source.value = one; this.run(); } }, one));
    this.root.append(
      make("header", {},
        make("div", { class: "top" }, make("h1", {}, about.title), button("◐", "Switch between light and dark", theme.toggle)),
        make("details", { class: "card" }, make("summary", {}, "About this model"), this.card())),
      make("div", { class: "ask" },
        make("label", { for: "source" }, about.asks), this.source,
        make("div", { class: "controls" }, about.searches ? this.beam : null, this.go, this.halt),
        examples.length ? make("div", { class: "tokens", "aria-label": "Examples" }, ...examples) : null,
        make("p", { class: "said" }, this.text), this.how),
      this.bar, this.views,
      make("footer", {}, "The model runs in this page. Nothing is sent anywhere."));
    document.addEventListener("keydown", (event) => this.pressed(event));
    this.seconds = 0;
  }

  card() {
    return make("dl", {}, ...this.about.card.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  }

  async open() {
    const began = performance.now();
    this.engine = new Engine(bytesOf("model"), [bytesOf("relaxed"), bytesOf("wasm")], document.getElementById("worker").textContent);
    await this.engine.loaded;
    this.how.textContent = `Ready after ${seconds((performance.now() - began) / 1000)}.`;
    await this.run();
    document.documentElement.dataset.ready = "yes";
  }

  typed() {
    clearTimeout(this.timer);
    if (this.seconds < FAST) this.timer = setTimeout(() => this.run(), PAUSE);
  }

  /** Run what is in the box; of several at once only the last is shown. */
  async run() {
    clearTimeout(this.timer);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const beam = Number(this.beam.querySelector("select").value);
    this.halt.disabled = false;
    try {
      await this.engine.loaded;
      if (turn !== this.turn) return;
      const found = await this.engine.ask("look", { text: this.source.value, options: { beam } });
      if (turn !== this.turn) return;
      this.seconds = found.seconds;
      this.text.textContent = found.look.text;
      const rate = Math.round(found.tokens / Math.max(found.seconds, 1e-4)).toLocaleString("en");
      const how = found.look.how ? `${found.look.how}; score ${fixed(found.look.score)}; ` : "";
      this.how.textContent = `${how}${seconds(found.seconds)}, ${rate} tokens a second.`;
      this.show(arranged(found.look));
    } catch (error) {
      this.how.textContent = error instanceof Stopped ? "Stopped." : `This did not work: ${error.message}`;
    } finally {
      if (turn === this.turn) this.halt.disabled = true;
    }
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
    const { tagName } = event.target;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run();
    if (event.ctrlKey || event.metaKey || event.altKey || ["TEXTAREA", "SELECT", "INPUT"].includes(tagName)) return;
    if (event.key === " " && tagName === "BUTTON") return;
    if (this.tabs?.active?.pressed?.(event, this.tabs.shared)) event.preventDefault();
  }
}

const seconds = (value) => (value < 1 ? `${Math.max(1, Math.round(1000 * value))} ms` : `${value.toFixed(1)} s`);

/** The bytes in an element of the page. */
function bytesOf(id) {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}

if (typeof WebAssembly === "undefined") {
  document.getElementById("look").textContent = "This browser cannot run the model: it has no WebAssembly.";
} else {
  const page = new WebPage(JSON.parse(document.getElementById("data").textContent));
  page.open().catch((error) => {
    page.how.textContent = `The model could not be opened: ${error.message}`;
  });
}
