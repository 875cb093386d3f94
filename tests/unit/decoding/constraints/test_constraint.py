"""Each part against brute force: the best of all sequences that satisfy it, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, UNKNOWN
from transduce.decoding import Hypothesis, beam, greedy, sample
from transduce.decoding.constraints.constraint import (
    AllowedTokens,
    Constraint,
    Coverage,
    Exclude,
    MinLength,
    NoRepeat,
    Prefix,
)
from transduce.decoding.constraints.include import Include

TOKENS = 7
GOING_ON = (UNKNOWN, 4, 5, 6)
CPU = torch.device("cpu")
WIDE = 345  # more than there are prefixes of four tokens: nothing falls out of the beam
Words = tuple[int, ...]


# ---------------------------------------------------------- a model that is a table, and attends


@dataclass
class Prefixes:
    rows: list[Words]
    model: Tree

    @property
    def attention_BS(self) -> Tensor:
        """The mean of the heads, drawn for the few searches that ask for it."""
        return torch.stack([self.model.weights(row) for row in self.rows]).mean(dim=1)

    def reorder(self, index_B: Tensor) -> None:
        self.rows = [self.rows[i] for i in index_B.tolist()]


class Tree:
    """Next-token probabilities and attention by prefix, drawn from a seed."""

    places = 4

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._known: dict[Words, Tensor] = {}
        self._weights: dict[Words, Tensor] = {}

    def _draw(self, kind: int, size: int, prefix: Words) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, kind, *prefix)) % 2**31)
        return 1.5 * torch.randn(size, generator=generator)

    def next(self, prefix: Words) -> Tensor:
        if prefix not in self._known:
            self._known[prefix] = self._draw(0, TOKENS, prefix).log_softmax(dim=0)
        return self._known[prefix]

    def weights(self, prefix: Words) -> Tensor:
        """Of two heads, [2, places]."""
        if prefix not in self._weights:
            drawn = self._draw(1, 2 * self.places, prefix)
            self._weights[prefix] = drawn.view(2, -1).softmax(dim=1)
        return self._weights[prefix]

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Prefixes:
        return Prefixes([(int(source),) for source in source_BS[:, 0]], self)

    def step(self, tokens_B: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        state.rows = [(*row, t) for row, t in zip(state.rows, tokens_B.tolist(), strict=True)]
        return torch.stack([self.next(row) for row in state.rows]), state


def inputs(*limits: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(limits)
    return torch.arange(rows)[:, None], torch.ones(rows, dtype=torch.long), torch.tensor(limits)


def worth(model: Tree, source: int, tokens: Words) -> float:
    prefix: Words = (source, BEGIN)
    total = 0.0
    for token in (*tokens, END):
        total += float(model.next(prefix)[token])
        prefix = (*prefix, token)
    return total


def best_of_all(
    model: Tree,
    source: int,
    limit: int,
    fits: Callable[[Words], bool],
    power: float = 1.0,
    closing: Callable[[Words], float] = lambda tokens: 0.0,
) -> list[Hypothesis]:
    """Every sequence that fits, best first."""
    found = []
    for length in range(limit):
        for tokens in product(GOING_ON, repeat=length):
            if fits(tokens):
                total = worth(model, source, tokens)
                score = total / ((6 + length) / 6) ** power + closing(tokens)
                found.append(Hypothesis(list(tokens), score, total))
    return sorted(found, key=lambda h: -h.score)


def check_equal(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    for name in ("score", "log_probability"):
        values = [[getattr(h, name) for h in list_] for list_ in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def contains(tokens: Words, phrase: Sequence[int]) -> bool:
    size = len(phrase)
    return any(tokens[i : i + size] == tuple(phrase) for i in range(len(tokens) - size + 1))


def shown(tokens: Words) -> Words:
    return tuple(token for token in tokens if token != UNKNOWN)


def repeats(tokens: Words, n: int) -> bool:
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return len(grams) != len(set(grams))


# --------------------------------------------------------------------------- every kind of ban

LIMITS = (5, 3, 5)
EXCLUDED = [[[4], [5, 6]], [], [[4, 6, 4], [6, 6], [5]]]
PREFIXES = [[4, 5], [], [6]]
ALLOWED = torch.tensor([False, False, False, False, True, True, False])

BANS: dict[str, tuple[Callable[[], Constraint], Callable[[int, Words], bool]]] = {
    "exclude": (
        lambda: Exclude(EXCLUDED, CPU),
        # The unknown token has no text, so that it does not part the tokens of a phrase.
        lambda row, tokens: not any(contains(shown(tokens), phrase) for phrase in EXCLUDED[row]),
    ),
    "prefix": (
        lambda: Prefix(PREFIXES, CPU),
        lambda row, tokens: tokens[: len(PREFIXES[row])] == tuple(PREFIXES[row]),
    ),
    "vocabulary": (lambda: AllowedTokens(ALLOWED), lambda row, tokens: set(tokens) <= {4, 5}),
    "shortest": (lambda: MinLength(2), lambda row, tokens: len(tokens) >= 2),
    "no token twice": (lambda: NoRepeat(1), lambda row, tokens: not repeats(tokens, 1)),
    "no pair twice": (lambda: NoRepeat(2), lambda row, tokens: not repeats(tokens, 2)),
    "no triple twice": (lambda: NoRepeat(3), lambda row, tokens: not repeats(tokens, 3)),
}


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize("name", BANS)
def test_a_wide_beam_finds_the_best_that_is_not_banned(name: str, power: float) -> None:
    part, fits = BANS[name]
    model = Tree(3)
    found = beam(model, *inputs(*LIMITS), WIDE, 6, power, [part()])
    for row, limit in enumerate(LIMITS):
        expected = best_of_all(model, row, limit, lambda tokens, row=row: fits(row, tokens), power)
        check_equal(found[row], expected[:6])
        assert len(found[row]) > 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", BANS)
def test_every_search_keeps_to_a_ban_and_reports_the_models_own_probability(
    name: str, seed: int
) -> None:
    part, fits = BANS[name]
    limits = (9, 7, 12)
    model, source = Tree(seed), inputs(*limits)
    drawn = sample(model, *source, [1, 2, 3], copies=20, constraints=[part()])
    for found in (
        greedy(model, *source, constraints=[part()]),
        beam(model, *source, 3, 3, constraints=[part()]),
        beam(model, *source, 6, 4, constraints=[part()], groups=2),
        drawn,
    ):
        for row, hypotheses in enumerate(found):
            assert hypotheses or name == "no token twice"  # four tokens may run out
            for h in hypotheses:
                assert fits(row, tuple(h.tokens))
                assert len(h.tokens) < limits[row]
                expected = worth(model, row, tuple(h.tokens))
                assert h.log_probability == pytest.approx(expected, abs=1e-4)


def test_bans_add_up_and_a_prefix_stands_before_all() -> None:
    """The prefix holds what is excluded; after it the ban is in force."""
    model, constraints = Tree(5), [Prefix([[4, 4]], CPU), Exclude([[[4]]], CPU), MinLength(3)]

    def fits(tokens: Words) -> bool:
        return tokens[:2] == (4, 4) and 4 not in tokens[2:] and len(tokens) >= 3

    (found,) = beam(model, *inputs(5), WIDE, 5, 1.0, constraints)
    check_equal(found, best_of_all(model, 0, 5, fits)[:5])


def test_where_everything_is_banned_nothing_is_found() -> None:
    model, source = Tree(1), inputs(6, 6)
    constraints = [AllowedTokens(torch.zeros(TOKENS, dtype=torch.bool)), MinLength(2)]
    assert greedy(model, *source, constraints=constraints) == [[], []]
    assert beam(model, *source, 3, constraints=constraints) == [[], []]
    assert sample(model, *source, [1, 2], copies=3, constraints=constraints) == [[], []]


# ------------------------------------------------------------------------------------- include

Phrase = list[list[int]]  # its wordings
INCLUDED: list[list[Phrase]] = [
    [[[4, 5]]],
    [],
    [[[6]], [[5, UNKNOWN]]],
    [[[4, 4], [6, 5, 6]], [[5]]],
]


def holds(tokens: Words, phrases: Sequence[Phrase]) -> bool:
    return all(any(contains(tokens, one) for one in phrase) for phrase in phrases)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_that_holds_all_phrases(seed: int, power: float) -> None:
    limits = (5, 4, 5, 6)
    model, source = Tree(seed), inputs(*limits)
    part = Include(INCLUDED, source[2], CPU)
    found = beam(model, *source, 1400, 4, power, [part])
    for row, limit in enumerate(limits):

        def fits(tokens: Words, row: int = row) -> bool:
            return holds(tokens, INCLUDED[row])

        check_equal(found[row], best_of_all(model, row, limit, fits, power)[:4])


wording = st.lists(st.sampled_from(GOING_ON), min_size=1, max_size=3)
phrases = st.lists(st.lists(wording, min_size=1, max_size=3), max_size=3)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    included=st.lists(phrases, min_size=1, max_size=3),
    prefix=st.lists(st.sampled_from(GOING_ON), max_size=2),
    spare=st.integers(0, 4),
    size=st.integers(1, 6),
)
def test_what_ends_holds_all_phrases_however_tight_the_limit(
    seed: int, included: list[list[Phrase]], prefix: list[int], spare: int, size: int
) -> None:
    least = [sum(min(map(len, phrase)) for phrase in of_one) for of_one in included]
    limits = [tokens + len(prefix) + 1 + spare for tokens in least]
    model, source = Tree(seed), inputs(*limits)

    def constraints() -> list[Constraint]:
        before = Prefix([prefix] * len(included), CPU)
        return [before, Include(included, source[2], CPU)] if any(included) else [before]

    for found in (
        greedy(model, *source, constraints=constraints()),
        beam(model, *source, size, 2, constraints=constraints()),
        sample(model, *source, list(range(len(included))), copies=3, constraints=constraints()),
    ):
        for row, hypotheses in enumerate(found):
            assert hypotheses
            for h in hypotheses:
                assert holds(tuple(h.tokens), included[row])
                assert h.tokens[: len(prefix)] == prefix
                assert len(h.tokens) < limits[row]
                expected = worth(model, row, tuple(h.tokens))
                assert h.log_probability == pytest.approx(expected, abs=1e-3)


def test_phrases_may_share_tokens_where_there_is_room_for_them_apart() -> None:
    model, source, both = Tree(2), inputs(6), [[[[4, 4]], [[4, 5]]]]
    (found,) = beam(model, *source, 1400, 400, 1.0, [Include(both, source[2], CPU)])

    def fits(tokens: Words) -> bool:
        return holds(tokens, both[0])

    every = [h.tokens for h in best_of_all(model, 0, 6, fits)]
    ours = [h.tokens for h in found]
    assert [4, 4, 5] in ours
    # While one is begun, there must be room for the whole of the other: at the very limit some
    # that would fit by sharing are not looked for.
    missed = [tokens for tokens in every if tokens not in ours]
    assert all(len(tokens) == 5 and contains(tuple(tokens), [4, 4, 5]) for tokens in missed)
    assert len(missed) < len(every) / 3


def test_banks_do_better_than_putting_phrases_off() -> None:
    """Greedy search writes the phrase when the room runs out; a beam of few finds it a place."""
    better = 0
    for seed in range(20):
        model, source = Tree(seed), inputs(14)
        part = [[[[6, 4]]]]
        (late,) = greedy(model, *source, constraints=[Include(part, source[2], CPU)])
        (found,) = beam(model, *source, 5, constraints=[Include(part, source[2], CPU)])
        better += found[0].score > late[0].score
    assert better >= 18


# ------------------------------------------------------------------------------------ coverage


def closing(model: Tree, source: int, words: int, strength: float) -> Callable[[Words], float]:
    def of(tokens: Words) -> float:
        covered = torch.zeros(model.places)
        for end in range(len(tokens) + 1):
            covered += model.weights((source, BEGIN, *tokens[:end])).mean(dim=0)
        return strength * sum(math.log(min(float(c), 1.0)) for c in covered[:words])

    return of


@pytest.mark.parametrize("strength", [0.2, 5.0])
@pytest.mark.parametrize("power", [0.0, 1.0, -0.7])
def test_coverage_is_that_of_wu(strength: float, power: float) -> None:
    """Stopping early must miss nothing either: what ends pays, what is open may not yet know."""
    model, limits, lengths_B = Tree(7), (5, 4, 5), torch.tensor([5, 3, 2])
    source = inputs(*limits)
    found = beam(model, *source, WIDE, 5, power, [Coverage(lengths_B - 1, strength)])
    changed = 0
    for row, limit in enumerate(limits):
        words = int(lengths_B[row]) - 1
        pays = closing(model, row, words, strength)
        expected = best_of_all(model, row, limit, lambda tokens: True, power, pays)
        check_equal(found[row], expected[:5])
        plain = best_of_all(model, row, limit, lambda tokens: True, power)
        changed += plain[0].tokens != expected[0].tokens
    assert changed or strength < 1


@pytest.mark.parametrize("way", ["greedy", "sample", "beam"])
def test_every_search_counts_coverage_alike(way: str) -> None:
    model, source, lengths_B = Tree(7), inputs(8, 6), torch.tensor([5, 3])
    constraints = [Coverage(lengths_B - 1, 0.5)]
    if way == "greedy":
        found = greedy(model, *source, 1.0, constraints)
    elif way == "beam":
        found = beam(model, *source, 3, 3, 1.0, constraints)
    else:
        found = sample(model, *source, [1, 2], copies=4, constraints=constraints)
    for row, hypotheses in enumerate(found):
        for h in hypotheses:
            pays = closing(model, row, int(lengths_B[row]) - 1, 0.5)(tuple(h.tokens))
            expected = h.log_probability / ((6 + len(h.tokens)) / 6) + pays
            assert h.score == pytest.approx(expected, abs=1e-4)


# -------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize("seed", range(4))
def test_groups_without_a_wish_for_variety_are_one_narrower_beam(seed: int) -> None:
    model, source = Tree(seed), inputs(7, 5, 9)
    apart = beam(model, *source, 6, 6, groups=3, diversity=0.0)
    narrow = beam(model, *source, 2, 2)
    for ours, theirs in zip(apart, narrow, strict=True):
        check_equal(ours, theirs)


def reference_groups(
    model: Tree, source: int, limit: int, size: int, groups: int, diversity: float
) -> list[Hypothesis]:
    """Diverse beam search in plain lists, the `size` best of each group."""
    still_open: list[list[tuple[float, Words]]] = [[(0.0, ())] for _ in range(groups)]
    ended: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        taken = [0] * TOKENS
        for group in range(groups):
            allowed = (END,) if length == limit else (END, *GOING_ON)
            candidates = [
                (total + float(model.next((source, BEGIN, *tokens))[token]), (*tokens, token))
                for total, tokens in still_open[group]
                for token in allowed
            ]
            candidates.sort(key=lambda c: -(c[0] - diversity * taken[c[1][-1]]))
            ended[group] += [
                Hypothesis(list(tokens[:-1]), total / ((5 + length) / 6), total)
                for total, tokens in candidates[:size]
                if tokens[-1] == END
            ]
            # A group whose best end no open one can pass has stopped, and takes nothing more.
            still_open[group] = [c for c in candidates[: 2 * size] if c[1][-1] != END][:size]
            hope = max((c[0] for c in still_open[group]), default=-math.inf) / ((5 + limit) / 6)
            for _, tokens in candidates[:size]:
                taken[tokens[-1]] += tokens[-1] != END
            ended[group] = sorted(ended[group], key=lambda h: -h.score)[:size]
            if len(ended[group]) == size and ended[group][-1].score >= hope:
                still_open[group] = []
    best = {tuple(h.tokens): h for of_group in ended for h in of_group}
    return sorted(best.values(), key=lambda h: -h.score)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    size=st.integers(1, 3),
    groups=st.integers(2, 3),
    diversity=st.sampled_from([0.3, 1.0, 5.0]),
)
def test_groups_avoid_what_the_groups_before_them_took(
    seed: int, limits: list[int], size: int, groups: int, diversity: float
) -> None:
    model = Tree(seed)
    found = beam(
        model, *inputs(*limits), size * groups, size * groups, groups=groups, diversity=diversity
    )
    for row, limit in enumerate(limits):
        check_equal(found[row], reference_groups(model, row, limit, size, groups, diversity))


def test_more_diversity_gives_more_different_outputs() -> None:
    source = inputs(*[8] * 20)
    firsts = []
    for diversity in (0.0, 1.0, 10.0):
        found = beam(Tree(1), *source, 4, 4, groups=4, diversity=diversity)
        firsts.append(sum(len({tuple(h.tokens[:1]) for h in of_one}) for of_one in found))
    assert firsts[0] < firsts[1] < firsts[2]


# ------------------------------------------------------------------------------ greedy and beam


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 6),
    power=st.sampled_from([0.0, 0.6, 1.0, 2.0, -0.7]),
    name=st.sampled_from(["none", *BANS]),
)
def test_a_beam_whose_path_holds_the_greedy_one_never_scores_below_it(
    seed: int, size: int, power: float, name: str
) -> None:
    """A beam may lose the greedy path on its way; where it has not, it can only do better. One
    wide enough for everything never does worse."""
    model, source = Tree(seed), inputs(5, 3, 5)
    part = (lambda: []) if name == "none" else (lambda: [BANS[name][0]()])
    for row, (one, several, all_) in enumerate(
        zip(
            greedy(model, *source, power, part()),
            beam(model, *source, size, size, power, part()),
            beam(model, *source, WIDE, 1, power, part()),
            strict=True,
        )
    ):
        if not one:
            continue
        assert all_[0].score >= one[0].score - 1e-5, row
        if one[0].tokens in [h.tokens for h in several]:
            assert several[0].score >= one[0].score - 1e-5
        if size == 1 and several:
            assert several[0].score >= one[0].score - 1e-5
