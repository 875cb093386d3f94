"""Gates: a head at zero is a head whose columns of the output projection are zero; and so on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from language import language_model
from tiny_models import SOURCES, TARGETS, tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.models import EncoderDecoder
from transduce.models.lens import Gates, Lens
from transduce.nn.attention.attention import Attention, Dot
from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.attention.static_kv_cache import StaticCrossAttentionCache
from transduce.nn.masks import causal
from transduce.nn.positions import Sinusoidal
from transduce.nn.watchable import Gate
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import Transducer, create

pytestmark = pytest.mark.filterwarnings("ignore:gates are set", "ignore:a lens or forward")
CROSS = "decoder.blocks.1.cross_attention"
SOURCE, LENGTHS = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0]]), torch.tensor([5, 2])
TARGET = torch.tensor([[2, 5, 6, 7], [2, 9, 4, 6]])


def reported(outputs: list[Output]) -> list[Any]:
    return [(o.text, o.score, [(a.text, a.score) for a in o.alternatives]) for o in outputs]


def without_head(attention: MultiHeadAttention, head: int, factor: float = 0.0) -> None:
    """By hand: the head's columns of the output projection."""
    width = attention.width // attention.heads
    with torch.no_grad():
        attention.out_projection.weight[:, head * width : (head + 1) * width] *= factor


def run(net: EncoderDecoder) -> Tensor:
    with torch.no_grad():
        features_BTD: Tensor = net(SOURCE, LENGTHS, TARGET)
        return features_BTD


def run_by_steps(net: EncoderDecoder) -> Tensor:
    with torch.no_grad():
        state = net.start(SOURCE, LENGTHS)
        found = []
        for tokens_B in TARGET.unbind(1):
            log_probs_BV, state = net.step(tokens_B, state)
            found.append(log_probs_BV)
        return torch.stack(found, dim=1)


def close(ours: Tensor, theirs: Tensor, by: float = 1e-6) -> None:
    torch.testing.assert_close(ours, theirs, rtol=by, atol=by)


# ------------------------------------------------------------------------------- one attention


@pytest.mark.parametrize("kind", ["plain", "relative"])
@pytest.mark.parametrize("watched", [False, True])
def test_a_head_at_zero_is_its_columns_at_zero(kind: str, watched: bool) -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 2)
    if kind == "relative":
        attention = RelativeAttention(8, 2, Sinusoidal(8))
    attention.watch = (lambda weights_BHTS: None) if watched else None
    x_BTD = torch.randn(2, 5, 8)
    with torch.no_grad():
        for factor in (0.0, 0.3):
            attention.gate = Gate(heads={1: factor})
            gated = attention(x_BTD)
            attention.gate = None
            plain = attention(x_BTD)
            before = attention.out_projection.weight.clone()
            without_head(attention, 1, factor)
            close(gated, attention(x_BTD))
            attention.out_projection.weight.copy_(before)
            assert not torch.allclose(gated, plain)


def test_a_position_at_zero_is_its_weight_at_zero() -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 2)
    x_BTD, seen = torch.randn(2, 5, 8), []
    with torch.no_grad():
        attention.watch = seen.append
        attention(x_BTD)
        attention.watch = None
        weights_BHTS = seen[0].clone()
        weights_BHTS[..., 3] *= 0.25
        values_BTD = (x_BTD @ attention.in_projection.weight.T)[..., 16:]
        values_BHTK = values_BTD.view(2, 5, 2, 4).transpose(1, 2)
        context_BTD = (weights_BHTS @ values_BHTK).transpose(1, 2).flatten(2)
        attention.gate = Gate(positions={3: 0.25, 77: 0.0})
        close(attention(x_BTD), attention.out_projection(context_BTD))


def test_a_gate_holds_from_step_to_step() -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 2)
    attention.gate = Gate(output=0.5, heads={0: 0.2}, positions={1: 0.0})
    x_BTD, cache = torch.randn(2, 5, 8), KVCache()
    with torch.no_grad():
        whole = attention(x_BTD, mask=causal())
        steps = [attention(x_B1D, mask=causal(), cache=cache) for x_B1D in x_BTD.split(1, dim=1)]
    close(torch.cat(steps, dim=1), whole)


