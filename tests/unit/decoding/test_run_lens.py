"""A lens around any run: every task, kind of network and way to search; the model's own numbers."""

from __future__ import annotations

import html
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from language import LSTM as LM_LSTM
from language import language_model
from tiny_models import SOURCES, TARGETS, tiny
from tiny_sounds import audio_model, audio_recipe, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, SPECIALS, Tokens
from transduce.decoding.run_lens import LensEntry
from transduce.errors import ModelError
from transduce.models import Lens
from transduce.models.lens import Recorder
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import Transducer, create

CROSS = "decoder.blocks.0.cross_attention"
RECURRENT = {"kind": "recurrent"}
CONVOLUTIONAL = {"kind": "convolutional"}
SHAPES: dict[str, dict[str, Any]] = {
    "transformer": {},
    "recurrent": {"encoder": RECURRENT, "decoder": RECURRENT},
    "convolutional": {"encoder": CONVOLUTIONAL, "decoder": CONVOLUTIONAL},
    "rotary": {"encoder": {"positions": "rotary"}, "decoder": {"positions": "rotary"}},
    "post-norm": {"encoder": {"norm_position": "post"}, "decoder": {"norm_position": "post"}},
}


def own_numbers(model: Transducer, seen: LensEntry, names: list[str]) -> dict[str, torch.Tensor]:
    """One source and what was written for it, alone, through the network: no batch, no padding."""
    (encoded,) = model.source_tokens.encode_batch([seen.source])
    source_1S = torch.tensor([[*encoded, END]])
    target_1T = torch.tensor([[BEGIN, *seen.output.ids]])
    with torch.no_grad(), Recorder(model.network, names) as recorder:
        lengths_1 = torch.tensor([source_1S.shape[1]])
        features_1TD = recorder.network(source_1S, lengths_1, target_1T)
        logits_1TV = model.network.head(features_1TD)
    return {name: value[0] for name, value in {**recorder.found, "logits": logits_1TV}.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_everything_in_a_network_for_everything_that_was_written(shape: str) -> None:
    model = tiny(banned=True, **SHAPES[shape])
    without = model.run(SOURCES, beam=3, nbest=2)
    with model.lens("*") as lens:
        outputs = model.run(SOURCES, beam=3, nbest=2)
    assert [o.text for o in outputs] == [o.text for o in without]
    assert [o.score for o in outputs] == [o.score for o in without]
    assert len(lens) == 2 * (len(SOURCES) - 1)
    names = [part.name for part in model.parts() if part.kind not in ("logits", "next_token")]
    for seen in lens:
        sizes = {"source": len(seen.source) + 1, "target": len(seen.output.ids) + 1, "width": 16}
        expected = own_numbers(model, seen, names)
        for part in model.parts():
            if part.kind == "next_token":
                continue
            found = seen.logits if part.kind == "logits" else seen[part.name]
            assert found is not None
            wanted = tuple(sizes.get(size, size) for size in part.shape)  # type: ignore[call-overload]
            assert found.shape == wanted, part
            np.testing.assert_allclose(found, expected[part.name], rtol=1e-5, atol=1e-5)


def test_labels_say_what_rows_and_columns_are_of() -> None:
    model = tiny(banned=True)
    with model.lens("*") as lens:
        model.run(["a cup"], beam=2, nbest=2)
    for seen in lens:
        assert seen.source_tokens == ["a", "▁", "c", "u", "p", SPECIALS[END]]
        assert seen.target_tokens == [*model.target_tokens.pieces(seen.output.ids), SPECIALS[END]]
        assert seen.prefix_tokens == [SPECIALS[BEGIN], *seen.target_tokens[:-1]]
        for name, weights_HTS in seen.weights.items():
            rows, columns = seen.labels(name)
            assert weights_HTS.shape[1:] == (len(rows), len(columns))
        assert seen.labels("encoder.blocks.0") == (seen.source_tokens, [])
        assert seen.labels(CROSS) == (seen.target_tokens, seen.source_tokens)
        own = "decoder.blocks.0.self_attention"
        assert seen.labels(own) == (seen.target_tokens, seen.prefix_tokens)


def test_short_names_and_chosen_heads() -> None:
    model = tiny(banned=True)
    with model.lens("decoder.*.cross") as both, model.lens("decoder.0.cross", heads=[1]) as one:
        model.run(["tea"])
    assert list(both[0].weights) == [CROSS, "decoder.blocks.1.cross_attention"]
    assert list(one[0].weights) == [CROSS]
    assert np.array_equal(one[0].weights[CROSS], both[0].weights[CROSS][1:])
    assert both[0].states == both[0].gates == {}
    with pytest.raises(ModelError, match="has the heads 0 to 1, and none is 2"):
        model.lens("decoder.*.cross", heads=[0, 2])
    with pytest.raises(ModelError, match=r"no attention; a pattern can name .*cells\.0\.forget"):
        language_model(decoder=LM_LSTM).lens()


def test_a_lens_around_given_targets() -> None:
    model = tiny(banned=True).compute_in("int8")
    plain = model.score(SOURCES, TARGETS)
    with model.lens("decoder.*.cross", "next_token") as lens:
        scores = model.score(SOURCES, TARGETS, attention=True)
    assert [s.token_log_probabilities for s in scores] == [s.token_log_probabilities for s in plain]
    assert [(seen.source, seen.output.text) for seen in lens] == list(
        zip(SOURCES, TARGETS, strict=True)
    )
    for seen, score in zip(lens, scores, strict=True):
        assert seen.target_tokens == score.tokens
        assert score.attention is not None
        for layer, weights_HTS in enumerate(seen.weights.values()):
            np.testing.assert_allclose(weights_HTS, score.attention[layer], atol=1e-6)


def test_what_else_might_have_come_at_each_step() -> None:
    model = tiny(banned=True)
    with model.lens("next_token", top=3) as lens, model.lens("logits", "next_token") as more:
        (output,) = model.run(["a cup of tea"], beam=1)
    (seen,) = lens
    assert seen.logits is None
    assert seen.next_tokens is not None
    assert seen.next_tokens.probabilities.shape == (len(output.ids) + 1, 3)
    likeliest = [row[0] for row in seen.next_tokens.tokens]
    assert likeliest[:-1] == output.tokens[:-1], (
        "greedy takes the likeliest; the end was the bound's"
    )
    logits_TV = more[0].logits
    assert logits_TV is not None
    probs_TV = np.exp(logits_TV - logits_TV.max(axis=1, keepdims=True))
    probs_TV /= probs_TV.sum(axis=1, keepdims=True)
    own_T = probs_TV[range(len(probs_TV)), [*output.ids, END]]
    assert math.isclose(float(np.log(own_T).sum()), output.log_probability, abs_tol=1e-4)
    np.testing.assert_allclose(
        seen.next_tokens.probabilities[:, 0], probs_TV.max(axis=1), rtol=1e-4
    )
    entropy_T = -(probs_TV * np.log(probs_TV)).sum(axis=1)
    np.testing.assert_allclose(seen.next_tokens.entropy, entropy_T, rtol=1e-4)
    assert more[0].next_tokens is not None
    assert more[0].next_tokens.ids.shape[1] == 5
    assert np.array_equal(more[0].next_tokens.ids[:, :3], seen.next_tokens.ids)
    with pytest.raises(ModelError, match="top is 0"):
        model.lens("next_token", top=0)


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_members_of_an_ensemble_each_have_their_own(precision: str) -> None:
    one, other = tiny(banned=True), tiny(banned=True, seed=5)
    one.compute_in(precision), other.compute_in(precision)
    without = one.run(SOURCES, ensemble=[other])
    with one.lens("decoder.0.cross") as ours, other.lens("decoder.0.cross") as theirs:
        outputs = one.run(SOURCES, ensemble=[other])
    assert [o.score for o in outputs] == [o.score for o in without]
    assert [s.output.text for s in ours] == [s.output.text for s in theirs]
    near = 1e-5 if precision == "float32" else 0.05
    for seen, model in [*((s, one) for s in ours), *((s, other) for s in theirs)]:
        expected = own_numbers(model, seen, [CROSS])[CROSS]
        np.testing.assert_allclose(seen.weights[CROSS], expected, atol=near)
    assert np.abs(ours[0].weights[CROSS] - theirs[0].weights[CROSS]).max() > 0.05


def labelled(task: str, encoder: dict[str, Any], **model: Any) -> Any:
    words = Tokens.train(recipe.Tokens(level="word"), ["a cup of tea", "iroh made tea"])
    data = {split: {"file": "a.tsv"} for split in ("train", "valid")}
    shape = {"width": 8, "encoder": encoder, **model}
    settings = Recipe.model_validate({"task": task, "data": data, "model": shape})
    labels = Tokens.train(settings.data.tokens.target, ["good", "bad", "so so"])
    torch.manual_seed(1)
    return create(settings, words, labels)


TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 8}
LSTM = {"kind": "recurrent", "cell": "lstm", "bidirectional": True}


