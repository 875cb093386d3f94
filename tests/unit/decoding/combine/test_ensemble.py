"""Several models as one."""

from __future__ import annotations

import pytest
import torch

from transduce import recipe
from transduce.data.tokens.tokenizer import END, PAD
from transduce.decoding import beam, greedy, sample
from transduce.decoding.combine.ensemble import Ensemble
from transduce.decoding.score.forced import log_probabilities
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build

BLOCKS = {"layers": 1, "heads": 2, "feed_forward": 24}
TRANSFORMER = {"encoder": BLOCKS, "decoder": BLOCKS}
RECURRENT = {
    "encoder": {"kind": "recurrent", "cell": "gru"},
    "decoder": {"kind": "recurrent", "cell": "gru"},
}
SOURCE = (
    torch.tensor([[5, 6, 7, END], [9, END, PAD, PAD], [4, 4, END, PAD]]),
    torch.tensor([4, 2, 3]),
    torch.tensor([9, 12, 7]),
)


def network(shape: dict[str, object], seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    net = build(recipe.Model.model_validate({"width": 16, **shape}), Vocabulary(12, 12))
    with torch.no_grad():
        net.head.bias.normal_()
    return net.double().eval()


@torch.no_grad()
@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("shape", [TRANSFORMER, RECURRENT])
def test_a_model_with_itself_is_the_model(shape: dict[str, object], geometric: bool) -> None:
    net = network(shape, 1)
    both = Ensemble([net, net, net], geometric=geometric)
    for ours, theirs in (
        (greedy(both, *SOURCE), greedy(net, *SOURCE)),
        (beam(both, *SOURCE, 4, 3), beam(net, *SOURCE, 4, 3)),
        (sample(both, *SOURCE, [1, 2, 3], copies=3), sample(net, *SOURCE, [1, 2, 3], copies=3)),
    ):
        for one, other in zip(ours, theirs, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]
            assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("geometric", [False, True])
def test_probabilities_are_averaged_over_architectures(geometric: bool) -> None:
    nets = [network(TRANSFORMER, 1), network(RECURRENT, 2)]
    both = Ensemble(nets, geometric=geometric)
    state = both.start(*SOURCE[:2])
    states = [net.start(*SOURCE[:2]) for net in nets]
    index_B = torch.tensor([2, 2, 0])  # rows move together
    for tokens in ([2, 2, 2], [5, 6, 7], [8, 4, 4]):
        log_probs_BV, state = both.step(torch.tensor(tokens), state)
        probs = []
        for i, net in enumerate(nets):
            one_BV, states[i] = net.step(torch.tensor(tokens), states[i])
            probs.append(one_BV.exp())
            states[i].reorder(index_B)
        state.reorder(index_B)
        expected_BV = (probs[0] + probs[1]) / 2
        if geometric:
            expected_BV = (probs[0] * probs[1]).sqrt()
        torch.testing.assert_close(log_probs_BV.exp(), expected_BV)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3])
def test_the_score_of_a_geometric_ensemble_is_the_mean_of_its_models(size: int) -> None:
    """Of the log-probabilities that each assigns to the output by itself."""
    nets = [network(TRANSFORMER, 1), network(RECURRENT, 2), network(TRANSFORMER, 3)]
    both = Ensemble(nets, geometric=True)
    found = beam(both, *SOURCE, size, size, length_penalty=0.0)
    for row, hypotheses in enumerate(found):
        source = [t for t in SOURCE[0][row].tolist() if t not in (PAD, END)]
        for hypothesis in hypotheses:
            each = [sum(log_probabilities(n, [source], [hypothesis.tokens])[0]) for n in nets]
            assert hypothesis.log_probability == pytest.approx(sum(each) / 3, abs=1e-4)
