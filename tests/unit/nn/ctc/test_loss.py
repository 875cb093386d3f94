"""CTC against sums over all labellings of a few frames."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from transduce.nn.ctc.loss import (
    consistency_loss,
    ctc_loss,
    frames_needed,
    token_posteriors,
)
from transduce.nn.ctc.prefix_score import CtcPrefix

V, END = 4, 3  # blank 0, labels 1 and 2, and a column for the end


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(path) if label != 0)


def transcripts(log_probs_SV: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every transcript: the sum over all labellings that give it."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    table = log_probs_SV.tolist()
    for path in itertools.product(range(log_probs_SV.shape[1]), repeat=len(log_probs_SV)):
        found[collapse(path)] += math.exp(sum(table[t][label] for t, label in enumerate(path)))
    return found


def frames(*lengths: int, columns: int = V) -> tuple[Tensor, Tensor]:
    """Log-probabilities in which the end is never a label; what lies beyond a length is noise."""
    logits_BSV = 2 * torch.randn(len(lengths), max(lengths), columns)
    logits_BSV[..., END:] = -torch.inf
    return logits_BSV.log_softmax(dim=-1), torch.tensor(lengths)


def test_the_loss_is_the_sum_over_all_labellings() -> None:
    torch.manual_seed(0)
    log_probs_BSV, lengths_B = frames(5, 4, 3)
    targets = [(1, 2), (1, 1), (2,)]
    targets_BT = torch.tensor([[1, 2], [1, 1], [2, 9]])
    loss = ctc_loss(log_probs_BSV, lengths_B, targets_BT, torch.tensor([2, 2, 1]))
    expected = -sum(
        math.log(transcripts(log_probs_BSV[b, :length])[target])
        for b, (target, length) in enumerate(zip(targets, lengths_B, strict=True))
    )
    assert loss.total.item() == pytest.approx(expected, abs=1e-4)
    assert (loss.tokens.item(), loss.impossible.item()) == (5, 0)


def test_targets_that_do_not_fit_are_counted_and_left_out() -> None:
    logits_BSV = torch.randn(5, 3, V, requires_grad=True)
    lengths_B = torch.tensor([3, 2, 3, 0, 3])
    targets_BT = torch.tensor([[1, 2, 1], [1, 1, 2], [1, 1, 2], [1, 2, 1], [1, 1, 9]])
    target_lengths_B = torch.tensor([3, 2, 3, 1, 2])
    assert frames_needed(targets_BT, target_lengths_B).tolist() == [3, 3, 4, 1, 3]
    loss = ctc_loss(logits_BSV, lengths_B, targets_BT, target_lengths_B)
    assert loss.impossible.item() == 3
    assert loss.tokens.item() == 5
    fitting = [0, 4]
    alone = ctc_loss(
        logits_BSV[fitting], lengths_B[fitting], targets_BT[fitting], target_lengths_B[fitting]
    )
    torch.testing.assert_close(loss.total, alone.total)
    loss.total.backward()
    assert logits_BSV.grad is not None
    assert logits_BSV.grad.isfinite().all()
    assert not logits_BSV.grad[[1, 2, 3]].any()
    assert logits_BSV.grad[fitting].any(dim=-1).all()


def test_what_lies_beyond_the_targets_is_not_read() -> None:
    targets_BT, target_lengths_B = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]]), torch.tensor([1, 2])
    assert frames_needed(targets_BT, target_lengths_B).tolist() == [1, 3]


def test_no_frames_are_impossible_even_for_no_targets() -> None:
    logits_BSV = torch.randn(2, 3, V)
    nothing_BT, none_B = torch.zeros(2, 0).long(), torch.tensor([0, 0])
    loss = ctc_loss(logits_BSV, torch.tensor([0, 3]), nothing_BT, none_B)
    assert loss.impossible.item() == 1
    expected = -logits_BSV[1].log_softmax(dim=-1)[:, 0].sum()
    torch.testing.assert_close(loss.total, expected)


def test_only_impossible_targets_give_zero() -> None:
    logits_BSV = torch.randn(1, 1, V, requires_grad=True)
    loss = ctc_loss(logits_BSV, torch.tensor([1]), torch.tensor([[1, 2]]), torch.tensor([2]))
    assert (loss.total.item(), loss.tokens.item(), loss.impossible.item()) == (0.0, 0, 1)
    loss.total.backward()
    assert logits_BSV.grad is not None
    assert not logits_BSV.grad.any()


def expected_next(every: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> list[float]:
    """p(next token | prefix) by adding up whole transcripts."""
    begins = sum(p for text, p in every.items() if text[: len(prefix)] == prefix)
    shares = []
    for token in range(1, END):
        longer = (*prefix, token)
        shares.append(sum(p for text, p in every.items() if text[: len(longer)] == longer) / begins)
    return [0.0, *shares, every[prefix] / begins]


def test_prefixes_have_the_probability_of_all_transcripts_that_begin_so() -> None:
    torch.manual_seed(2)
    log_probs_BSV, lengths_B = frames(6, 5, 3)
    prefixes = [(1, 1, 2), (2, 1, 2), (1, 2, 2)]
    state = CtcPrefix.start(log_probs_BSV, lengths_B, len(prefixes), blank=0, end=END)
    same = torch.arange(len(prefixes)).expand(3, -1)
    for step in range(4):
        found_BNV = state.next_log_probs().exp()
        for b, length in enumerate(lengths_B):
            every = transcripts(log_probs_BSV[b, :length])
            for n, prefix in enumerate(prefixes):
                begun = prefix[:step]
                begins = sum(p for text, p in every.items() if text[:step] == begun)
                if begins == 0:  # longer than the frames can say
                    assert state.total_BN[b, n] < -100
                    continue
                assert state.total_BN[b, n].exp().item() == pytest.approx(begins, rel=1e-4)
                expected = expected_next(every, begun)
                assert found_BNV[b, n].tolist() == pytest.approx(expected, abs=1e-5)
        if step < 3:
            state = state.advance(same, torch.tensor([p[step] for p in prefixes]).expand(3, -1))


def test_prefixes_follow_their_parents() -> None:
    """As a beam search moves them: the same state as if each had been spelt from the start."""
    torch.manual_seed(3)
    log_probs_BSV, lengths_B = frames(9, 7)
    state = CtcPrefix.start(log_probs_BSV, lengths_B, 3, blank=0, end=END)
    prefixes: list[list[list[int]]] = [[[], [], []], [[], [], []]]
    for _ in range(3):
        parents, tokens = torch.randint(0, 3, (2, 3)), torch.randint(1, 3, (2, 3))
        state = state.advance(parents, tokens)
        prefixes = [
            [[*prefixes[b][parents[b, n]], int(tokens[b, n])] for n in range(3)] for b in range(2)
        ]
    for b in range(2):
        for n in range(3):
            alone = CtcPrefix.start(log_probs_BSV[b : b + 1], lengths_B[b : b + 1], 1, 0, END)
            for token in prefixes[b][n]:
                alone = alone.advance(torch.zeros(1, 1).long(), torch.tensor([[token]]))
            torch.testing.assert_close(state.total_BN[b, n], alone.total_BN[0, 0])
            torch.testing.assert_close(state.next_log_probs()[b, n], alone.next_log_probs()[0, 0])
    chosen = state.select(torch.tensor([1]))
    torch.testing.assert_close(chosen.next_log_probs(), state.next_log_probs()[1:])


def test_a_long_recording_stays_finite_and_sums_to_one() -> None:
    """Thousands of frames, nearly certain of each: no product of them is a number any more."""
    torch.manual_seed(4)
    S, columns = 4_000, 30
    labels_S = torch.randint(4, columns, (S,)).where(torch.rand(S) < 0.2, torch.zeros(S).long())
    logits_1SV = 0.5 * torch.randn(1, S, columns)
    logits_1SV[0, torch.arange(S), labels_S] += 15
    logits_1SV[..., 1:4] = -torch.inf
    log_probs_1SV = logits_1SV.log_softmax(dim=-1)
    said = collapse(tuple(labels_S.tolist()))
    state = CtcPrefix.start(log_probs_1SV, torch.tensor([S]), 1, blank=0, end=END)
    for token in said[:60]:
        chances_V = state.next_log_probs()[0, 0].exp()
        assert chances_V.sum().item() == pytest.approx(1.0, abs=1e-3)
        assert int(chances_V.argmax()) == token
        state = state.advance(torch.zeros(1, 1).long(), torch.tensor([[token]]))
    assert state.total_BN.isfinite().all()


def test_without_a_loop_it_is_the_loop() -> None:
    """The recursion as the paper writes it, over more frames than can be enumerated."""
    torch.manual_seed(5)
    S = 300
    log_probs_1SV, lengths_B = frames(S)
    log_SV = log_probs_1SV[0].double()
    state = CtcPrefix.start(log_probs_1SV, lengths_B, 1, blank=0, end=END)
    said, paused = [-math.inf] * (S + 1), [0.0]
    for t in range(S):
        paused.append(paused[t] + log_SV[t, 0].item())

    def add(*terms: float) -> float:
        return torch.tensor(terms, dtype=torch.float64).logsumexp(dim=0).item()

    last = 0
    for token in (1, 2, 2, 1, 1, 1, 2):
        new_said, new_paused, total = [-math.inf], [-math.inf], -math.inf
        for t in range(S):
            ready = paused[t] if token == last else add(said[t], paused[t])
            new_said.append(add(new_said[t], ready) + log_SV[t, token].item())
            new_paused.append(add(new_paused[t], new_said[t]) + log_SV[t, 0].item())
            total = add(total, ready + log_SV[t, token].item())
        said, paused, last = new_said, new_paused, token
        state = state.advance(torch.zeros(1, 1).long(), torch.tensor([[token]]))
        assert state.total_BN.item() == pytest.approx(total, abs=1e-8)
        assert state.label_BNE[0, 0, 1:].tolist() == pytest.approx(said[1:], abs=1e-8)
        assert state.blank_BNE[0, 0, 1:].tolist() == pytest.approx(paused[1:], abs=1e-8)


def test_what_was_said_whole_ends() -> None:
    log_probs_1SV = torch.full((1, 6, V), -12.0)
    for t, label in enumerate([0, 1, 0, 1, 2, 0]):
        log_probs_1SV[0, t, label] = 0.0
    state = CtcPrefix.start(log_probs_1SV.log_softmax(-1), torch.tensor([6]), 1, blank=0, end=END)
    for token in (1, 1, 2, END):
        assert int(state.next_log_probs()[0, 0].argmax()) == token
        state = state.advance(torch.zeros(1, 1).long(), torch.tensor([[token]]))


def test_what_cannot_be_stays_so_beside_a_longer_neighbour() -> None:
    """In the padding of a short one nothing is said, at whatever price."""
    torch.manual_seed(3)
    log_probs_BSV = torch.randn(2, 6, 5).log_softmax(dim=-1)
    together = CtcPrefix.start(log_probs_BSV, torch.tensor([1, 6]), 1, blank=0, end=END)
    alone = CtcPrefix.start(log_probs_BSV[:1, :1], torch.tensor([1]), 1, blank=0, end=END)
    parent_B1, token_B1 = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[2], [2]])
    for impossible in (False, True, True):  # one frame says one token, no more
        together = together.advance(parent_B1, token_B1)
        alone = alone.advance(parent_B1[:1], token_B1[:1])
        next_11V = together.next_log_probs()[:1]
        assert not next_11V.isnan().any()
        assert bool(together.total_BN[0].isneginf()) == impossible
        assert bool(next_11V.isneginf().all()) == impossible
        torch.testing.assert_close(next_11V, alone.next_log_probs())


def test_consistency_is_the_divergence_of_two_views_of_each_frame() -> None:
    """By a plain loop; the target of each divergence is a constant, and padding counts nowhere."""
    torch.manual_seed(0)
    logits_BSV = (2 * torch.randn(4, 5, V)).requires_grad_()  # two recordings, two views
    lengths_B = torch.tensor([5, 3, 5, 3])
    loss = consistency_loss(logits_BSV, lengths_B)
    (gradient_BSV,) = torch.autograd.grad(loss, [logits_BSV])
    p_BSV, expected = logits_BSV.detach().softmax(-1), 0.0
    for row in range(4):
        other = (row + 2) % 4
        for frame in range(5):
            p, q = p_BSV[row, frame], p_BSV[other, frame]
            inside = frame < int(lengths_B[row])
            if inside:
                expected += sum(float(q[v] * (q[v] / p[v]).log()) for v in range(V)) / 2
            # As the target has no gradient: ∂KL(q‖p)/∂logits of p = p − q.
            torch.testing.assert_close(gradient_BSV[row, frame], inside * (p - q) / 2)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    longer_BSV = torch.cat((logits_BSV, torch.randn(4, 3, V)), dim=1)
    torch.testing.assert_close(consistency_loss(longer_BSV, lengths_B), loss)


@pytest.mark.parametrize("targets", [(1, 2), (1, 1), (2,), (2, 1, 2)])
def test_where_tokens_are_said_is_the_share_of_all_labellings(targets: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    log_probs_SV = frames(5)[0][0]
    found_TS = token_posteriors(log_probs_SV, torch.tensor(targets))
    expected_TS, total = torch.zeros(len(targets), 5), 0.0
    for path in itertools.product(range(3), repeat=5):
        if collapse(path) != targets:
            continue
        share = math.exp(sum(float(log_probs_SV[s, label]) for s, label in enumerate(path)))
        total += share
        token = -1
        for s, label in enumerate(path):
            token += label != 0 and (s == 0 or path[s - 1] != label)
            if label:
                expected_TS[token, s] += share
    torch.testing.assert_close(found_TS, expected_TS / total)
    assert not token_posteriors(log_probs_SV[:1], torch.tensor([1, 2])).any()  # they do not fit
