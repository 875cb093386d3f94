// The page of `transduce prompts`: continuations, and each of them scored after every prompt.

const { model, how, continuations } = JSON.parse(document.getElementById("data").textContent);
const several = continuations.length > 1;
const chosen = { continuation: 0, step: 0 };

const promptText = (text) => (text === "" ? "(nothing)" : text.replaceAll("\n", "↵"));
const numbered = (place) => make("span", { class: "number" }, String(place + 1));
const promptLabel = (place) => [numbered(place), " ", promptText(continuations[place].prompt)];
const current = () => continuations[chosen.continuation];
// Differences of few bits are to be seen as well.
const apart = (bits) => (bits < 0.005 ? null : -0.72 * Math.sqrt(bits));
const likely = (share) => (share < 0.005 ? null : 0.72 * share);

function pickButton(action, ...content) {
  return make("button", { type: "button", "aria-pressed": "false", onclick: action }, ...content);
}

/** A continuation; the stronger a token's colour, the less likely it was. */
function continuationCard(one, place) {
  const about = one.tokens.length
    ? `log-probability ${one.log_probability.toFixed(2).replace("-", "−")}, perplexity ${one.perplexity.toFixed(2)}`
    : "nothing was written";
  const tokens = one.texts.map((text, step) => {
    const share = one.probabilities[place][step];
    const token = make("span", { class: "token", title: `${one.tokens[step]}  ${percent(share)}` }, text);
    const surprise = Math.min(1, -Math.log2(Math.max(share, 1e-12)) / 10); // ten bits are as strong as it gets
    onColors(() => tint(token, surprise < 0.02 ? null : -0.6 * surprise, true));
    return token;
  });
  return make("article", { class: "card" },
    make("header", {}, numbered(place), make("span", { class: "note" }, about)),
    make("pre", {}, make("span", { class: "prompt" }, one.prompt), ...tokens),
    pickButton(() => { pick(place); parts.choices.scrollIntoView({ behavior: "smooth", block: "center" }); }, "Score after every prompt"));
}

/** All pairs of a few prompts; of many, those with the prompt whose continuation is scored. */
function pairs() {
  const all = continuations.flatMap((_, one) => continuations.slice(one + 1).map((__, after) => [one, one + 1 + after]));
  return continuations.length <= 4 ? all : all.filter((pair) => pair.includes(chosen.continuation));
}

/** A row of numbers, each in its colour. */
function shadedRow(name, values, text, share, title = null) {
  const cells = values.map((value, place) => {
    const cell = make("td", { title: title && title(value, place) }, text(value));
    tint(cell, share(value), true);
    return cell;
  });
  return make("tr", {}, make("th", { scope: "row" }, ...name), ...cells);
}

function stepTable() {
  const { tokens, probabilities, divergence } = current();
  const part = (text) => make("tr", { class: "part" }, make("th", {}, text));
  const title = (shown) => (value, step) => `step ${step + 1}, ${tokens[step]}: ${shown(value)}`;
  const rows = [part("probability, per cent"), ...probabilities.map((shares, place) =>
    shadedRow(promptLabel(place), shares, (share) => String(Math.round(100 * share)), likely, title(percent)))];
  if (several) rows.push(part("divergence, bits"));
  for (const [one, other] of pairs()) {
    rows.push(shadedRow([`${one + 1} and ${other + 1}`], divergence.map((matrix) => matrix[one][other]),
      (bits) => bits.toFixed(2).replace(/^0/, ""), apart, title((bits) => `${bits.toFixed(3)} bits`)));
  }
  const table = tableOf(["step", ...tokens], rows);
  table.className = "strip";
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td, thead th");
    if (cell && cell.cellIndex > 0) go(cell.cellIndex - 1);
  });
  return table;
}

function meanTable() {
  const rows = current().mean.map((values, place) =>
    shadedRow(promptLabel(place), values.map((bits, other) => (other === place ? null : bits)),
      (bits) => (bits === null ? "" : bits.toFixed(3)), apart));
  const table = tableOf(["", ...continuations.map((_, place) => String(place + 1))], rows);
  table.className = "matrix";
  return table;
}

