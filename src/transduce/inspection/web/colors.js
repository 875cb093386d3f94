// Colours of weights: lightness alone tells more from less, so that every eye and grey print can.

const LIGHT = [[251, 250, 246], [206, 221, 235], [139, 174, 212], [66, 117, 183], [27, 63, 130], [9, 20, 58]];
const DARK = [[20, 23, 31], [24, 48, 92], [72, 92, 121], [131, 129, 120], [198, 174, 96], [255, 234, 92]];
// Of numbers of either sign: orange below zero, blue above, which the colour-blind tell apart.
const LIGHT_SIGNED = [[132, 56, 4], [214, 118, 32], [246, 196, 136], [251, 250, 246], [150, 190, 226], [50, 110, 184], [12, 44, 110]];
const DARK_SIGNED = [[255, 186, 110], [200, 116, 40], [92, 58, 30], [20, 23, 31], [34, 62, 104], [66, 128, 204], [160, 208, 255]];
const SHADES = 256;

function ramp(anchors) {
  const found = new Uint8ClampedArray(SHADES * 3);
  for (let i = 0; i < SHADES; i++) {
    const place = (i / (SHADES - 1)) * (anchors.length - 1);
    const low = Math.min(Math.floor(place), anchors.length - 2);
    for (let c = 0; c < 3; c++) {
      found[3 * i + c] = anchors[low][c] + (place - low) * (anchors[low + 1][c] - anchors[low][c]);
    }
  }
  return found;
}

const RAMPS = { light: ramp(LIGHT), dark: ramp(DARK) };
const SIGNED = { light: ramp(LIGHT_SIGNED), dark: ramp(DARK_SIGNED) };
const redraws = new Set(); // functions to call when the colours change

/** Draw now, and again whenever the colours change. */
function onColors(draw) {
  draw();
  redraws.add(draw);
}

const theme = {
  get name() {
    const chosen = document.documentElement.dataset.theme;
    if (chosen) return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches && !theme.printing ? "dark" : "light";
  },
  printing: false,
  set(name) {
    document.documentElement.dataset.theme = name;
    theme.changed();
  },
  toggle() { theme.set(theme.name === "dark" ? "light" : "dark"); },
  changed() {
    for (const redraw of redraws) redraw();
  },
  color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  },
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme.changed);

/** The place of a number from 0 to 1 in a ramp; `signed`: from -1 to 1. */
function shadeIndex(share, signed) {
  if (signed) share = (share + 1) / 2;
  return 3 * Math.max(0, Math.min(SHADES - 1, Math.round(share * (SHADES - 1))));
}

/** Red, green and blue of a number. */
function colorOf(share, signed) {
  const i = shadeIndex(share, signed);
  return (signed ? SIGNED : RAMPS)[theme.name].subarray(i, i + 3);
}

function shade(share) { return `rgb(${colorOf(share, false).join(" ")})`; }

/** Colour an element by a number, with ink that can be read on it; null: no colour. */
function tint(element, share, signed = false) {
  const color = share === null ? null : colorOf(share, signed);
  const dark = color && 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2] <= 130;
  element.style.backgroundColor = color ? `rgb(${color.join(" ")})` : "";
  element.style.color = color ? (dark ? "#ffffff" : "#14171f") : "";
}

/** A picture with one pixel a number; `top` is the number of the strongest colour. */
function picture(rows, columns, valueAt, top, signed = false) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const colors = (signed ? SIGNED : RAMPS)[theme.name];
  for (let i = 0; i < rows * columns; i++) {
    const from = shadeIndex(valueAt(i) / top, signed);
    image.data[4 * i] = colors[from];
    image.data[4 * i + 1] = colors[from + 1];
    image.data[4 * i + 2] = colors[from + 2];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The scale from 0, or from -`top`, to `top`: to be read beside a map. */
function legend(top, signed = false) {
  const canvas = make("canvas", { width: 120, height: 10, "aria-hidden": "true" });
  onColors(() => {
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(picture(1, SHADES, (i) => (signed ? 2 * i : i) / (SHADES - 1) - (signed ? 1 : 0), 1, signed), 0, 0, 120, 10);
  });
  return make("span", { class: "legend" }, signed ? (top === 1 ? "-1" : (-top).toFixed(3)) : "0", canvas, top === 1 ? "1" : top.toFixed(3));
}
