// Runs in the audio thread: hands over the samples of the microphone in blocks.

const BLOCK = 2048;

class Samples extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(BLOCK);
    this.size = 0;
  }

  process([input]) {
    for (const sample of input[0] || []) {
      this.block[this.size++] = sample;
      if (this.size < BLOCK) continue;
      this.port.postMessage(this.block);
      this.block = new Float32Array(BLOCK);
      this.size = 0;
    }
    return true;
  }
}

registerProcessor("samples", Samples);
