"""Search against hand-made steps, brute force over all sequences, and a beam without early stop."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN
from transduce.decoding import Hypothesis, beam
from transduce.decoding.search import beam as beams
from transduce.decoding.search import greedy as search
from transduce.decoding.search import hypothesis as top_k
from transduce.decoding.search.hypothesis import best, penalty, remaining
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.runtime import library, why_not

TOKENS = 7  # the four specials and three more
GOING_ON = (UNKNOWN, 4, 5, 6)
POWERS = (0.0, 0.6, 1.0, 2.0, -0.7)


def greedy(*given: Any, **settings: Any) -> list[Hypothesis]:
    return [h for (h,) in search.greedy(*given, **settings)]


def sample(*given: Any, **settings: Any) -> list[Hypothesis]:
    return [h for (h,) in search.sample(*given, **settings)]


# ------------------------------------------------------------------- a model that is a table


@dataclass
class Prefixes:
    """What was fed so far: (source, token, token, …) of each row."""

    rows: list[tuple[int, ...]]

    def reorder(self, index_B: Tensor) -> None:
        self.rows = [self.rows[i] for i in index_B.tolist()]


class Tree:
    """Next-token probabilities by prefix: drawn once from a seed, known to the oracle too."""

    def __init__(self, seed: int, sharpness: float = 1.5, end: float = 0.0) -> None:
        self.seed, self.sharpness, self.end = seed, sharpness, end
        self.steps = 0
        self._known: dict[tuple[int, ...], Tensor] = {}

    def next(self, prefix: tuple[int, ...]) -> Tensor:
        if prefix not in self._known:
            self._known[prefix] = self._draw(prefix)
        return self._known[prefix]

    def _draw(self, prefix: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *prefix)) % 2**31)
        logits_V = self.sharpness * torch.randn(TOKENS, generator=generator)
        logits_V[END] += self.end
        return logits_V.log_softmax(dim=0)

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Prefixes:
        return Prefixes([(int(source),) for source in source_BS[:, 0]])

    def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.steps += 1
        assert len(tokens_B) == len(state.rows)
        state.rows = [(*row, t) for row, t in zip(state.rows, tokens_B.tolist(), strict=True)]
        return torch.stack([self.next(row) for row in state.rows]), state


class Table:
    """The same distribution at every step, whatever came before."""

    def __init__(self, **probabilities: float) -> None:
        self.log_probs_V = torch.full((TOKENS,), 1e-30)
        for name, value in probabilities.items():
            token = END if name == "end" else int(name.removeprefix("t"))
            self.log_probs_V[token] = value
        self.log_probs_V = self.log_probs_V.log()

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Prefixes:
        return Prefixes([()] * len(source_BS))

    def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        assert len(tokens_B) == len(state.rows)
        return self.log_probs_V.repeat(len(tokens_B), 1), state


def inputs(*limits: int) -> tuple[Tensor, Tensor, Tensor]:
    """A source for each limit; row i's is the number i."""
    rows = len(limits)
    return torch.arange(rows)[:, None], torch.ones(rows, dtype=torch.long), torch.tensor(limits)


def log_probability(model: Tree, source: int, tokens: tuple[int, ...]) -> float:
    """Of a whole output with its END, summed token by token."""
    prefix: tuple[int, ...] = (source, BEGIN)
    total = 0.0
    for token in (*tokens, END):
        total += float(model.next(prefix)[token])
        prefix = (*prefix, token)
    return total


def divided(total: float, length: int, power: float) -> float:
    return total / ((5 + length) / 6) ** power


def all_outputs(model: Tree, source: int, limit: int, power: float) -> list[Hypothesis]:
    """Every sequence of at most `limit` tokens with END, best first."""
    found = []
    for length in range(limit):
        for tokens in product(GOING_ON, repeat=length):
            total = log_probability(model, source, tokens)
            found.append(Hypothesis(list(tokens), divided(total, length + 1, power), total))
    return sorted(found, key=lambda h: -h.score)


