"""What can be looked at in a network, and what is recorded of it, against the network's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transduce import recipe
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.models.lens import Lens, Recorder, matches, parts_of, short_name

LENGTHS = torch.tensor([5, 2])
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0]])
TARGET = torch.tensor([[2, 5, 6, 7], [2, 9, 4, 6]])
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 24}
CONFORMER = {"kind": "conformer", "layers": 1, "heads": 2, "feed_forward": 24, "kernel": 3}


def network(encoder: Any = TRANSFORMER, decoder: Any = TRANSFORMER) -> EncoderDecoder:
    torch.manual_seed(3)
    settings = {"width": 16, "encoder": encoder, "decoder": decoder}
    return build(recipe.Model.model_validate(settings), Vocabulary(11, 11)).eval()


def recurrent(**settings: Any) -> dict[str, Any]:
    return {"kind": "recurrent", "cell": "gru", **settings}


def record(net: EncoderDecoder, *names: str) -> dict[str, torch.Tensor]:
    with torch.no_grad(), Recorder(net, names) as seen:
        seen.network(SOURCE, LENGTHS, TARGET)
    return seen.found


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_names_have_a_short_form() -> None:
    assert short_name("decoder.blocks.2.cross_attention") == "decoder.2.cross"
    assert short_name("encoder.recurrent.cells.0.forget") == "encoder.0.forget"
    assert matches("decoder.blocks.2.cross_attention", ["decoder.*.cross"])
    assert matches("decoder.blocks.2.cross_attention", ["decoder.*.cross_attention"])
    assert not matches("decoder.blocks.2.self_attention", ["decoder.*.cross"])


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        (TRANSFORMER, TRANSFORMER),
        (CONFORMER, TRANSFORMER),
        ({"kind": "convolutional", "layers": 2}, {"kind": "convolutional", "layers": 2}),
        (recurrent(cell="lstm"), recurrent(cell="lstm-peephole", context="input")),
        (recurrent(cell="elman"), recurrent(attention="none")),
    ],
)
def test_every_part_that_is_listed_can_be_recorded_in_the_shape_it_has(
    encoder: Any, decoder: Any
) -> None:
    net = network(encoder, decoder)
    parts = [part for part in parts_of(net) if part.kind not in ("logits", "next_token")]
    names = [part.name for part in parts]
    assert len(set(names)) == len(names) > 4
    found = record(net, *names)
    assert list(found) == names
    sizes = {"source": 5, "target": 4, "width": 16}
    for part in parts:
        expected = tuple(sizes.get(size, size) for size in part.shape)  # type: ignore[call-overload]
        assert found[part.name].shape == (2, *expected), part
    assert not any(module._forward_hooks for module in net.modules())
    assert not any("step" in vars(module) for module in net.modules())


def test_states_are_what_the_blocks_give_to_each_other() -> None:
    net = network()
    names = ["front", *(f"encoder.blocks.{n}" for n in range(2)), "encoder"]
    found = record(net, *names, "decoder.embedding", "decoder")
    with torch.no_grad():
        x_BSD = net.front(SOURCE)
        close(found["front"], x_BSD)
        mask = net.encode(SOURCE, LENGTHS).mask
        for number, block in enumerate(net.encoder.stack):
            x_BSD = block(x_BSD, mask)
            close(found[f"encoder.blocks.{number}"], x_BSD)
        close(found["encoder"], net.encoder.norm(x_BSD))
        close(found["decoder"], net(SOURCE, LENGTHS, TARGET))
        close(found["decoder.embedding"], net.decoder.embedding(TARGET))


def test_attention_is_that_of_the_lens() -> None:
    net = network()
    with torch.no_grad(), Lens(net) as lens:
        net(SOURCE, LENGTHS, TARGET)
    found = record(net, *lens.weights)
    for name, weights_BHTS in lens.weights.items():
        assert torch.equal(found[name], weights_BHTS)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm", "lstm-peephole"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_cells_are_seen_in_the_order_of_the_source(
    cell: str, bidirectional: bool, reverse: bool
) -> None:
    """Also a cell that reads from the end, and sources of different lengths side by side."""
    settings = recurrent(cell=cell, layers=2, bidirectional=bidirectional, reverse=reverse)
    net = network(settings, recurrent(cell=cell))
    last = [2, 3] if bidirectional else [1]
    found = record(net, *(f"encoder.recurrent.cells.{number}" for number in last))
    joined_BSD = torch.cat(list(found.values()), dim=-1)
    with torch.no_grad():
        states_BSD = net.encode(SOURCE, LENGTHS).states_BSD
    for row, length in enumerate(LENGTHS.tolist()):
        close(joined_BSD[row, :length], states_BSD[row, :length])


@pytest.mark.parametrize("context", ["input", "output"])
def test_gates_of_a_decoder_are_those_of_its_steps(context: str) -> None:
    net = network(recurrent(), recurrent(context=context))
    name = "decoder.recurrent.cells.0.update"
    whole = record(net, name)[name]
    with torch.no_grad(), Recorder(net, [name]) as stepping:
        state = stepping.network.start(SOURCE, LENGTHS)
        for tokens_B in TARGET.unbind(1):
            _, state = stepping.network.step(tokens_B, state)
    close(stepping.found[name], whole)
