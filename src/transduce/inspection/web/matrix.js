// Canvases that scroll: only what is seen is drawn, so that long sequences stay smooth.

const FONT = "12px ui-sans-serif, system-ui, sans-serif";

/** A scrolling plane; who extends it says how large it is and draws the part that is seen. */
class Plane {
  constructor(label) {
    this.canvas = make("canvas");
    this.spacer = make("div", { class: "spacer" }, this.canvas);
    this.scroller = make("div", { class: "scroller", tabindex: "0", role: "img", "aria-label": label }, this.spacer);
    this.readout = make("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
    this.element = make("div", { class: "plane" }, this.scroller, this.readout);
    this.pending = false;
    const later = () => this.later();
    this.scroller.addEventListener("scroll", later);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.scroller);
    this.refresh = () => { this.recolor(); this.later(); };
    redraws.add(this.refresh);
    this.canvas.addEventListener("mousemove", (event) => this.pointed(event));
    this.canvas.addEventListener("mouseleave", () => this.pointed(null));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.scroller.addEventListener("keydown", (event) => this.pressed(event));
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }

  resize() {
    const width = this.scroller.clientWidth;
    if (!width) return;
    const [wide, high] = this.measure(width);
    const tallest = theme.printing ? high : Math.max(240, Math.min(high, 0.72 * innerHeight));
    this.scroller.style.height = `${Math.min(high, tallest) + (wide > width ? 16 : 0)}px`;
    this.spacer.style.width = `${wide}px`;
    this.spacer.style.height = `${high}px`;
    this.wide = Math.min(width, wide);
    this.high = Math.min(tallest, high);
    this.paint();
  }

