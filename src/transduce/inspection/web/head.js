// One head, large: as a matrix or as lines.

const headView = {
  id: "head",
  title: "Head view",
  when: (looks) => looks.some((look) => look.groups.length),
  build(looks, shared) {
    shared.heads = [];
    return panels(looks, (look, place) => {
      if (!look.groups.length) return make("p", { class: "note" }, "This model has no attention.");
      shared.heads[place] = new HeadPanel(look);
      return shared.heads[place].element;
    });
  },
  shown(shared) {
    for (const panel of shared.heads) panel?.update();
  },
  pressed(event, shared) {
    const moves = { "[": [0, -1], "]": [0, 1], "{": [-1, 0], "}": [1, 0] };
    const move = moves[event.key];
    if (!move) return false;
    for (const panel of shared.heads) panel?.step(...move);
    return true;
  },
};

/** Which layers and heads of a group there are to choose from; -1 is the mean. */
function layerOptions(group) {
  const some = Array.from({ length: group.layers }, (_, i) => [i, `layer ${i}`]);
  return group.layers > 1 ? [[-1, "mean of layers"], ...some] : some;
}

function headOptions(group, layer) {
  const some = Array.from({ length: group.heads(layer) }, (_, i) => [i, `head ${i}`]);
  return some.length > 1 ? [[-1, "mean of heads"], ...some] : some;
}

/** Choices of attention kind, layer and head that fit one another. */
class Chooser {
  constructor(groups, changed, start = {}) {
    this.groups = groups;
    this.changed = changed;
    this.group = groups[0];
    this.layer = start.layer ?? (this.group.layers > 1 ? -1 : 0);
    this.head = start.head ?? (this.group.heads(this.layer) > 1 ? -1 : 0);
    this.kindBox = choice("Attention", "kind", groups.map((one) => [one.kind, one.title]), this.group.kind, (kind) => this.choose(kind, -1, -1));
    this.layerBox = choice("Layer", "layer", layerOptions(this.group), this.layer, (layer) => this.choose(this.group.kind, Number(layer), this.head));
    this.headBox = choice("Head", "head", headOptions(this.group, this.layer), this.head, (head) => this.choose(this.group.kind, this.layer, Number(head)));
    this.elements = [this.kindBox, this.layerBox, this.headBox];
  }

  choose(kind, layer, head) {
    this.group = this.groups.find((one) => one.kind === kind) || this.groups[0];
    const fit = (value, options) => (options.some(([one]) => one === value) ? value : options[0][0]);
    this.layer = fit(layer, layerOptions(this.group));
    this.head = fit(head, headOptions(this.group, this.layer));
    this.kindBox.querySelector("select").value = this.group.kind;
    refill(this.layerBox, layerOptions(this.group), this.layer);
    refill(this.headBox, headOptions(this.group, this.layer), this.head);
    this.changed();
  }

  get table() {
    return this.group.table(this.layer, this.head);
  }
}

class HeadPanel {
  constructor(look) {
    this.chooser = new Chooser(look.groups, () => this.update());
    this.matrix = new Matrix("attention");
    this.lines = new Lines("attention");
    this.shape = "matrix";
    const longest = Math.max(...look.groups.map((group) => group.columnNames.length));
    this.scale = longest > 40 || look.audible ? "usual" : "one";
    this.about = make("p", { class: "about" });
    const shapes = choice("Show as", "shape", [["matrix", "matrix"], ["lines", "lines"]], "matrix", (shape) => { this.shape = shape; this.update(); });
    const scales = choice("Colours", "scale", [["one", "0 to 1"], ["usual", "0 to a usual row's largest"], ["largest", "0 to the largest"]], this.scale, (scale) => { this.scale = scale; this.update(); });
    this.zoom = slider("Zoom", "zoom", { min: 0.5, max: 4, step: 0.1, value: 1 }, (value) => { this.matrix.zoom = value; this.matrix.resize(); });
    this.place = make("div");
    this.legend = make("span");
    this.element = make("div", {},
      make("div", { class: "controls" }, ...this.chooser.elements, shapes, scales, this.zoom, this.legend),
      this.about, this.place);
  }

  update() {
    const table = this.chooser.table;
    const top = { one: 1, usual: table.usual, largest: table.largest }[this.scale] || 1;
    const plane = this.shape === "lines" ? this.lines : this.matrix;
    if (plane.element.parentNode !== this.place) this.place.replaceChildren(plane.element);
    plane.show(table, top);
    this.zoom.hidden = this.shape === "lines";
    this.legend.replaceChildren(legend(top));
    this.about.textContent = `${table.about}: ${describe(table)}`;
  }

  step(layers, heads) {
    const { group, layer, head } = this.chooser;
    const turn = (value, move, options) => {
      const place = options.findIndex(([one]) => one === value);
      return options[(place + move + options.length) % options.length][0];
    };
    const next = turn(layer, layers, layerOptions(group));
    this.chooser.choose(group.kind, next, turn(head, heads, headOptions(group, next)));
  }
}

/** How spread attention is, in words and numbers. */
function describe(table) {
  let [entropy, sharpest] = [0, 0];
  for (let row = 0; row < table.rows; row++) {
    for (const weight of table.row(row)) if (weight > 0) entropy -= weight * Math.log(weight);
    sharpest += largest(table.row(row));
  }
  const rows = Math.max(1, table.rows);
  return `entropy ${(entropy / rows).toFixed(2)} nats, largest weight ${(sharpest / rows).toFixed(2)}, on average over ${table.rows} rows`;
}
