// The views of `transduce look` on what the server computed for one input.

import { Tabs, audioView, beamView, glanceView, headView, labelsView, make, nbestView, openLook, playbackView } from "../look/look.js";

const VIEWS = [labelsView, audioView, beamView, nbestView, playbackView, headView, glanceView];

/** Tabs of all views that have something to show. */
export async function showViews(place, raw) {
  const tabs = new Tabs(VIEWS, [await openLook(raw)]);
  place.replaceChildren(tabs.list, tabs.body);
  if (!tabs.views.length) place.append(make("p", { class: "note" }, "There is nothing to show for this input."));
  tabs.show();
  return tabs;
}
