// Audio: what was written, over the spectrogram of where it was heard; it can be played.

const audioView = {
  id: "audio",
  title: "Audio",
  when: (looks) => looks.some((look) => look.audio),
  build(looks, shared) {
    shared.audio = [];
    return panels(looks, (look, place) => {
      if (!look.audio) return make("p", { class: "note" }, "This model reads text.");
      shared.audio[place] = new AudioPanel(look);
      return shared.audio[place].element;
    });
  },
  shown(shared) { for (const panel of shared.audio) panel?.update(); },
  left(shared) { for (const panel of shared.audio) panel?.sound?.pause(); },
  pressed(event, shared) {
    if (event.key !== " ") return false;
    const sound = shared.audio.find((panel) => panel?.sound)?.sound;
    if (sound) { if (sound.paused) sound.play(); else sound.pause(); }
    return Boolean(sound);
  },
};

/** The spectrogram as a picture, low tones below. */
function spectrogram(audio) {
  const [bands, frames] = audio.picture.shape;
  const { values } = audio.picture;
  return picture(bands, frames, (i) => values[(bands - 1 - Math.floor(i / frames)) * frames + (i % frames)], 255);
}

/** Seconds from the beginning of the audio where each position of the source begins; and the end. */
function edges(look) {
  const begin = look.times.map((second) => second - look.audio.start);
  const step = begin.length > 1 ? begin[1] - begin[0] : look.audio.seconds;
  return [...begin, Math.min(look.audio.seconds, begin[begin.length - 1] + step)];
}

class AudioPanel {
  constructor(look) {
    this.look = look;
    const groups = look.groups.filter((group) => group.ofSource && group.rowNames !== look.axes.source);
    if (look.ctc) groups.unshift(look.ctc.group); // it shows best where each letter was heard
    this.chooser = groups.length ? new Chooser(groups, () => this.update(), { }) : null;
    this.plane = new AudioPlane(look, (second) => this.seek(second));
    const zoom = slider("Zoom", "zoom", { min: 1, max: 12, step: 0.5, value: 1 }, (value) => { this.plane.zoom = value; this.plane.resize(); });
    this.sound = null;
    let player = make("p", { class: "note" }, "The recording is longer than a page carries: it cannot be played here.");
    if (look.audio.wav) {
      const bytes = Uint8Array.from(atob(look.audio.wav), (letter) => letter.charCodeAt(0));
      this.sound = make("audio", { controls: true, preload: "auto", "aria-label": "Recording" });
      this.sound.src = URL.createObjectURL(new Blob([bytes], { type: "audio/wav" }));
      const follow = () => {
        this.plane.cursor = this.sound.currentTime;
        this.plane.follow();
        if (!this.sound.paused) requestAnimationFrame(follow);
      };
      for (const event of ["play", "seeked", "timeupdate"]) this.sound.addEventListener(event, follow);
      player = this.sound;
    }
    this.element = make("div", {},
      make("div", { class: "controls" }, ...(this.chooser ? this.chooser.elements : []), zoom), player, this.plane.element);
  }

  seek(second) {
    this.plane.cursor = second;
    if (this.sound) this.sound.currentTime = second;
    this.plane.later();
  }

  update() {
    if (this.chooser) {
      const heads = this.chooser.group.kind !== "ctc";
      this.chooser.layerBox.hidden = this.chooser.headBox.hidden = !heads;
    }
    this.plane.show(this.chooser ? this.chooser.table : null);
  }
}

const SOUND_HEIGHT = 150;
const WORD_HEIGHT = 22;
const RULER = 20;
const LEAST_ROW = 13; // every row has room for its name

class AudioPlane extends Plane {
  constructor(look, seek) {
    super("Spectrogram and attention over time; a click moves the cursor");
    this.look = look;
    this.seek = seek;
    this.cursor = 0;
    this.zoom = 1;
    this.edges = edges(look);
    this.recolor();
  }

  show(table) {
    this.table = table;
    this.top = (table && table.usual) || 1;
    this.left = table ? widest(table.rowNames, 120) : 10;
    this.recolor();
    this.resize();
  }

  recolor() {
    this.sound = spectrogram(this.look.audio);
    if (this.table) {
      const { rows, columns, values } = this.table;
      this.image = picture(rows, columns, (i) => values[i], this.top);
    }
  }

  measure(width) {
    this.second = (Math.max(50, width - this.left - 4) / this.look.audio.seconds) * this.zoom;
    this.row = this.table ? Math.max(LEAST_ROW, Math.min(16, 420 / this.table.rows)) : 0;
    this.map = this.table ? this.table.rows * this.row + 8 : 0;
    return [this.left + this.look.audio.seconds * this.second + 2, this.map + WORD_HEIGHT + SOUND_HEIGHT + RULER];
  }

  draw(context, x, y) {
    const { left, second, look } = this;
    const at = (seconds) => left + seconds * second - x;
    context.save();
    context.beginPath();
    context.rect(left, 0, this.wide - left, this.high);
    context.clip();
    context.imageSmoothingEnabled = false;
    if (this.table) {
      context.drawImage(this.image, at(this.edges[0]), -y, (this.edges[this.edges.length - 1] - this.edges[0]) * second, this.table.rows * this.row);
    }
    this.path(context, at, y);
    context.drawImage(this.sound, at(0), this.map + WORD_HEIGHT - y, look.audio.seconds * second, SOUND_HEIGHT);
    this.words(context, at, y);
    this.ruler(context, at, y);
    context.fillStyle = theme.color("accent");
    context.fillRect(at(this.cursor) - 1, 0, 2, this.map + WORD_HEIGHT + SOUND_HEIGHT - y);
    context.restore();
    this.names(context, y);
  }

