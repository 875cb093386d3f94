// Live speech: the microphone is sent as it is heard, and words come back as they are spoken.

import { make } from "../look/look.js";
import { openInput, pcm, wav } from "./recording.js";
import * as server from "./server.js";
import { Spectrum } from "./spectrum.js";

const KEPT = 120; // seconds of the recording that can be played afterwards
const element = document.getElementById("output");

/** What was said: utterances with their times; of the last one, what is stable, and what is not. */
class Transcripts {
  constructor() {
    this.finals = [];
    this.line = null;
    element.replaceChildren();
  }

  show(transcript) {
    const { text, stable, start, final } = transcript;
    this.line ??= element.appendChild(make("div", { class: "utterance" }));
    const when = make("span", { class: "when" }, `${start.toFixed(1)} s`);
    this.line.replaceChildren(when, make("span", { class: "stable" }, text.slice(0, stable)), make("span", { class: "partial" }, text.slice(stable)));
    this.line.classList.toggle("final", final);
    if (!final) return;
    if (text) this.finals.push(transcript);
    else this.line.remove();
    this.line = null;
  }
}

export class LiveMicrophone {
  get running() { return Boolean(this.socket); }

  /** Begin; `progress` gets the seconds so far, `failed` an error that ends it. Gives the spectrogram. */
  async start(model, progress, failed) {
    this.input = await openInput();
    this.context = new AudioContext();
    try {
      await this.context.audioWorklet.addModule("page/worklet.js");
      this.socket = await server.liveSocket(model, this.context.sampleRate);
    } catch (error) {
      await this.release();
      throw error;
    }
    this.blocks = [];
    this.transcripts = new Transcripts();
    this.spectrum = new Spectrum(this.context.sampleRate);
    this.done = new Promise((resolve, reject) => {
      this.socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        if (message.type === "error") reject(new server.ServerError(message.error.message, message.error.code));
        else if (message.type === "done") resolve();
        else if (message.type !== "ready") {
          this.transcripts.show(message);
          if (message.final) this.spectrum.show(message.words);
        }
      };
      this.socket.onclose = () => reject(new server.ServerError("The connection ended; try again", "incomplete"));
    });
    this.done.catch((error) => { if (this.socket) this.release().then(() => failed(error)); });
    const worklet = new AudioWorkletNode(this.context, "samples", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    worklet.port.onmessage = ({ data }) => {
      if (this.socket?.readyState !== WebSocket.OPEN) return;
      this.socket.send(pcm(data));
      this.blocks.push(data);
      if (this.blocks.length * data.length > KEPT * this.context.sampleRate) this.blocks.shift();
      this.spectrum.add(data);
      progress(this.spectrum.seconds);
    };
    this.context.createMediaStreamSource(this.input).connect(worklet);
    return this.spectrum.element;
  }

  /** Stop and wait for the last words: the final transcripts, and the recording. */
  async stop() {
    const { socket, blocks, transcripts, spectrum } = this;
    const rate = this.context.sampleRate;
    for (const track of this.input.getTracks()) track.stop();
    await this.context.suspend();
    socket.send(JSON.stringify({ type: "finish" }));
    try {
      await this.done;
    } finally {
      await this.release();
    }
    const samples = new Float32Array(blocks.reduce((sum, one) => sum + one.length, 0));
    blocks.reduce((at, one) => { samples.set(one, at); return at + one.length; }, 0);
    const length = samples.length / rate;
    return { finals: transcripts.finals, file: wav(samples, rate), length, missing: Math.max(0, spectrum.seconds - length) };
  }

  async release() {
    const { socket } = this;
    this.socket = null;
    for (const track of this.input?.getTracks() || []) track.stop();
    if (this.context && this.context.state !== "closed") await this.context.close();
    this.spectrum?.close();
    socket?.close();
  }
}