/** What each prompt predicts at the chosen step. */
function alternatives(steps, place) {
  const rows = steps[chosen.step];
  const taken = rows.findIndex(([token]) => token === current().tokens[chosen.step]);
  return make("section", { class: "card" },
    make("h3", { title: continuations[place].prompt }, ...promptLabel(place)), bars(rows, taken));
}

const parts = {
  cards: make("div", { class: "cards" }, ...continuations.map(continuationCard)),
  choices: make("div", { class: "controls", role: "group", "aria-label": "Whose continuation is scored" },
    ...continuations.map((_, place) => pickButton(() => pick(place), ...promptLabel(place)))),
  strip: make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Steps; arrow keys move", onkeydown: pressed }),
  title: make("h2"),
  context: make("p", { class: "note mono context" }),
  step: make("div", { class: "step" }),
  mean: make("div", { class: "scroll" }),
};

function go(step) {
  const { tokens, texts, top } = current();
  if (!tokens.length) {
    parts.title.textContent = "No step to look at";
    parts.context.textContent = "";
    parts.step.replaceChildren();
    return;
  }
  chosen.step = Math.max(0, Math.min(tokens.length - 1, step));
  const { strip } = parts;
  for (const cell of strip.querySelectorAll(".here")) cell.classList.remove("here");
  for (const { cells } of strip.querySelectorAll("tr:not(.part)")) cells[chosen.step + 1].classList.add("here");
  const here = strip.querySelector("thead .here");
  const names = here.parentElement.cells[0].offsetWidth;
  if (here.offsetLeft - names < strip.scrollLeft) strip.scrollLeft = here.offsetLeft - names;
  else strip.scrollLeft = Math.max(strip.scrollLeft, here.offsetLeft + here.offsetWidth - strip.clientWidth);
  const written = texts.slice(0, chosen.step).join("");
  const shown = JSON.stringify(written.length > 120 ? `…${written.slice(-120)}` : written);
  parts.title.textContent = `Step ${chosen.step + 1} of ${tokens.length}: what else was likely`;
  parts.context.textContent = written ? `after each prompt and ${shown}` : "right after each prompt";
  parts.step.replaceChildren(...top.map(alternatives));
}

function pressed(event) {
  const moves = { ArrowLeft: chosen.step - 1, ArrowRight: chosen.step + 1, Home: 0, End: current().tokens.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  go(moves[event.key]);
}

function draw() {
  parts.strip.replaceChildren(stepTable());
  parts.mean.replaceChildren(meanTable());
  go(chosen.step);
}

function pick(place) {
  Object.assign(chosen, { continuation: place, step: 0 });
  for (const list of [parts.cards, parts.choices]) {
    [...list.children].forEach((one, number) => {
      one.classList.toggle("chosen", number === place);
      (one.querySelector("button") || one).setAttribute("aria-pressed", String(number === place));
    });
  }
  draw();
}

document.getElementById("prompts").append(
  make("h1", {}, "What follows a prompt"),
  make("p", { class: "note" }, `${model}; ${continuations.length} prompt${several ? "s" : ""}, ${how}`),
  make("h2", {}, "Continuations"),
  make("p", { class: "note" }, "The prompt in bold, then what the model wrote. The stronger a token's colour, the less likely it was; hover for its probability."),
  parts.cards,
  make("h2", {}, "The same continuation after every prompt"),
  make("p", { class: "note" }, "Blue: the probability, in per cent, that each prompt gives to the token. Orange: how far apart the predictions of two prompts are at that step, as Jensen-Shannon divergence in bits: 0 the same, 1 nothing in common. Click a step, or move with the arrow keys."),
  parts.choices, parts.strip, parts.title, parts.context, parts.step);
if (several) {
  document.getElementById("prompts").append(
    make("h2", {}, "How far apart the prompts are"),
    make("p", { class: "note" }, "Mean divergence in bits over all steps of the continuation chosen above."),
    parts.mean);
}
redraws.add(draw);
pick(0);
