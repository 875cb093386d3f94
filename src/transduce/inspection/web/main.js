// The page itself: inputs, tabs, keyboard, light and dark.

const VIEWS = [labelsView, audioView, glanceView, headView, playbackView, nbestView, beamView, attributionView, cellsView, embeddingView];

class Page {
  constructor(inputs) {
    this.inputs = inputs;
    this.root = document.getElementById("look");
    this.main = make("main");
    this.summary = make("div", { class: "summary" });
    const chosen = inputs.length > 1
      ? choice("Input", "input", inputs.map((one, place) => [place, one.looks[0].source.slice(0, 80) || "(empty)"]), 0, (place) => this.input(Number(place)))
      : null;
    this.bar = make("div");
    this.root.append(
      make("header", {},
        make("div", { class: "top" },
          make("h1", {}, "transduce look"), chosen, button("◐", "Switch between light and dark (t)", theme.toggle)),
        this.summary, this.bar),
      this.main,
      make("footer", {}, "Keys: 1 to 9 views, t light or dark. Playback: ← → steps, space plays. Head view: [ ] head, { } layer. Arrows in a focused map read its cells."));
    document.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.input(0);
  }

  /** Show another input. */
  input(place) {
    const before = this.tabs?.active;
    this.tabs?.leave();
    redraws.clear();
    this.looks = this.inputs[place].looks;
    this.summarise();
    this.tabs = new Tabs(VIEWS, this.looks);
    this.bar.replaceChildren(this.tabs.list);
    this.main.replaceChildren(this.tabs.body);
    this.tabs.show(before?.id);
  }

  summarise() {
    const first = this.looks[0];
    const rows = [["Input", first.source]];
    for (const look of this.looks) {
      const about = [look.how, look.score === null ? "" : look.labels.length ? `probability ${percent(look.score)}` : `score ${fixed(look.score)}`].filter(Boolean).join(", ");
      rows.push([look.label, look.text, about]);
      if (look.warning) rows.push(["Note", look.warning]);
    }
    this.summary.replaceChildren(make("dl", {}, ...rows.flatMap(([name, text, about]) => [
      make("dt", {}, name), make("dd", {}, make("span", { class: "text" }, text), about ? make("small", {}, about) : null),
    ])));
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName, type } = event.target;
    if (tagName === "SELECT" || tagName === "AUDIO" || (tagName === "INPUT" && type === "range" && event.key.startsWith("Arrow"))) return;
    if (event.key === " " && tagName === "BUTTON") return;
    if (event.key === "t") theme.toggle();
    else if (/^[1-9]$/.test(event.key)) { if (this.tabs.views[event.key - 1]) this.tabs.show(this.tabs.views[event.key - 1].id); }
    else if (!this.tabs.active.pressed?.(event, this.tabs.shared)) return;
    event.preventDefault();
  }

  /** On paper it is light, and nothing scrolls. */
  print(begins) {
    theme.printing = begins;
    if (begins) {
      this.before = document.documentElement.dataset.theme;
      theme.set("light");
    } else if (this.before) theme.set(this.before);
    else {
      delete document.documentElement.dataset.theme;
      theme.changed();
    }
    this.tabs.shown();
  }
}

async function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const input of data.inputs) {
    for (const look of input.looks) await openLook(look);
    const names = input.looks.map((look) => look.model);
    input.looks.forEach((look, place) => {
      if (names.indexOf(look.model) !== names.lastIndexOf(look.model)) look.label = `${look.model} (${place + 1})`;
    });
  }
  new Page(data.inputs);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  document.getElementById("look").textContent = `This page could not be drawn: ${error.message}`;
  throw error;
});
