"""When each token was said and how surely: what was found goes once more through the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.data.batches import collate
from transduce.data.tokens import PAD, SPACE, Tokens
from transduce.decoding.decode import PLACES, pack
from transduce.decoding.forced import Rows
from transduce.models.sound import SoundNetwork
from transduce.nn.ctc_alignment import align

WHOLE_TOKENS = ("symbol", "word", "label")  # of which each is a word, or a phone, by itself


@dataclass(frozen=True)
class Account:
    """What attention and CTC think of one output, token by token."""

    attention: list[float]
    """log p of each token, END the last."""
    ctc: float | None
    """log p of all of them; None without CTC."""
    first: list[int]
    """The state at which each token begins to be said; empty where CTC cannot tell."""
    last: list[int]
    heard: list[float]
    """How probable each is by CTC, at those states."""

    def confidence(self, start: int, end: int, share: float) -> float:
        """Of tokens start … end − 1: the geometric mean of their probabilities, a share CTC's."""
        said = self.attention[start:end]
        if not said:
            return 0.0
        logs = sum(said) / len(said)
        if self.heard:
            heard = [math.log(max(one, 1e-9)) for one in self.heard[start:end]]
            logs = (1 - share) * logs + share * sum(heard) / len(heard)
        return math.exp(logs)


def accounts(network: SoundNetwork, sources: Rows, targets: Rows, ctc: bool) -> list[Account]:
    """Of each sound's output; `ctc`: whether CTC knows the tokens that are written."""
    found: dict[int, Account] = {}
    device = network.head.bias.device
    sizes = [network.states_of(len(s)) + len(t) for s, t in zip(sources, targets, strict=True)]
    for indices in pack(range(len(sources)), sizes, PLACES // 4):
        batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(device)
        assert batch.target_BT is not None
        memory = network.encode(batch.source_BS, batch.source_lengths_B)
        features_BTD = network.decoder(batch.target_BT[:, :-1], memory)
        log_probs_BTV = torch.log_softmax(network.head(features_BTD).float(), dim=-1)
        wanted_BT1 = batch.target_BT[:, 1:, None].long()
        worth = log_probs_BTV.gather(2, wanted_BT1)[..., 0].tolist()
        heard_BSV = network.ctc_log_probs(memory) if ctc else None
        for row, index in enumerate(indices):
            attention = worth[row][: len(targets[index]) + 1]
            if heard_BSV is None:
                found[index] = Account(attention, None, [], [], [])
            else:
                heard_SV = heard_BSV[row, : int(memory.lengths_B[row])]
                found[index] = _aligned(attention, heard_SV, targets[index])
    return [found[index] for index in range(len(sources))]


def _aligned(attention: list[float], heard_SV: Tensor, target: Sequence[int]) -> Account:
    heard_SV = heard_SV.cpu()  # a step for every state, each too small for a GPU
    tokens_U = torch.tensor(list(target), dtype=torch.int64)
    lengths = torch.tensor([len(heard_SV)]), torch.tensor([len(target)])
    loss = F.ctc_loss(heard_SV[:, None], tokens_U[None], *lengths, PAD, "sum")
    try:
        told = align(heard_SV, tokens_U, PAD)
    except ValueError:  # more tokens than states
        return Account(attention, -float(loss), [], [], [])
    return Account(
        attention,
        -float(loss),
        told.first_U.tolist(),
        told.last_U.tolist(),
        told.confidence_U.tolist(),
    )


def words_of(tokens: Tokens, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where words begin and end among tokens; of phones, each by itself."""
    if tokens.level in WHOLE_TOKENS:
        return [(place, place + 1) for place in range(len(ids))]
    found: list[list[int]] = []
    apart = True
    for place, piece in enumerate(tokens.pieces(ids)):
        apart = apart or piece.startswith(SPACE)
        if piece.strip(SPACE):
            if apart:
                found.append([place, place])
            found[-1][1] = place + 1
            apart = piece.endswith(SPACE)
    return [(start, end) for start, end in found]
