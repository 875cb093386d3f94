// Views of the same looks behind tabs.

/** A view is built when it is first shown, and told when it is left. */
class Tabs {
  constructor(views, looks) {
    this.looks = looks;
    this.active = null;
    this.shared = {
      /** Enlarge a head of one of the panels. */
      open: (panel, kind, layer, head) => {
        this.show("head", true);
        this.shared.heads[panel].chooser.choose(kind, layer, head);
      },
    };
    this.views = views.filter((view) => view.when(looks));
    this.body = make("div");
    this.list = make("div", { role: "tablist", "aria-label": "Views", class: "tabs" }, ...this.views.map((view, number) => make("button", {
      type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": `view-${view.id}`,
      // The mouse has chosen: from here the arrow keys are the view's own.
      onclick: (event) => { this.show(view.id); if (event.detail) this.panel(view).focus({ preventScroll: true }); },
      onkeydown: (event) => this.along(event, number),
    }, view.title)));
    this.list.hidden = this.views.length < 2;
  }

  panel(view) { return [...this.body.children].find((one) => one.id === `view-${view.id}`); }

  /** Show a view; where there is none of that name, the first one. */
  show(id, focus = false) {
    const view = this.views.find((one) => one.id === id) || this.views[0];
    if (!view) return;
    if (view !== this.active) this.leave();
    this.active = view;
    if (!this.panel(view)) {
      this.body.append(make("div", { role: "tabpanel", tabindex: "-1", id: `view-${view.id}`, "aria-labelledby": `tab-${view.id}` }, view.build(this.looks, this.shared)));
    }
    for (const panel of this.body.children) panel.hidden = panel.id !== `view-${view.id}`;
    for (const tab of this.list.children) {
      const chosen = tab.id === `tab-${view.id}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) tab.focus();
    }
    this.shown();
  }

  shown() { this.active?.shown?.(this.shared); }

  leave() { this.active?.left?.(this.shared); }

  /** Arrow keys along the tabs. */
  along(event, number) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    this.show(this.views[(number + move + this.views.length) % this.views.length].id, true);
  }
}
