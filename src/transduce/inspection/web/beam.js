// The beam as a tree: a column a step; what was dropped, and why.

const beamView = {
  id: "beam",
  title: "Beam",
  when: (looks) => looks.some((look) => look.beam || look.no_beam),
  build(looks, shared) {
    shared.beams = [];
    return panels(looks, (look) => (look.beam ? beamTree(look.beam, shared) : make("p", { class: "note" }, look.no_beam || "There was no beam.")));
  },
  shown(shared) { for (const plane of shared.beams) plane.show(); },
};

const LINE = 19;
const GONE = ["pruned", "end pruned", "bank", "banned"];
const WHY = {
  kept: (node) => node.place !== null ? `cut off at the length limit: number ${node.place + 1} of the n-best list` : `kept, number ${node.rank} of the candidates of its step`,
  ended: (node) => (node.place === null ? "ended, but others scored better: not in the n-best list" : `ended: number ${node.place + 1} of the n-best list`),
  pruned: (node, size) => `pruned: number ${node.rank} of the candidates of its step, and the beam keeps ${size} that go on`,
  "end pruned": (node, size) => `pruned: number ${node.rank} of the candidates of its step, and only among the best ${size} may one end`,
  bank: (node) => `pruned: number ${node.rank} of the candidates of its step; others that were kept scored lower, but contain more of the required phrases`,
  banned: (node) => `banned by a constraint: ${node.reason}`,
  open: () => "unfinished: search stopped because it could no longer enter the n-best list, or at the length limit",
};

/** The place of a hypothesis in the n-best list, and its score. */
const rankAndScore = (node) => `${node.place + 1}: ${fixed(node.score)}`;

class BeamPlane extends Plane {
  constructor(beam) {
    super("The beam as a tree, a column a step; arrow keys walk along it");
    this.size = beam.size;
    this.all = beam.nodes.map(([parent, token, total, fate, rank, score, place, reason]) => ({ parent, token, total, fate, rank, score, place, reason, children: [] }));
    this.all.forEach((node, number) => {
      if (number) this.all[node.parent].children.push(node);
      node.up = number ? this.all[node.parent] : null;
      node.depth = number ? node.up.depth + 1 : 0;
    });
    for (const node of this.all.filter((one) => one.place !== null)) {
      for (let one = node; one; one = one.up) one.path = Math.min(one.path ?? Infinity, node.place);
    }
    this.pruned = true;
    this.over = null;
    this.arrange();
  }

  /** Give each node its line in the column of its step: the best path, what went on, what did not. */
  arrange() {
    const gone = (node) => GONE.includes(node.fate);
    const worth = (node) => (node.path === undefined ? (gone(node) ? 2e6 : 1e6) : node.path) + (node.up ? node.up.line : 0);
    const columns = [];
    for (const node of this.all) (columns[node.depth] ||= []).push(node);
    this.nodes = [];
    this.lines = 0;
    for (const column of columns) { // parents have their lines before their children
      const shown = column.filter((node) => this.pruned || !gone(node)).sort((a, b) => worth(a) - worth(b) || (a.rank ?? 1e6) - (b.rank ?? 1e6));
      shown.forEach((node, line) => { node.line = line; });
      this.nodes.push(...shown);
      this.lines = Math.max(this.lines, shown.length - 1);
    }
    // What ended has its place and score beside it, before the next column begins.
    this.left = [0, 14]; // of each column; that of the root is not drawn
    for (let depth = 1; depth < columns.length; depth++) {
      const ended = columns[depth].filter((node) => node.place !== null);
      const scores = ended.length ? widest(ended.map(rankAndScore), 110) + 8 : 0;
      this.left.push(this.left[depth] + widest(columns[depth].map((node) => node.token), 110) + Math.max(34, scores));
    }
  }

  show() { this.resize(); }

  measure() {
    return [this.left.at(-1) + 20, (this.lines + 1) * LINE + 12];
  }

  at(node) { return [this.left[node.depth], node.line * LINE + 15]; }

