"""Forced alignment against every path there is, and over texts and recordings that differ."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from transduce.nn.ctc import alignment as ctc_alignment
from transduce.nn.ctc.alignment import Alignment, MismatchPenalties, align

BLANK = 0


def collapse(path: tuple[int, ...]) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != BLANK]


def said_by(alignment: Alignment, tokens: list[int], frames: int) -> tuple[int, ...]:
    labels = [BLANK] * frames
    for token, first, last in zip(tokens, alignment.first_U, alignment.last_U, strict=True):
        if first >= 0:
            labels[first : last + 1] = [token] * (int(last) - int(first) + 1)
    return tuple(labels)


@pytest.mark.parametrize("block", [1, 2, 3, 1024])
@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 2], [2, 2, 2]])
def test_it_is_the_best_of_all_labellings(
    tokens: list[int], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctc_alignment, "BLOCK", block)
    for seed in range(5):
        torch.manual_seed(seed)
        S = 6
        log_probs_SV = (2 * torch.randn(S, 3)).log_softmax(dim=-1)
        table = log_probs_SV.tolist()
        every = [p for p in itertools.product(range(3), repeat=S) if collapse(p) == tokens]
        scores = [sum(table[t][v] for t, v in enumerate(path)) for path in every]
        found = align(log_probs_SV, torch.tensor(tokens, dtype=torch.int64), BLANK)
        assert said_by(found, tokens, S) == every[scores.index(max(scores))]
        assert found.scores_S.sum().item() == pytest.approx(max(scores), abs=1e-4)
        for u, token in enumerate(tokens):
            run = log_probs_SV[found.first_U[u] : found.last_U[u] + 1, token]
            assert found.confidence_U[u].item() == pytest.approx(run.mean().exp().item(), abs=1e-5)


def best_path_with_penalties(
    log_probs_SV: Tensor, tokens: list[int], breaks: list[bool], penalties: MismatchPenalties
) -> float:
    """The best score, by walking every path: gaps are even states, tokens odd ones."""
    U, S, table = len(tokens), len(log_probs_SV), log_probs_SV.tolist()

    def emission(t: int, state: int) -> float:
        if state % 2:
            return float(table[t][tokens[state // 2]])
        pause = float(table[t][BLANK])
        return max(pause, penalties.insertion) if breaks[state // 2] else pause

    def walk(t: int, state: int) -> float:
        """From `state`, before frame t."""
        best = -math.inf
        if t == S:
            if state % 2:
                return penalties.deletion * (U - 1 - state // 2)
            return penalties.deletion * (U - state // 2)
        following = [state, state + 1] if state < 2 * U else [state]
        if state % 2 and state // 2 + 1 < U and tokens[state // 2] != tokens[state // 2 + 1]:
            following.append(state + 2)
        for other in following:
            if other > 2 * U:
                continue
            best = max(best, emission(t, other) + walk(t + 1, other))
        if state % 2 == 0 and state < 2 * U:  # the next token is not read
            best = max(best, penalties.deletion + walk(t, state + 2))
        return best

    return walk(0, 0)


@pytest.mark.parametrize("block", [1, 3, 1024])
@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 1], [1, 1, 2], [1, 2, 2, 1]])
@pytest.mark.parametrize("frames", [0, 2, 6])
def test_with_a_tolerance_it_is_the_best_of_all_paths(
    tokens: list[int], frames: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctc_alignment, "BLOCK", block)
    for seed in range(16):
        torch.manual_seed(seed)
        log_probs_SV = (3 * torch.randn(frames, 3)).log_softmax(dim=-1)
        breaks_G = torch.rand(len(tokens) + 1) < 0.5
        penalties = MismatchPenalties(insertion=-1.5, deletion=-0.5 - seed / 4)
        found = align(log_probs_SV, torch.tensor(tokens).long(), BLANK, penalties, breaks_G)
        total = found.scores_S.sum() + penalties.deletion * found.deleted_U.sum()
        expected = best_path_with_penalties(log_probs_SV, tokens, breaks_G.tolist(), penalties)
        assert total.item() == pytest.approx(expected, abs=1e-4)


def spoken(
    tokens: list[int], columns: int = 30, seed: int = 0, weak: float = 0.0
) -> tuple[Tensor, list[int]]:
    """Frames that say tokens as a recogniser would: peaks, blanks between, some of them unsure."""
    generator = torch.Generator().manual_seed(seed)
    labels, starts = [BLANK] * 3, []
    for token in tokens:
        starts.append(len(labels))
        labels += [token] + [BLANK] * int(torch.randint(1, 6, (1,), generator=generator))
    logits_SV = 0.7 * torch.randn(len(labels), columns, generator=generator)
    logits_SV[torch.arange(len(labels)), torch.tensor(labels)] += 9
    unsure = torch.rand(len(labels), generator=generator) < weak
    confused = torch.randint(1, columns, (len(labels),), generator=generator)
    logits_SV[unsure, confused[unsure]] += 10
    return logits_SV.log_softmax(dim=-1), starts


def text(length: int, seed: int, columns: int = 30) -> list[int]:
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.randint(1, columns, (length,), generator=generator).tolist()


def test_many_frames_in_several_blocks() -> None:
    tokens = text(800, 0)
    log_probs_SV, starts = spoken(tokens, weak=0.05)
    assert len(log_probs_SV) > 2 * ctc_alignment.BLOCK
    found = align(log_probs_SV, torch.tensor(tokens), BLANK)
    late = (found.first_U - torch.tensor(starts)).abs()
    assert late.max() <= 6
    assert (late == 0).float().mean() > 0.97
    assert (found.last_U[:-1] < found.first_U[1:]).all()


def test_text_that_is_not_read_does_not_move_the_rest() -> None:
    before, not_spoken, after = text(150, 1), text(60, 2), text(150, 3)
    log_probs_SV, starts = spoken(before + after, weak=0.03)
    tokens = torch.tensor(before + not_spoken + after)
    found = align(log_probs_SV, tokens, BLANK, MismatchPenalties())
    kept = torch.cat((found.first_U[:150], found.first_U[210:]))
    right = (kept == torch.tensor(starts)).float().mean()
    assert right > 0.93
    assert found.deleted_U[150:210].float().mean() > 0.9
    assert not found.confidence_U[found.deleted_U].any()
    assert found.segment_confidence(0, 150) > -1.5
    assert found.segment_confidence(150, 210) == -math.inf


def test_sound_that_is_not_in_the_text_does_not_move_the_rest() -> None:
    one, foreign, two, title = text(150, 1), text(80, 2), text(150, 3), text(40, 4)
    log_probs_SV, starts = spoken(title + one + foreign + two + title, weak=0.03)
    tokens = torch.tensor(one + two)
    breaks_G = torch.zeros(301, dtype=torch.bool)
    breaks_G[[0, 150, 300]] = True
    found = align(log_probs_SV, tokens, BLANK, MismatchPenalties(), breaks_G)
    expected = torch.tensor(starts[40:190] + starts[270:420])
    assert (found.first_U == expected).float().mean() > 0.93
    assert found.deleted_U.float().mean() < 0.05
    strict = align(log_probs_SV, tokens, BLANK)
    assert (strict.first_U == expected).float().mean() < (found.first_U == expected).float().mean()


def test_a_whole_wrong_text_is_seen_to_be_wrong() -> None:
    log_probs_SV, _ = spoken(text(100, 5))
    right = align(log_probs_SV, torch.tensor(text(100, 5)), BLANK)
    wrong = align(log_probs_SV, torch.tensor(text(100, 6)), BLANK)
    assert right.segment_confidence(0, 100) > -0.5
    assert wrong.segment_confidence(0, 100) < -2


def test_one_wrong_word_shows_in_a_long_line() -> None:
    tokens = text(200, 7)
    log_probs_SV, _ = spoken(tokens)
    changed = tokens.copy()
    changed[100:106] = text(6, 8)
    right = align(log_probs_SV, torch.tensor(tokens), BLANK)
    wrong = align(log_probs_SV, torch.tensor(changed), BLANK)
    assert right.segment_confidence(0, 200) > -0.5
    assert wrong.segment_confidence(0, 200) < -1.5
    assert wrong.scores_S.mean() > -0.7  # which a mean over the whole line would not show


def test_memory_grows_with_neither_all_frames_nor_all_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Codes are kept of no more states than the path can have passed in a block."""
    tokens = text(700, 9, columns=8)
    log_probs_SV = torch.randn(1_300, 8).log_softmax(dim=-1)
    sizes: list[int] = []
    original = ctc_alignment._trace

    def watched(*arguments: object) -> object:
        sizes.append(arguments[0].size + arguments[1].size)  # type: ignore[attr-defined]
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ctc_alignment, "_trace", watched)
    monkeypatch.setattr(ctc_alignment, "BLOCK", 128)
    found = align(log_probs_SV, torch.tensor(tokens), BLANK)
    assert len(sizes) == math.ceil(1_300 / 128)
    assert max(sizes) <= 128 * (2 * 130 + 3)
    assert not found.deleted_U.any()