def test_steps_over_slots_have_gates_on_heads_and_none_on_positions() -> None:
    torch.manual_seed(1)
    attention, x_BTD = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    with torch.no_grad():
        memory_BS2D = attention.project(x_BTD)
        source = StaticCrossAttentionCache(memory_BS2D, torch.tensor([5, 5], dtype=torch.int32))
        plain = attention.step(x_BTD[:, :1], source)
        attention.gate = Gate(output=0.5, heads={1: 0.2})
        gated = attention.step(x_BTD[:, :1], source)
        close(gated, attention.attend(x_BTD[:, :1], memory_BS2D))
        assert not torch.allclose(gated, plain)
        attention.gate = Gate(positions={1: 0.0})
        with pytest.raises(ValueError, match="not on positions"):
            attention.step(x_BTD[:, :1], source)


def test_attention_of_one_head_has_gates_too() -> None:
    attention = Attention(Dot(4, 4))
    x_BTD = torch.randn(2, 5, 4)
    plain = attention(x_BTD, x_BTD, x_BTD)
    for gate in (
        Gate(output=0.5),
        Gate(heads={0: 0.5}),
        Gate(positions=dict.fromkeys(range(5), 0.5)),
    ):
        attention.gate = gate
        close(attention(x_BTD, x_BTD, x_BTD), 0.5 * plain)


# --------------------------------------------------------------------------------- a network


def test_a_head_of_a_network_in_one_pass_and_in_steps() -> None:
    net, other = tiny().network, tiny().network
    without_head(other.get_submodule(CROSS), 1)  # type: ignore[arg-type]
    before = run(net)
    with Gates(net) as gates:
        gates.gate("decoder.1.cross", head=1)
        close(run(net), run(other))
        close(run_by_steps(net), run_by_steps(other))
        gates.gate("decoder.1.cross", head=1, factor=1.0)
        assert torch.equal(run(net), before)
    assert torch.equal(run(net), before)


def test_a_sublayer_at_zero_adds_nothing() -> None:
    net, other = tiny().network, tiny().network
    with torch.no_grad():
        for name in (f"{CROSS}.out_projection", "encoder.blocks.0.feed_forward.contract"):
            for parameter in other.get_submodule(name).parameters():
                parameter.zero_()
    with Gates(net) as gates:
        gates.gate("decoder.1.cross")
        gates.gate("encoder.0.feed_forward")
        close(run(net), run(other))


def test_a_layer_at_zero_is_skipped() -> None:
    net, other = tiny().network, tiny().network
    del other.decoder.blocks[1]
    with Gates(net) as gates:
        gates.gate("decoder.1", factor=0.0)
        close(run(net), run(other))


def test_several_at_once_and_taken_away_again() -> None:
    net = tiny().network
    before = run(net)
    with Gates(net) as gates:
        gates.gate("decoder.*.cross")
        zeros = run(net)
        with Lens(net, CROSS) as lens:
            close(run(net), zeros)
        assert lens.weights[CROSS].shape == (2, 2, 4, 5)
        with Gates(net) as inner:
            inner.gate("decoder.*.cross", factor=1.0)
            assert torch.equal(run(net), before)
        assert torch.equal(run(net), zeros)
        gates.clear()
        assert torch.equal(run(net), before)
        gates.gate("decoder.*.cross")
        with pytest.raises(ModelError, match=r"decoder\.1\.crass; there are: .*decoder\.1\.cross"):
            gates.gate("decoder.1.crass")
        with pytest.raises(ModelError, match=r"has the heads 0 to 1, and none is 2"):
            gates.gate("decoder.1.cross", head=2)
        with pytest.raises(ModelError, match="no attention part"):
            gates.gate("decoder.1.feed_forward", head=0)
        with pytest.raises(ModelError, match="count from 0"):
            gates.gate("decoder.1.cross", position=-1)
    assert torch.equal(run(net), before)
    with pytest.raises(ModelError, match="enter"):
        gates.gate("decoder.1.cross")


# ------------------------------------------------------------------------------------- a model

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 3},
    "drawn": {"sample": True, "nbest": 2},
    "coverage_penalty": {"beam": 3, "coverage_penalty": 0.4},
}


def texts(outputs: list[Output]) -> list[str]:
    return [one.text for output in outputs for one in output.alternatives or [output]]


