"""A picture of listening: what was written, letter by letter, over the sound where it was heard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from transduce.data.sounds import FULL_SCALE, read_waves
from transduce.decoding.output import Spoken
from transduce.errors import DataError, ModelError
from transduce.inspection.figures import COLORS, INK, axes_in_inches, fonts, save, visible
from transduce.tasks.hearing import Hearing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 9.0  # inches
ROW = 0.125  # inches of a token
SOUND_HEIGHT = 1.7
FONT = 8.0
EDGE = "#cfc9c4"
DARKEST = 0.9  # the share of the rows whose largest weight is not yet as dark as can be
SHADE = 0.7  # below one: small weights are seen, too
SOUND_COLORS = "magma"


def draw_hearing(model: Hearing, source: str, path: Path, title: str = "", **asked: Any) -> str:
    """Hear a sound file, draw where each token was heard, and give back what was written.

    `path` ends in .png, .svg or .pdf; the keywords are those of `model.run`. Raises DataError where
    the file cannot be used, ModelError where it is too long for one picture or nothing attends.
    """
    (output,) = model.run([source], attention=True, times=True, **asked)
    if output.failed:
        raise DataError(output.warning)
    if output.attention is None:
        raise ModelError(
            f"{source}: there is no attention to draw; give a model that attends a "
            f"recording of at most {model.longest:g} s"
        )
    ((wave, trouble, _),) = read_waves([source], model.sound.rate)
    if wave is None:
        raise DataError(trouble)
    front = model.network.front
    samples_BW = torch.from_numpy(wave[None]).to(model.device).float() / FULL_SCALE
    mel_BFM, _ = front.mel(samples_BW, torch.tensor([len(wave)], device=model.device))
    weights_TS = output.attention[-1].mean(axis=0)  # the last layer, its heads averaged
    heard_map(
        weights_TS,
        [front.seconds_of(state) for state in range(weights_TS.shape[1] + 1)],
        output.tokens,
        mel_BFM[0].cpu().numpy(),
        len(wave) / model.sound.rate,
        output.words,
        path,
        title,
    )
    return output.text


def heard_map(
    weights_TS: npt.NDArray[Any],
    edges: Sequence[float],
    tokens: Sequence[str],
    mel_FM: npt.NDArray[Any],
    seconds: float,
    words: Sequence[Spoken],
    path: Path,
    title: str = "",
) -> None:
    """Draw attention to sound: tokens down, seconds across, and the spectrogram under it.

    edges: the seconds where each of the S columns begins, and where the last ends. mel_FM: log-mel
    features that last so many `seconds`. words stand where they were said.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    count = len(tokens)
    if weights_TS.shape != (count, len(edges) - 1) or not weights_TS.size:
        raise ValueError(f"attention of shape {weights_TS.shape} does not fit {count} tokens")
    left, top, gap, bottom = 0.35, 0.35, 0.3, 0.45
    tall = count * ROW
    height = top + tall + gap + SOUND_HEIGHT + bottom
    figure = Figure(figsize=(left + WIDTH, height), facecolor="white")
    above = axes_in_inches(figure, left, bottom + SOUND_HEIGHT + gap, WIDTH, tall)
    below = axes_in_inches(figure, left, bottom, WIDTH, SOUND_HEIGHT)
    # Rows differ in how sharp they are: the darkest of most of them is as dark as can be.
    darkest = max(float(np.quantile(weights_TS.max(axis=1), DARKEST)), 1e-6)
    scale = PowerNorm(SHADE, vmin=0.0, vmax=darkest, clip=True)
    rows = np.arange(count + 1)
    above.pcolormesh(edges, rows, weights_TS, cmap=COLORS, norm=scale, rasterized=True)
    above.set_ylim(count, 0)
    above.set_yticks(rows[:-1] + 0.5, [visible(token) for token in tokens])
    below.imshow(
        mel_FM.T,
        origin="lower",
        aspect="auto",
        cmap=SOUND_COLORS,
        extent=(0.0, seconds, 0.0, 1.0),
        vmin=float(np.quantile(mel_FM, 0.05)),
        vmax=float(np.quantile(mel_FM, 0.998)),
    )
    below.set_yticks([])
    below.set_xlabel("seconds", fontsize=FONT + 1, color=INK)
    for axes in (above, below):
        _dress(axes, seconds)
    above.set_xticklabels([])
    _write_words(above, below, words)
    if title:
        written = above.set_title(title, fontsize=FONT + 3, color=INK, loc="left", pad=8)
        written.set(family=fonts())
        written.set_parse_math(False)
    save(figure, path)


def _dress(axes: Axes, seconds: float) -> None:
    axes.set_xlim(0.0, seconds)
    axes.tick_params(length=0, labelsize=FONT, colors=INK, pad=4)
    for label in axes.get_yticklabels():
        label.set(family=fonts())
        label.set_parse_math(False)  # a token may be a dollar sign
    for spine in axes.spines.values():
        spine.set(edgecolor=EDGE, linewidth=0.6)


def _write_words(above: Axes, below: Axes, words: Sequence[Spoken]) -> None:
    """Each word between the two pictures, and hair lines where it begins and ends."""
    for word in words:
        for place in (word.start, word.end):
            above.axvline(place, color=EDGE, linewidth=0.5, zorder=3)
            below.axvline(place, color="white", linewidth=0.5, alpha=0.45)
        text = below.text(
            (word.start + word.end) / 2,
            1.06,
            word.text,
            ha="center",
            va="bottom",
            fontsize=FONT + 0.5,
            color=INK,
            family=fonts(),
        )
        text.set_parse_math(False)
