"""Attention rescoring: the decoder's probabilities of hypotheses that CTC found.

Zhang et al. 2020 (U2), section 3.3, https://arxiv.org/abs/2012.05481.

    R rows: hypotheses of all utterances
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.encoder_output import EncoderOutput, padding_mask
from transduce.models.speech import SpeechEncoderDecoder

NUMBERS_AT_ONCE = 2**25  # log-probabilities of all tokens in memory


def attention_scores(
    network: SpeechEncoderDecoder,
    utterances: Sequence[Tensor],
    hypotheses: Sequence[Sequence[Sequence[int]]],
) -> list[list[list[float]]]:
    """log p of each token and of END, of each hypothesis of each utterance.

    An utterance is its encoder states [S, D].
    """
    found: list[list[list[float]]] = []
    for start, end in _groups(hypotheses, len(network.head.bias)):
        found += _scores(network, utterances[start:end], hypotheses[start:end])
    return found


def _groups(
    hypotheses: Sequence[Sequence[Sequence[int]]], vocabulary: int
) -> list[tuple[int, int]]:
    """Utterances in order, as many at a time as fit into memory."""
    found, start, rows, longest = [], 0, 0, 0
    for place, of_one in enumerate(hypotheses):
        maximum = max(longest, *(len(tokens) + 1 for tokens in of_one))
        if place > start and (rows + len(of_one)) * maximum * vocabulary > NUMBERS_AT_ONCE:
            found.append((start, place))
            start, rows, maximum = place, 0, max(len(tokens) + 1 for tokens in of_one)
        rows, longest = rows + len(of_one), maximum
    return [*found, (start, len(hypotheses))] if hypotheses else []


def _scores(
    network: SpeechEncoderDecoder,
    utterances: Sequence[Tensor],
    hypotheses: Sequence[Sequence[Sequence[int]]],
) -> list[list[list[float]]]:
    device = utterances[0].device
    counts = [len(of_one) for of_one in hypotheses]
    rows = [list(tokens) for of_one in hypotheses for tokens in of_one]
    T = max(len(tokens) for tokens in rows) + 1
    target_RT = torch.tensor(
        [[BEGIN, *tokens, END, *[PAD] * (T - 1 - len(tokens))] for tokens in rows], device=device
    )
    lengths_B = torch.tensor([len(states_SD) for states_SD in utterances])
    states_BSD = torch.nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
    each_B = torch.tensor(counts)
    states_RSD = states_BSD.repeat_interleave(each_B.to(device), dim=0, output_size=len(rows))
    lengths_R = lengths_B.repeat_interleave(each_B)
    mask = padding_mask(lengths_R, states_RSD.shape[1], device)
    features_RTD = network.decoder(target_RT[:, :-1], EncoderOutput(states_RSD, lengths_R, mask))
    log_probs_RTV = torch.log_softmax(network.head(features_RTD).float(), dim=-1)
    values = iter(log_probs_RTV.gather(2, target_RT[:, 1:, None])[..., 0].tolist())
    return [[next(values)[: len(tokens) + 1] for tokens in of_one] for of_one in hypotheses]
