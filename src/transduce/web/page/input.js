// What the model is given: a text, or a recording from a file or the microphone.

const TAG_BEFORE = /^<([^<>\s]+)>\s*/u;

/** The tags that a source begins with, such as V;PST, and the rest of it. */
function withoutTags(source) {
  const tags = [];
  let rest = source;
  for (let found = TAG_BEFORE.exec(rest); found; found = TAG_BEFORE.exec(rest)) {
    tags.push(found[1]);
    rest = rest.slice(found[0].length);
  }
  return { tags: tags.join(";"), text: rest };
}

/** The tags of a source: typed, or chosen among those of the model. */
class TagInput {
  constructor(names, page) {
    this.names = names;
    this.page = page;
    this.box = make("input", { type: "text", id: "tags", spellcheck: "false", autocomplete: "off", autocapitalize: "off", oninput: () => { this.#mark(); page.changed(); } });
    this.buttons = names.map((name) => make("button", { type: "button", class: "token", onclick: () => this.#toggle(name) }, name));
  }

  elements() {
    if (!this.names.length) return [];
    const all = make("div", { class: "tokens", role: "group", "aria-label": "Tags of this model" }, ...this.buttons);
    return [
      make("label", { for: "tags" }, "Tags, separated by semicolons"),
      this.box,
      make("details", { class: "tags" }, make("summary", {}, `The ${this.names.length} tags of this model`), all),
    ];
  }

  set value(tags) {
    this.box.value = tags;
    this.#mark();
  }

  /** As an option of the model. */
  get option() {
    return this.box.value.trim() ? { tags: [this.box.value.trim()] } : {};
  }

  get #given() {
    return this.box.value.split(";").map((one) => one.trim()).filter(Boolean);
  }

  #toggle(name) {
    const given = this.#given;
    this.value = (given.includes(name) ? given.filter((one) => one !== name) : [...given, name]).join(";");
    this.page.run();
  }

  #mark() {
    const given = this.#given;
    this.buttons.forEach((one, place) => one.setAttribute("aria-pressed", String(given.includes(this.names[place]))));
  }
}

class TextInput {
  constructor(about, page) {
    this.about = about;
    this.page = page;
    this.tags = new TagInput(about.tags, page);
    this.box = make("textarea", { id: "source", rows: 2, spellcheck: "false", autocomplete: "off", oninput: () => page.changed() });
    this.given = about.examples.map((one) => (about.tags.length ? withoutTags(one) : { tags: "", text: one }));
    if (this.given.length) this.#take(this.given[0]);
  }

  elements() {
    return [...this.tags.elements(), make("label", { for: "source" }, this.about.asks), this.box];
  }

  #take({ tags, text }) {
    this.box.value = text;
    this.tags.value = tags;
  }

  examples() {
    const use = (one) => () => { this.#take(one); this.page.run(); };
    const named = ({ tags, text }) => (tags ? `${text} (${tags})` : text);
    const buttons = this.given.map((one) => make("button", { type: "button", class: "token", onclick: use(one) }, named(one)));
    return buttons.length ? [make("div", { class: "tokens", role: "group", "aria-label": "Examples" }, ...buttons)] : [];
  }

  source() {
    return this.box.value;
  }
}

const EVERY = 700; // milliseconds between two transcripts of what is being said
const BLOCK = 4096; // samples that the microphone gives at once
const LONGEST = 600; // seconds of a recording from the microphone, which is kept in memory

/** Why a browser does not give the microphone, by the name of its error. */
const REFUSED = {
  NotAllowedError: "the browser does not allow it. Allow it in the settings of this page, or choose a file.",
  NotFoundError: "there is none. Plug one in, or choose a file.",
  NotReadableError: "another program uses it. Close that one, or choose a file.",
};

class RecordingInput {
  constructor({ audio, tags }, page) {
    this.audio = audio;
    this.tags = new TagInput(tags, page);
    this.page = page;
    this.samples = null;
    this.recording = null;
    this.asking = false; // whether the browser is asking for the microphone
    this.file = make("input", { type: "file", id: "source", accept: "audio/*", onchange: () => this.opened() });
    this.button = make("button", { type: "button", id: "record", onclick: () => this.record() }, "Record");
    this.player = make("audio", { controls: true, hidden: true, "aria-label": "The recording" });
  }

  elements() {
    return [
      ...this.tags.elements(),
      make("label", { for: "source" }, `Recording (up to ${Math.round(this.audio.seconds)} s at a time)`),
      make("div", { class: "controls" }, this.file, this.button, this.player),
    ];
  }

  examples() {
    return [];
  }

  /** Samples at the model's rate; null where there are none yet. */
  source() {
    return this.samples;
  }

  #forget() {
    this.samples = null;
    URL.revokeObjectURL(this.player.src);
    this.player.removeAttribute("src");
    this.player.hidden = true;
  }

  async opened() {
    const [file] = this.file.files;
    if (!file) return;
    this.#forget();
    try {
      const context = new OfflineAudioContext(1, 1, this.audio.rate); // decoding resamples to its rate
      const samples = mono(await context.decodeAudioData(await file.arrayBuffer()));
      if (file !== this.file.files[0]) return; // another one was chosen meanwhile
      this.samples = samples;
      this.player.src = URL.createObjectURL(file);
      this.player.hidden = false;
      this.page.run();
    } catch (error) {
      this.page.warn(`${file.name} cannot be read as sound: ${error.message}`);
    }
  }

  /** Record until the next click; meanwhile, what was said so far. */
  async record() {
    if (this.recording) return this.stop();
    if (this.asking) return;
    this.asking = true;
    try {
      await this.#start();
    } catch (error) {
      this.page.warn(`The microphone cannot be used: ${REFUSED[error.name] ?? error.message}`);
    } finally {
      this.asking = false;
    }
  }

  async #start() {
    if (!navigator.mediaDevices) {
      throw new Error("the browser gives it only to pages from a file or over https. Choose a file.");
    }
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const [context, blocks] = [new AudioContext(), []];
    const node = context.createScriptProcessor(BLOCK, 1, 1);
    node.onaudioprocess = ({ inputBuffer }) => {
      blocks.push(inputBuffer.getChannelData(0).slice());
      if (blocks.length * BLOCK >= LONGEST * context.sampleRate) {
        this.stop(`A recording has at most ${LONGEST / 60} minutes: it has ended. A file may be longer.`);
      }
    };
    context.createMediaStreamSource(stream).connect(node);
    node.connect(context.destination); // it gives silence, and is asked for nothing otherwise
    const lost = () => this.stop("The microphone is gone: the recording has ended.");
    stream.getTracks().forEach((track) => track.addEventListener("ended", lost));
    this.#forget();
    this.file.value = "";
    this.file.disabled = true;
    const resampler = new Resampler(context.sampleRate, this.audio.rate);
    this.recording = { stream, context, node, blocks, resampler, read: 0, timer: setInterval(() => this.listen(), EVERY) };
    this.button.textContent = "Stop recording";
    this.page.warn("");
    this.page.how.textContent = "Recording …";
  }

  /** A transcript while somebody speaks. */
  async listen() {
    const { recording } = this;
    if (this.busy || !recording) return;
    this.busy = true;
    try {
      await this.page.ready;
      const text = this.audio.live === "stream" ? await this.#heardNow(recording) : await this.#heardAgain(recording);
      if (text !== null && this.recording === recording) this.page.text.textContent = `${text} …`;
    } catch (error) {
      if (!(error instanceof Stopped)) this.page.warn(error.message);
    } finally {
      this.busy = false;
    }
  }

  /** By a streaming model: it is given what has been said since, and remembers the rest. */
  #heardNow(recording) {
    const first = recording.read === 0;
    const source = recording.resampler.push(recording.blocks.slice(recording.read));
    recording.read = recording.blocks.length;
    return source.length ? this.page.engine.ask("live", { source, first }) : null;
  }

