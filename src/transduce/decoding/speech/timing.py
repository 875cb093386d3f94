"""When each token was said and how surely: what was found goes once more through the network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import PAD, SPACE, Tokens
from transduce.decoding.batch.decode import PLACES, pack
from transduce.decoding.score.given import Rows
from transduce.decoding.speech.warnings import diagonality
from transduce.models.lens import Lens
from transduce.models.memory import Memory
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.ctc.alignment import align

TO_SOUND = ("decoder.*.cross_attention", "decoder.attention")  # names of parts that attend to it
DIAGONAL = 0.2  # attention that moves along the audio has more
ENOUGH = 10  # tokens, to tell
HEARD = 0.5  # of a token: its mean probability by CTC, at least
WHOLE_TOKENS = ("symbol", "word", "label")  # of which each is a word, or a phone, by itself


@dataclass(frozen=True)
class Account:
    """What attention and CTC think of one output, token by token."""

    attention: list[float]
    """log p of each token, END the last."""
    ctc: float | None
    """log p of all of them; None without CTC."""
    first: list[int]
    """The state at which each token begins to be said, by CTC, else by attention where that moves
    along the audio; empty where neither can tell."""
    last: list[int]
    heard: list[float]
    """How probable each is by CTC, at those states."""
    diagonal: float | None = None
    """How far the head that does so most moves along the audio; None where nothing attends."""

    @property
    def lost(self) -> bool:
        """Whether attention did not move along the audio, nor did CTC hear what was written."""
        tokens = len(self.attention) - 1
        heard = bool(self.heard) and sum(self.heard) >= HEARD * tokens
        strayed = self.diagonal is not None and self.diagonal < DIAGONAL
        return strayed and not heard and tokens >= ENOUGH

    def confidence(self, start: int, end: int, share: float) -> float:
        """Of tokens start … end − 1: the geometric mean of their probabilities, a share CTC's."""
        said = self.attention[start:end]
        if not said:
            return 0.0
        logs = sum(said) / len(said)
        heard = [math.log(max(one, 1e-9)) for one in self.heard[start:end]]
        if heard:  # not of END, which attention alone says
            logs = (1 - share) * logs + share * sum(heard) / len(heard)
        return math.exp(logs)


def accounts(
    network: SpeechEncoderDecoder, sources: Rows, targets: Rows, *, ctc: bool, follows: bool = True
) -> list[Account]:
    """Of each audio's output.

    ctc: whether CTC knows the tokens that are written. follows: whether these follow the audio, so
    that attention can tell their times; a translation need not.
    """
    found: dict[int, Account] = {}
    for told in _passes(network, sources, targets):
        log_probs_BTV = torch.log_softmax(network.head(told.features_BTD).float(), dim=-1)
        worth = log_probs_BTV.gather(2, told.wanted_BT[..., None].long())[..., 0].tolist()
        heard_BSV = network.ctc_log_probs(told.memory) if ctc else None
        for row, index in enumerate(told.indices):
            heads = told.heads(row)
            account = Account(worth[row][: len(targets[index]) + 1], None, [], [], [])
            if heads is not None:
                weights_HTS, moved_H = heads
                account = replace(account, diagonal=float(moved_H.max()))
                if heard_BSV is None and follows:
                    account = _looked(account, weights_HTS[int(moved_H.argmax()), :-1])
            if heard_BSV is not None:
                heard_SV = heard_BSV[row, : int(told.memory.lengths_B[row])]
                account = _heard(account, heard_SV, targets[index])
            found[index] = account
    return [found[index] for index in range(len(sources))]


def moved_along(network: SpeechEncoderDecoder, sources: Rows, targets: Rows) -> float | None:
    """How far attention moves along the sounds as their texts grow, at most 1.

    Of the head that does so most, the mean over the sounds; None where nothing attends.
    """
    moved = []
    for told in _passes(network, sources, targets):
        for row in range(len(told.indices)):
            if (heads := told.heads(row)) is not None:
                moved.append(heads[1])
    return float(torch.stack(moved).mean(dim=0).max()) if moved else None


@dataclass(frozen=True)
class _Pass:
    """Some of the sounds and their texts, and what became of them in the network."""

    indices: list[int]
    memory: Memory
    features_BTD: Tensor
    wanted_BT: Tensor
    """Their tokens, END the last, padded."""
    lengths_B: Tensor
    layers: list[Tensor]
    """The weights_BHTS of those that attend to the audio."""

    def heads(self, row: int) -> tuple[Tensor, Tensor] | None:
        """The weights_HTS of an audio, of all layers, and how far each head moved along it."""
        if not self.layers:
            return None
        T, S = int(self.lengths_B[row]), int(self.memory.lengths_B[row])
        weights_HTS = torch.cat([w_BHTS[row, :, :T, :S].float() for w_BHTS in self.layers])
        lengths = (torch.tensor([size], device=weights_HTS.device) for size in (T, S))
        return weights_HTS, diagonality(weights_HTS[None], *lengths)[0]


def _passes(network: SpeechEncoderDecoder, sources: Rows, targets: Rows) -> Iterator[_Pass]:
    device = network.head.bias.device
    sizes = [network.states_of(len(s)) + len(t) for s, t in zip(sources, targets, strict=True)]
    for indices in pack(range(len(sources)), sizes, PLACES // 8):
        batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(device)
        assert batch.target_BT is not None
        assert batch.target_lengths_B is not None
        memory = network.encode(batch.source_BS, batch.source_lengths_B)
        with Lens(network, *TO_SOUND) as lens:
            features_BTD = network.decoder(batch.target_BT[:, :-1], memory)
        wanted_BT, lengths_B = batch.target_BT[:, 1:], batch.target_lengths_B
        layers = list(lens.weights.values())
        yield _Pass(indices, memory, features_BTD, wanted_BT, lengths_B, layers)


def _looked(account: Account, weights_TS: Tensor) -> Account:
    """When each token was said, by where attention looked as it was written, if it moved along.

    As if each token were a label of CTC's, as probable at a state as attention to it is strong, and
    the blank as probable as where attention looks everywhere: tokens follow each other.
    """
    if account.diagonal is None or account.diagonal < DIAGONAL:
        return account
    T, S = weights_TS.shape
    everywhere_1S = weights_TS.new_full((1, S), 1.0 / S)
    seen_SV = torch.cat([everywhere_1S, weights_TS]).clamp(min=1e-9).log().T.cpu()
    try:
        told = align(seen_SV, torch.arange(1, T + 1), 0)
    except ValueError:  # more tokens than states
        return account
    return replace(account, first=told.first_U.tolist(), last=told.last_U.tolist())


def _heard(account: Account, heard_SV: Tensor, target: Sequence[int]) -> Account:
    """When each token was said, and how surely, by CTC."""
    heard_SV = heard_SV.cpu()  # a step for every state, each too small for a GPU
    tokens_U = torch.tensor(list(target), dtype=torch.int64)
    lengths = torch.tensor([len(heard_SV)]), torch.tensor([len(target)])
    loss = F.ctc_loss(heard_SV[:, None], tokens_U[None], *lengths, PAD, "sum")
    account = replace(account, ctc=-float(loss))
    try:
        told = align(heard_SV, tokens_U, PAD)
    except ValueError:  # more tokens than states
        return account
    return replace(
        account,
        first=told.first_U.tolist(),
        last=told.last_U.tolist(),
        heard=told.confidence_U.tolist(),
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