@pytest.mark.parametrize("encoder", [TRANSFORMER, LSTM], ids=["transformer", "lstm"])
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_labels_of_texts(task: str, encoder: dict[str, Any]) -> None:
    model = labelled(task, encoder)
    if task == "tag":
        model.network.head.bias.data.normal_()
    with model.lens("*") as lens:
        outputs = model.run(["a cup of tea", "", "tea"])
    assert [seen.output for seen in lens] == [outputs[0], outputs[2]]
    for seen in lens:
        count = len(seen.source.split())
        assert seen.source_tokens == seen.source.split()
        for part in model.parts():
            if part.kind in ("state", "gate"):
                assert len(seen[part.name]) == count
        steps = count if task == "tag" else 1
        assert seen.next_tokens is not None
        assert seen.next_tokens.probabilities.shape == (steps, 3)
        assert [row[0] for row in seen.next_tokens.tokens] == seen.output.tokens
        np.testing.assert_allclose(
            seen.next_tokens.probabilities[:, 0], seen.output.probabilities, rtol=1e-5
        )
    if encoder is LSTM:
        assert "encoder.recurrent.cells.1.forget" in lens[0].gates


def test_pooling_by_attention() -> None:
    model = labelled("classify", TRANSFORMER, pooling="attention")
    with model.lens("pool.attention") as lens:
        (output,) = model.run(["a cup of tea"], attention=True)
    weights_1SS = lens[0].weights["pool.attention"]
    assert output.attention is not None
    np.testing.assert_allclose(weights_1SS[0].mean(axis=0), output.attention[0, 0, 0], atol=1e-6)