def test_what_cannot_be_is_reported() -> None:
    log_probs_SV = torch.randn(3, 4).log_softmax(dim=-1)
    with pytest.raises(ValueError, match="3 tokens cannot be aligned with 3 frames"):
        align(log_probs_SV, torch.tensor([1, 1, 2]), BLANK)
    found = align(log_probs_SV, torch.tensor([1, 1, 2]), BLANK, MismatchPenalties())
    assert found.deleted_U.any()
    with pytest.raises(ValueError, match="zero or less"):
        MismatchPenalties(deletion=1.0)
    assert found.segment_confidence(1, 1) == -math.inf


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("block", [7, 1024])
def test_of_lines_that_begin_and_end_alike_one_is_read(
    read: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole lines are left out, not pieces of several."""
    monkeypatch.setattr(ctc_alignment, "BLOCK", block)
    lines = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 8, 9, 6, 7], [1, 2, 3, 10, 11, 6, 7]]
    texts = [[20, 21, 22], *lines, [23, 24, 25]]
    tokens = [number for line in texts for number in line]
    breaks_G = torch.zeros(len(tokens) + 1, dtype=torch.bool)
    breaks_G[list(itertools.accumulate(map(len, texts), initial=0))] = True
    log_probs_SV, _ = spoken([*texts[0], *lines[read], *texts[-1]], seed=1)
    penalties = MismatchPenalties(deletion=-6.0, line_deletion=-4.0)
    found = align(log_probs_SV, torch.tensor(tokens), BLANK, penalties, breaks_G)
    there = [not out for out in found.deleted_U.tolist()]
    expected = [True] * 3 + [number == read for number in range(3) for _ in range(7)] + [True] * 3
    assert there == expected
