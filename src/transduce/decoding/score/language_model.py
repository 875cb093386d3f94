"""Scores of given texts by a language model: log-probabilities, distributions, attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, PAD
from transduce.decoding.batch.decode import PLACES
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.readings import Reading, read_parts
from transduce.decoding.score.context import Window, windows
from transduce.decoding.score.logits import forward_and_head, token_log_probs
from transduce.models.language_model import LanguageModelNetwork

Rows = Sequence[Sequence[int] | NDArray[np.int32]]


def log_probabilities(
    network: LanguageModelNetwork, texts: Rows, size: int
) -> list[NDArray[np.float64]]:
    """The log-probability of each token of each text, given the tokens before it in its window.

    Texts are ids without BEGIN; END, if it is to be scored, is included.
    """
    found, head = [np.zeros(len(text)) for text in texts], forward_and_head(network)[1]
    for piece, features_XD, wanted_X in _predictions(network, texts, size):
        log_probs_X = token_log_probs(head, features_XD, wanted_X)
        found[piece.text][piece.window.first : piece.window.end] = log_probs_X.cpu().numpy()
    return found


def negative_log_likelihood(
    network: LanguageModelNetwork, texts: Rows, size: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """−Σ log p of texts, and the number of tokens; over every count-th window from `rank` on."""
    total = torch.zeros((), dtype=torch.float64, device=network.head.bias.device)
    tokens, head = 0, forward_and_head(network)[1]
    for _, features_XD, wanted_X in _predictions(network, texts, size, rank, count):
        total -= token_log_probs(head, features_XD, wanted_X).double().sum()
        tokens += len(wanted_X)
    return float(total), tokens


def distributions(
    network: LanguageModelNetwork, texts: Rows, starts: Sequence[int], size: int
) -> list[NDArray[np.float64]]:
    """Log-probabilities [tokens, vocabulary] at each position of a text, from its start on."""
    found: list[list[Tensor]] = [[] for _ in texts]
    head = forward_and_head(network)[1]
    pieces = sorted(_predictions(network, texts, size), key=lambda found: found[0].window.first)
    for piece, features_XD, _ in pieces:
        wanted_XD = features_XD[max(starts[piece.text] - piece.window.first, 0) :]
        log_probs_XV = torch.log_softmax(head(wanted_XD).double(), dim=-1)
        found[piece.text].append(log_probs_XV)
    empty_0V = torch.zeros(0, len(network.head.bias), dtype=torch.float64)
    return [torch.cat([empty_0V, *(p.cpu() for p in parts)]).numpy() for parts in found]


def read_texts(
    network: LanguageModelNetwork, names: Sequence[str], texts: Rows, top: int = 0
) -> list[Reading]:
    """What named parts compute for texts that are read at once.

    The first key is BEGIN; row t is the step at which token t was predicted.
    """
    device = network.head.bias.device

    def call(network: LanguageModelNetwork, indices: list[int]) -> Tensor:
        longest = max(len(texts[index]) for index in indices)
        rows = np.full((len(indices), max(1, longest)), PAD, np.int64)
        rows[:, 0] = BEGIN
        for row, index in zip(rows, indices, strict=True):
            row[: len(texts[index])] = [BEGIN, *texts[index]][: len(texts[index])]
        features_BTD: Tensor = network(torch.from_numpy(rows).to(device))
        return features_BTD

    def extent(name: str, index: int) -> tuple[int, int]:
        return len(texts[index]), len(texts[index])

    return read_parts(network, names, len(texts), call, extent, top)


class _Piece(NamedTuple):
    text: int
    window: Window


def _predictions(
    network: LanguageModelNetwork, texts: Rows, size: int, rank: int = 0, count: int = 1
) -> Iterator[tuple[_Piece, Tensor, Tensor]]:
    """For every window, features_XD of the X tokens that it predicts, and these tokens."""
    pieces = [
        _Piece(number, window)
        for number, text in enumerate(texts)
        for window in windows(len(text), size)
    ][rank::count]
    device, forward = network.head.bias.device, forward_and_head(network)[0]
    widths = [piece.window.end - piece.window.start for piece in pieces]
    for chosen in pack(range(len(pieces)), widths, PLACES // 4):
        some = [pieces[place] for place in chosen]
        rows = np.full((len(some), 1 + max(widths[place] for place in chosen)), PAD, np.int64)
        rows[:, 0] = BEGIN
        for row, (text, window) in zip(rows, some, strict=True):
            tokens = np.asarray(texts[text][window.start : window.end], np.int64)
            row[1 : 1 + len(tokens)] = tokens
        tokens_BT = torch.from_numpy(rows).to(device)
        features_BTD = forward(tokens_BT[:, :-1])
        for row_number, (text, window) in enumerate(some):
            predicted = slice(window.first - window.start, window.end - window.start)
            wanted_X = tokens_BT[row_number, 1:][predicted]
            yield _Piece(text, window), features_BTD[row_number, predicted], wanted_X
