// The views of `transduce look` on what the server computed for one input.

import { audioView, beamView, glanceView, headView, labelsView, make, nbestView, openLook, playbackView } from "../look/look.js";

const VIEWS = [labelsView, audioView, beamView, nbestView, playbackView, headView, glanceView];

/** Tabs of all views that have something to show; gives what the views share, and how to leave them. */
export async function showViews(place, raw, wanted = null) {
  const found = await openLook(raw);
  found.label = found.model;
  const looks = [found];
  const views = VIEWS.filter((view) => view.when(looks) && (!wanted || wanted.includes(view.id)));
  const shared = { open: (panel, kind, layer, head) => { show("head"); shared.heads[panel].chooser.choose(kind, layer, head); } };
  const built = new Map();
  const body = make("div");
  const tabs = make("div", { role: "tablist", "aria-label": "Views", class: "tabs" });
  let active = null;

  function show(id, focus = false) {
    const view = views.find((one) => one.id === id);
    if (!view) return;
    if (active && active !== view) active.left?.(shared);
    active = view;
    if (!built.has(id)) {
      built.set(id, make("div", { role: "tabpanel", tabindex: "-1", id: `view-${id}`, "aria-labelledby": `tab-${id}` }, view.build(looks, shared)));
      body.append(built.get(id));
    }
    for (const [one, element] of built) element.hidden = one !== id;
    for (const tab of tabs.children) {
      const chosen = tab.id === `tab-${id}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) tab.focus();
    }
    view.shown?.(shared);
  }

  views.forEach((view, number) => tabs.append(make("button", {
    type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": `view-${view.id}`, onclick: () => show(view.id),
    onkeydown: (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      show(views[(number + move + views.length) % views.length].id, true);
    },
  }, view.title)));
  place.replaceChildren(...(views.length > 1 ? [tabs] : []), body);
  if (views.length) show(views[0].id);
  else place.append(make("p", { class: "note" }, "There is nothing to show for this input."));
  return { shared, leave: () => active?.left?.(shared) };
}
