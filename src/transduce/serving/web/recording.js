// The microphone: recorded by the browser, sent as a WAV file of 16 bits.

const RATE = 16000;

/** The microphone as it is: what the browser would do against noise, models were not trained on. */
export async function openInput() {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error("The browser gives no microphone to this page; open it over HTTPS or on this machine.");
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { noiseSuppression: false, echoCancellation: false, autoGainControl: false } });
  } catch (error) {
    throw new Error(error.name === "NotFoundError" ? "There is no microphone; open a recording instead." : "The microphone may not be used; allow it in the browser, or open a recording instead.");
  }
}

export class Microphone {
  /** Begin; `progress` is called with the seconds recorded so far. */
  async start(progress) {
    this.input = await openInput();
    this.parts = [];
    this.recorder = new MediaRecorder(this.input);
    this.recorder.addEventListener("dataavailable", (event) => this.parts.push(event.data));
    this.recorder.start();
    const begin = performance.now();
    this.timer = setInterval(() => progress((performance.now() - begin) / 1000), 200);
  }

  get running() { return this.recorder?.state === "recording"; }

  /** Stop; the recording as a WAV file. */
  async stop() {
    clearInterval(this.timer);
    const ended = new Promise((done) => this.recorder.addEventListener("stop", done, { once: true }));
    this.recorder.stop();
    await ended;
    for (const track of this.input.getTracks()) track.stop();
    const whole = await new Blob(this.parts, { type: this.recorder.mimeType }).arrayBuffer();
    let decoded;
    try {
      decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(whole);
    } catch {
      throw new Error("Nothing was recorded; record for a little longer.");
    }
    return wav(mixed(decoded), decoded.sampleRate);
  }
}

/** The samples of a file, mono, at RATE; null where the browser does not read its format. */
export async function decoded(file) {
  try {
    return { samples: mixed(await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer())), rate: RATE };
  } catch {
    return null;
  }
}

/** The mean of all channels. */
function mixed(sound) {
  const samples = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const some = sound.getChannelData(channel);
    for (let i = 0; i < samples.length; i++) samples[i] += some[i] / sound.numberOfChannels;
  }
  return samples;
}

/** Samples of 16 bits; little endian, as on every machine with a browser. */
export function pcm(samples) {
  return Int16Array.from(samples, (sample) => 32767 * Math.max(-1, Math.min(1, sample)));
}

export function wav(samples, rate) {
  const bytes = new DataView(new ArrayBuffer(44));
  const write = (at, text) => [...text].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  bytes.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true); // PCM
  bytes.setUint16(22, 1, true); // one channel
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  write(36, "data");
  bytes.setUint32(40, 2 * samples.length, true);
  return new Blob([bytes, pcm(samples)], { type: "audio/wav" });
}
