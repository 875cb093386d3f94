"""The lens: it sees the parts it names, changes nothing, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.models import EncoderDecoder, Lens
from transduce.models.build import Vocabulary, build
from transduce.models.lens import attentions

LENGTHS = torch.tensor([5, 2])
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0]])
TARGET = torch.tensor([[2, 5, 6, 7], [2, 9, 4, 6]])
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 24}
SCORES = (
    "cosine",
    "additive",
    "location-aware",
    "location",
    "general",
    "dot",
    "scaled-dot",
    "additive-free",
)
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2}


def network(encoder: Any = TRANSFORMER, decoder: Any = TRANSFORMER) -> EncoderDecoder:
    torch.manual_seed(3)
    settings = {"width": 16, "encoder": encoder, "decoder": decoder}
    return build(recipe.Model.model_validate(settings), Vocabulary(11, 11)).eval()


def recurrent(**settings: Any) -> dict[str, Any]:
    return {"kind": "recurrent", "cell": "gru", **settings}


def run(net: EncoderDecoder) -> Tensor:
    with torch.no_grad():
        return net(SOURCE, LENGTHS, TARGET)


def run_by_steps(net: EncoderDecoder, target_BT: Tensor = TARGET) -> None:
    with torch.no_grad():
        state = net.start(SOURCE, LENGTHS)
        for tokens_B in target_BT.unbind(1):
            _, state = net.step(tokens_B, state)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


CROSS = ["decoder.blocks.0.cross_attention", "decoder.blocks.1.cross_attention"]


def test_it_records_the_parts_it_names_and_no_others() -> None:
    net = network()
    with Lens(net, "decoder.*.cross_attention") as lens:
        for name, part in attentions(net).items():
            assert (part.watch is not None) == (name in CROSS)
        run(net)
    assert list(lens.weights) == CROSS
    assert all(w.shape == (2, 2, 4, 5) for w in lens.weights.values())
    assert all(part.watch is None for part in attentions(net).values())


def test_the_others_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    fused = torch.nn.functional.scaled_dot_product_attention
    calls = []

    def counted(*arguments: Any, **keywords: Any) -> Tensor:
        calls.append(1)
        return fused(*arguments, **keywords)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    run(net)
    assert len(calls) == 6
    with Lens(net, CROSS[0]):
        run(net)
    assert len(calls) == 6 + 5


def test_without_a_pattern_it_records_everything() -> None:
    net = network()
    with Lens(net) as lens:
        run(net)
    assert list(lens.weights) == list(attentions(net))
    assert len(lens.weights) == 6


def test_a_name_that_is_not_there_records_nothing() -> None:
    net = network()
    with Lens(net, "decoder.attention") as lens:
        run(net)
    assert lens.weights == {}


def check_weights(weights_BHTS: Tensor) -> None:
    close(weights_BHTS.sum(dim=-1), torch.ones(weights_BHTS.shape[:-1]))
    assert (weights_BHTS >= 0).all()
    assert (weights_BHTS[1, :, :, 2:] == 0).all()  # padding, exactly
    assert (weights_BHTS[0].amax(dim=-1) < 1).all()


def test_weights_are_distributions_over_what_is_visible() -> None:
    net = network()
    with Lens(net, "decoder.*cross_attention", "encoder.*") as lens:
        run(net)
    for weights_BHTS in lens.weights.values():
        check_weights(weights_BHTS)


def test_weights_of_masked_self_attention_are_zero_in_the_future() -> None:
    net = network()
    with Lens(net, "decoder.*self_attention") as lens:
        run(net)
    for weights_BHTT in lens.weights.values():
        assert (weights_BHTT.triu(1) == 0).all()
        close(weights_BHTT.sum(dim=-1), torch.ones(2, 2, 4))


@pytest.mark.parametrize("context", ["input", "output", "both"])
@pytest.mark.parametrize("score", SCORES)
def test_recurrent_attention_is_seen_alike_for_every_score(score: str, context: str) -> None:
    net = network(recurrent(), recurrent(attention=score, context=context))
    with Lens(net, "decoder.attention") as lens:
        run(net)
    weights_BHTS = lens.weights["decoder.attention"]
    assert weights_BHTS.shape == (2, 1, 4, 5)
    check_weights(weights_BHTS)
    with Lens(net, "decoder.attention") as stepping:
        run_by_steps(net)
    close(stepping.weights["decoder.attention"], weights_BHTS)


def test_every_convolutional_layer_has_its_own_attention_to_the_source() -> None:
    net = network(CONVOLUTIONAL, CONVOLUTIONAL)
    assert list(attentions(net)) == CROSS
    with Lens(net, "decoder.*.cross_attention") as lens:
        run(net)
    with Lens(net) as stepping:
        run_by_steps(net)
    for name in CROSS:
        assert lens.weights[name].shape == (2, 1, 4, 5)
        check_weights(lens.weights[name])
        close(stepping.weights[name], lens.weights[name])
    assert not torch.allclose(lens.weights[CROSS[0]], lens.weights[CROSS[1]])


def test_steps_are_joined_as_one_pass_would_show_them() -> None:
    """Masked self-attention too, whose keys grow by one each step."""
    net = network()
    with Lens(net, "decoder.*") as whole:
        run(net)
    with Lens(net, "decoder.*") as stepping:
        run_by_steps(net)
    assert list(stepping.weights) == list(whole.weights)
    for name, weights_BHTS in whole.weights.items():
        close(stepping.weights[name], weights_BHTS)


def test_looking_changes_nothing() -> None:
    for net in (network(), network(recurrent(), recurrent(context="both"))):
        before = run(net)
        with Lens(net):
            close(run(net), before)
        assert torch.equal(run(net), before)


def test_it_lets_go_after_an_exception() -> None:
    net = network()
    outside = torch.full_like(TARGET, 99)
    with pytest.raises(IndexError), Lens(net) as lens:
        net(SOURCE, LENGTHS, outside)
    assert all(part.watch is None for part in attentions(net).values())
    assert len(lens.weights) == 2  # the encoder's, seen until then


def test_a_lens_inside_a_lens_gives_the_outer_one_its_view_back() -> None:
    net = network()
    with Lens(net, "decoder.*") as outer:
        with Lens(net, CROSS[0]) as inner:
            run(net)
        run(net)
    assert list(inner.weights) == [CROSS[0]]
    assert outer.weights[CROSS[0]].shape[2] == 4
    assert outer.weights[CROSS[1]].shape[2] == 8
    assert all(part.watch is None for part in attentions(net).values())


def test_a_second_use_starts_anew() -> None:
    net = network()
    lens = Lens(net, CROSS[0])
    for _ in range(2):
        with lens:
            run(net)
        assert lens.weights[CROSS[0]].shape[2] == 4


def test_recorded_weights_hold_no_graph() -> None:
    net = network()
    with Lens(net) as lens:
        net(SOURCE, LENGTHS, TARGET)
    assert not any(w.requires_grad for w in lens.weights.values())
