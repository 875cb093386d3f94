"""What runs attended to, and forward hooks: they see what was computed, and change nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from language import language_model
from tiny_models import SOURCES, tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.models import Lens
from transduce.recipe import Recipe
from transduce.runtime import library, why_not
from transduce.runtime.transformer import CTransformerState
from transduce.tasks.speech import AudioSegment
from transduce.tasks.transduce import Transducer, create

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 3},
    "drawn": {"sample": True, "nbest": 2},
    "groups": {"beam": 4, "groups": 2, "nbest": 2},
    "coverage_penalty": {"beam": 3, "coverage_penalty": 0.4},
    "mbr": {"mbr": "chrf", "samples": 4},
}
CROSS = [f"decoder.blocks.{layer}.cross_attention" for layer in range(2)]


def reported(outputs: list[Output]) -> list[Any]:
    return [(o.text, o.score, [(a.text, a.score) for a in o.alternatives]) for o in outputs]


def weights_of_steps(model: Transducer, source: str, ids: list[int]) -> dict[str, torch.Tensor]:
    """One hypothesis alone, token by token: [heads, target, source] of each part."""
    (encoded,) = model.source_tokens.encode_batch([source])
    source_1S = torch.tensor([[*encoded, END]])
    with torch.inference_mode(), Lens(model.network, "decoder.*") as lens:
        state = model.network.start(source_1S, torch.tensor([source_1S.shape[1]]))
        for token in [BEGIN, *ids]:
            _, state = model.network.step(torch.tensor([token]), state)
    return {name: weights_1HTS[0] for name, weights_1HTS in lens.weights.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_lens_has_the_weights_of_each_output_that_was_returned(way: str) -> None:
    model = tiny(banned=True)
    without = model.run(SOURCES, **WAYS[way])
    with model.lens("decoder.*") as lens:
        outputs = model.run(SOURCES, **WAYS[way])
    assert reported(outputs) == reported(without)
    returned = [
        (source, one)
        for source, output in zip(SOURCES, outputs, strict=True)
        for one in output.alternatives or [output]
        if source
    ]
    assert [(seen.source, seen.output.text) for seen in lens] == [(s, o.text) for s, o in returned]
    for seen in lens:
        expected = weights_of_steps(model, seen.source, seen.output.ids)
        assert list(seen.weights) == list(expected)
        for name, weights_HTS in expected.items():
            np.testing.assert_allclose(seen.weights[name], weights_HTS, atol=1e-5)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_lens_shows_the_weights_of_the_network_that_searched(precision: str) -> None:
    model = tiny(banned=True).compute_in(precision)
    without = model.run(SOURCES, beam=3)
    with model.lens(*CROSS) as lens:
        assert reported(model.run(SOURCES, beam=3)) == reported(without)
    full = tiny(banned=True)
    for seen in lens:
        expected = weights_of_steps(full, seen.source, seen.output.ids)
        differences = [np.abs(seen.weights[n] - expected[n].numpy()).max() for n in CROSS]
        assert 0 < max(differences) < 0.1, "of fewer bits, and near the full ones"


def test_a_lens_has_a_length_for_each_side() -> None:
    model = tiny(banned=True)
    with model.lens() as lens:
        (output,) = model.run(["a cup"])
    T = len(output.ids) + 1
    shapes = {name: weights.shape for name, weights in lens[0].weights.items()}
    assert shapes["encoder.blocks.0.self_attention"] == (2, 6, 6)
    assert shapes["decoder.blocks.1.self_attention"] == (2, T, T)
    assert shapes["decoder.blocks.1.cross_attention"] == (2, T, 6)


def test_a_lens_sees_nothing_outside_and_starts_anew() -> None:
    model = tiny(banned=True)
    lens = model.lens(CROSS[0])
    model.run(["tea"])
    for _ in range(2):
        with lens:
            model.run(["tea"])
            model.run(["a"])
        model.run(["tea"])
        assert [seen.source for seen in lens] == ["tea", "a"]


def test_a_name_that_no_part_has_is_reported_with_those_there_are() -> None:
    with pytest.raises(ModelError, match=r"decoder\.\*\.crass; .* decoder\.blocks\.0\.cross_att"):
        tiny().lens("decoder.*.crass")


def test_a_lens_on_a_language_model_has_the_prompt_and_what_follows() -> None:
    model = language_model()
    model.compute_in("float32")
    with model.lens("decoder.*") as lens:
        outputs = model.run(["tea", "a"], max_length=3, beam=2, unknown=False)
    assert [seen.output.text for seen in lens] == [output.text for output in outputs]
    for seen in lens:
        ids = model.target_tokens.encode(seen.output.text)
        with torch.inference_mode(), Lens(model.network, "decoder.*") as direct:
            model.network(torch.tensor([[BEGIN, *ids[:-1]]]))
        (name,) = seen.weights
        np.testing.assert_allclose(seen.weights[name], direct.weights[name][0], atol=1e-6)
    with model.lens(), pytest.raises(ModelError, match=r"up to 8 tokens.*lower max_length"):
        model.run(["tea"], max_length=12)


def test_a_lens_on_a_classifier_and_a_tagger() -> None:
    shape = {"width": 8, "encoder": {"layers": 1, "heads": 2, "feed_forward": 8}}
    words = Tokens.train(recipe.Tokens(level="word"), ["a cup of tea", "iroh made tea"])
    for task in ("classify", "tag"):
        data = {split: {"file": "a.tsv"} for split in ("train", "valid")}
        settings = Recipe.model_validate({"task": task, "data": data, "model": shape})
        labels = Tokens.train(settings.data.tokens.target, ["good", "bad"])
        model = create(settings, words, labels)
        with model.lens() as lens:
            outputs = model.run(["a cup of tea", "", "tea"])
        assert [seen.source for seen in lens] == ["a cup of tea", "tea"]
        assert [seen.output for seen in lens] == [outputs[0], outputs[2]]
        shapes = [seen.weights["encoder.blocks.0.self_attention"].shape for seen in lens]
        assert shapes == [(2, 4, 4), (2, 1, 1)]


def test_a_lens_on_a_model_that_hears_has_an_entry_for_each_sound() -> None:
    model = audio_model()
    sounds = [AudioSegment.of("long", noise(1.0)), AudioSegment.of("short", noise(0.4, seed=2))]
    without = model.run(sounds, beam=2)
    with model.lens("decoder.*cross_attention", "decoder.attention") as lens:
        outputs = model.run(sounds, beam=2)
    assert [o.text for o in outputs] == [o.text for o in without]
    assert [seen.source for seen in lens] == ["long", "short"]
    for seen, audio in zip(lens, sounds, strict=True):
        for weights_HTS in seen.weights.values():
            states = model.network.states_of(len(audio.wave))
            assert weights_HTS.shape[1:] == (len(seen.output.ids) + 1, states)
    encoding = model.encode(sounds)
    assert encoding.lengths_B.tolist() == [model.network.states_of(len(s.wave)) for s in sounds]


# ------------------------------------------------------------------------------- forward hooks


def count_calls(network: nn.Module) -> dict[str, int]:
    calls: dict[str, int] = {}

    def counter(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] = calls.get(name, 0) + 1

        return hook

    for name, module in network.named_modules():
        module.register_forward_hook(counter(name))
    return calls


@pytest.mark.filterwarnings("ignore:a lens or forward hooks", "ignore:search never calls")
@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("beam", [1, 3])
def test_forward_hooks_see_every_step(precision: str, beam: int) -> None:
    model = tiny(banned=True).compute_in(precision)
    plain = model.run(["a cup of tea"], beam=beam)  # also what is made once is there already
    calls = count_calls(model.network)
    (watched,) = model.run(["a cup of tea"], beam=beam)
    assert abs(watched.score - plain[0].score) < (1e-5 if precision == "float32" else 0.2)
    steps = calls["decoder"]
    assert steps >= len(watched.ids)
    assert calls["encoder"] == 1
    for name in ("decoder.blocks.1", *CROSS, "decoder.blocks.0.feed_forward", "head"):
        assert calls[name] == steps


@pytest.mark.filterwarnings("ignore:a lens or forward hooks")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_hook_can_change_what_is_computed(precision: str) -> None:
    model = tiny(banned=True).compute_in(precision)
    before = model.run(SOURCES)
    mute = model.network.decoder.register_forward_hook(lambda *call: torch.zeros_like(call[2]))
    muted = model.run(SOURCES)
    mute.remove()
    assert reported(muted) != reported(before)
    assert reported(model.run(SOURCES)) == reported(before)


@pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_nobody_watching_the_fast_steps_are_taken(precision: str) -> None:
    kind = CTransformerState
    model = tiny().compute_in(precision)
    settings = model.settings()
    start = (torch.tensor([[5, 6, 2]]), torch.tensor([3]))
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(model.decoder.task(settings, []).model.start(*start), kind)
        with Lens(model.network):
            warnings.simplefilter("ignore")
            assert not isinstance(model.decoder.task(settings, []).model.start(*start), kind)
        warnings.simplefilter("error")
        assert isinstance(model.decoder.task(settings, []).model.start(*start), kind)


def test_that_search_is_slower_is_told_and_where_hooks_see_nothing() -> None:
    model = tiny()
    model.network.decoder.blocks[0].feed_forward.expand.register_forward_hook(print)
    with pytest.warns(UserWarning, match="lens or forward") as warned:
        model.run(["tea"])
    assert "slower" in str(warned[0].message)
    assert "decoder.blocks.0.feed_forward.expand" in str(warned[1].message)


@pytest.mark.filterwarnings("ignore:a lens or forward hooks")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_lens_on_the_network_sees_every_call_of_a_search(precision: str) -> None:
    model = tiny(banned=True).compute_in(precision)
    model.run(["tea"])
    with Lens(model.network, *CROSS) as lens:
        (output,) = model.run(["tea"], beam=1)
    assert lens.weights[CROSS[0]].shape == (1, 2, len(output.ids) + 1, 4)
    with Lens(model.network, *CROSS) as lens:
        model.run(["tea"], beam=3)
    with pytest.raises(ModelError, match=r"model\.lens"):
        _ = lens.weights
    assert {len(weights_BHTS) for weights_BHTS in lens.calls[CROSS[0]]} == {1, 3}


@pytest.mark.filterwarnings("ignore:a lens or forward hooks")
def test_a_lens_sees_what_coverage_watches_too() -> None:
    model = tiny(banned=True)
    with Lens(model.network, *CROSS) as lens:
        model.run(["tea"], beam=3, coverage_penalty=0.3)
    assert len(lens.calls[CROSS[1]]) == len(lens.calls[CROSS[0]]) > 1


def test_a_changed_module_is_really_called() -> None:
    model = tiny(banned=True)
    before = model.run(SOURCES)

    class Mute(nn.Module):
        def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x_BTD)

    model.network.decoder.blocks[1].feed_forward = Mute()
    assert not model.network.as_built
    assert reported(model.run(SOURCES)) != reported(before)
    with pytest.raises(ModelError, match="was changed; use float32"):
        model.compute_in("int8").run(SOURCES)
