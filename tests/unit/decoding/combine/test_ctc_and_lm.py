"""Search by several judges: against every sequence there is, and against each judge alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny_sounds import audio_network, noise
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import END, PAD
from transduce.decoding.combine.ctc_and_lm import CtcScorer, ShallowFusion, weighted
from transduce.decoding.constraints.constraint import Constraints
from transduce.decoding.score.forced import log_probabilities
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy, sample
from transduce.models.decoders import DecoderState
from transduce.models.speech import SpeechEncoderDecoder

LETTERS = (4, 5)
VOCABULARY = 6
LONGEST = 3
WAVES = [noise(0.45, 1), noise(0.6, 2), noise(0.3, 3)]
WEIGHT = 0.4


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def network_of(encoder: str = "conformer", seed: int = 1) -> SpeechEncoderDecoder:
    with torch.inference_mode(False), torch.no_grad():
        network = audio_network(encoder=encoder, vocabulary=VOCABULARY, seed=seed)
        assert network.ctc is not None
        network.ctc.weight.mul_(3)  # untrained it finds all much the same
        network.head.weight.mul_(2)
    return network


def ctc_worth(network: SpeechEncoderDecoder, row: int, ids: tuple[int, ...]) -> float:
    batch = collate([WAVES[row]], None)
    memory = network.encode(batch.source_BS, batch.source_lengths_B)
    loss = F.ctc_loss(
        network.ctc_log_probs(memory).transpose(0, 1).double(),
        torch.tensor([ids or (PAD,)])[:, : len(ids)],
        memory.lengths_B,
        torch.tensor([len(ids)]),
        blank=PAD,
        reduction="sum",
    )
    return -float(loss)


def every_sequence() -> list[tuple[int, ...]]:
    tokens = (1, *LETTERS)  # <unk> may be written too
    return [ids for n in range(LONGEST + 1) for ids in itertools.product(tokens, repeat=n)]


def joint_worth(
    network: SpeechEncoderDecoder, row: int, ids: tuple[int, ...], weight: float = WEIGHT
) -> float:
    return weighed(rescored(network, row, ids), weight)


def rescored(network: SpeechEncoderDecoder, row: int, ids: tuple[int, ...]) -> tuple[float, float]:
    """What the decoder and what CTC finds of a sequence."""
    (written,) = log_probabilities(network, [WAVES[row]], [list(ids)])  # type: ignore[list-item]
    return sum(written), ctc_worth(network, row, ids)


def weighed(found: tuple[float, float], weight: float) -> float:
    return (1 - weight) * found[0] + weight * found[1]


@cache
def all_rescored(row: int) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every sequence there is, by a network of `network_of()`."""
    network = network_of()
    return {ids: rescored(network, row, ids) for ids in every_sequence()}


def searched(model: CtcScorer | ShallowFusion, size: int, nbest: int = 1, power: float = 0.0):  # type: ignore[no-untyped-def]
    batch = collate(WAVES, None)
    limits_B = torch.full((len(WAVES),), LONGEST + 1)
    source = batch.source_BS, batch.source_lengths_B, limits_B
    return beam(model, *source, size, nbest, power)


@pytest.mark.parametrize("weight", [WEIGHT, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(weight: float) -> None:
    network = network_of()
    found = searched(CtcScorer(network, network, weight), size=60, nbest=25)
    for row, hypotheses in enumerate(found):
        worth = {ids: weighed(both, weight) for ids, both in all_rescored(row).items()}
        best = sorted(worth.values(), reverse=True)[:25]
        assert [h.score for h in hypotheses] == pytest.approx(best, abs=2e-4)
        assert len({tuple(h.tokens) for h in hypotheses}) == 25
        for hypothesis in hypotheses:
            right = worth[tuple(hypothesis.tokens)]
            assert hypothesis.log_probability == pytest.approx(right, abs=2e-4)


@pytest.mark.parametrize("encoder", ["transformer", "recurrent"])
def test_what_a_narrow_beam_finds_is_worth_what_it_says(encoder: str) -> None:
    network = network_of(encoder)
    for row, (hypothesis,) in enumerate(searched(CtcScorer(network, network, WEIGHT), size=2)):
        right = joint_worth(network, row, tuple(hypothesis.tokens))
        assert hypothesis.log_probability == pytest.approx(right, abs=2e-4)


def test_greedy_and_samples_are_worth_what_they_say() -> None:
    network = network_of()
    batch = collate(WAVES, None)
    limits_B = torch.tensor([LONGEST + 1, 2, LONGEST + 1])
    source = batch.source_BS, batch.source_lengths_B, limits_B
    model = CtcScorer(network, network, WEIGHT)
    drawn = sample(model, *source, [1, 2, 3], copies=3, length_penalty=0.0)
    for found in (greedy(model, *source, 0.0), drawn):
        for row, hypotheses in enumerate(found):
            for hypothesis in hypotheses:
                right = joint_worth(network, row, tuple(hypothesis.tokens))
                assert hypothesis.log_probability == pytest.approx(right, abs=2e-4)


def test_neighbours_change_nothing() -> None:
    network = network_of()
    model = CtcScorer(network, network, WEIGHT)
    together = searched(model, size=3)
    for wave, (found,) in zip(WAVES, together, strict=True):
        batch = collate([wave], None)
        source = batch.source_BS, batch.source_lengths_B, torch.tensor([LONGEST + 1])
        ((alone,),) = beam(model, *source, 3, 1, 0.0)
        assert alone.tokens == found.tokens
        assert alone.score == pytest.approx(found.score, abs=1e-4)


@pytest.mark.parametrize("weight", [WEIGHT, 1.0])
def test_nothing_is_written_that_ctc_has_no_state_for(weight: float) -> None:
    """A beam wider than what is possible keeps rows that have lost; they must stay lost."""
    network = network_of()
    short = [noise(0.12, 5)]  # one state
    batch = collate([*short, WAVES[0]], None)
    source = batch.source_BS, batch.source_lengths_B, torch.tensor([6, 2])
    assert network.states_of(len(short[0])) == 1
    found, _ = beam(CtcScorer(network, network, weight), *source, 12, 12, 0.0)
    assert sorted(tuple(h.tokens) for h in found) == [(), (1,), (4,), (5,)]
    assert all(-1e30 < h.score <= 0 for h in found)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
        ),
    ],
)
def test_the_rows_of_a_source_share_what_ctc_heard(device: str) -> None:
    network = network_of().to(device)
    batch = collate(WAVES, None)
    model = CtcScorer(network, network, 1.0)
    state = model.start(batch.source_BS.to(device), batch.source_lengths_B)
    heard = state.prefix.log_probs_BSV
    state.reorder(torch.tensor([0, 0, 1, 1, 2, 2], device=device))  # two hypotheses of each
    state.reorder(torch.tensor([1, 0, 3, 3, 4, 5], device=device))
    assert state.prefix.log_probs_BSV is heard
    assert state.prefix.last_BN.shape == (3, 2)
    state.reorder(torch.tensor([5, 4, 0, 0], device=device))  # the second source has ended
    assert torch.equal(state.prefix.log_probs_BSV, heard[[2, 0]])
    assert state.prefix.last_BN.shape == (2, 2)