  paint() {
    if (!this.wide) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.wide * ratio);
    this.canvas.height = Math.round(this.high * ratio);
    this.canvas.style.width = `${this.wide}px`;
    this.canvas.style.height = `${this.high}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = theme.color("paper");
    context.fillRect(0, 0, this.wide, this.high);
    this.draw(context, this.scroller.scrollLeft, this.scroller.scrollTop);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  say(text) {
    this.readout.textContent = text || "\u00a0";
  }

  recolor() {}
  pointed() {}
  clicked() {}
  pressed() {}
}

function widest(names, most) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = FONT;
  let found = 0;
  for (const name of names.slice(0, 600)) found = Math.max(found, context.measureText(name).width);
  return Math.min(most, Math.ceil(found) + 10);
}

function cut(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  let end = name.length;
  while (end > 1 && context.measureText(`${name.slice(0, end)}…`).width > room) end--;
  return `${name.slice(0, end)}…`;
}

/** A heat map with its tokens beside it; they stay in sight while it scrolls. */
class Matrix extends Plane {
  constructor(label, words = ["", ""]) {
    super(label);
    this.words = words; // what a row and a column are called when a cell is read out
    this.zoom = 1;
    this.over = null;
    this.table = null;
  }

  show(table, top = 1) {
    this.table = table;
    this.top = top || 1;
    this.left = widest(table.rowNames, 150);
    this.above = widest(table.columnNames, 110);
    this.recolor();
    this.scroller.setAttribute("aria-label", `${table.about}: ${table.rows} rows, ${table.columns} columns; arrow keys read cells out`);
    this.over = null;
    this.say("");
    this.resize();
  }

  recolor() {
    if (!this.table) return;
    const { rows, columns, values, signed } = this.table;
    this.image = picture(rows, columns, (i) => values[i], this.top, signed);
  }

  measure(width) {
    const { rows, columns } = this.table;
    const down = Math.max(14, (0.72 * innerHeight - this.above) / rows); // all rows in sight, if they can be
    const fit = Math.max(2, Math.min(28, down, (width - this.left - 2) / columns));
    this.cellX = fit * this.zoom;
    this.cellY = Math.max(fit, Math.min(18, 560 / rows)) * this.zoom;
    return [this.left + columns * this.cellX, this.above + rows * this.cellY];
  }

  draw(context, x, y) {
    const { table, left, above, cellX, cellY } = this;
    const ink = theme.color("ink");
    const first = [Math.floor(y / cellY), Math.floor(x / cellX)];
    const last = [
      Math.min(table.rows, Math.ceil((y + this.high - above) / cellY)),
      Math.min(table.columns, Math.ceil((x + this.wide - left) / cellX)),
    ];
    context.save();
    context.beginPath();
    context.rect(left, above, this.wide - left, this.high - above);
    context.clip();
    context.imageSmoothingEnabled = false;
    const [rows, columns] = [last[0] - first[0], last[1] - first[1]];
    context.drawImage(this.image, first[1], first[0], columns, rows,
      left + first[1] * cellX - x, above + first[0] * cellY - y, columns * cellX, rows * cellY);
    if (Math.min(cellX, cellY) >= 9) this.grid(context, x, y, first, last);
    context.restore();
    this.names(context, x, y, first, last, ink);
    if (this.over) this.outline(context, x, y);
  }

  grid(context, x, y, first, last) {
    context.strokeStyle = theme.color("hair");
    context.lineWidth = 1;
    context.beginPath();
    for (let c = first[1]; c <= last[1]; c++) {
      const at = Math.round(this.left + c * this.cellX - x) + 0.5;
      context.moveTo(at, this.above);
      context.lineTo(at, this.above + this.table.rows * this.cellY - y);
    }
    for (let r = first[0]; r <= last[0]; r++) {
      const at = Math.round(this.above + r * this.cellY - y) + 0.5;
      context.moveTo(this.left, at);
      context.lineTo(this.left + this.table.columns * this.cellX - x, at);
    }
    context.stroke();
  }

  names(context, x, y, first, last, ink) {
    const { table, left, above, cellX, cellY } = this;
    const [everyRow, everyColumn] = [Math.ceil(13 / cellY), Math.ceil(13 / cellX)];
    const marked = this.over || [-1, -1];
    context.textAlign = "right";
    for (let r = first[0] - (first[0] % everyRow); r < last[0]; r += everyRow) {
      const at = above + (r + 0.5) * cellY - y;
      if (r < 0 || at < above) continue;
      context.fillStyle = r === marked[0] ? theme.color("accent") : ink;
      context.fillText(cut(context, table.rowNames[r], left - 8), left - 5, at);
    }
    context.textAlign = "left";
    for (let c = first[1] - (first[1] % everyColumn); c < last[1]; c += everyColumn) {
      const at = left + (c + 0.5) * cellX - x;
      if (c < 0 || at < left) continue;
      context.save();
      context.translate(at, above - 5);
      context.rotate(-Math.PI / 2);
      context.fillStyle = c === marked[1] ? theme.color("accent") : ink;
      context.fillText(cut(context, table.columnNames[c], above - 8), 0, 0);
      context.restore();
    }
  }

  outline(context, x, y) {
    const [row, column] = this.over;
    context.strokeStyle = theme.color("accent");
    context.lineWidth = 2;
    context.strokeRect(this.left + column * this.cellX - x, this.above + row * this.cellY - y, this.cellX, this.cellY);
  }

  read(row, column) {
    const { table } = this;
    this.over = [row, column];
    const [ofRow, ofColumn] = this.words;
    this.say(`${ofRow}${table.rowNames[row]} (${row + 1}) → ${ofColumn}${table.columnNames[column]} (${column + 1}): ${table.at(row, column).toFixed(3)}`);
    this.later();
  }

  pointed(event) {
    if (!event) { this.over = null; this.say(""); this.later(); return; }
    const [px, py] = this.place(event);
    const column = Math.floor((px - this.left + this.scroller.scrollLeft) / this.cellX);
    const row = Math.floor((py - this.above + this.scroller.scrollTop) / this.cellY);
    const inside = px >= this.left && py >= this.above && row < this.table.rows && column < this.table.columns;
    if (inside) this.read(row, column);
    else if (this.over) { this.over = null; this.say(""); this.later(); }
  }

  pressed(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = this.over || [0, 0];
    const at = this.over ? [row + move[0], column + move[1]] : [0, 0];
    const inside = [Math.max(0, Math.min(this.table.rows - 1, at[0])), Math.max(0, Math.min(this.table.columns - 1, at[1]))];
    this.scroller.scrollLeft = this.seen(inside[1] * this.cellX, this.cellX, this.scroller.scrollLeft, this.wide - this.left);
    this.scroller.scrollTop = this.seen(inside[0] * this.cellY, this.cellY, this.scroller.scrollTop, this.high - this.above);
    this.read(...inside);
  }

  /** How far to scroll so that a cell is seen. */
  seen(at, size, scrolled, room) {
    if (at < scrolled) return at;
    return at + size > scrolled + room ? at + size - room : scrolled;
  }
}

/** A heat map under its title, with its scale where numbers have signs; `shown` draws it. */
function titledMatrix(title, table, shown) {
  const matrix = new Matrix(table.about);
  shown.push(() => matrix.show(table, table.signed ? table.largest : 1));
  const scale = table.signed ? make("div", { class: "controls" }, legend(table.largest, true)) : null;
  return make("div", {}, make("h3", {}, title), scale, matrix.element);
}
