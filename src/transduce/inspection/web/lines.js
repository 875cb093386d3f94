// Attention as lines from what is attended to, on the left, to what attends, on the right.

const FAINTEST = 0.02; // weights below are not drawn
const MOST_LINES = 20000; // the strongest are drawn
const LEVELS = 24; // of opacity: all lines of a level are drawn at once
const PITCH = 22;

/** The places of the weights that are drawn, in the order of the rows. */
function strongest(table, top) {
  const counts = new Uint32Array(SHADES);
  const shadeOf = (value) => Math.min(SHADES - 1, Math.floor((value / top) * SHADES));
  for (const value of table.values) counts[shadeOf(value)]++;
  let [least, drawn] = [SHADES, 0];
  while (least > FAINTEST * SHADES && drawn + counts[least - 1] <= MOST_LINES) drawn += counts[--least];
  const places = [];
  table.values.forEach((value, place) => { if (shadeOf(value) >= least) places.push(place); });
  return places;
}

class Lines extends Plane {
  constructor(label) {
    super(label);
    this.over = null; // ["left" or "right", place]
    this.table = null;
  }

  show(table, top = 1) {
    this.table = table;
    this.top = top || 1;
    this.over = null;
    this.strong = strongest(table, this.top);
    this.side = widest(table.columnNames, 160) + 14;
    this.other = widest(table.rowNames, 160) + 14;
    this.scroller.setAttribute("aria-label", `${table.about}, as lines: ${table.columns} tokens to the left, ${table.rows} to the right`);
    this.say("");
    this.resize();
  }

  measure(width) {
    const { rows, columns } = this.table;
    const pitch = (count) => (count > 60 ? Math.max(4, 1400 / count) : PITCH);
    const high = Math.max(rows * pitch(rows), columns * pitch(columns));
    // What is much longer than the other side is pressed to its length.
    const far = columns > 2.5 * rows || rows > 2.5 * columns;
    this.pitchLeft = far ? high / columns : Math.min(pitch(columns), pitch(rows));
    this.pitchRight = far ? high / rows : this.pitchLeft;
    const tall = Math.max(columns * this.pitchLeft, rows * this.pitchRight) + 12;
    this.across = Math.max(this.side + this.other + 120, Math.min(width, this.side + this.other + 520));
    return [this.across, tall];
  }

  draw(context, x, y) {
    const { table } = this;
    const seen = (at) => at > y - 30 && at < y + this.high + 30;
    const left = (place) => 6 + (place + 0.5) * this.pitchLeft;
    const right = (place) => 6 + (place + 0.5) * this.pitchRight;
    const from = this.side - x;
    const to = this.across - this.other - x;
    context.strokeStyle = theme.color("line");
    const levels = Array.from({ length: LEVELS }, () => new Path2D());
    for (const place of this.strong) {
      const [row, column] = [Math.floor(place / table.columns), place % table.columns];
      if (this.over && this.over[1] !== (this.over[0] === "right" ? row : column)) continue;
      if (!(seen(left(column)) || seen(right(row)))) continue;
      const level = levels[Math.min(LEVELS - 1, Math.floor((table.values[place] / this.top) * LEVELS))];
      level.moveTo(from, left(column) - y);
      level.lineTo(to, right(row) - y);
    }
    levels.forEach((level, number) => {
      context.globalAlpha = (number + 0.5) / LEVELS;
      context.lineWidth = 1 + (2 * number) / LEVELS;
      context.stroke(level);
    });
    context.globalAlpha = 1;
    this.column(context, table.columnNames, left, this.pitchLeft, y, seen, from - 6, "right", "left");
    this.column(context, table.rowNames, right, this.pitchRight, y, seen, to + 6, "left", "right");
  }

  column(context, names, at, pitch, y, seen, x, align, side) {
    const every = Math.ceil(13 / pitch);
    context.textAlign = align;
    for (let place = 0; place < names.length; place += every) {
      if (!seen(at(place))) continue;
      const marked = this.over && this.over[0] === side && this.over[1] === place;
      context.fillStyle = theme.color(marked ? "accent" : "ink");
      context.fillText(cut(context, names[place], 156), x, at(place) - y);
    }
  }

  pointed(event) {
    const before = String(this.over);
    this.over = null;
    if (event) {
      const [px, py] = this.place(event);
      const down = py + this.scroller.scrollTop - 6;
      const across = px + this.scroller.scrollLeft;
      const places = [Math.floor(down / this.pitchLeft), Math.floor(down / this.pitchRight)];
      if (across < this.side && places[0] >= 0 && places[0] < this.table.columns) this.over = ["left", places[0]];
      if (across > this.across - this.other && places[1] >= 0 && places[1] < this.table.rows) this.over = ["right", places[1]];
    }
    if (String(this.over) === before) return;
    this.say(this.over ? this.strongestText() : "");
    this.later();
  }

  /** The three strongest weights of the token that is pointed at. */
  strongestText() {
    const [side, place] = this.over;
    const { table } = this;
    const count = side === "right" ? table.columns : table.rows;
    const names = side === "right" ? table.columnNames : table.rowNames;
    const weight = (i) => (side === "right" ? table.at(place, i) : table.at(i, place));
    const order = Array.from({ length: count }, (_, i) => i).sort((a, b) => weight(b) - weight(a));
    const own = side === "right" ? table.rowNames[place] : table.columnNames[place];
    const what = side === "right" ? "attends to" : "is attended to by";
    return `${own} ${what} ${order.slice(0, 3).map((i) => `${names[i]} (${weight(i).toFixed(3)})`).join(", ")}`;
  }
}
