"""CTC prefix beam search against all paths, and against a search that is written out."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from transduce.nn.ctc.prefix_beam import Language, Prefixes, PrefixSearch

BLANK = 0


def drawn(B: int, S: int, V: int, seed: int = 1, sharp: float = 2.0) -> Tensor:
    torch.manual_seed(seed)
    return torch.log_softmax(sharp * torch.randn(B, S, V), dim=-1)


def found(prefixes: Prefixes, row: int = 0) -> dict[tuple[int, ...], float]:
    scores = prefixes.score_BN[row].tolist()
    lengths, tokens = prefixes.lengths_BN[row].tolist(), prefixes.tokens_BNU[row].tolist()
    alive = [n for n, score in enumerate(scores) if score > -math.inf]
    result = {tuple(tokens[n][: lengths[n]]): scores[n] for n in alive}
    assert len(result) == len(alive), "a prefix is there twice"
    assert scores == sorted(scores, reverse=True)
    return result


def search(
    settings: PrefixSearch, log_probs_BSV: Tensor, language: Language | None = None
) -> Prefixes:
    B, S, _ = log_probs_BSV.shape
    start = settings.start(B, language)
    return settings.advance(start, log_probs_BSV, torch.full((B,), S), language)


def by_all_paths(log_probs_SV: Tensor) -> dict[tuple[int, ...], float]:
    S, V = log_probs_SV.shape
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(V), repeat=S):
        merged = [label for label, _ in itertools.groupby(path)]
        labels = tuple(label for label in merged if label != BLANK)
        sums[labels] += math.exp(sum(float(log_probs_SV[s, v]) for s, v in enumerate(path)))
    return {labels: math.log(p) for labels, p in sums.items()}


def written_out(
    log_probs_SV: Tensor,
    beam: int,
    candidates: int,
    skip: float | None,
    bonus: Tensor | None = None,
) -> dict[tuple[int, ...], float]:
    """With dictionaries, a loop for everything; bonus_VV: scores of a label after another."""
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}

    def join(a: float, b: float) -> float:
        return float(torch.logaddexp(torch.tensor(a).double(), torch.tensor(b).double()))

    def language(labels: tuple[int, ...]) -> float:
        if bonus is None:
            return 0.0
        return sum(float(bonus[a, b]) for a, b in itertools.pairwise((BLANK, *labels)))

    def score(labels: tuple[int, ...], both: tuple[float, float]) -> float:
        return join(*both) + language(labels)

    for frame in log_probs_SV.double():
        values = frame.tolist()
        if skip is not None and values[BLANK] > math.log(skip):
            beams = {one: (join(*both) + values[BLANK], -math.inf) for one, both in beams.items()}
            continue
        best = sorted(range(1, len(values)), key=lambda v: -values[v])[:candidates]
        new: dict[tuple[int, ...], tuple[float, float]] = defaultdict(
            lambda: (-math.inf, -math.inf)
        )
        for labels, (blank, label) in beams.items():
            total = join(blank, label)
            was = new[labels]
            stays = label + values[labels[-1]] if labels else -math.inf
            new[labels] = join(was[0], total + values[BLANK]), join(was[1], stays)
            for v in range(1, len(values)):
                longer = (*labels, v)
                if v not in best and longer not in beams:
                    continue
                begun = (blank if labels and labels[-1] == v else total) + values[v]
                was = new[longer]
                new[longer] = was[0], join(was[1], begun)
        kept = sorted(new, key=lambda one: -score(one, new[one]))[:beam]
        beams = {one: new[one] for one in kept}
    return {one: score(one, both) for one, both in beams.items()}


def same(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> None:
    assert list(one) == sorted(other, key=lambda labels: -other[labels])
    for labels, score in one.items():
        assert score == pytest.approx(other[labels], abs=1e-5)


def test_with_a_wide_beam_it_sums_over_all_paths() -> None:
    log_probs_BSV = drawn(3, 5, 3)
    prefixes = search(PrefixSearch(beam=64), log_probs_BSV)
    for row in range(3):
        expected = by_all_paths(log_probs_BSV[row])
        same(found(prefixes, row), expected)
        assert math.isclose(sum(map(math.exp, expected.values())), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize(("candidates", "skip"), [(5, None), (2, None), (2, 0.6)])
def test_with_a_narrow_beam_it_is_the_search_that_is_written_out(
    candidates: int, skip: float | None
) -> None:
    log_probs_BSV = drawn(4, 30, 6, sharp=3.0)
    settings = PrefixSearch(beam=4, candidates=candidates, skip=skip)
    prefixes = search(settings, log_probs_BSV)
    for row in range(4):
        same(found(prefixes, row), written_out(log_probs_BSV[row], 4, candidates, skip))


def test_a_language_model_is_fused_in() -> None:
    bonus_VV = drawn(1, 5, 5, seed=7)[0]

    def language(tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        # The empty prefix is its own last label, the blank.
        padded_RU = torch.nn.functional.pad(tokens_RU.long(), (1, 0))
        return bonus_VV[padded_RU.gather(1, lengths_R[:, None])[:, 0]]

    log_probs_BSV = drawn(2, 20, 5)
    prefixes = search(PrefixSearch(beam=5), log_probs_BSV, language)
    for row in range(2):
        expected = written_out(log_probs_BSV[row], 5, 5, None, bonus_VV)
        same(found(prefixes, row), expected)
        assert found(prefixes, row) != found(search(PrefixSearch(beam=5), log_probs_BSV), row)


@pytest.mark.parametrize("skip", [None, 0.7])
def test_the_cuts_between_chunks_and_the_neighbours_do_not_matter(skip: float | None) -> None:
    settings = PrefixSearch(beam=4, candidates=3, skip=skip, banned=(5,))
    log_probs_BSV = drawn(3, 24, 6, sharp=3.0)
    log_probs_BSV[1, 4:9, 1:] = -60.0  # silence: a probability of one
    log_probs_BSV[1, 4:9, BLANK] = 0.0
    lengths = [24, 17, 5]
    expected = [
        search(settings, log_probs_BSV[row : row + 1, :length])
        for row, length in enumerate(lengths)
    ]
    for size in (1, 7, 24):
        state = settings.start(3)
        for start in range(0, 24, size):
            counts_B = torch.tensor([min(size, max(0, length - start)) for length in lengths])
            state = settings.advance(state, log_probs_BSV[:, start : start + size], counts_B)
        for row, length in enumerate(lengths):
            same(found(state, row), found(expected[row]))
            assert int(state.frames_B[row]) == length
            best = int(expected[row].lengths_BN[0, 0])
            ours, theirs = (
                one.marks_BNU2[n, 0, :best].tolist()
                for one, n in ((state, row), (expected[row], 0))
            )
            assert ours == theirs
            assert all(label != 5 for label, _ in ours)
            frames = [frame for _, frame in ours]
            assert frames == sorted(set(frames))
            assert all(0 <= frame < length for frame in frames)


def test_the_frame_and_probability_of_a_label_are_those_of_its_peak() -> None:
    log_probs_BSV = torch.full((1, 8, 3), 0.01).log()
    peaks = [0, 0, 1, 0, 2, 2, 0, 1]
    log_probs_BSV[0, range(8), peaks] = math.log(0.98)
    for skip in (None, 0.95):
        prefixes = search(PrefixSearch(beam=4, skip=skip), log_probs_BSV)
        assert prefixes.marks_BNU2[0, 0, :3].tolist() == [[1, 2], [2, 4], [1, 7]]
        assert prefixes.spoken_BNU[0, 0, :3].exp().tolist() == pytest.approx([0.98] * 3)


def test_rows_can_be_taken_out_and_put_back() -> None:
    settings = PrefixSearch(beam=3)
    log_probs_BSV = drawn(2, 60, 4)
    together = search(settings, log_probs_BSV)
    store = settings.start(4)
    for row, slot in ((0, 2), (1, 0)):
        rows = torch.tensor([slot])
        part = settings.advance(store.select(rows), log_probs_BSV[[row]], torch.tensor([60]))
        store.put(rows, part)
    same(found(store, 2), found(together, 0))
    same(found(store, 0), found(together, 1))
    assert list(found(store, 1)) == [()]


def test_a_certain_blank_parts_equal_labels() -> None:
    log_probs_BSV = torch.full((1, 3, 3), 0.01).log()
    log_probs_BSV[0, [0, 2], 1] = math.log(0.98)
    log_probs_BSV[0, 1] = torch.tensor([0.0, -60.0, -60.0])  # a probability of one
    for skip in (None, 0.95):
        prefixes = search(PrefixSearch(beam=4, skip=skip), log_probs_BSV)
        assert next(iter(found(prefixes))) == (1, 1)