def check_equal(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    assert [h.log_probability for h in ours] == pytest.approx(
        [h.log_probability for h in theirs], abs=1e-4
    )


# ------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_best_token_at_each_step(seed: int) -> None:
    model, limits = Tree(seed), (6, 3, 1, 9)
    found = greedy(model, *inputs(*limits), length_penalty=0.6)
    for source, limit in enumerate(limits):
        prefix: tuple[int, ...] = (source, BEGIN)
        while len(prefix) - 2 < limit - 1:
            log_probs_V = model.next(prefix).clone()
            log_probs_V[[PAD, BEGIN]] = -math.inf
            token = int(log_probs_V.argmax())
            if token == END:
                break
            prefix = (*prefix, token)
        tokens = prefix[2:]
        total = log_probability(model, source, tokens)
        score = divided(total, len(tokens) + 1, 0.6)
        check_equal([found[source]], [Hypothesis(list(tokens), score, total)])


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("width", [7, 640, 8000, 8001, 8063])
@pytest.mark.parametrize("rows", [1, 9])
def test_the_best_places_are_those_of_the_highest(
    rows: int, width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_k, "top_k_scores", lambda scores_RX, count: None)  # torch finds them
    count = min(count, width)
    torch.manual_seed(3)
    scores_RX = torch.randn(rows, width)
    scores_RX[0, -1] = 9.0  # among the last, that fill no block
    scores_RX[-1, 64:] = float("-inf")
    found_RC, places_RC = best(scores_RX, count)
    assert torch.equal(found_RC, scores_RX.topk(count).values)
    assert torch.equal(scores_RX.gather(1, places_RC), found_RC)
    assert all(len(set(row)) == count for row in places_RC.tolist())


def first_highest(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """By sorting everything, which keeps the order of equals."""
    clean_RX = scores_RX.where(~scores_RX.isnan(), -torch.inf)
    found = clean_RX.sort(dim=-1, descending=True, stable=True)
    return found.values[:, :count], found.indices[:, :count]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("different", [1, 3, 60, 10**6])
def test_of_equals_the_first_and_nan_the_last_whoever_finds_them(
    native: bool, different: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and library() is None:
        pytest.skip(f"no library: {why_not()}")
    if not native:
        monkeypatch.setattr(top_k, "top_k_scores", lambda scores_RX, count: None)
    random = torch.Generator().manual_seed(different)
    for width, count in [(1, 1), (7, 3), (7, 7), (300, 1), (300, 8), (9000, 1), (9000, 5)]:
        scores_RX = torch.randint(different, (5, width), generator=random).float()
        scores_RX[1, ::2] = torch.nan
        scores_RX[2, : -(width // 2)] = -torch.inf
        scores_RX[3] = torch.nan
        scores_RX[4, -1] = torch.inf
        expected = first_highest(scores_RX, count)
        found = best(scores_RX, count)
        assert torch.equal(found[0], expected[0]), (width, count)
        assert torch.equal(found[1], expected[1]), (width, count)
        assert all(part.is_contiguous() for part in found)


class Uncertain:
    """Sure of one token, and of the others not even that they are numbers."""

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Prefixes:
        return Prefixes([(int(row[0]),) for row in source_BS])

    def step(self, tokens_B: Tensor, state: Any) -> tuple[Tensor, Any]:
        state.rows = [(*row, int(t)) for row, t in zip(state.rows, tokens_B, strict=True)]
        log_probs_BV = torch.full((len(tokens_B), TOKENS), torch.nan)
        for row, prefix in enumerate(state.rows):
            if prefix[0] != 6:  # of which nothing at all is known
                log_probs_BV[row, END if len(prefix) > 3 else prefix[0]] = -0.5
                log_probs_BV[row, UNKNOWN] = torch.inf
        return log_probs_BV, state


@pytest.mark.parametrize("way", ["greedy", "beam", "sample"])
def test_what_is_no_number_is_never_written(way: str) -> None:
    source = torch.tensor([[4], [6], [5]]), torch.ones(3, dtype=torch.int64), torch.tensor([5] * 3)
    if way == "greedy":
        found = search.greedy(Uncertain(), *source, 0.0)
    elif way == "beam":
        found = beam(Uncertain(), *source, 3, 2, 0.0)
    else:
        found = search.sample(Uncertain(), *source, [1, 2, 3], length_penalty=0.0)
    assert found == [
        [Hypothesis([4, 4], -1.5, -1.5)],
        [],
        [Hypothesis([5, 5], -1.5, -1.5)],
    ]


def test_those_that_remain_move_as_little_as_may_be() -> None:
    open_R = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0]).bool()
    assert remaining(open_R, 4).tolist() == [0, 5, 2, 6]
    assert remaining(open_R[2:3], 1).tolist() == [0]


def test_the_penalty_is_that_of_wu() -> None:
    assert float(penalty(1, 0.6)) == pytest.approx(1.0)
    assert float(penalty(7, 1.0)) == pytest.approx(2.0)
    assert penalty(torch.tensor([1, 13]), 2.0).tolist() == pytest.approx([1.0, 9.0])
    assert float(penalty(100, 0.0)) == 1.0


# --------------------------------------------------------------------------------------- beam


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_wide_beam_finds_what_brute_force_finds(seed: int, power: float) -> None:
    """A beam that holds every prefix misses nothing, whatever the length penalty."""
    model = Tree(seed)
    found = beam(model, *inputs(5, 3, 4), size=330, nbest=6, length_penalty=power)
    for source, limit in enumerate((5, 3, 4)):
        check_equal(found[source], all_outputs(model, source, limit, power)[:6])


@pytest.mark.parametrize("power", POWERS)
def test_all_outputs_there_are_can_be_asked_for(power: float) -> None:
    model = Tree(4)
    found = beam(model, *inputs(3, 1), size=2, nbest=50, length_penalty=power)
    check_equal(found[0], all_outputs(model, 0, 3, power))  # 1 + 4 + 16
    check_equal(found[1], all_outputs(model, 1, 1, power))  # nothing but END
    assert len(found[0]) == 21


@pytest.mark.parametrize("seed", range(20))
def test_a_beam_of_one_is_greedy_search(seed: int) -> None:
    """Without a length penalty; with one, it may go on past END to what scores better."""
    limits = (8, 5, 1, 12)
    model = Tree(seed)
    one = [h for (h,) in beam(model, *inputs(*limits), size=1, length_penalty=0.0)]
    check_equal(one, greedy(model, *inputs(*limits), length_penalty=0.0))
    for power in POWERS:
        best = beam(model, *inputs(*limits), size=1, length_penalty=power)
        for (ours,), theirs in zip(best, greedy(model, *inputs(*limits), power), strict=True):
            assert ours.score >= theirs.score - 1e-6


def reference_beam(
    model: Tree, source: int, limit: int, size: int, nbest: int, power: float
) -> list[Hypothesis]:
    """Beam search in plain lists that never stops before the limit."""
    size = max(size, nbest)
    still_open: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[Hypothesis] = []
    for length in range(1, limit + 1):
        allowed = (END,) if length == limit else (END, *GOING_ON)
        candidates = [
            (total + float(model.next((source, BEGIN, *tokens))[token]), (*tokens, token))
            for total, tokens in still_open
            for token in allowed
        ]
        candidates.sort(key=lambda c: -c[0])
        ended += [
            Hypothesis(list(tokens[:-1]), divided(total, length, power), total)
            for total, tokens in candidates[:size]
            if tokens[-1] == END
        ]
        still_open = [c for c in candidates[: 2 * size] if c[1][-1] != END][:size]
    return sorted(ended, key=lambda h: -h.score)[:nbest]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    limits=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    size=st.integers(1, 5),
    nbest=st.integers(1, 4),
    power=st.sampled_from(POWERS),
    end=st.sampled_from([-2.0, 0.0, 2.0]),
)
def test_stopping_early_loses_nothing(
    seed: int, limits: list[int], size: int, nbest: int, power: float, end: float
) -> None:
    model = Tree(seed, end=end)
    found = beam(model, *inputs(*limits), size=size, nbest=nbest, length_penalty=power)
    for source, limit in enumerate(limits):
        check_equal(found[source], reference_beam(model, source, limit, size, nbest, power))


def after_a_first_step(first: dict[str, float], later: dict[str, float]) -> Any:
    """A model of one distribution at the first step and another at all later ones."""

    class TwoTables(Table):
        def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
            table = Table(**(first if (tokens_B == BEGIN).any() else later))
            return table.log_probs_V.repeat(len(tokens_B), 1), state

    return TwoTables()


def test_it_waits_for_a_long_output_that_the_penalty_favours() -> None:
    """END at once has -0.6; what goes on from -0.9 hardly falls, and is divided by ever more."""
    model = after_a_first_step(
        {"end": math.exp(-0.6), "t4": math.exp(-0.9)}, {"t4": 0.99, "end": 0.01}
    )
    ((best,),) = beam(model, *inputs(30), size=2, length_penalty=2.0)
    assert len(best.tokens) > 5


def test_it_waits_for_the_next_step_where_the_penalty_favours_short_outputs() -> None:
    """END at once has -1.6; one token and END has -0.35, whatever the limit would make of it."""
    model = after_a_first_step({"end": 0.2, "t4": 0.8}, {"end": 0.9, "t5": 0.1})
    ((best,),) = beam(model, *inputs(40), size=2, length_penalty=-2.0)
    assert best.tokens == [4]


@pytest.mark.parametrize(
    ("patience", "length"), [(None, 39), (0.5, 0), (0.8, 1), (1.0, 1), (4.0, 7)]
)
def test_patience_stops_after_so_many_finished_hypotheses(
    patience: float | None, length: int
) -> None:
    """A loop of likely tokens is the best by its mean: only patience ends the search before it.

    Hypotheses end at each step, one of a beam of two; of those that have ended the longest wins.
    """
    model = Table(t5=0.9, end=0.1)
    ((found,),) = beam(model, *inputs(40), 2, length_penalty=1.0, patience=patience)
    assert found.tokens == [5] * length
    others = beam(model, *inputs(2, 40, 3), 2, length_penalty=1.0, patience=patience)
    assert others[1] == [found]  # whoever leaves the batch before


def test_patience_counts_all_that_end_in_one_step() -> None:
    """Three have ended after the second step: one in the first, two in the second."""
    model = Table(end=0.6, t5=0.3, t6=0.1)
    ((found,),) = beam(model, *inputs(40), 3, length_penalty=9.0, patience=1.0)
    assert found.tokens == [5]


def test_the_least_patience_is_one_finished_hypothesis() -> None:
    model = after_a_first_step({"t4": 0.8, "t5": 0.2}, {"end": 0.9, "t5": 0.1})
    ((found,),) = beam(model, *inputs(40), 2, length_penalty=3.0, patience=0.01)
    assert found.tokens == [4]


def test_it_does_stop_early() -> None:
    model = Tree(1, end=4.0)
    beam(model, *inputs(40, 40), size=3, length_penalty=1.0)
    assert model.steps < 20
    model = Tree(1, end=4.0)
    greedy(model, *inputs(40, 40))
    assert model.steps < 20


def test_hypotheses_that_cannot_win_any_more_are_not_extended() -> None:
    """Three of the beam's four fall behind the ended one at once: from then on a step has one row
    of this source, not four."""

    class Counted(Tree):
        def __init__(self) -> None:
            super().__init__(0)
            self.rows: list[int] = []

        def next(self, prefix: tuple[int, ...]) -> Tensor:
            likely = {END: 0.5, 4: 0.45} if len(prefix) == 2 else {4: 0.9, END: 0.02}
            log_probs_V = torch.full((TOKENS,), 1e-6)
            for token, probability in likely.items():
                log_probs_V[token] = probability
            return log_probs_V.log()

        def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
            self.rows.append(len(tokens_B))
            return super().step(tokens_B, state)

    model = Counted()
    beam(model, *inputs(6), size=4, length_penalty=1.0)
    assert model.rows[0] == 1
    assert model.rows[1:] == [1] * len(model.rows[1:])


def test_an_end_below_the_beam_is_not_taken() -> None:
    """0.9 goes on and 0.1 ends: with a beam of one, END is not among the one best candidates."""
    model = Table(t4=0.9, end=0.1)
    ((best,),) = beam(model, *inputs(30), size=1, length_penalty=0.0)
    assert best.tokens == [4] * 29  # as greedy does, though [] would score better
    ((best,),) = beam(model, *inputs(30), size=2, length_penalty=0.0)
    assert best.tokens == []


@pytest.mark.parametrize("seed", range(6))
def test_the_nbest_are_sorted_and_distinct(seed: int) -> None:
    found = beam(Tree(seed), *inputs(7, 4), size=4, nbest=4, length_penalty=1.0)
    for hypotheses in found:
        scores = [h.score for h in hypotheses]
        assert len(hypotheses) == 4
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == 4


def test_more_nbest_do_not_change_the_first() -> None:
    model = Tree(3)
    one = beam(model, *inputs(7, 4), size=4, nbest=1)
    three = beam(model, *inputs(7, 4), size=4, nbest=3)
    for first, several in zip(one, three, strict=True):
        check_equal(first, several[:1])


# ------------------------------------------------------------------------------ every search


def outputs_of(
    name: str, model: Any, source: tuple[Tensor, Tensor, Tensor], seeds: list[int] | None = None
) -> list[Hypothesis]:
    if name == "greedy":
        return greedy(model, *source)
    if name == "beam":
        return [hypotheses[0] for hypotheses in beam(model, *source, size=3)]
    return sample(model, *source, seeds or list(range(len(source[0]))))


SEARCHES = ["greedy", "beam", "sample"]


@pytest.mark.parametrize("way", SEARCHES)
def test_limits_hold_for_each_row_and_end_counts(way: str) -> None:
    """A model that would never end is cut at each row's own limit."""
    limits = (4, 1, 9, 2)
    for output, limit in zip(
        outputs_of(way, Tree(1, end=-60.0), inputs(*limits)), limits, strict=True
    ):
        assert len(output.tokens) == limit - 1
        assert output.log_probability < -40  # the END that was forced is paid for


@pytest.mark.parametrize("way", SEARCHES)
def test_padding_and_begin_are_never_written(way: str) -> None:
    model = Table(t0=0.6, t2=0.3, t4=0.06, t5=0.03, end=0.01)
    for output in outputs_of(way, model, inputs(*[8] * 50)):
        assert not {PAD, BEGIN, END} & set(output.tokens)


@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("power", POWERS)
def test_the_score_is_the_log_probability_over_the_penalty(way: str, power: float) -> None:
    model, source = Tree(2), inputs(7, 2, 5)
    if way == "greedy":
        found = [[h] for h in greedy(model, *source, power)]
    elif way == "beam":
        found = beam(model, *source, size=3, nbest=3, length_penalty=power)
    else:
        found = [[h] for h in sample(model, *source, [1, 2, 3], length_penalty=power)]
    for row, hypotheses in enumerate(found):
        for h in hypotheses:
            expected = log_probability(model, row, tuple(h.tokens))
            assert h.log_probability == pytest.approx(expected, abs=1e-4)
            assert h.score == pytest.approx(divided(expected, len(h.tokens) + 1, power), abs=1e-4)


MODELS = {
    "transformer": {
        "encoder": {"layers": 1, "heads": 2, "feed_forward": 24},
        "decoder": {"layers": 1, "heads": 2, "feed_forward": 24},
    },
    "rotary": {
        "encoder": {"layers": 1, "heads": 2, "feed_forward": 24, "positions": "rotary"},
        "decoder": {"layers": 1, "heads": 2, "feed_forward": 24, "positions": "rotary"},
    },
    "recurrent": {
        "encoder": {"kind": "recurrent", "cell": "gru"},
        "decoder": {"kind": "recurrent", "cell": "gru", "context": "both"},
    },
    "convolutional": {
        "encoder": {"kind": "convolutional", "layers": 2},
        "decoder": {"kind": "convolutional", "layers": 2},
    },
    "location-aware": {
        "encoder": {"kind": "convolutional", "layers": 1},
        "decoder": {"kind": "recurrent", "cell": "gru", "attention": "location-aware"},
    },
    "fixed context": {
        "encoder": {"kind": "recurrent", "reverse": True, "bidirectional": False},
        "decoder": {"kind": "recurrent", "attention": "none"},
    },
}


def random_network(name: str) -> EncoderDecoder:
    torch.manual_seed(8)
    model = recipe.Model.model_validate({"width": 16, **MODELS[name]})
    net = build(model, Vocabulary(12, 12)).double().eval()
    with torch.no_grad():
        net.head.bias.normal_()
        net.head.bias[END] += 0.5
    return net


@torch.no_grad()
@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("name", MODELS)
def test_neighbours_in_a_batch_change_nothing(name: str, way: str) -> None:
    net = random_network(name)
    net.head.bias[END] -= 3.0  # longer outputs have more to differ in
    lengths_B = torch.tensor([6, 1, 3, 9, 4, 2])
    source_BS = torch.randint(4, 12, (6, 9), generator=torch.Generator().manual_seed(1))
    source_BS[torch.arange(9) >= lengths_B[:, None]] = PAD
    limits_B = torch.tensor([25, 4, 12, 18, 7, 1])
    together = outputs_of(way, net, (source_BS, lengths_B, limits_B), list(range(6)))
    assert len({tuple(h.tokens) for h in together}) > 2
    for row, expected in enumerate(together):
        length = int(lengths_B[row])
        alone = (source_BS[row, None, :length], lengths_B[row, None], limits_B[row, None])
        (output,) = outputs_of(way, net, alone, [row])
        assert output.tokens == expected.tokens
        assert output.score == pytest.approx(expected.score, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_found_is_worth_what_training_says(name: str, way: str) -> None:
    """The log-probability of an output is its loss under teacher forcing."""
    net = random_network(name)
    source_BS, lengths_B = torch.tensor([[5, 6, 7, END], [9, END, PAD, PAD]]), torch.tensor([4, 2])
    found = outputs_of(way, net, (source_BS, lengths_B, torch.tensor([9, 14])))
    for row, output in enumerate(found):
        target_BT = torch.tensor([[BEGIN, *output.tokens, END]])
        loss = net.loss(source_BS[row : row + 1, : lengths_B[row]], lengths_B[row, None], target_BT)
        assert output.log_probability == pytest.approx(-float(loss.nll), abs=1e-4)


@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_it_does_not_matter_when_those_that_ended_leave_the_batch(
    way: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once; when an eighth is done, as on a CPU; when half are, as on a GPU; or never."""
    source = inputs(12, 3, 9, 1, 7, 12, 5, 2)
    expected = outputs_of(way, Tree(6), source)
    for module in (search, beams):
        monkeypatch.setattr(module, "shrinks", lambda left, rows, device: left <= share * rows)
    check_equal(outputs_of(way, Tree(6), source), expected)


# ----------------------------------------------------------------------------------- sampling


def test_a_seed_fixes_a_sample_and_another_gives_another() -> None:
    source = inputs(*[10] * 8)
    model = Tree(1)
    one = sample(model, *source, list(range(8)))
    assert sample(model, *source, list(range(8))) == one
    assert sample(model, *source, list(range(100, 108))) != one
    same = sample(Table(t4=0.4, t5=0.4, end=0.2), *source, [7] * 8)
    assert len({tuple(h.tokens) for h in same}) == 1


def test_a_neighbours_limit_does_not_change_a_sample() -> None:
    model = Table(t4=0.3, t5=0.3, t6=0.3, end=0.1)
    for longest in (16, 17, 40, 1000):
        first, _ = sample(model, *inputs(15, longest), [5, 6])
        assert first == sample(model, *inputs(15), [5])[0]


@pytest.mark.parametrize("seed", range(3))
def test_one_likeliest_token_to_choose_from_is_greedy_search(seed: int) -> None:
    source, model = inputs(8, 8, 5), Tree(seed)
    expected = greedy(model, *source)
    seeds = [1, 2, 3]
    assert sample(model, *source, seeds, top_k=1) == expected
    assert sample(model, *source, seeds, top_p=1e-6) == expected
    assert sample(model, *source, seeds, temperature=1e-4) == expected
    assert sample(model, *source, seeds, temperature=1e-40) == expected
    assert sample(model, *source, seeds, temperature=5.0) != expected


def first_tokens(count: int, **shape: Any) -> Counter[int]:
    """What `count` samples of a toy model begin with."""
    model = Table(t4=0.5, t5=0.25, t6=0.15, end=0.1)
    found = sample(model, *inputs(*[2] * count), list(range(count)), **shape)
    return Counter(h.tokens[0] if h.tokens else END for h in found)


@pytest.mark.parametrize(
    ("shape", "weights"),
    [
        ({}, {4: 0.5, 5: 0.25, 6: 0.15, END: 0.1}),
        ({"temperature": 0.5}, {4: 0.25, 5: 0.0625, 6: 0.0225, END: 0.01}),
        ({"temperature": 2.0}, {4: 0.5**0.5, 5: 0.5, 6: 0.15**0.5, END: 0.1**0.5}),
        ({"top_k": 2}, {4: 0.5, 5: 0.25}),
        ({"top_k": 100}, {4: 0.5, 5: 0.25, 6: 0.15, END: 0.1}),
        # The nucleus is the fewest tokens that hold top_p: 0.5 + 0.25 reach 0.7, 0.5 does not.
        ({"top_p": 0.7}, {4: 0.5, 5: 0.25}),
        ({"top_p": 0.8}, {4: 0.5, 5: 0.25, 6: 0.15}),
        ({"top_k": 2, "top_p": 0.5}, {4: 0.5}),
    ],
)
def test_samples_are_as_frequent_as_they_are_probable(
    shape: dict[str, Any], weights: dict[int, float]
) -> None:
    count = 4000
    seen = first_tokens(count, **shape)
    assert set(seen) == set(weights)
    expected = {token: count * w / sum(weights.values()) for token, w in weights.items()}
    chi_square = sum((seen[t] - e) ** 2 / e for t, e in expected.items())
    assert chi_square < 16.3  # three degrees of freedom: p < 0.001; the seeds are fixed


def test_draws_of_one_sample_are_independent_of_each_other() -> None:
    model = Table(t4=0.5, t5=0.5)
    found = sample(model, *inputs(*[3] * 4000), list(range(4000)))
    pairs = Counter(tuple(h.tokens) for h in found)
    assert set(pairs) == {(4, 4), (4, 5), (5, 4), (5, 5)}
    assert sum((n - 1000) ** 2 / 1000 for n in pairs.values()) < 16.3


def test_the_temperature_does_not_change_what_a_sample_is_worth() -> None:
    model = Tree(1)
    for row, h in enumerate(sample(model, *inputs(6, 6, 6), [1, 2, 3], temperature=3.0, top_k=3)):
        expected = log_probability(model, row, tuple(h.tokens))
        assert h.log_probability == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("patience", [0.01, 0.5, 1.0])
def test_patience_does_not_stop_before_there_are_as_many_as_are_asked_for(patience: float) -> None:
    """One hypothesis ends at each step."""
    (found,) = beam(Table(end=0.5, t4=0.3, t5=0.2), *inputs(9), 4, 4, patience=patience)
    assert len(found) == 4
