// The n-best list, and the same hypotheses as a tree: what they begin with alike is written once.

const nbestView = {
  id: "nbest",
  title: "N-best",
  when: (looks) => looks.some((look) => look.nbest.length),
  build: (looks) => panels(looks, nbestPanel),
};

function nbestPanel(look) {
  const place = make("div");
  if (look.nbest.length < 2) {
    place.append(make("p", { class: "note" }, `${look.how || "This search"} kept one hypothesis. A wider beam (--beam 5) gives a list.`));
  }
  place.append(nbestTable(look.nbest));
  if (look.nbest.length > 1) place.append(make("h3", {}, "What they share"), nbestTree(look.nbest));
  return place;
}

function nbestTable(hypotheses) {
  const head = ["", "output", "score", "log-probability", "tokens"];
  return tableOf(head, hypotheses.map((one, place) => make("tr", {},
    make("th", { scope: "row" }, String(place + 1)), make("td", { class: "wide" }, one.text),
    make("td", { class: "number" }, fixed(one.score)),
    make("td", { class: "number" }, fixed(one.log_probability)),
    make("td", { class: "number" }, String(one.tokens.length)))));
}

/** Hypotheses that begin alike share a branch: {tokens, children, ends: [rank]}. */
function prefixTree(hypotheses) {
  const root = { tokens: [], children: new Map(), ends: [] };
  hypotheses.forEach((one, rank) => {
    let node = root;
    for (const token of one.tokens) {
      if (!node.children.has(token)) node.children.set(token, { tokens: [token], children: new Map(), ends: [] });
      node = node.children.get(token);
    }
    node.ends.push(rank);
  });
  const joined = (node) => { // a branch without forks is one node
    while (node.children.size === 1 && !node.ends.length) {
      const [only] = node.children.values();
      node = { tokens: [...node.tokens, ...only.tokens], children: only.children, ends: only.ends };
    }
    return { ...node, children: [...node.children.values()].map(joined) };
  };
  return joined(root);
}

function nbestTree(hypotheses) {
  const draw = (node) => {
    const tokens = make("span", { class: "tokens" }, ...node.tokens.map((token) => make("span", { class: "token" }, token)));
    const ends = node.ends.map((rank) => make("span", { class: "end" }, `${rank + 1}: score ${fixed(hypotheses[rank].score)}`));
    const below = node.children.length ? make("ul", {}, ...node.children.map(draw)) : null;
    return make("li", {}, tokens, ...ends, below);
  };
  return make("ul", { class: "tree" }, draw(prefixTree(hypotheses)));
}