@pytest.mark.parametrize("decoder", [None, LM_LSTM], ids=["transformer", "lstm"])
def test_language_models(decoder: dict[str, Any] | None) -> None:
    model = language_model(decoder=decoder)
    model.compute_in("float32")
    with model.lens("*") as lens:
        outputs = model.run(["tea", ""], max_length=3, beam=2)
        model.score(["tea"])
        model.score(["te"], ["a"])
    assert [seen.output.text for seen in lens][:2] == [output.text for output in outputs]
    assert len(lens) == 4
    for seen in lens:
        assert seen.prefix_tokens[:1] in ([SPECIALS[BEGIN]], [])
        for part in model.parts():
            if part.kind in ("state", "gate"):
                assert seen[part.name].shape == (len(seen.target_tokens), 8)
        for name, weights_HTS in seen.weights.items():
            rows, columns = seen.labels(name)
            assert weights_HTS.shape == (2, len(rows), len(columns))
    together = [seen.target_tokens for seen in lens][2:]
    assert together[0] == together[1], "a text, and its end after its beginning"


@pytest.mark.parametrize("encoder", ["conformer", "relative", "transformer", "recurrent"])
def test_speech(encoder: str) -> None:
    model = audio_model(encoder=encoder)
    sounds = [
        AudioSegment.of("long#t=10,11", noise(1.0)),
        AudioSegment.of("short", noise(0.4, seed=2)),
    ]
    without = model.run(sounds, beam=2)
    with model.lens("*") as lens:
        outputs = model.run(sounds, beam=2)
        model.score(sounds, ["ab", "c"])
    assert [o.text for o in outputs] == [o.text for o in without]
    assert [seen.source for seen in lens] == 2 * ["long#t=10,11", "short"]
    assert [seen.output.text for seen in lens][2:] == ["ab", "c"]
    for seen in lens:
        states = model.network.states_of(len(sounds[seen.source == "short"].wave))
        assert len(seen.times) == states
        assert 0 <= seen.times[0] - (10 if seen.source != "short" else 0) < 0.1
        assert np.allclose(np.diff(seen.times), 0.04)
        for part in model.parts():
            if part.kind == "state":
                steps = states if part.shape[0] == "source" else len(seen.target_tokens)
                assert len(seen[part.name]) == steps, part
        for name, weights_HTS in seen.weights.items():
            rows, columns = seen.labels(name)
            assert weights_HTS.shape[1:] == (len(rows), len(columns))


