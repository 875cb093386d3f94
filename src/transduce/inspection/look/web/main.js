// The page itself: inputs, tabs, keyboard, light and dark.

const VIEWS = [labelsView, glanceView, headView, playbackView, nbestView, beamView, audioView, attributionView, cellsView, embeddingView];

class Page {
  constructor(inputs) {
    this.inputs = inputs;
    this.root = document.getElementById("look");
    this.tabs = make("div", { role: "tablist", "aria-label": "Views", class: "tabs" });
    this.main = make("main");
    this.summary = make("div", { class: "summary" });
    const chosen = inputs.length > 1
      ? choice("Input", "input", inputs.map((one, place) => [place, one.looks[0].source.slice(0, 80) || "(empty)"]), 0, (place) => this.input(Number(place)))
      : null;
    this.root.append(
      make("header", {},
        make("div", { class: "top" },
          make("h1", {}, "transduce look"), chosen,
          button("◐", "Switch between light and dark (t)", () => theme.set(theme.name === "dark" ? "light" : "dark"))),
        this.summary, this.tabs),
      this.main,
      make("footer", {}, "Keys: 1 to 9 views, t light or dark. Playback: ← → steps, space plays. Head view: [ ] head, { } layer. Arrows in a focused map read its cells."));
    document.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.active = null;
    this.input(0);
  }

  /** Show another input. */
  input(place) {
    this.active?.view.left?.(this.shared);
    redraws.clear();
    this.looks = this.inputs[place].looks;
    this.shared = { open: (panel, kind, layer, head) => this.open(panel, kind, layer, head) };
    this.summarise();
    const before = this.active?.view.id;
    this.views = VIEWS.filter((view) => view.when(this.looks)).map((view) => ({ view, element: null }));
    this.tabs.replaceChildren(...this.views.map((one, number) => {
      one.tab = make("button", {
        type: "button", role: "tab", id: `tab-${one.view.id}`, "aria-controls": `view-${one.view.id}`,
        // The mouse has chosen: from here the arrow keys are the view's own.
        onclick: (event) => { this.show(one); if (event.detail) one.element.focus({ preventScroll: true }); },
        onkeydown: (event) => this.along(event, number),
      }, one.view.title);
      return one.tab;
    }));
    this.main.replaceChildren();
    this.active = null;
    this.show(this.views.find((one) => one.view.id === before) || this.views[0]);
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

  show(one) {
    if (!one || this.active === one) return;
    this.active?.view.left?.(this.shared);
    if (!one.element) {
      one.element = make("div", { role: "tabpanel", tabindex: "-1", id: `view-${one.view.id}`, "aria-labelledby": `tab-${one.view.id}` }, one.view.build(this.looks, this.shared));
      this.main.append(one.element);
    }
    this.active = one;
    for (const other of this.views) {
      const chosen = other === one;
      other.tab.setAttribute("aria-selected", String(chosen));
      other.tab.tabIndex = chosen ? 0 : -1;
      if (other.element) other.element.hidden = !chosen;
    }
    one.view.shown?.(this.shared);
  }

  /** Enlarge a head of one of the panels. */
  open(panel, kind, layer, head) {
    this.show(this.views.find((one) => one.view.id === "head"));
    this.shared.heads[panel].chooser.choose(kind, layer, head);
    this.active.tab.focus();
  }

  /** Arrow keys along the tabs. */
  along(event, number) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const next = this.views[(number + move + this.views.length) % this.views.length];
    this.show(next);
    next.tab.focus();
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName, type } = event.target;
    if (tagName === "SELECT" || tagName === "AUDIO" || (tagName === "INPUT" && type === "range" && event.key.startsWith("Arrow"))) return;
    if (event.key === " " && tagName === "BUTTON") return;
    if (event.key === "t") theme.set(theme.name === "dark" ? "light" : "dark");
    else if (/^[1-9]$/.test(event.key)) this.show(this.views[Number(event.key) - 1]);
    else if (!this.active.view.pressed?.(event, this.shared)) return;
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
    this.active.view.shown?.(this.shared);
  }
}

async function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const input of data.inputs) {
    for (const look of input.looks) await openLook(look);
    const names = input.looks.map((look) => look.model);
    input.looks.forEach((look, place) => {
      look.label = names.indexOf(look.model) !== names.lastIndexOf(look.model) ? `${look.model} (${place + 1})` : look.model;
    });
  }
  new Page(data.inputs);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  document.getElementById("look").textContent = `This page could not be drawn: ${error.message}`;
  throw error;
});
