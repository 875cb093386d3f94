"""Word timestamps from cross-attention, by dynamic time warping (DTW).

As in Whisper's own code: the weights of the alignment heads are normalised over tokens, smoothed
over time and averaged; a path that moves along tokens and time has the largest sum. Unlike there,
states in which nobody speaks are left out of the path: else a pause would be part of the word
before or after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.tokens.tokenizer import END, SPACE, Tokens
from transduce.models.encoder_output import EncoderOutput
from transduce.models.lens import Lens
from transduce.models.speech import SpeechEncoderDecoder

SMOOTHED = 7  # states of the median filter
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # each character is a word of its own
CROSS = "decoder.blocks.{}.cross_attention"


class TokenTimes(NamedTuple):
    """Of the tokens of one text."""

    states: list[NDArray[np.int64]]
    """The encoder states in which each token is said, rising; END the last."""
    log_probabilities: list[float]
    """log p of each token, END the last."""


def token_times(
    network: SpeechEncoderDecoder,
    memory: EncoderOutput,
    states: NDArray[np.int64],
    prompt: Sequence[int],
    ids: Sequence[int],
    heads: Sequence[Sequence[int]],
) -> TokenTimes:
    """When each token of a text is said.

    memory: of one recording. states: those of it in which there is speech, rising. prompt: what
    goes before the text. heads: layer and head of each alignment head; empty: all of the upper
    layers.
    """
    layers = len(network.decoder.blocks)  # type: ignore[arg-type]
    chosen = heads or [(layer, -1) for layer in range(layers // 2, layers)]
    device = memory.states_BSD.device
    memory = replace(memory, states_BSD=memory.states_BSD.to(network.head.bias.dtype))
    target_1T = torch.tensor([[*prompt, *ids]], device=device)
    names = sorted({CROSS.format(layer) for layer, _ in chosen})
    with Lens(network, *names) as lens:
        features_1TD = network.decoder(target_1T, memory)
    after_TD = features_1TD[0, len(prompt) - 1 :]
    log_probs_TV = torch.log_softmax(network.head(after_TD).float(), dim=-1)
    wanted_T1 = torch.tensor([*ids, END], device=device)[:, None]
    log_probabilities = log_probs_TV.gather(1, wanted_T1).squeeze(1).tolist()
    parts = []
    for layer, head in chosen:
        weights_HTS = lens.weights[CROSS.format(layer)][0].float()
        parts.append(weights_HTS if head < 0 else weights_HTS[head : head + 1])
    weights_HTS = torch.cat(parts)[:, :, : int(states[-1]) + 1]
    cost_TS = -_smoothed(weights_HTS)[len(prompt) - 1 :]
    token_X, column_X = dtw(cost_TS.cpu().numpy()[:, states])
    first = np.searchsorted(token_X, np.arange(len(ids) + 2))
    own = [states[column_X[start:end]] for start, end in pairwise(first.tolist())]
    return TokenTimes(own, log_probabilities)


def word_states(said: NDArray[np.int64], unsaid: NDArray[np.int64], pause: int) -> tuple[int, int]:
    """The first state of a word and the one after its last, of the states that a path gave it.

    said: those of its letters, of which the most that lie together are taken, no `pause` between
    them. unsaid: those of a comma or full stop after it, or of END, which are its last sound as far
    as they follow without a pause.
    """
    parts = np.split(said, np.flatnonzero(np.diff(said) > pause) + 1)
    best = max(parts, key=len)
    last = int(best[-1])
    for state in unsaid.tolist() if best is parts[-1] else ():
        if state - last > pause:
            break
        last = max(last, state)
    return int(best[0]), last + 1


def _smoothed(weights_HTS: Tensor) -> Tensor:
    """The alignment heads as one matrix [T, S]."""
    weights_HTS = weights_HTS / weights_HTS.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    spread_H1S, mean_H1S = torch.std_mean(weights_HTS, dim=1, keepdim=True, unbiased=False)
    normal_HTS = (weights_HTS - mean_H1S) / spread_H1S.clamp(min=1e-9)
    S = normal_HTS.shape[-1]
    half = SMOOTHED // 2
    if half < S:
        padded_HTS = F.pad(normal_HTS, (half, half), mode="reflect")
        normal_HTS = padded_HTS.unfold(-1, SMOOTHED, 1).median(dim=-1).values
    return normal_HTS.mean(dim=0)


def dtw(cost_TS: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path of least cost from the first corner to the last, one step along either or both.

    Its rows and columns. Computed one anti-diagonal after the other.
    """
    T, S = cost_TS.shape
    total = np.full((T + 1, S + 1), np.inf)
    total[0, 0] = 0.0
    came = np.zeros((T + 1, S + 1), np.int8)
    for diagonal in range(2, T + S + 1):
        i = np.arange(max(1, diagonal - S), min(T, diagonal - 1) + 1)
        j = diagonal - i
        sums = np.stack((total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]))
        came[i, j] = sums.argmin(axis=0)
        total[i, j] = cost_TS[i - 1, j - 1] + sums.min(axis=0)
    rows, columns = [], []
    i, j = T, S
    while i > 0 and j > 0:
        rows.append(i - 1)
        columns.append(j - 1)
        move = came[i, j]
        i, j = i - (move != 2), j - (move != 1)
    return np.array(rows[::-1]), np.array(columns[::-1])


def word_spans(tokens: Tokens, ids: Sequence[int], language: str | None) -> list[tuple[int, int]]:
    """The first token of each word and the one after its last."""
    found: list[list[int]] = []
    alone = language in WITHOUT_SPACES
    for place, piece in enumerate(tokens.pieces(ids)):
        partial = piece.startswith("<") and len(piece) > 1  # bytes of a character
        if not found or piece.startswith(SPACE) or (alone and not partial and piece.isalnum()):
            found.append([place, place])
        found[-1][1] = place + 1
    return [(start, end) for start, end in found]
