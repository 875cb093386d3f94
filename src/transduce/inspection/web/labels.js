// Classifiers: the labels with their probabilities. Taggers: each word's tag and its alternatives.

const labelsView = {
  id: "labels",
  title: "Labels",
  when: (looks) => looks.some((look) => look.labels.length || look.task === "tag"),
  build: (looks) => panels(looks, (look) => (look.task === "tag" ? tagTable(look) : labelBars(look))),
};

function labelBars(look) {
  const place = make("div", {}, make("h3", {}, "Probabilities"), bars(look.labels, 0));
  const [step] = look.steps;
  if (step) place.append(make("p", { class: "entropy" }, `entropy ${step.entropy.toFixed(2)} nats: like a choice among ${Math.exp(step.entropy).toFixed(1)} equally likely labels`));
  const pool = look.groups.find((group) => group.kind === "pool");
  if (pool && !look.audible) {
    const weights = pool.table(0, -1).row(0);
    const top = Math.max(...weights, 2 / weights.length); // an even share is half as dark as can be
    const tokens = pool.columnNames.map((name, at) => make("span", { class: "token", title: `weight ${weights[at].toFixed(3)}` }, name));
    onColors(() => tokens.forEach((token, at) => tint(token, weights[at] / top)));
    place.append(make("h3", {}, "What was pooled"), make("div", { class: "tokens" }, ...tokens));
  }
  return place;
}

function tagTable(look) {
  return tableOf(["word", "tag", "probability", "alternatives"], look.steps.map((step, at) => {
    const [[tag, share], ...others] = step.alternatives;
    const nearly = others.filter(([, p]) => p >= 0.005).slice(0, 4).map(([name, p]) => `${name} ${percent(p)}`).join(", ");
    const cell = make("td", { class: "number" }, percent(share));
    onColors(() => tint(cell, share));
    return make("tr", {}, make("th", { scope: "row" }, look.axes.source[at]), make("td", {}, tag), cell, make("td", { class: "wide" }, nearly));
  }));
}