@pytest.mark.parametrize("way", WAYS)
def test_search_honours_a_gate(way: str) -> None:
    model, other = tiny(banned=True), tiny(banned=True)
    plain = model.run(SOURCES, **WAYS[way])  # and what is made once for the fast steps is there
    without_head(other.network.get_submodule(CROSS), 0)  # type: ignore[arg-type]
    expected = other.run(SOURCES, **WAYS[way])
    with model.lens(CROSS) as seen:
        seen.gate("decoder.1.cross", head=0, factor=0.0)
        gated = model.run(SOURCES, **WAYS[way])
        scores = model.score(SOURCES, TARGETS)
    assert texts(gated) == texts(expected)
    assert texts(gated) != texts(plain)
    for ours, theirs in zip(gated, expected, strict=True):
        assert abs(ours.score - theirs.score) < 1e-4
    for ours, theirs in zip(scores, other.score(SOURCES, TARGETS), strict=True):
        assert abs(ours.log_probability - theirs.log_probability) < 1e-4
    assert reported(model.run(SOURCES, **WAYS[way])) == reported(plain)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_so_it_does_in_fewer_bits(precision: str) -> None:
    model, other = tiny(banned=True), tiny(banned=True)
    model.compute_in(precision), other.compute_in(precision)
    plain = model.run(SOURCES)
    without_head(other.network.get_submodule(CROSS), 0)  # type: ignore[arg-type]
    with model.gates() as gates:
        gates.gate("decoder.1.cross", head=0)
        gated = model.run(["a cup of tea"], prefix="tea c", max_length=6)
    expected = other.run(["a cup of tea"], prefix="tea c", max_length=6)
    assert abs(gated[0].score - expected[0].score) < 0.1
    assert reported(model.run(SOURCES)) == reported(plain)


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_a_factor_of_one_changes_nothing(precision: str) -> None:
    model = tiny(banned=True).compute_in(precision)
    plain = model.run(SOURCES, beam=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is slower either
        with model.gates() as gates:
            gates.gate("decoder.1.cross", head=0, factor=1.0)
            assert reported(model.run(SOURCES, beam=3)) == reported(plain)


def test_that_a_gate_slows_search_is_reported_once() -> None:
    model = tiny()
    with model.gates() as gates:
        gates.gate("decoder.*.cross")
        with pytest.warns(UserWarning, match="gates are set"):
            model.run(["tea"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.run(["tea"])


def test_a_member_of_an_ensemble_has_gates_of_its_own() -> None:
    model, other = tiny(banned=True), tiny(banned=True, seed=5)
    mute = tiny(banned=True, seed=5)
    without_head(mute.network.get_submodule(CROSS), 0)  # type: ignore[arg-type]
    expected = model.run(SOURCES, ensemble=[mute])
    with other.gates() as gates:
        gates.gate("decoder.1.cross", head=0)
        gated = model.run(SOURCES, ensemble=[other])
    assert texts(gated) == texts(expected)


def labelled(task: str) -> Any:
    shape = {"width": 8, "encoder": {"layers": 1, "heads": 2, "feed_forward": 8}}
    words = Tokens.train(recipe.Tokens(level="word"), ["a cup of tea", "iroh made tea"])
    data = {split: {"file": "a.tsv"} for split in ("train", "valid")}
    settings = Recipe.model_validate({"task": task, "data": data, "model": shape})
    labels = Tokens.train(settings.data.tokens.target, ["good", "bad"])
    torch.manual_seed(1)
    return create(settings, words, labels)


def rnn() -> Transducer:
    return tiny({"kind": "recurrent"}, {"kind": "recurrent"}, banned=True)


MODELS: dict[str, tuple[Callable[[], Any], list[Any], list[str]]] = {
    "classify": (lambda: labelled("classify"), ["a cup of tea"], ["encoder.0.self"]),
    "tag": (lambda: labelled("tag"), ["a cup of tea"], ["encoder.0.feed_forward"]),
    "language_modeling": (language_model, ["te"], ["decoder.0.self", "decoder.0"]),
    "recurrent": (rnn, ["a cup of tea"], ["decoder.attention"]),
    "convolutional": (
        lambda: tiny({"kind": "convolutional"}, {"kind": "convolutional"}),
        ["a cup of tea"],
        ["decoder.0.cross", "decoder.1", "encoder.0.convolution"],
    ),
    "speech": (
        lambda: audio_model(),
        [AudioSegment.of("noise", noise(1.0))],
        ["encoder.0.self", "encoder.0.convolution", "encoder.0.last_feed_forward", "decoder.0"],
    ),
    "relative": (
        lambda: audio_model(encoder="relative"),
        [AudioSegment.of("noise", noise(1.0))],
        ["encoder.0.self"],
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_every_kind_have_gates(kind: str) -> None:
    build, sources, patterns = MODELS[kind]
    model = build()
    few = {} if kind in ("classify", "tag") else {"max_length": 5}
    (plain,) = model.run(sources, **few)
    for pattern in patterns:
        with model.gates() as gates:
            gates.gate(pattern, factor=-2.0)
            (gated,) = model.run(sources, **few)
        assert (gated.text, gated.score) != (plain.text, plain.score), pattern
        assert model.run(sources, **few)[0] == plain
