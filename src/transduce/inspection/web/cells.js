// Recurrent networks: how far each gate is open, and how large the states are, over time.

const cellsView = {
  id: "cells",
  title: "Gates",
  when: (looks) => looks.some((look) => look.cells.length),
  build(looks, shared) {
    shared.cells = [];
    return panels(looks, (look) => {
      const place = make("div");
      if (!look.cells.length) place.append(make("p", { class: "note" }, "This model has no recurrent cells."));
      for (const one of look.cells) {
        place.append(titledMatrix(one.columns === "source" ? "Encoder, along the source" : "Decoder, step by step", one.table, shared.cells));
      }
      return place;
    });
  },
  shown(shared) { for (const show of shared.cells) show(); },
};
