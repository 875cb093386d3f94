// What the model is given: a text, or a recording from a file or the microphone.

class TextInput {
  constructor(about, page) {
    this.about = about;
    this.page = page;
    this.box = make("textarea", { id: "source", rows: 2, spellcheck: "false", autocomplete: "off", oninput: () => page.changed() });
    this.box.value = about.examples[0] ?? "";
  }

  elements() {
    return [make("label", { for: "source" }, this.about.asks), this.box];
  }

  examples() {
    const use = (one) => () => { this.box.value = one; this.page.run(); };
    const buttons = this.about.examples.map((one) => make("button", { type: "button", class: "token", onclick: use(one) }, one));
    return buttons.length ? [make("div", { class: "tokens", "aria-label": "Examples" }, ...buttons)] : [];
  }

  source() {
    return this.box.value;
  }
}

const EVERY = 700; // milliseconds between two transcripts of what is being said
const BLOCK = 4096; // samples that the microphone gives at once

class RecordingInput {
  constructor(audio, page) {
    this.audio = audio;
    this.page = page;
    this.samples = null;
    this.file = make("input", { type: "file", id: "source", accept: "audio/*", onchange: () => this.opened() });
    this.button = make("button", { type: "button", "aria-pressed": "false", onclick: () => this.record() }, "Record");
    this.player = make("audio", { controls: true, hidden: true, "aria-label": "The recording" });
  }

  elements() {
    return [
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

  async opened() {
    const [file] = this.file.files;
    if (!file) return;
    try {
      const context = new OfflineAudioContext(1, 1, this.audio.rate); // decoding resamples to its rate
      this.samples = mono(await context.decodeAudioData(await file.arrayBuffer()));
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
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      return this.page.warn(`The microphone cannot be used: ${error.message}`);
    }
    const context = new AudioContext();
    const blocks = [];
    const node = context.createScriptProcessor(BLOCK, 1, 1);
    node.onaudioprocess = ({ inputBuffer }) => blocks.push(inputBuffer.getChannelData(0).slice());
    context.createMediaStreamSource(stream).connect(node);
    node.connect(context.destination); // it gives silence, and is asked for nothing otherwise
    this.recording = { stream, context, blocks, timer: setInterval(() => this.listen(), EVERY) };
    this.pressed("Stop recording", true);
    this.page.how.textContent = "Recording …";
  }

  pressed(label, on) {
    this.button.textContent = label;
    this.button.setAttribute("aria-pressed", String(on));
  }

  async resampled() {
    const { context, blocks } = this.recording;
    const length = blocks.reduce((all, one) => all + one.length, 0);
    if (!length) return null;
    const buffer = new AudioBuffer({ length, sampleRate: context.sampleRate, numberOfChannels: 1 });
    let at = 0;
    for (const one of blocks) { buffer.copyToChannel(one, 0, at); at += one.length; }
    const offline = new OfflineAudioContext(1, Math.ceil((length * this.audio.rate) / context.sampleRate), this.audio.rate);
    const source = new AudioBufferSourceNode(offline, { buffer });
    source.connect(offline.destination);
    source.start();
    return mono(await offline.startRendering());
  }

  /** A transcript while somebody speaks: of the last stretch that the model can hear at once. */
  async listen() {
    if (this.busy || !this.recording) return;
    this.busy = true;
    try {
      const heard = await this.resampled();
      if (!heard) return;
      const source = heard.slice(-Math.round(this.audio.seconds * this.audio.rate));
      const text = this.audio.partial
        ? await this.page.engine.ask("partial", { source })
        : (await this.page.engine.ask("look", { source, options: { beam: 1 } })).look.text;
      if (this.recording) this.page.text.textContent = `${text} …`;
    } catch (error) {
      this.page.warn(error.message);
    } finally {
      this.busy = false;
    }
  }

  async stop() {
    const { stream, context, timer } = this.recording;
    clearInterval(timer);
    stream.getTracks().forEach((track) => track.stop());
    this.samples = await this.resampled();
    this.recording = null;
    await context.close();
    this.pressed("Record", false);
    this.page.run();
  }
}

/** The mean of the channels. */
function mono(buffer) {
  const found = new Float32Array(buffer.length);
  for (let c = 0; c < buffer.numberOfChannels; c++) {
    buffer.getChannelData(c).forEach((value, i) => (found[i] += value / buffer.numberOfChannels));
  }
  return found;
}