  /** Outline where CTC says each token. */
  path(context, at, y) {
    if (!this.table || !this.look.ctc) return;
    const { first, last } = this.look.ctc;
    context.strokeStyle = theme.color("accent");
    context.lineWidth = 1.5;
    for (let row = 0; row < first.length; row++) {
      const [start, end] = [at(this.edges[first[row]]), at(this.edges[last[row] + 1])];
      context.strokeRect(start, row * this.row - y + 0.5, Math.max(2, end - start), this.row - 1);
    }
    context.lineWidth = 1;
  }

  words(context, at, y) {
    context.textAlign = "center";
    context.strokeStyle = theme.color("hair");
    context.fillStyle = theme.color("ink");
    for (const word of this.look.words) {
      const [start, end] = [word.start - this.look.audio.start, word.end - this.look.audio.start];
      context.fillText(cut(context, word.text, Math.max(30, (end - start) * this.second)), at((start + end) / 2), this.map + WORD_HEIGHT / 2 - y);
      for (const edge of [start, end]) {
        context.beginPath();
        context.moveTo(at(edge), this.map - y);
        context.lineTo(at(edge), this.map + WORD_HEIGHT + SOUND_HEIGHT - y);
        context.stroke();
      }
    }
  }

  ruler(context, at, y) {
    const every = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30].find((step) => step * this.second > 60) || 60;
    context.textAlign = "left";
    context.fillStyle = theme.color("ink");
    const down = this.map + WORD_HEIGHT + SOUND_HEIGHT - y;
    for (let time = 0; time <= this.look.audio.seconds; time += every) {
      context.fillRect(at(time), down, 1, 5);
      context.fillText(`${(time + this.look.audio.start).toFixed(every < 1 ? 1 : 0)} s`, at(time) + 3, down + 11);
    }
  }

  names(context, y) {
    if (!this.table) return;
    context.textAlign = "right";
    context.fillStyle = theme.color("ink");
    for (let row = 0; row < this.table.rows; row++) {
      context.fillText(cut(context, this.table.rowNames[row], this.left - 8), this.left - 5, (row + 0.5) * this.row - y);
    }
  }

  /** Keep the cursor in sight. */
  follow() {
    const at = this.cursor * this.second;
    const seen = this.wide - this.left;
    if (at < this.scroller.scrollLeft || at > this.scroller.scrollLeft + seen) this.scroller.scrollLeft = at - seen / 4;
    this.later();
  }

  when(event) {
    const second = (this.place(event)[0] - this.left + this.scroller.scrollLeft) / this.second;
    return Math.max(0, Math.min(this.look.audio.seconds, second));
  }

  clicked(event) { this.seek(this.when(event)); }

  pressed(event) {
    const moves = { ArrowLeft: -0.1, ArrowRight: 0.1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    this.seek(Math.max(0, Math.min(this.look.audio.seconds, this.cursor + moves[event.key])));
  }

  pointed(event) {
    if (!event) { this.say(""); return; }
    const second = this.when(event);
    const row = this.table ? Math.floor((this.place(event)[1] + this.scroller.scrollTop) / this.row) : -1;
    let text = `${(second + this.look.audio.start).toFixed(2)} s`;
    if (this.table && row >= 0 && row < this.table.rows) {
      const column = this.edges.findLastIndex((edge) => edge <= second);
      const weight = column >= 0 && column < this.table.columns ? this.table.at(row, column) : 0;
      text += `, ${this.table.rowNames[row]}: ${weight.toFixed(3)}`;
    }
    this.say(text);
  }
}

const BARS_HEIGHT = 60; // of a strip: attention above, the spectrogram below

/** For playback: how much a step attends to each moment, over the spectrogram. */
class Strip {
  constructor(look) {
    this.look = look;
    this.edges = edges(look);
    this.canvas = make("canvas", { class: "strip", width: 1200, height: 150, role: "img", "aria-label": "Attention over the spectrogram" });
    this.weights = null;
    redraws.add(() => { if (this.weights) this.draw(this.weights); });
  }

  draw(weights) {
    this.weights = weights;
    const context = this.canvas.getContext("2d");
    const [wide, high] = [this.canvas.width, this.canvas.height];
    const scale = wide / this.look.audio.seconds;
    context.clearRect(0, 0, wide, high);
    context.drawImage(spectrogram(this.look.audio), 0, BARS_HEIGHT, wide, high - BARS_HEIGHT);
    const top = largest(weights, 0.05);
    context.fillStyle = theme.color("accent");
    for (let place = 0; place < weights.length; place++) {
      const tall = (weights[place] / top) * (BARS_HEIGHT - 4);
      context.fillRect(this.edges[place] * scale, BARS_HEIGHT - tall, (this.edges[place + 1] - this.edges[place]) * scale, tall);
    }
  }
}
