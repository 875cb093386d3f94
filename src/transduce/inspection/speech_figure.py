"""Speech attention figure: tokens over time, with attention, CTC alignment and spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transduce.data.audio.corpus import FULL_SCALE, Wave
from transduce.data.audio.read import RATE
from transduce.data.tokens.tokenizer import PAD, SPACE
from transduce.decoding.output import TimedWord
from transduce.errors import DataError, ModelError
from transduce.inspection.figures import COLORS, INK, axes_in_inches, fonts, save
from transduce.inspection.page import visible
from transduce.models.call_context import Call
from transduce.nn.ctc.alignment import align
from transduce.nn.ctc.loss import token_posteriors
from transduce.nn.speech.mel import mel
from transduce.tasks.audio_input import AudioSource
from transduce.tasks.model import inference
from transduce.tasks.speech import SpeechModel
from transduce.tasks.speech_transducer import SpeechTransducerModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 9.0  # inches
ROW = 0.125  # inches of a token
SOUND_HEIGHT = 1.7
FONT = 8.0
EDGE = "#cfc9c4"
DARKEST = 0.9  # share of the rows whose largest weight is not yet drawn in the darkest colour
SHADE = 0.7  # exponent below one, so that small weights are visible
SOUND_COLORS = "magma"
PATH = "#e08214"
LOWEST = 20.0  # Hz, where the mel bands begin
ATTENTION = "attention (last layer, mean of its heads)"
EMISSIONS = "probability that the transducer emits a token here"
HERTZ = (100, 250, 500, 1000, 2000, 4000, 8000, 16000)


@dataclass(frozen=True)
class CtcPath:
    """CTC probabilities and best path of the T tokens of a transcript, without END."""

    probabilities_TS: npt.NDArray[Any]
    """Probability that a token is said at each of the S encoder frames, given the transcript."""
    first: Sequence[int]
    last: Sequence[int]
    """First and last frame of each token on the best path."""


def draw_speech_attention(
    model: SpeechModel,
    source: AudioSource,
    path: Path,
    title: str = "",
    *,
    rate: int | None = None,
    tags: Sequence[str] = (),
    **asked: Any,
) -> str:
    """Transcribe audio, draw attention over time, and return the transcript.

    `path` ends in .png, .svg or .pdf; source and keywords are those of `model.run`. On top is the
    attention of the last layer; then, if the model has CTC over the same tokens, its alignment and
    best path; then the spectrogram. Of a transducer, which has no attention, on top is the
    probability that each token is emitted at a state. Raises DataError if the audio cannot be
    used, ModelError if it is too long for one figure or the model has no attention.
    """
    transducer = isinstance(model, SpeechTransducerModel)
    asked = {"attention": not transducer, "times": True, **asked}
    (output,) = model.run([source], rate=rate, tags=tags, **asked)
    if output.failed:
        raise DataError(output.warning)
    if output.attention is None and not (transducer and output.ids and len(output.segments) == 1):
        raise ModelError(
            f"{source}: there is no attention to draw; give a model with attention, or a "
            f"transducer, a recording of at most {model.recordings.longest:g} s"
        )
    (recording,) = model.recordings.split([source], rate, tags)
    ((wave, trouble, _),) = model.recordings.waves_of([recording.source])
    if wave is None:
        raise DataError(trouble)
    front = model.network.front
    samples_BW = torch.from_numpy(wave[None]).to(model.device)
    lengths_B = torch.tensor([len(wave)])
    with inference(model):
        mel_BFM, _ = front.mel(samples_BW.float() / FULL_SCALE, lengths_B.to(model.device))
    ctc = ctc_path_of(model, wave, recording.tags, output.ids)
    tokens, about = output.tokens, ATTENTION
    if isinstance(model, SpeechTransducerModel):
        weights_TS = model.emissions(wave, output.ids, recording.tags)
        tokens, about = tokens[: len(output.ids)], EMISSIONS
    else:
        assert output.attention is not None
        weights_TS = output.attention[-1].mean(axis=0)  # the last layer, its heads averaged
    speech_attention_map(
        weights_TS,
        [front.seconds_of(state) for state in range(weights_TS.shape[1] + 1)],
        tokens,
        mel_BFM[0].cpu().numpy(),
        len(wave) / model.recordings.settings.sample_rate,
        output.words,
        path,
        title,
        ctc=ctc,
        about=about,
        rate=model.recordings.settings.sample_rate,
    )
    return output.text


def ctc_path_of(
    model: SpeechModel, wave: Wave, tags: Sequence[str], ids: Sequence[int]
) -> CtcPath | None:
    """Where CTC says the tokens of an output; None if the model has no CTC over them."""
    if not (model.has_same_ctc and ids):
        return None
    samples_BW, lengths_B = torch.from_numpy(wave[None]).to(model.device), torch.tensor([len(wave)])
    context = model.context_of(Call(tuple(tags)))
    with inference(model):
        memory = model.network.encode(samples_BW, lengths_B, **context.keywords)
        return _ctc_path(model.network.ctc_log_probs(memory)[0].cpu(), ids)


def _ctc_path(log_probs_SV: Tensor, ids: Sequence[int]) -> CtcPath | None:
    """None if there are more tokens than encoder frames."""
    tokens_T = torch.tensor(list(ids))
    try:
        path = align(log_probs_SV, tokens_T, PAD)
    except ValueError:
        return None
    probabilities_TS = token_posteriors(log_probs_SV, tokens_T, PAD).numpy()
    return CtcPath(probabilities_TS, path.first_U.tolist(), path.last_U.tolist())


def speech_attention_map(
    weights_TS: npt.NDArray[Any],
    edges: Sequence[float],
    tokens: Sequence[str],
    mel_FM: npt.NDArray[Any],
    seconds: float,
    words: Sequence[TimedWord],
    path: Path,
    title: str = "",
    *,
    ctc: CtcPath | None = None,
    about: str = ATTENTION,
    rate: int = RATE,
) -> None:
    """Draw attention over audio: tokens as rows, seconds as columns, with the spectrogram below.

    edges: the seconds where each of the S columns begins, and where the last ends. mel_FM: log-mel
    features of `seconds` of audio at that rate. words are drawn at their times. ctc: CTC
    probabilities of the tokens, for a panel between the two. about: what the weights are.
    """
    from matplotlib.figure import Figure

    count = len(tokens)
    if weights_TS.shape != (count, len(edges) - 1) or not weights_TS.size:
        raise ValueError(f"attention of shape {weights_TS.shape} does not fit {count} tokens")
    left, top, gap, bottom = 0.75, 0.55, 0.45, 0.45
    tall = count * ROW
    second = 0.0 if ctc is None else len(ctc.first) * ROW + gap
    height = top + tall + second + gap + SOUND_HEIGHT + bottom
    figure = Figure(figsize=(left + WIDTH, height), facecolor="white")
    base = bottom + SOUND_HEIGHT + gap
    above = axes_in_inches(figure, left, base + second, WIDTH, tall)
    below = axes_in_inches(figure, left, bottom, WIDTH, SOUND_HEIGHT)
    _draw_rows(above, edges, weights_TS, tokens, about)
    panels = [above]
    if ctc is not None:
        middle = axes_in_inches(figure, left, base, WIDTH, second - gap)
        shown = tokens[: len(ctc.first)]
        _draw_rows(
            middle, edges, ctc.probabilities_TS, shown, "CTC alignment; outlined: its best path"
        )
        _draw_path(middle, edges, ctc)
        panels.append(middle)
    _draw_audio(below, mel_FM, seconds, rate)
    for axes in (*panels, below):
        _dress(axes, seconds)
    for axes in panels:
        axes.set_xticklabels([])
    _write_words(panels, below, words)
    if title:
        place = 1 - 0.22 / height
        written = figure.text(left / (left + WIDTH), place, title, fontsize=FONT + 3, color=INK)
        written.set(family=fonts(), va="center")
        written.set_parse_math(False)
    save(figure, path)


def _draw_rows(
    axes: Axes,
    edges: Sequence[float],
    weights_TS: npt.NDArray[Any],
    tokens: Sequence[str],
    about: str,
) -> None:
    """Weights of tokens, a row each."""
    from matplotlib.colors import PowerNorm

    # Rows differ in their maxima: the colour scale saturates for most of them.
    darkest = max(float(np.quantile(weights_TS.max(axis=1), DARKEST)), 1e-6)
    scale = PowerNorm(SHADE, vmin=0.0, vmax=darkest, clip=True)
    rows = np.arange(len(tokens) + 1)
    axes.pcolormesh(edges, rows, weights_TS, cmap=COLORS, norm=scale, rasterized=True)
    axes.set_ylim(len(tokens), 0)
    axes.set_yticks(rows[:-1] + 0.5, [visible(token.replace(SPACE, "␣")) for token in tokens])
    axes.set_title(about, fontsize=FONT, color=INK, loc="right", pad=3)


def _draw_path(axes: Axes, edges: Sequence[float], ctc: CtcPath) -> None:
    """Outline the best path of each token."""
    from matplotlib.patches import Rectangle

    for row, (first, last) in enumerate(zip(ctc.first, ctc.last, strict=True)):
        start, end = edges[first], edges[last + 1]
        box = Rectangle((start, row), end - start, 1, fill=False, edgecolor=PATH, linewidth=0.9)
        axes.add_patch(box)


def _draw_audio(axes: Axes, mel_FM: npt.NDArray[Any], seconds: float, rate: int) -> None:
    """The spectrogram, with the frequencies of its mel bands."""
    axes.imshow(
        mel_FM.T,
        origin="lower",
        aspect="auto",
        cmap=SOUND_COLORS,
        extent=(0.0, seconds, 0.0, 1.0),
        vmin=float(np.quantile(mel_FM, 0.05)),
        vmax=float(np.quantile(mel_FM, 0.998)),
    )
    places = {hertz: place_of_hertz(hertz, mel_FM.shape[1], rate) for hertz in HERTZ}
    shown = {hertz: place for hertz, place in places.items() if 0 <= place <= 1}
    axes.set_yticks(list(shown.values()), [f"{hertz:,}" for hertz in shown])
    axes.set_ylabel("Hz (mel bands)", fontsize=FONT + 1, color=INK)
    axes.set_xlabel("seconds", fontsize=FONT + 1, color=INK)


def place_of_hertz(hertz: float, bands: int, rate: int) -> float:
    """The position of a frequency among mel bands that fill 0 to 1, with bands at their centres."""
    low, high = mel(LOWEST), mel(rate / 2)
    band = (mel(hertz) - low) / (high - low) * (bands + 1) - 1
    return (band + 0.5) / bands


def _dress(axes: Axes, seconds: float) -> None:
    axes.set_xlim(0.0, seconds)
    axes.tick_params(length=0, labelsize=FONT, colors=INK, pad=4)
    for label in axes.get_yticklabels():
        label.set(family=fonts())
        label.set_parse_math(False)  # a token may be a dollar sign
    for spine in axes.spines.values():
        spine.set(edgecolor=EDGE, linewidth=0.6)


def _write_words(panels: Sequence[Axes], below: Axes, words: Sequence[TimedWord]) -> None:
    """Each word above the spectrogram, and thin lines where it begins and ends."""
    for word in words:
        for place in (word.start, word.end):
            for axes in panels:
                axes.axvline(place, color=EDGE, linewidth=0.5, zorder=3)
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
