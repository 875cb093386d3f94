"""Search with a transducer against all of its alignments, one by one."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from transduce.nn.transducer.search import Hypotheses, TransducerSearch

V = 3  # the blank is 0


class Tiny:
    """A transducer of random numbers: the features of a history are a running sum of embeddings."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.table = 1.5 * torch.randn(V + 1, 8, dtype=torch.float64)
        self.out = torch.randn(8, V, dtype=torch.float64)

    def first_features(self, rows: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        begin = self.table[V].expand(rows, -1).contiguous()
        return begin.tanh(), [begin]

    def next_features(self, labels_R: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        after = 0.7 * state[0] + self.table[labels_R]
        return after.tanh(), [after]

    def log_probs(self, states: Tensor, features: Tensor) -> Tensor:
        return ((states + features).tanh() @ self.out).log_softmax(dim=-1)


def states(*lengths: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    return torch.randn(len(lengths), max(lengths), 8, dtype=torch.float64), torch.tensor(lengths)


def every_text(network: Tiny, states_SD: Tensor, most: int) -> dict[tuple[int, ...], float]:
    """The probability of each text, over all alignments with at most so many labels at a state."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    said = [w for n in range(most + 1) for w in itertools.product(range(1, V), repeat=n)]
    cpu = torch.device("cpu")
    for path in itertools.product(said, repeat=len(states_SD)):
        features, state = network.first_features(1, cpu)
        total = 0.0
        for state_D, labels in zip(states_SD, path, strict=True):
            for label in labels:
                total += float(network.log_probs(state_D, features)[0, label])
                features, state = network.next_features(torch.tensor([label]), state)
            total += float(network.log_probs(state_D, features)[0, 0])
        found[tuple(itertools.chain(*path))] += math.exp(total)
    return found


def texts(found: Hypotheses, row: int) -> dict[tuple[int, ...], float]:
    """The hypotheses of a row that exist, best first, with their log-probabilities."""
    return {
        tuple(found.tokens_BNU[row, n, : found.lengths_BN[row, n]].tolist()): score
        for n, score in enumerate(found.score_BN[row].tolist())
        if score > -math.inf
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_all_texts_with_their_probabilities(seed: int) -> None:
    network = Tiny(seed)
    states_BSD, counts_B = states(3, 2)
    search = TransducerSearch(network, beam=130, max_symbols=2)
    found, _ = search.advance(search.start(2, torch.device("cpu")), states_BSD, counts_B)
    for row, count in enumerate(counts_B.tolist()):
        exact = every_text(network, states_BSD[row, :count], 2)
        given = texts(found, row)
        assert len(given) == len(exact)
        assert next(iter(given)) == max(exact, key=exact.__getitem__)
        for text, probability in exact.items():
            assert given[text] == pytest.approx(math.log(probability), abs=1e-9)


def test_a_narrow_beam_is_close_to_a_wide_one_and_greedy_search_takes_one_path() -> None:
    """Scores of a beam never exceed the exact ones, as alignments are missing in them."""
    network = Tiny(3)
    states_BSD, counts_B = states(3)
    exact = every_text(network, states_BSD[0], 2)
    for beam in (1, 2, 4):
        search = TransducerSearch(network, beam, max_symbols=2)
        found, _ = search.advance(search.start(1, torch.device("cpu")), states_BSD, counts_B)
        for text, score in texts(found, 0).items():
            assert score <= math.log(exact[text]) + 1e-9


def test_greedy_search_is_a_loop_over_the_most_probable_tokens() -> None:
    network = Tiny(1)
    states_BSD, counts_B = states(6, 4, 5)
    search = TransducerSearch(network, max_symbols=3)
    found, blank_BS = search.advance(search.start(3, torch.device("cpu")), states_BSD, counts_B)
    written = 0
    for row, count in enumerate(counts_B.tolist()):
        features, state = network.first_features(1, torch.device("cpu"))
        marks, total = [], 0.0
        for frame in range(count):
            for number in range(4):
                log_probs = network.log_probs(states_BSD[row, frame], features)[0]
                token = int(log_probs.argmax()) if number < 3 else 0
                total += float(log_probs[token])
                if number == 0:
                    assert float(blank_BS[row, frame]) == pytest.approx(float(log_probs[0]))
                if token == 0:
                    break
                marks.append([token, frame])
                features, state = network.next_features(torch.tensor([token]), state)
        assert found.marks_BNU2[row, 0, : found.lengths_BN[row, 0]].tolist() == marks
        assert found.score_BN[row, 0].item() == pytest.approx(total)
        written += len(marks)
    assert written > 3


@pytest.mark.parametrize("beam", [1, 4])
def test_chunks_give_what_the_whole_gives_and_neighbours_do_not_matter(beam: int) -> None:
    network = Tiny(2)
    states_BSD, counts_B = states(7, 4)
    search = TransducerSearch(network, beam)
    cpu = torch.device("cpu")
    whole, _ = search.advance(search.start(2, cpu), states_BSD, counts_B)
    assert texts(whole, 0)
    for row, count in enumerate(counts_B.tolist()):
        parts = search.start(1, cpu)
        for start in range(0, count, 3):
            some = states_BSD[row : row + 1, start : min(start + 3, count)]
            parts, _ = search.advance(parts, some, torch.tensor([some.shape[1]]))
        assert texts(parts, 0) == pytest.approx(texts(whole, row))
        length = int(parts.lengths_BN[0, 0])
        assert torch.equal(parts.marks_BNU2[0, 0, :length], whole.marks_BNU2[row, 0, :length])


@pytest.mark.parametrize("beam", [1, 3])
def test_a_bonus_moves_the_scores_of_labels_and_is_told_apart(beam: int) -> None:
    """A large one makes the label that it is for follow wherever it is given."""
    network = Tiny(4)
    states_BSD, counts_B = states(3)

    def bonus(tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        gains_RV = torch.zeros(len(lengths_R), V)
        gains_RV[lengths_R == 0, 2] = 30.0  # the first label is 2
        return gains_RV

    search = TransducerSearch(network, beam, banned=(1,))
    start = search.start(1, torch.device("cpu"))
    found, _ = search.advance(start, states_BSD, counts_B, bonus)
    best = found.tokens_BNU[0, 0, : found.lengths_BN[0, 0]].tolist()
    assert best
    assert set(best) == {2}
    assert found.bonus_BN[0, 0].item() == pytest.approx(30.0)
    assert found.log_prob_BN[0, 0].item() < 0


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_beam_keeps_what_its_bonus_makes_the_best(seed: int) -> None:
    network = Tiny(seed)
    states_BSD, counts_B = states(3)
    wanted = (2, 1, 2)

    def bonus(tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        """Of each label that goes on with a phrase, which is taken back by another one."""
        gains_RV = torch.zeros(len(lengths_R), V)
        for row, length in enumerate(lengths_R.tolist()):
            if tuple(tokens_RU[row, :length].tolist()) == wanted[:length] and length < len(wanted):
                gains_RV[row] = -4.0 * length
                gains_RV[row, wanted[length]] = 4.0
        return gains_RV

    search = TransducerSearch(network, 3, max_symbols=3)
    start = search.start(1, torch.device("cpu"))
    without, _ = search.advance(start, states_BSD, counts_B)
    assert all(text[:3] != wanted for text in texts(without, 0))
    found, _ = search.advance(start, states_BSD, counts_B, bonus)
    assert next(iter(texts(found, 0)))[:3] == wanted
    assert found.bonus_BN[0, 0].item() == pytest.approx(12.0)
