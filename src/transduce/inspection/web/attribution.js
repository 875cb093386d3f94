// Attribution: which tokens the log-probability of each output token depends on.

const attributionView = {
  id: "attribution",
  title: "Attribution",
  when: (looks) => looks.some((look) => look.attribution.length),
  build(looks, shared) {
    shared.attribution = [];
    return panels(looks, (look) => {
      const place = make("div");
      for (const one of look.attribution) {
        place.append(titledMatrix(one.columns === "source" ? "To the source" : "To the prefix", one.table, shared.attribution));
      }
      const [first] = look.attribution;
      if (first) {
        place.append(make("p", { class: "note" },
          `By ${first.method}: how much each column raises (blue) or lowers (orange) the log-probability of the row's token, compared with unknown words in its place. The attributions fail to add up to the difference by at most ${first.gap.toFixed(3)}.`));
      }
      return place;
    });
  },
  shown(shared) { for (const show of shared.attribution) show(); },
};