class Fixed:
    """A language model that has an opinion of each token, whatever came before."""

    def __init__(self, opinion_V: Tensor) -> None:
        self.opinion_V = opinion_V.log_softmax(dim=-1)
        self.prompts: list[list[int]] = []

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
        self.prompts = source_BS.tolist()
        return self

    def reorder(self, index_B: Tensor) -> None:
        pass

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        assert int(tokens_B.min()) >= 0
        return self.opinion_V.expand(len(tokens_B), -1).clone(), state


def test_a_language_model_is_heard_at_every_token() -> None:
    network = network_of()
    language = Fixed(torch.tensor([0.0, -1.0, 0.0, -2.0, 1.5, 0.5]))
    found = searched(ShallowFusion(network, language, 0.5), size=40, nbest=2)
    assert language.prompts == [[END]] * 3
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            (written,) = log_probabilities(network, [WAVES[row]], [hypothesis.tokens])  # type: ignore[list-item]
            said = sum(float(language.opinion_V[token]) for token in [*hypothesis.tokens, END])
            assert hypothesis.log_probability == pytest.approx(sum(written) + 0.5 * said, abs=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_without_an_end_a_language_model_leaves_the_end_to_the_model(weight: float) -> None:
    """Among the tokens that go on it moves probability: their total stays, and their order is that
    of the sum of both."""
    own_RV = (3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(1))).log_softmax(dim=-1)
    own_RV[3, [4, 5]] = -torch.inf
    own_RV[4, [0, 1, 2, 4, 5]] = -torch.inf  # nothing can go on

    class Own(Fixed):
        def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
            return own_RV.clone(), state

    language = Fixed(torch.tensor([0.0, -1.0, 0.0, 9.0, 1.5, 0.5]))
    model = ShallowFusion(Own(torch.zeros(6)), language, weight, endless=True)
    state = model.start(torch.zeros(5, 1), torch.ones(5))
    fused_RV, _ = model.step(torch.zeros(5, dtype=torch.int64), state)
    assert torch.equal(fused_RV[:, END], own_RV[:, END])
    torch.testing.assert_close(fused_RV[:4].exp().sum(dim=1), own_RV[:4].exp().sum(dim=1))
    assert float(fused_RV.max()) <= 0.0
    for row in range(4):
        own = [t for t in range(6) if t != END and own_RV[row, t] > -torch.inf]
        sums_V = own_RV[row, own] + weight * language.opinion_V[own]
        torch.testing.assert_close(fused_RV[row, own], fused_RV[row, own[0]] + sums_V - sums_V[0])
    assert fused_RV[4].isfinite().nonzero().flatten().tolist() == [END]


@pytest.mark.parametrize("weight", [0.5, 1.0, 4.0])
def test_a_language_model_without_an_end_does_not_make_outputs_short(weight: float) -> None:
    """A model that writes four tokens and then ends, whatever the language model thinks of them."""

    class FourTokens(Fixed):
        def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
            self.steps = 0
            return self

        def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
            self.steps += 1
            logits_V = torch.zeros(6)
            logits_V[END] = 8.0 if self.steps > 4 else -3.0
            return logits_V.log_softmax(dim=0).expand(len(tokens_B), -1).clone(), state

    language = Fixed(torch.tensor([-9.0, -9.0, -9.0, -9.0, 0.5, 0.0]))
    model = ShallowFusion(FourTokens(torch.zeros(6)), language, weight, endless=True)
    source = (torch.full((1, 1), END), torch.ones(1, dtype=torch.int64), torch.tensor([12]))
    (found,) = beam(model, *source, 4, 4, length_penalty=0.0)
    assert [len(h.tokens) for h in found] == [4, 4, 4, 4]
    assert found[0].tokens == [4, 4, 4, 4]


def test_the_impossible_stays_impossible() -> None:
    one = torch.tensor([[0.0, -torch.inf, -1.0, torch.nan]])
    other = torch.tensor([[-1.0, -1.0, -torch.inf, -1.0]])
    reported_RV = F.pad(weighted(one, 0.5, other, 0.5), (4, 0), value=-9.0)
    permitted_RV = Constraints([]).permitted(reported_RV, reported_RV, None)
    assert permitted_RV[0, 4:].tolist() == [-0.5, -torch.inf, -torch.inf, -torch.inf]