  draw(context, x, y) {
    context.textAlign = "left";
    for (const node of this.nodes) {
      if (!node.up) continue;
      const [px, py] = this.at(node);
      const [ux, uy] = this.at(node.up);
      if (this.left[node.depth + 1] < x || ux > x + this.wide) continue;
      const best = node.path === 0;
      const faint = GONE.includes(node.fate);
      context.strokeStyle = theme.color(best ? "accent" : "soft");
      context.globalAlpha = best ? 1 : faint ? 0.25 : 0.6;
      context.lineWidth = best ? 2 : 1;
      if (node.up.up) {
        const from = ux + context.measureText(cut(context, node.up.token, 106)).width + 3;
        context.beginPath();
        context.moveTo(from - x, uy - y);
        context.lineTo(Math.max(from, px - 30) - x, uy - y);
        context.lineTo(px - 4 - x, py - y);
        context.stroke();
      }
      context.globalAlpha = faint ? 0.45 : 1;
      context.fillStyle = theme.color(node === this.over || best ? "accent" : "ink");
      const text = cut(context, node.token, 106);
      context.fillText(text, px - x, py - y);
      const wide = context.measureText(text).width;
      if (faint) context.fillRect(px - x, py - y, wide, 1);
      if (node.fate === "banned") context.fillRect(px - x, py - y - 3, wide, 1);
      if (node.place !== null) context.fillText(rankAndScore(node), px + wide + 8 - x, py - y);
      if (node === this.over) context.strokeRect(px - 3 - x, py - 9 - y, wide + 6, 18);
      context.globalAlpha = 1;
    }
  }

  read(node) {
    this.over = node;
    if (node) {
      const tokens = [];
      for (let one = node; one.up; one = one.up) tokens.unshift(one.token);
      this.say(`${tokens.join(" ")}: log-probability ${fixed(node.total)}; ${WHY[node.fate](node, this.size)}`);
    } else this.say("");
    this.later();
  }

  pointed(event) {
    if (!event) { this.read(null); return; }
    const [px, py] = this.place(event);
    const [x, y] = [px + this.scroller.scrollLeft, py + this.scroller.scrollTop];
    const found = this.nodes.find((node) => {
      const [left, top] = this.at(node);
      return node.up && x >= left - 4 && x < this.left[node.depth + 1] - 8 && Math.abs(y - top) <= LINE / 2;
    });
    if (found !== this.over) this.read(found || null);
  }

  pressed(event) {
    const inOrder = this.nodes.slice(1); // column by column, and down
    const step = (by) => inOrder[(inOrder.indexOf(this.over) + by + inOrder.length) % inOrder.length];
    const shown = (node) => inOrder.find((one) => one.up === node);
    const moves = {
      ArrowDown: () => step(1), ArrowUp: () => step(-1),
      ArrowLeft: () => (this.over?.up?.up ? this.over.up : this.over),
      ArrowRight: () => (this.over ? shown(this.over) || this.over : inOrder[0]),
    };
    if (!(event.key in moves) || !inOrder.length) return;
    event.preventDefault();
    event.stopPropagation();
    this.read(moves[event.key]());
    const [x, y] = this.at(this.over);
    if (x < this.scroller.scrollLeft || this.left[this.over.depth + 1] > this.scroller.scrollLeft + this.wide) this.scroller.scrollLeft = x - this.wide / 3;
    if (y < this.scroller.scrollTop || y > this.scroller.scrollTop + this.high - LINE) this.scroller.scrollTop = y - this.high / 2;
  }
}

/** The tree with its switch. */
function beamTree(beam, shared) {
  const plane = new BeamPlane(beam);
  shared.beams.push(plane);
  const box = make("input", { type: "checkbox", name: "pruned", checked: true, onchange: () => {
    plane.pruned = box.checked;
    plane.arrange();
    plane.resize();
  } });
  return make("div", {},
    make("p", { class: "note" }, `At each step at most ${beam.size} hypotheses go on. The best path is marked; what was pruned is struck out${beam.banned ? ", twice what a constraint banned" : ""}. Point at a token to read why.${beam.phrases ? " Hypotheses with equally many tokens of the required phrases form a bank; banks take turns in naming their best." : ""}`),
    make("div", { class: "controls" }, make("label", { class: "control" }, box, make("span", {}, "Show what was pruned"))),
    plane.element);
}
