// The quiet before and after speech, found as data/audio/silence.py finds pauses.

const HOP = 0.01; // seconds of one loudness value
const SIDE = 2; // values on each side that are averaged with one
const NOTHING = -90; // dB: digital silence, which says nothing about the noise
const LEAST = 6; // dB that speech is above the noise
const MARGIN = 15; // values of the quiet that are kept

/** A recording from its first loud place to its last; all of it where nothing stands out. */
function withoutQuietEnds(samples, rate) {
  const size = Math.round(HOP * rate);
  const decibels = Array.from({ length: Math.floor(samples.length / size) }, (_, i) => {
    const block = samples.subarray(i * size, (i + 1) * size);
    const mean = block.reduce((sum, value) => sum + value, 0) / size;
    return 10 * Math.log10(Math.max(block.reduce((sum, value) => sum + (value - mean) ** 2, 0) / size, 1e-10));
  });
  const end = decibels.length - 1;
  const smooth = decibels.map((_, i) => {
    let sum = 0;
    for (let k = -SIDE; k <= SIDE; k++) sum += decibels[Math.min(end, Math.max(0, i + k))];
    return sum / (2 * SIDE + 1);
  });
  const audible = smooth.filter((value) => value > NOTHING).sort((a, b) => a - b);
  if (!audible.length) return samples;
  const noise = percentile(audible, 0.1);
  const threshold = noise + Math.max(LEAST, (percentile(audible, 0.95) - noise) / 3);
  const loud = smooth.map((value) => value > threshold);
  const first = loud.indexOf(true);
  if (first < 0) return samples;
  return samples.slice(Math.max(0, first - MARGIN) * size, (loud.lastIndexOf(true) + 1 + MARGIN) * size);
}

function percentile(sorted, share) {
  const place = share * (sorted.length - 1);
  const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return below + (place % 1) * (above - below);
}
