"""Search and forced alignment with a transducer, over recordings of any number and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.batches.batch import pad_waves
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.batch.decode import PLACES, PLACES_ON_CPU
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.speech.timing import TokenTiming
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.models.transducer import SpeechTransducer
from transduce.nn.transducer.lattice import (
    Lattice,
    best_path,
    label_log_probs,
    steps,
    total_log_prob,
)
from transduce.nn.transducer.search import Bonus, TransducerSearch


@dataclass(frozen=True)
class Recordings:
    """Recordings, in batches of bounded memory."""

    network: SpeechTransducer
    waves: Sequence[Wave]
    context: CallContext = NO_CONTEXT

    @property
    def device(self) -> torch.device:
        return self.network.head.bias.device

    def batches(self) -> Iterator[list[int]]:
        """The indices of those of a batch."""
        sizes = [self.network.states_of(len(wave)) for wave in self.waves]
        places = PLACES_ON_CPU if self.device.type == "cpu" else PLACES
        return pack(range(len(self.waves)), sizes, places // 4)

    def encode(self, indices: Sequence[int]) -> EncoderOutput:
        source = pad_waves([self.waves[index] for index in indices], self.device)
        return self.network.encode(*source, **self.context.keywords)


def search_batch(
    network: SpeechTransducer,
    memory: EncoderOutput,
    search: TransducerSearch,
    limits: Sequence[int],
    length_penalty: float,
    exact: bool,
    bonus: Bonus | None = None,
    shown: bool = True,
) -> list[list[Hypothesis]]:
    """The hypotheses of each recording of a batch, best first.

    limits: the most tokens of each. exact: they are scored over all of their alignments, and
    ordered by that; otherwise over those that search has found. bonus: has one of END too. shown:
    whether it is in the scores that are given, and not in their order alone.
    """
    states_BSD, lengths_B = memory.states_BSD, memory.lengths_B
    start = search.start(len(states_BSD), states_BSD.device, torch.tensor(limits))
    found, _ = search.advance(start, states_BSD, lengths_B, bonus)
    added_BN = found.bonus_BN
    if bonus is not None:
        added_BN = added_BN + found.bonuses(bonus)[..., END]
    tokens, lengths = found.tokens_BNU.tolist(), found.lengths_BN.tolist()
    alive = (found.score_BN > -torch.inf).tolist()
    texts = [
        [tokens[row][n][: lengths[row][n]] if alive[row][n] else None for n in range(search.beam)]
        for row in range(len(tokens))
    ]
    log_probs, added = found.log_prob_BN.tolist(), added_BN.tolist()
    if exact:
        rows = [row for row, of_one in enumerate(texts) for text in of_one if text is not None]
        given = [text for of_one in texts for text in of_one if text is not None]
        each = iter(_totals(network, _repeated(memory, rows), given))
        log_probs = [
            [next(each) if text is not None else -torch.inf for text in of_one] for of_one in texts
        ]
    hypotheses = []
    for of_one, values, gains in zip(texts, log_probs, added, strict=True):
        every = []
        for text, value, gain in zip(of_one, values, gains, strict=True):
            if text is not None:
                divisor = float(penalty(len(text) + 1, length_penalty))
                given = value + gain if shown else value
                one = Hypothesis(text, given / divisor, given)
                every.append(((value + gain) / divisor, one))
        every.sort(key=lambda pair: -pair[0])
        hypotheses.append([one for _, one in every])
    return hypotheses


def time_by_transducer(
    recordings: Recordings, targets: Sequence[Sequence[int]]
) -> list[TokenTiming]:
    """The probability of each token of given texts, END last, and the state at which the most
    probable alignment emits it."""
    found: dict[int, TokenTiming] = {}
    for indices in recordings.batches():
        memory = recordings.encode(indices)
        texts = [targets[index] for index in indices]
        for start, lattice in _lattices(recordings.network, memory, texts):
            log_probs = label_log_probs(lattice).tolist()
            for row, frames in enumerate(best_path(lattice)):
                length = len(texts[start + row]) + 1
                values = log_probs[row][:length]
                found[indices[start + row]] = TokenTiming(values, None, frames, frames, [])
    return [found[index] for index in range(len(targets))]


def emissions(recordings: Recordings, target: Sequence[int]) -> Tensor:
    """The probability_US that each token of a text is emitted at each state of the only
    recording, among all alignments."""
    memory = recordings.encode([0])
    ((_, lattice),) = _lattices(recordings.network, memory, [target])
    return steps(lattice).by_label_BSP[0, :, :-1].T


def _totals(
    network: SpeechTransducer, memory: EncoderOutput, texts: Sequence[Sequence[int]]
) -> list[float]:
    """ln p of each text, over all alignments."""
    return [
        value
        for _, lattice in _lattices(network, memory, texts)
        for value in total_log_prob(lattice).tolist()
    ]


def _lattices(
    network: SpeechTransducer, memory: EncoderOutput, texts: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Lattice]]:
    """The lattices of texts, one for each row of the memory, as many at a time as fit into memory;
    with the first row of each."""
    longest = max(map(len, texts), default=0)
    rows = [[BEGIN, *text, END, *[PAD] * (longest - len(text))] for text in texts]
    target_BT = torch.tensor(rows, device=memory.states_BSD.device)
    at_once = network.rows_at_once(memory, target_BT)
    for start in range(0, len(texts), at_once):
        yield start, network.lattice(memory, target_BT, slice(start, start + at_once))


def _repeated(memory: EncoderOutput, rows: list[int]) -> EncoderOutput:
    """The memory with these rows, of which some come several times."""
    rows_R: Tensor = torch.tensor(rows, dtype=torch.int64)
    states_RSD = memory.states_BSD[rows_R.to(memory.states_BSD.device)]
    return EncoderOutput(states_RSD, memory.lengths_B[rows_R], None)
