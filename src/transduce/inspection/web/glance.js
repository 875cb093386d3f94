// All heads at a glance: a small map each, a row a layer. A click opens the head.

const THUMB = 88;

const glanceView = {
  id: "glance",
  title: "Heads at a glance",
  // A single head has its own view, with names; the rollout is not a head.
  when: (looks) => looks.some((look) => look.groups.reduce((sum, group) => sum + group.parts.reduce((all, _, layer) => all + group.heads(layer), 0), 0) > 1),
  build(looks, shared) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        entry.target.inSight = entry.isIntersecting;
        if (entry.isIntersecting) entry.target.paint();
      }
    }, { rootMargin: "300px" });
    const note = make("p", { class: "note" },
      "Rows attend to columns. Each map has its own scale: its strongest colour is its largest weight. A click enlarges.");
    return make("div", {}, note, panels(looks, (look, place) => {
      const all = make("div");
      for (const group of look.groups) all.append(glanceGroup(group, seen, (layer, head) => shared.open(place, group.kind, layer, head)));
      if (!look.groups.length) all.append(make("p", { class: "note" }, "This model has no attention."));
      return all;
    }));
  },
};

function glanceGroup(group, seen, open) {
  const grid = make("div", { class: "glance" });
  for (let layer = 0; layer < group.layers; layer++) {
    const row = make("div", { class: "row", role: "group", "aria-label": `${group.title}, layer ${layer}` });
    if (group.kind !== "rollout" && group.kind !== "pool") row.append(make("span", { class: "layer" }, `layer ${layer}`));
    for (let head = 0; head < group.heads(layer); head++) {
      row.append(thumb(group, layer, head, seen, open));
    }
    grid.append(row);
  }
  return make("section", { class: "group" }, make("h3", {}, group.title), grid);
}

function thumb(group, layer, head, seen, open) {
  const [rows, columns] = [group.rowNames.length, group.columnNames.length];
  const high = Math.round(Math.max(16, Math.min(THUMB * 1.5, (THUMB * rows) / columns)));
  const canvas = make("canvas", { width: 2 * THUMB, height: 2 * high });
  canvas.style.width = `${THUMB}px`;
  canvas.style.height = `${high}px`;
  const part = group.parts[layer].weights;
  const one = make("button", {
    type: "button", class: "thumb", "aria-label": `Enlarge ${group.name(layer, head)}`,
    title: group.name(layer, head), onclick: () => open(layer, head),
  }, canvas, make("span", { "aria-hidden": "true" }, group.kind === "rollout" ? "" : String(head)));
  one.paint = () => {
    const size = rows * columns;
    const values = part.values.subarray(head * size, (head + 1) * size);
    const [small, smallRows, smallColumns] = pooled(values, rows, columns);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(picture(smallRows, smallColumns, (i) => small[i], largest(values, 1)), 0, 0, canvas.width, canvas.height);
  };
  seen.observe(one);
  redraws.add(() => { if (one.inSight) one.paint(); });
  return one;
}

/** Of a long map the largest of neighbouring weights: a thin diagonal would else be lost. */
function pooled(values, rows, columns) {
  const [down, across] = [Math.ceil(rows / (2 * THUMB)), Math.ceil(columns / (2 * THUMB))];
  if (down === 1 && across === 1) return [values, rows, columns];
  const [smallRows, smallColumns] = [Math.ceil(rows / down), Math.ceil(columns / across)];
  const small = new Uint16Array(smallRows * smallColumns);
  for (let r = 0; r < rows; r++) {
    const start = Math.floor(r / down) * smallColumns;
    for (let c = 0; c < columns; c++) {
      const at = start + Math.floor(c / across);
      const value = values[r * columns + c];
      if (value > small[at]) small[at] = value;
    }
  }
  return [small, smallRows, smallColumns];
}
