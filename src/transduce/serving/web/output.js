// The output as it grows: each token is a button that shows its alternatives.

import { barOf, make, percent, redraws, tint } from "../look/look.js";

const element = document.getElementById("output");
const panel = document.getElementById("alternatives");
const END = "</s>";

/** The output; `chosen` is called with the text that a new output is to begin with. */
export class Output {
  constructor(chosen) {
    this.chosen = chosen;
    this.confident = false;
    this.refresh = () => { for (const token of this.tokens) this.color(token); };
    this.clear();
    element.addEventListener("keydown", (event) => this.pressed(event));
    panel.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
  }

  clear(prompt = "") {
    this.tokens = []; // {text, score, alternatives, button}
    this.kept = []; // tokens of the output before, up to the one that was replaced
    this.text = "";
    redraws.add(this.refresh);
    element.replaceChildren(...(prompt ? [make("span", { class: "prompt" }, prompt)] : []));
    this.close(false);
  }

  /** Add a token of a stream; `given`: it was asked for, not chosen by the model. */
  add({ text, score, alternatives = [] }, given = false) {
    const place = this.tokens.length;
    const before = this.kept[place];
    const token = { text, score, alternatives };
    const known = given && before?.alternatives.find((one) => one.text === text);
    if (known) Object.assign(token, { score: known.score, alternatives: before.alternatives });
    token.given = given;
    this.tokens.push(token);
    const [space] = text.match(/^\s*/);
    this.text += text;
    if (space && space !== text) element.append(space); // it belongs to no word
    if (!text) return;
    token.button = make("button", {
      type: "button", class: given ? "given" : "", tabindex: place ? "-1" : "0", "aria-expanded": "false", "aria-controls": "alternatives",
      title: given ? "As you chose" : `Probability ${percent(Math.exp(score))}`,
      onclick: () => this.open(place),
    }, space === text ? text : text.slice(space.length));
    this.color(token);
    element.append(token.button);
  }

  /** Words with times: a click seeks. `utterances`, of live speech: where each begins, and its words. */
  words(words, text, seek, utterances = null) {
    this.clear();
    this.text = text;
    this.tokens = words.map((word) => ({ text: word.text, share: word.confidence }));
    this.tokens.forEach((token, place) => {
      const { start, end } = words[place];
      token.button = make("button", {
        type: "button", tabindex: place ? "-1" : "0", title: `${start.toFixed(2)} to ${end.toFixed(2)} s${token.share === undefined ? "" : `, confidence ${percent(token.share)}`}`,
        "aria-label": `${token.text}, at ${start.toFixed(1)} seconds`, onclick: () => { this.focus(token.button); seek(start); },
      }, token.text);
      this.color(token);
    });
    let place = 0;
    for (const { start, count } of utterances || [{ count: words.length }]) {
      const line = utterances ? make("span") : element;
      if (utterances) element.append(make("div", { class: "utterance final" }, make("span", { class: "when" }, `${start.toFixed(1)} s`), line));
      for (const token of this.tokens.slice(place, place + count)) line.append(...(line.hasChildNodes() ? [" "] : []), token.button);
      place += count;
    }
    if (!words.length) element.textContent = text;
  }

  /** A whole text, where there are no tokens to click. */
  plain(text) {
    this.clear();
    this.text = text;
    element.textContent = text;
  }

  confidences(shown) {
    this.confident = shown;
    this.refresh();
  }

  color(token) {
    if (!token.button) return;
    const share = token.share ?? (token.score === undefined ? undefined : Math.exp(token.score));
    const marked = this.confident && share !== undefined;
    tint(token.button, marked ? 1 - share : null); // what is uncertain stands out
  }

  focus(button) {
    for (const one of element.querySelectorAll("button")) one.tabIndex = one === button ? 0 : -1;
    button.focus();
  }

  pressed(event) {
    const buttons = [...element.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined || !buttons[to]) return;
    event.preventDefault();
    this.focus(buttons[to]);
  }

  /** Show what could stand in the place of a token. */
  open(place) {
    const token = this.tokens[place];
    const again = token.button.getAttribute("aria-expanded") === "true";
    this.close(false);
    if (again) return;
    this.opened = token;
    token.button.setAttribute("aria-expanded", "true");
    this.focus(token.button);
    const before = this.tokens.slice(0, place).map((one) => one.text).join("");
    const list = make("ol", { class: "bars" });
    for (const one of token.alternatives) {
      const share = Math.exp(one.score);
      const name = one.token === END ? "(end)" : one.text.trim() ? one.text.trim() : one.text ? one.text.replaceAll(" ", "␣") : one.token;
      const current = one.text === token.text;
      const able = Boolean(one.text.trim()) && !current;
      list.append(make("li", {}, make("button", {
        type: "button", class: "row", disabled: !able, "aria-current": current ? "true" : null, title: able ? "Decode on from here" : name,
        "aria-label": `${name}, ${percent(share)}${able ? ": decode on from here" : ""}`,
        onclick: () => this.chosen(before + one.text, place),
      }, ...barOf(name, share))));
    }
    const title = `Alternatives for “${token.text.trim() || "␣"}”`;
    panel.replaceChildren(make("div", { class: "choices", role: "region", "aria-label": title },
      make("h3", {}, title), token.alternatives.length ? list : make("p", { class: "note" }, "There are none: it was asked for."),
      make("button", { type: "button", onclick: () => this.close() }, "Close")));
  }

  close(back = true) {
    panel.replaceChildren();
    const button = this.opened?.button;
    this.opened = null;
    if (!button) return;
    button.setAttribute("aria-expanded", "false");
    if (back) button.focus();
  }

  /** Where the keyboard goes on after a choice. */
  focusAt(place) {
    if (document.activeElement === document.body && this.tokens[place]?.button) this.focus(this.tokens[place].button);
  }

  busy(is) {
    element.classList.toggle("busy", is);
    element.setAttribute("aria-busy", String(is));
  }
}