  /** By another: the last stretch that it can hear at once is read again. */
  async #heardAgain({ context, blocks }) {
    const last = Math.ceil((this.audio.seconds * context.sampleRate) / BLOCK) + 1;
    const heard = await resampled(blocks.slice(-last), context.sampleRate, this.audio.rate);
    if (!heard) return null;
    const source = withoutQuietEnds(heard.slice(-Math.round(this.audio.seconds * this.audio.rate)), this.audio.rate);
    if (this.audio.live === "ctc") return this.page.engine.ask("partial", { source });
    return (await this.page.engine.ask("look", { source, options: { beam: 1 } })).look.text;
  }

  /** End a recording and run it. why: what is said of an end that nobody asked for. */
  async stop(why = "") {
    const { recording } = this;
    if (!recording) return;
    this.recording = null;
    clearInterval(recording.timer);
    recording.node.onaudioprocess = null;
    recording.stream.getTracks().forEach((track) => track.stop());
    this.file.disabled = false;
    this.button.textContent = "Record";
    this.page.text.textContent = "";
    const recorded = await resampled(recording.blocks, recording.context.sampleRate, this.audio.rate);
    this.samples = recorded && withoutQuietEnds(recorded, this.audio.rate);
    await recording.context.close();
    if (!this.samples) this.page.how.textContent = "Nothing was recorded.";
    await this.page.run();
    if (why) this.page.warn(why);
  }
}

/** Blocks of samples as one recording at another rate; null where there are none. */
async function resampled(blocks, from, to) {
  const length = blocks.reduce((all, one) => all + one.length, 0);
  if (!length) return null;
  const buffer = new AudioBuffer({ length, sampleRate: from, numberOfChannels: 1 });
  let at = 0;
  for (const one of blocks) { buffer.copyToChannel(one, 0, at); at += one.length; }
  const offline = new OfflineAudioContext(1, Math.ceil((length * to) / from), to);
  const source = new AudioBufferSourceNode(offline, { buffer });
  source.connect(offline.destination);
  source.start();
  return mono(await offline.startRendering());
}

/** The mean of the channels. */
function mono(buffer) {
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, c) => buffer.getChannelData(c));
  if (channels.length === 1) return channels[0];
  const found = new Float32Array(buffer.length);
  for (const channel of channels) {
    for (let i = 0; i < found.length; i++) found[i] += channel[i] / channels.length;
  }
  return found;
}
