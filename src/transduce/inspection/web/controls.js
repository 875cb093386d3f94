// Elements. Whatever comes from the data becomes text, never markup.

/** make("p", {class: "note"}, "text", element): attributes are set one by one, strings are text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function button(text, label, action) {
  return make("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
}

/** A labelled choice; options are [value, text]. */
function choice(text, name, options, value, changed) {
  const box = make("select", { name, onchange: () => changed(box.value) });
  for (const [one, shown] of options) box.append(make("option", { value: one }, shown));
  box.value = String(value);
  return make("label", { class: "control" }, make("span", {}, text), box);
}

function refill(label, options, value) {
  const box = label.querySelector("select");
  box.replaceChildren(...options.map(([one, shown]) => make("option", { value: one }, shown)));
  box.value = String(value);
}

function slider(text, name, { min, max, step, value }, changed) {
  const box = make("input", {
    type: "range", name, min, max, step, value, oninput: () => changed(Number(box.value)),
  });
  return make("label", { class: "control" }, make("span", {}, text), box);
}

/** What a row of bars consists of: a name, its bar, and its share. */
function barOf(name, share) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(0.5, 100 * share)}%`;
  return [make("span", { class: "name", title: name }, name), make("span", { class: "track" }, bar), make("span", { class: "share" }, percent(share))];
}

/** Bars for [name, share] rows; `chosen` is the place of the one to mark. */
function bars(rows, chosen) {
  return make("ol", { class: "bars" }, ...rows.map(([name, share], place) =>
    make("li", { class: "row", "aria-current": place === chosen ? "true" : null }, ...barOf(name, share))));
}

/** A table with the names of its columns, and rows that are elements. */
function tableOf(head, rows) {
  const names = head.map((text) => make("th", { scope: "col" }, text));
  return make("table", {}, make("thead", {}, make("tr", {}, ...names)), make("tbody", {}, ...rows));
}

function percent(share) {
  const value = 100 * share;
  if (value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value < 10 ? 1 : 0)} %`;
}

function fixed(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

/** A panel for each model, beside one another; what `build` gives is in it. */
function panels(looks, build) {
  const row = make("div", { class: looks.length > 1 ? "panels two" : "panels" });
  looks.forEach((look, place) => {
    const title = looks.length > 1 ? make("h2", {}, look.label) : null;
    row.append(make("section", { class: "panel", "aria-label": look.label }, title, build(look, place)));
  });
  return row;
}
