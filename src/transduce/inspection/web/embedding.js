// Embeddings: which tokens are near to those at hand, and what is added for their places.

const embeddingView = {
  id: "embedding",
  title: "Embeddings",
  when: (looks) => looks.some((look) => look.embeddings.length),
  build(looks, shared) {
    shared.embedding = [];
    return panels(looks, (look) => {
      const place = make("div");
      for (const one of look.embeddings) {
        if (one.map) {
          const map = new TokenMap(one);
          shared.embedding.push(() => map.resize());
          place.append(make("h3", {}, `${one.title}: the vocabulary on its two main axes (PCA); tokens at hand are marked`), map.element,
            make("h3", {}, `${one.title}: nearest by cosine`), neighbourTable(one.neighbours));
        }
        if (one.positions) {
          const title = `${one.title}: ${one.positions.title}`;
          place.append(one.positions.table ? titledMatrix(title, one.positions.table, shared.embedding) : make("h3", {}, title));
          if (one.positions.note) place.append(make("p", { class: "note" }, one.positions.note));
        }
      }
      return place;
    });
  },
  shown(shared) { for (const show of shared.embedding) show(); },
};

function neighbourTable(rows) {
  const body = make("tbody");
  for (const [name, near] of rows) {
    body.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "wide" }, near.map(([other, cosine]) => `${other} ${cosine.toFixed(2)}`).join("   "))));
  }
  return make("table", { class: "neighbours" }, body);
}

class TokenMap extends Plane {
  constructor(one) {
    super(`${one.title}: a map of ${one.map.names.length} tokens`);
    this.map = one.map;
    this.over = -1;
  }

  measure(width) { return [width, Math.min(460, Math.max(260, 0.5 * width))]; }

  at(place) {
    const [x, y] = this.map.places[place];
    return [this.wide / 2 + x * (this.wide / 2 - 40), this.high / 2 - y * (this.high / 2 - 16)];
  }

  draw(context) {
    context.textAlign = "center";
    const order = this.map.names.map((_, place) => place).reverse(); // those at hand come last, on top
    for (const place of order) {
      const used = this.map.used[place];
      context.globalAlpha = used || place === this.over ? 1 : 0.4;
      context.fillStyle = theme.color(used || place === this.over ? "accent" : "ink");
      context.font = used ? `bold ${FONT}` : FONT;
      context.fillText(this.map.names[place], ...this.at(place));
    }
    context.globalAlpha = 1;
  }

  pointed(event) {
    this.over = -1;
    if (event) {
      const [x, y] = this.place(event);
      let best = 14 * 14;
      this.map.names.forEach((_, place) => {
        const [px, py] = this.at(place);
        const far = (px - x) ** 2 + (py - y) ** 2;
        if (far < best) [best, this.over] = [far, place];
      });
    }
    this.say(this.over >= 0 ? this.map.names[this.over] : "");
    this.later();
  }
}