def test_recordings_with_tags_come_back_in_order() -> None:
    """Those with one tag are heard before those with another."""
    tokens = Tokens.train(recipe.Tokens(level="character"), ["abcde "], ["x", "y"])
    torch.manual_seed(1)
    model = create(audio_recipe(), tokens, tokens)
    sounds = [AudioSegment.of(f"<{tag}> {n}", noise(0.4, seed=n)) for n, tag in enumerate("xyx")]
    with model.lens("decoder.*.cross") as lens:
        outputs = model.run(sounds, beam=2, nbest=2)
        model.score(sounds, ["a", "b", "c"])
    assert [seen.source for seen in lens][:6] == ["0", "0", "1", "1", "2", "2"]
    assert [seen.output.text for seen in lens][:6:2] == [output.text for output in outputs]
    assert [seen.output.text for seen in lens][6:] == ["a", "b", "c"]


def test_audio_that_is_classified() -> None:
    data = {
        split: {"file": "a.tsv", "audio": "path", "target": "label"} for split in ("train", "valid")
    }
    encoder = {"kind": "conformer", "layers": 1, "heads": 2, "feed_forward": 8, "kernel": 3}
    settings = Recipe.model_validate(
        {
            "task": "classify",
            "data": {**data, "max_length": 300},
            "audio": {"sample_rate": 4000, "mel_bands": 16, "channels": 4},
            "model": {"width": 8, "encoder": encoder, "pooling": "attention"},
        }
    )
    labels = Tokens.train(recipe.Tokens(level="label"), ["yes", "no"])
    torch.manual_seed(1)
    model = create(settings, labels, labels)
    sounds = [AudioSegment.of("long", noise(1.0)), AudioSegment.of("short", noise(0.4, seed=2))]
    with model.lens("*") as lens:
        outputs = model.run(sounds)
    assert [(seen.source, seen.output.text) for seen in lens] == [
        ("long", outputs[0].text),
        ("short", outputs[1].text),
    ]
    for seen, sound in zip(lens, sounds, strict=True):
        states = model.network.states_of(len(sound.wave))
        assert seen.weights["encoder.blocks.0.self_attention"].shape == (2, states, states)
        assert seen.weights["pool.attention"].shape == (1, states, states)
        assert len(seen.times) == states
        assert seen.next_tokens is not None
        assert seen.next_tokens.tokens[0][0] == seen.output.text


def test_an_engine_shows_nothing_and_takes_no_gates() -> None:
    model = tiny()
    model.engine = SimpleNamespace(name="ONNX Runtime")  # type: ignore[assignment]
    with pytest.raises(ModelError, match="ONNX Runtime does not show what it computes; leave out"):
        model.lens()
    with pytest.raises(ModelError, match="ONNX Runtime does not take gates; leave out the engine"):
        model.gates()


def test_nothing_is_left_behind_and_nothing_is_done_without_a_lens() -> None:
    model = tiny(banned=True)
    with model.lens("*"):
        model.run(["tea"])
    assert model._lenses == []
    for module in model.network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    with Lens(model.network) as plain:
        pass
    assert plain.weights == {}


def test_in_a_notebook_it_shows_itself() -> None:
    """Shades are the weights, and nothing in a text is taken for markup."""
    model = tiny()
    with model.lens("decoder.*.cross", "encoder.blocks.0") as seen:
        model.run(["<b>tea</b>"], beam=1)
    shown = seen[0]._repr_html_()
    assert "<b>tea</b>" not in shown
    assert "&lt;b&gt;tea&lt;/b&gt;" in shown
    weights_TS = seen[0].weights[CROSS].mean(axis=0)
    first = shown[shown.index(CROSS) :]
    reported = [float(one) for one in re.findall(r'title="(\d\.\d+)"', first)][: weights_TS.size]
    np.testing.assert_allclose(reported, weights_TS.ravel(), atol=6e-4)
    rows, columns = seen[0].labels(CROSS)
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", first)[1 : 1 + len(columns) + len(rows)]
    assert [html.unescape(one) for one in heads[: len(columns)]] == columns
    shape = seen[0].states["encoder.blocks.0"].shape
    assert f"encoder.blocks.0: {shape[0]} × {shape[1]}" in shown
    assert shown in seen._repr_html_()
