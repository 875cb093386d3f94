// The page: which model, what goes in, what comes out.

import { make, redraws, theme } from "../look/look.js";
import { GrowingAttention } from "./attention.js";
import { History } from "./history.js";
import { showViews } from "./inside.js";
import { Output } from "./output.js";
import { LiveMicrophone } from "./live.js";
import { Microphone, decoded, wav } from "./recording.js";
import * as server from "./server.js";
import { SHOWN, Windows } from "./spectrum.js";

const ALTERNATIVES = 8;
const TASKS = { transduce: "sequence to sequence", classify: "classification", tag: "tagging", continue: "language model" };
const at = (id) => document.getElementById(id);
const text = at("text");

class Page {
  constructor() {
    this.model = null;
    this.going = null; // the AbortController of what is running
    this.asked = null; // what `look` is to repeat
    this.output = new Output((prefix, place) => this.generate(prefix, place));
    this.attention = new GrowingAttention();
    this.history = new History((entry) => this.again(entry));
    this.microphone = new Microphone();
    this.live = new LiveMicrophone();
    at("model").addEventListener("change", () => this.choose(at("model").value));
    at("theme").addEventListener("click", () => {
      theme.toggle();
      localStorage.setItem("transduce-theme", theme.name);
    });
    at("text-form").addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.run();
    });
    at("text-file").addEventListener("change", () => this.open(at("text-file")));
    at("audio-file").addEventListener("change", () => this.listenTo(at("audio-file")));
    at("record").addEventListener("click", () => this.record());
    at("stop").addEventListener("click", () => this.going?.abort());
    at("copy").addEventListener("click", () => this.copy());
    at("confidence").addEventListener("change", () => this.confidences());
    at("look").addEventListener("click", () => this.look());
    at("key").addEventListener("submit", (event) => {
      event.preventDefault();
      server.useKey(at("key-field").value);
      at("key").hidden = true;
      this.start();
    });
  }

  async start() {
    const chosen = localStorage.getItem("transduce-theme");
    if (chosen) theme.set(chosen === "dark" ? "dark" : "light");
    this.problem("");
    try {
      this.models = await server.models();
    } catch (error) {
      this.failed(error);
      return;
    }
    at("model").replaceChildren(...this.models.map((one) => make("option", { value: one.name }, one.name)));
    const before = localStorage.getItem("transduce-model");
    this.choose(this.models.some((one) => one.name === before) ? before : this.models[0].name);
    document.documentElement.dataset.ready = "yes";
  }

  choose(name) {
    this.going?.abort();
    this.model = this.models.find((one) => one.name === name);
    localStorage.setItem("transduce-model", name);
    at("model").value = name;
    const { task, input, source, target, parameters } = this.model;
    const audio = input === "audio";
    const languages = source && target ? `${source} to ${target}, ` : "";
    at("about").textContent = `${languages}${TASKS[task] || task}, ${audio ? "audio" : "text"} input, ${size(parameters)} parameters`;
    at("text-form").hidden = audio;
    at("audio-form").hidden = !audio;
    text.placeholder = { tag: "Words, separated by spaces", continue: "A text to continue" }[task] || "Text";
    this.reset();
  }

  reset() {
    if (this.live.running) this.live.release();
    this.pressed(false);
    redraws.clear();
    this.output.clear();
    this.attention.clear();
    at("views").replaceChildren();
    at("heard").replaceChildren();
    this.windows = null;
    this.leave();
    if (this.heard) URL.revokeObjectURL(this.heard.url);
    this.heard = null;
    at("inside").querySelector(".controls").hidden = !this.generative;
    this.problem("");
    this.warn("");
    for (const id of ["inside", "output-controls"]) at(id).hidden = true;
  }

  problem(message) {
    at("problem").textContent = message;
    at("problem").hidden = !message;
  }

  warn(message) {
    at("warning").textContent = message;
    at("warning").hidden = !message;
  }

  failed(error) {
    if (error.name === "AbortError") return;
    this.problem(error.message);
    if (error.code === "unauthorized") {
      at("key").hidden = false;
      at("key-field").focus();
    }
  }

  confidences() {
    const shown = at("confidence").checked;
    this.output.confidences(shown);
    at("confidence-hint").hidden = !shown;
  }

  /** Do something that can be stopped, and that the next such thing stops. */
  async during(action) {
    this.going?.abort();
    const own = new AbortController();
    this.going = own;
    at("stop").hidden = false;
    this.output.busy(true);
    this.problem("");
    try {
      await action(own.signal);
    } catch (error) {
      if (this.going === own) this.failed(error);
    } finally {
      if (this.going === own) {
        this.going = null;
        at("stop").hidden = true;
        at("output-controls").hidden = !this.output.text;
        this.output.busy(false);
      }
    }
  }

  run() {
    if (!this.model) return;
    const { task } = this.model;
    if (!text.value.trim() && task !== "continue") {
      this.problem("Type a text first.");
      text.focus();
    } else if (task === "transduce" || task === "continue") this.generate();
    else this.label();
  }

  /** Token by token; with a prefix, the output begins with it, and tokens before `place` stay. */
  generate(prefix = "", place = 0) {
    const input = prefix ? this.asked.input : text.value;
    const prompt = this.model.task === "continue" ? input : "";
    const request = { model: this.model.name, input, ...(prefix ? { prefix } : {}) };
    return this.during(async (signal) => {
      const kept = this.output.tokens.slice(0, place + 1);
      const beamless = { attention: this.model.task === "transduce" && this.model.look, alternatives: this.model.look ? ALTERNATIVES : 0 };
      this.reset();
      this.output.clear(prompt);
      this.output.kept = prefix ? kept : [];
      this.asked = request;
      for await (const [event, data] of server.stream({ ...request, ...beamless }, signal)) {
        if (event === "token") this.token(data, prompt, prefix);
        else this.finish(data, prompt);
      }
      if (prefix) this.output.focusAt(place);
    });
  }

  token(data, prompt, prefix) {
    const first = !this.output.tokens.length && prompt;
    const own = (some) => (first && some.startsWith(prompt) ? some.slice(prompt.length) : some);
    const alternatives = (data.alternatives || []).map((one) => ({ ...one, text: own(one.text) }));
    const given = this.output.text.length < prefix.length;
    this.output.add({ ...data, text: own(data.text), alternatives }, given);
    this.attention.add(data);
  }

  finish({ output }, prompt) {
    const whole = prompt && output.text.startsWith(prompt) ? output.text.slice(prompt.length) : output.text;
    if (this.output.text !== whole) this.output.plain(output.text); // an export has no tokens to show
    this.done(this.asked.input, output);
    at("output-hint").textContent = this.model.look ? "Choose a word for its alternatives." : "";
  }

  /** What is the same at the end of every run. */
  done(input, output, audio = false) {
    this.warn(output.warning ? `Note: ${output.warning}` : output.text ? "" : "The output is empty.");
    at("output-controls").hidden = false;
    at("confidence").parentNode.hidden = !at("output").querySelector("button");
    at("confidence-hint").hidden = !at("confidence").checked || at("confidence").parentNode.hidden;
    at("inside").hidden = !this.model.look;
    at("announce").textContent = `Output: ${output.text || "empty"}`;
    this.history.add({ model: this.model.name, input, output: output.text, audio });
  }

  /** Classifiers and taggers. */
  label() {
    const request = { model: this.model.name, input: text.value };
    return this.during(async (signal) => {
      this.reset();
      this.asked = request;
      const found = this.model.look ? await server.look(request, signal) : await server.run(request, signal);
      this.output.plain(found.text);
      this.done(request.input, found);
      at("output-hint").textContent = "";
      if (this.model.look) await this.views(found);
    });
  }

  /** Beam tree, n-best list and all heads, on request. */
  look() {
    const beam = Number(at("beam").value);
    const settings = beam && this.generative ? { beam } : {};
    return this.during(async (signal) => {
      const found = this.heard
        ? await server.lookAtAudio(this.windowFile(), this.heard.name, { model: this.model.name, ...settings }, signal)
        : await server.look({ ...this.asked, ...settings }, signal);
      await this.views(found);
    });
  }

  /** What is looked into: the recording, or the window that is shown of a long one. */
  windowFile() {
    return this.heard.long ? wav(this.windows.part, this.windows.rate) : this.heard.file;
  }

  /** Nothing plays on in views that are gone. */
  leave() {
    this.inside?.leave();
    this.inside = null;
  }

  get generative() { return ["transduce", "continue"].includes(this.model.task); }

  async views(found) {
    this.leave();
    this.inside = await showViews(at("views"), found);
  }

  // ---------------------------------------------------------------------------------- audio

  /** The button of the microphone, while it is heard or not. */
  pressed(is) {
    const live = this.model?.live;
    at("record").textContent = is ? (live ? "■ Stop" : "■ Stop and run") : live ? "● Speak" : "● Record";
    at("record").setAttribute("aria-pressed", String(is));
  }

  async record() {
    const progress = (seconds) => { at("recorded").textContent = `${seconds.toFixed(0)} s`; };
    try {
      if (this.live.running) await this.stopSpeaking();
      else if (this.model.live && !this.microphone.running) await this.speak(progress);
      else if (!this.microphone.running) {
        await this.microphone.start(progress);
        this.pressed(true);
      } else {
        this.pressed(false);
        await this.hear(await this.microphone.stop(), "recording.wav");
      }
    } catch (error) {
      this.pressed(false);
      this.failed(error);
    }
  }

  /** Words as they are spoken, and the spectrogram that they are heard in. */
  async speak(progress) {
    this.going?.abort();
    this.reset();
    const canvas = await this.live.start(this.model.name, progress, (error) => {
      this.pressed(false);
      this.output.busy(false);
      this.failed(error);
    });
    this.pressed(true);
    this.output.busy(true);
    at("inside").hidden = false;
    at("inside").querySelector(".controls").hidden = true;
    at("views").replaceChildren(canvas);
  }

  stopSpeaking() {
    return this.during(async (signal) => {
      this.pressed(false);
      const { finals, file, length, missing } = await this.live.stop();
      at("heard").replaceChildren(this.live.spectrum.element); // until all of it is drawn
      this.heard = { file, name: "recording.wav", url: URL.createObjectURL(file) };
      const found = { text: finals.map((one) => one.text).join(" "), words: finals.flatMap((one) => one.words) };
      if (finals.every((one) => one.words.length)) found.utterances = finals.map(({ start, words }) => ({ start, count: words.length }));
      if (!found.text) {
        this.output.plain("");
        this.warn("No speech was recognised.");
        return;
      }
      at("inside").querySelector(".controls").hidden = !this.generative;
      if (!missing) await this.replay(file, "recording.wav", found, signal);
      else {
        this.output.plain(found.text);
        this.done("recording.wav", found, true);
        this.warn(`Only the last ${length.toFixed(0)} s can be looked at.`);
      }
    });
  }

  listenTo(field) {
    const [file] = field.files;
    field.value = "";
    if (file) this.hear(file, file.name);
  }

  /** A recording: its text first, then its spectrogram. */
  hear(file, name) {
    return this.during(async (signal) => {
      this.reset();
      this.heard = { file, name, url: URL.createObjectURL(file) };
      const request = { model: this.model.name };
      at("recorded").textContent = name;
      const output = await server.hear(file, name, this.generative ? { ...request, times: true } : request, signal);
      await this.replay(file, name, output, signal);
    });
  }

  /** Words that can be heard again, over the spectrogram, and the views inside the model; of a
   * recording that is too long for these, in windows. */
  async replay(file, name, output, signal) {
    const request = { model: this.model.name };
    const player = make("audio", { controls: true, "aria-label": "Recording" });
    player.src = this.heard.url;
    const seek = (second) => {
      const panel = this.heard.long ? null : this.inside?.shared.audio?.[0]; // it plays a window
      if (panel) panel.seek(second);
      const sound = panel?.sound || player;
      this.windows?.turnTo(second);
      sound.currentTime = second;
      sound.play().catch(() => {}); // it may have been removed meanwhile
    };
    this.output.words(output.words || [], output.text, seek, output.utterances);
    this.done(name, output, true);
    at("output-hint").textContent = output.words?.length ? "Choose a word to hear it." : "";
    at("views").replaceChildren(player);
    const sound = await decoded(file);
    signal.throwIfAborted();
    if (sound) {
      const longest = this.model.seconds || Infinity; // that the model can look at
      const length = sound.samples.length / sound.rate;
      this.heard.long = length > longest;
      const most = Math.min(SHOWN, longest);
      this.windows = new Windows(sound.samples, sound.rate, output.words || [], this.heard.long || length > 1.5 * most ? most : length, seek);
      at("heard").replaceChildren(this.windows.element, ...(this.heard.long ? [player] : []));
      at("inside").hidden = false;
      at("inside").querySelector(".controls").hidden = !(this.generative && this.model.look);
      player.addEventListener("timeupdate", () => this.windows?.turnTo(player.currentTime));
      if (this.heard.long && this.model.look) {
        at("views").append(make("p", { class: "note" }, `The views inside the model are of the window that is shown: at most ${longest.toFixed(0)} s.`));
        return;
      }
    }
    if (!this.model.look) return;
    try {
      await this.views(await server.lookAtAudio(file, name, request, signal));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      at("views").append(make("p", { class: "note" }, `No spectrogram: ${error.message}`));
    }
  }

  // ----------------------------------------------------------------------------------- text

  async open(field) {
    const [file] = field.files;
    field.value = "";
    if (!file) return;
    text.value = (await file.text()).trim();
    this.run();
  }

  again(entry) {
    if (!this.models.some((one) => one.name === entry.model)) {
      this.problem(`The model ${entry.model} is not served any more.`);
      return;
    }
    if (this.model.name !== entry.model) this.choose(entry.model);
    text.value = String(entry.input);
    text.focus();
    this.run();
  }

  async copy() {
    try {
      const utterances = [...at("output").querySelectorAll(".utterance")]; // without their times
      const said = utterances.map((one) => [...one.children].slice(1).map((part) => part.textContent).join(""));
      await navigator.clipboard.writeText(utterances.length ? said.join("\n") : at("output").textContent);
      at("announce").textContent = "Copied.";
      at("copy").textContent = "Copied";
      setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
    } catch {
      this.problem("The browser does not let this page copy; select the text instead.");
    }
  }
}

function size(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} billion`;
  return count >= 1e6 ? `${(count / 1e6).toFixed(1)} million` : count.toLocaleString("en");
}

new Page().start();
