// Decoding, step by step: attention, the chosen token, the alternatives.

const playbackView = {
  id: "playback",
  title: "Playback",
  when: (looks) => looks.some((look) => look.steps.length && !look.labels.length && look.task !== "tag"),
  build(looks, shared) {
    const player = new Player(looks);
    shared.player = player;
    return player.element;
  },
  shown(shared) { shared.player.update(); },
  left(shared) { shared.player.stop(); },
  pressed(event, shared) {
    const { player } = shared;
    const moves = { ArrowLeft: player.step - 1, ArrowRight: player.step + 1, Home: 0, End: player.last };
    if (event.key in moves) player.go(moves[event.key]);
    else if (event.key === " ") player.toggle();
    else return false;
    return true;
  },
};

class Player {
  constructor(looks) {
    this.last = Math.max(...looks.map((look) => look.steps.length)) - 1;
    this.step = Math.min(this.last, Math.max(...looks.map((look) => look.prompt || 0)));
    this.timer = null;
    this.speed = 1;
    this.playButton = button("▶ Play", "Play or pause (space)", () => this.toggle());
    this.range = make("input", {
      type: "range", name: "step", min: 0, max: this.last, step: 1, value: this.step,
      "aria-label": "Step", oninput: () => this.go(Number(this.range.value)),
    });
    this.where = make("output", { class: "where" });
    const speeds = choice("Speed", "speed", [["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["4", "4×"]], "1", (value) => {
      this.speed = Number(value);
      if (this.timer) { this.stop(); this.play(); }
    });
    this.panels = [];
    this.element = make("div", {},
      make("div", { class: "controls" },
        button("◀", "One step back (left arrow)", () => this.go(this.step - 1)),
        this.playButton,
        button("▶|", "One step on (right arrow)", () => this.go(this.step + 1)),
        this.range, this.where, speeds),
      panels(looks, (look, place) => {
        this.panels[place] = new StepPanel(look, (step) => this.go(step));
        return this.panels[place].element;
      }));
  }

  go(step) {
    this.step = Math.max(0, Math.min(this.last, step));
    this.update();
  }

  update() {
    this.range.value = this.step;
    this.where.textContent = `step ${this.step + 1} of ${this.last + 1}`;
    for (const panel of this.panels) panel.update(this.step);
  }

  toggle() { if (this.timer) this.stop(); else this.play(); }

  play() {
    if (this.step >= this.last) this.go(0);
    this.playButton.textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      if (this.step >= this.last) this.stop();
      else this.go(this.step + 1);
    }, 900 / this.speed);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = "▶ Play";
  }
}

class StepPanel {
  constructor(look, go) {
    this.look = look;
    this.step = 0;
    const groups = look.groups.filter((group) => group.rowNames === look.axes.target);
    this.chooser = groups.length ? new Chooser(groups, () => this.update(this.step)) : null;
    this.said = look.steps.map((step, place) => {
      const bar = make("span", { class: "probability" });
      const share = Math.exp(step.log_probability ?? -99);
      bar.style.height = `${Math.round(100 * share)}%`;
      return make("button", {
        type: "button", class: place < (look.prompt || 0) ? "token prompt" : "token", title: `step ${place + 1}: probability ${percent(share)}`,
        onclick: () => go(place),
      }, bar, make("span", { class: "text" }, look.axes.target[place]));
    });
    this.read = make("div", { class: "tokens source", "aria-label": "Attended to" });
    this.nearly = make("div", { class: "nearly" });
    this.strip = look.audible && look.audio ? new Strip(look) : null;
    this.columns = null;
    this.element = make("div", { class: "playback" },
      this.chooser ? make("div", { class: "controls" }, ...this.chooser.elements) : null,
      make("h3", {}, "Attended to"), this.strip ? this.strip.canvas : null, this.read,
      make("h3", {}, look.given ? "Given target" : look.prompt ? "Prompt (dashed) and output" : "Output"),
      make("div", { class: "tokens said", "aria-label": "Output" }, ...this.said),
      make("h3", {}, "Alternatives at this step"), this.nearly);
  }

  update(step) {
    const { look } = this;
    this.step = Math.min(step, look.steps.length - 1);
    this.said.forEach((token, place) => {
      token.classList.toggle("now", place === this.step);
      token.classList.toggle("later", place > this.step);
      token.setAttribute("aria-pressed", String(place === this.step));
    });
    const token = this.said[this.step];
    if (token.offsetTop < token.parentNode.scrollTop || token.offsetTop + 40 > token.parentNode.scrollTop + token.parentNode.clientHeight) {
      token.parentNode.scrollTop = Math.max(0, token.offsetTop - 40);
    }
    if (this.chooser) this.shadeSource();
    const { alternatives, chosen, entropy, log_probability: own } = look.steps[this.step];
    const rows = alternatives.map(([name, share]) => [name, share]);
    if (chosen < 0) rows.push([look.axes.target[this.step], Math.exp(own ?? -99)]);
    this.nearly.replaceChildren(
      bars(rows, chosen < 0 ? rows.length - 1 : chosen),
      make("p", { class: "entropy" }, `entropy ${entropy.toFixed(2)} nats: like a choice among ${Math.exp(entropy).toFixed(1)} equally likely tokens; log-probability of ${look.axes.target[this.step]}: ${fixed(own)}`));
  }

  shadeSource() {
    const { table, group } = this.chooser;
    const weights = table.row(this.step);
    const strip = this.strip && group.ofSource;
    if (this.strip) this.strip.canvas.hidden = !strip;
    this.read.hidden = Boolean(strip);
    if (strip) { this.strip.draw(weights); return; }
    if (this.columns !== group.columnNames) {
      this.columns = group.columnNames;
      this.read.replaceChildren(...this.columns.map((name) => make("span", { class: "token" }, name)));
    }
    const top = largest(weights, 0.25);
    const tokens = this.read.children;
    for (let place = 0; place < tokens.length; place++) {
      tint(tokens[place], weights[place] / top);
      tokens[place].title = `weight ${weights[place].toFixed(3)}`;
    }
  }
}
