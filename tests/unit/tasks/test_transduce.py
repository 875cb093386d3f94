"""A model in a person's hands: order, batches, maps, streams, folders, plain errors."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tiny_models import SOURCES, tiny
from transduce import recipe
from transduce.checksums import SUMS
from transduce.data.text.tags import UNKNOWN_TAG
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.decoding.batch import decode
from transduce.decoding.source_limit import TRUNCATED
from transduce.errors import (
    CheckpointError,
    HardwareError,
    ModelError,
    TransduceError,
    TransduceWarning,
)
from transduce.models import EncoderDecoder
from transduce.models.lens import Lens, attentions
from transduce.models.weights import undrawn, weights_of
from transduce.recipe import Recipe
from transduce.runtime import packed_copy as packed_networks
from transduce.runtime.fingerprint import Fingerprint
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.transduce import Output, Transducer, load
from transduce.tasks.transduce import load_others as load_models

WORDS = ["tea", "uncle", "a cup of tea", "", "zuko", "iroh made tea", "e", "tea"]
TRANSFORMER = {"layers": 2, "heads": 2, "feed_forward": 24}
RECURRENT = {"kind": "recurrent", "cell": "gru"}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
    "attention": {
        "encoder": RECURRENT,
        "decoder": {**RECURRENT, "attention": "additive", "context": "both"},
    },
    "fixed": {"encoder": RECURRENT, "decoder": {**RECURRENT, "attention": "none"}},
}


def make(name: str = "transformer", seed: int = 3, **parts: Any) -> Transducer:
    """A random model over letters; in float64, so that batches cannot flip a close decision."""
    settings = Recipe.model_validate(
        {
            "data": {
                "train": {"name": "copy", "split": "train"},
                "valid": {"name": "copy", "split": "valid"},
                "tokens": {"both": {"level": "character"}},
                **parts.pop("data", {}),
            },
            "model": {"width": 16, **MODELS[name], **parts.pop("model", {})},
            "decode": {"beam": 3, "max_ratio": 1.0, "max_extra": 2, **parts.pop("decode", {})},
            **parts,
        }
    )
    tokens = Tokens.train(recipe.Tokens(level="character"), WORDS)
    torch.manual_seed(seed)
    model = Transducer.create(settings, tokens, tokens)
    model.network.double().eval()
    with torch.no_grad():
        model.network.head.bias.normal_()
        model.network.head.bias[END] -= 1.0
    return model


@pytest.fixture(scope="module")
def model() -> Transducer:
    return make()


def texts(outputs: list[Output]) -> list[str]:
    return [o.text for o in outputs]


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert len(text) > 15
    assert "\n" not in text
    assert "Traceback" not in text
    return text


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "sample": {"sample": True, "temperature": 0.8, "top_k": 5},
}


# ------------------------------------------------------------------------------------- run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_come_in_the_order_of_sources_whatever_the_batches(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name)
    together = model.run(WORDS, **WAYS[way])
    assert len(set(texts(together))) > 3
    alone = [model.run([word], **WAYS[way])[0] for word in WORDS]
    assert texts(together) == texts(alone)
    assert [o.score for o in together] == pytest.approx([o.score for o in alone], abs=1e-5)
    assert texts(model.run(WORDS[::-1], **WAYS[way])) == texts(together)[::-1]
    for budget in (1, 100, 300):
        monkeypatch.setattr(decode, "PLACES_ON_CPU", budget)
        assert texts(model.run(WORDS, **WAYS[way])) == texts(together)


def test_calling_the_model_gives_the_best_text(model: Transducer) -> None:
    assert model("tea") == model.run(["tea"])[0].text
    assert model("tea", beam=1) == model.run(["tea"], beam=1)[0].text


def test_nothing_in_nothing_out(model: Transducer) -> None:
    assert model.run([]) == []
    assert model("") == ""
    for output in model.run(["", ""], nbest=3, attention=True):
        assert output == Output("", 0.0)


def test_the_recipe_says_what_is_not_asked_for() -> None:
    model = make(decode={"beam": 1, "length_penalty": 0.3})
    assert texts(model.run(WORDS)) == texts(model.run(WORDS, beam=1))
    (output,) = model.run(["uncle"])
    length = len(output.tokens)
    assert output.score == pytest.approx(output.log_probability / ((5 + length) / 6) ** 0.3)
    (output,) = model.run(["uncle"], length_penalty=0.0)
    assert output.score == output.log_probability


def test_a_wider_beam_never_scores_worse_here_and_nbest_widens_it(model: Transducer) -> None:
    one, five = (model.run(["iroh made tea"], beam=b)[0] for b in (1, 50))
    assert five.score >= one.score
    assert len(model.run(["tea"], beam=1, nbest=4)[0].alternatives) == 4


def test_nbest(model: Transducer) -> None:
    for output, word in zip(model.run(WORDS, beam=5, nbest=3), WORDS, strict=True):
        if not word:
            continue
        assert len(output.alternatives) == 3
        assert output.alternatives[0].text == output.text
        assert output.alternatives[0].score == output.score
        scores = [o.score for o in output.alternatives]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(o.tokens) for o in output.alternatives}) == 3
    assert model.run(["tea"], beam=5)[0].alternatives == []


def test_tokens_are_those_of_the_text_and_end(model: Transducer) -> None:
    for output, word in zip(model.run(WORDS), WORDS, strict=True):
        if word:
            assert output.tokens[-1] == "</s>"
            assert output.source_tokens == [*word.replace(" ", "▁"), "</s>"]
            known = [t for t in output.tokens[:-1] if t != "<unk>"]
            assert "".join(known).replace("▁", " ") == output.text


def test_samples_follow_the_seed(model: Transducer) -> None:
    def drawn(seed: int) -> list[str]:
        return texts(model.run(WORDS, sample=True, seed=seed))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert texts(model.run(WORDS, sample=True, top_k=1)) == texts(model.run(WORDS, beam=1))
    several = model.run(["iroh made tea"], sample=True, nbest=5)[0].alternatives
    assert len({o.text for o in several}) > 1
    assert [o.score for o in several] == sorted((o.score for o in several), reverse=True)


def test_limits_follow_the_length_of_each_source() -> None:
    model = make(decode={"max_ratio": 1.0, "max_extra": 2})
    with torch.no_grad():
        model.network.head.bias[END] = -60.0  # it would never end
    for way in WAYS.values():
        for output, word in zip(model.run(WORDS, **way), WORDS, strict=True):
            assert len(output.tokens) == (len(word) + 1 + 2 if word else 0)


def test_a_limit_of_nothing_still_leaves_room_for_end() -> None:
    model = make(decode={"max_ratio": 0.2, "max_extra": 0})
    for way in WAYS.values():
        outputs = model.run(["e", "iroh made tea"], **way)
        assert outputs[0].tokens == ["</s>"]
        assert len(outputs[1].tokens) <= 2


def test_unknown_characters_do_not_stop_it(model: Transducer) -> None:
    outputs = model.run(["茶", "🎉🎉", "t\x00a", "\ud800", "\n", " "])
    assert len(outputs) == 6
    assert outputs[0].source_tokens == ["<unk>", "</s>"]


@pytest.mark.parametrize("name", MODELS)
def test_a_source_of_two_thousand_characters(name: str) -> None:
    model = make(name, decode={"max_ratio": 0.01, "max_extra": 3})
    outputs = model.run(["e" * 2000, "tea"], beam=2)
    assert len(outputs[0].source_tokens) == 4 * 256 + 1
    assert outputs[0].warning == (
        "the source has 2000 tokens; this model was trained on at most 256 tokens and reads 1024; "
        "it was truncated"
    )
    assert outputs[1].warning == ""
    assert outputs[1].text == model("tea", beam=2)


def test_sources_are_cut_where_training_has_cut_them() -> None:
    model = make(data={"max_length": 20, "overlong": "truncate"})
    output, other = model.run(["e" * 30, "e" * 20])
    assert output.source_tokens == other.source_tokens
    assert output.text == other.text
    assert "30 tokens" in output.warning
    assert "reads 20; it was truncated" in output.warning
    assert other.warning == ""


def test_where_positions_end_it_says_so_and_stops_there() -> None:
    learned = {**TRANSFORMER, "positions": "learned", "max_positions": 12}
    short = {"max_length": 11}
    model = make(
        model={"encoder": learned, "decoder": learned}, decode={"max_ratio": 9.0}, data=short
    )
    with torch.no_grad():
        model.network.head.bias[END] = -60.0
    assert len(model.run(["e" * 11], attention=True)[0].tokens) == 12
    whole, cut, fitting = model.run(["tea", "e" * 12, "e" * 11])
    assert re.search(r"12 tokens.*positions for 11", cut.warning)
    assert (cut.text, cut.score) == (fitting.text, fitting.score)
    assert whole.warning == fitting.warning == ""
    assert "positions for 11" in cut.to_json()["warning"]
    pointing = {**RECURRENT, "attention": "location", "max_positions": 12}
    model = make(model={"encoder": RECURRENT, "decoder": pointing}, data=short)
    assert len(model.run(["e" * 11])) == 1
    assert "positions for 11" in model.run(["e" * 12])[0].warning
    with pytest.raises(ModelError, match="source 2 cannot be scored"):
        model.score(["e", "e" * 12], ["e", "e"])


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_in_the_mode_it_was_in(training: bool) -> None:
    model = make(model={"dropout": 0.5})
    model.network.train(training)
    assert texts(model.run(WORDS)) == texts(model.run(WORDS))  # without dropout inside
    assert model.network.training == training
    assert model.network.decoder.training == training
    model.network.decoder.norm = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        model.run(WORDS)
    assert model.network.training == training


def fused_step(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.AdamW(network.parameters(), lr=0.1, fused=True).step()


def learn(network: nn.Module) -> None:
    network.train()
    fused_step(network)
    network.eval()


def add_low_rank(network: nn.Module) -> None:
    """As LoRA is merged: the sum of a weight and of a product of two thin matrices."""
    for name, parameter in network.named_parameters():
        if name.endswith("contract.weight"):
            parameter.data.addmm_(
                torch.randn(len(parameter), 1), torch.randn(1, parameter.shape[1])
            )


def change_one_number(network: nn.Module) -> None:
    network.get_parameter("decoder.blocks.0.feed_forward.contract.weight").data[3, 5] += 3.0


def swap_rows(network: nn.Module) -> None:
    table = network.get_parameter("decoder.embedding.table.weight").data
    table.copy_(table.roll(1, dims=0))


def swap_columns(network: nn.Module) -> None:
    weight = network.get_parameter("decoder.blocks.0.feed_forward.contract.weight").data
    weight.copy_(weight.roll(2, dims=1))


def load_others(network: nn.Module) -> None:
    network.load_state_dict(make(seed=8).network.state_dict())


def by_numpy(network: nn.Module) -> None:
    network.get_parameter("decoder.blocks.1.feed_forward.expand.weight").detach().numpy()[:] *= -1


def replace_weight(network: nn.Module) -> None:
    block = network.get_submodule("decoder.blocks.0.feed_forward.contract")
    block.weight = nn.Parameter(torch.randn_like(block.weight))  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    function.__name__: function
    for function in (
        fused_step,
        learn,
        add_low_rank,
        change_one_number,
        swap_rows,
        swap_columns,
        load_others,
        by_numpy,
        replace_weight,
    )
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_it_searches_with_the_weights_of_now(precision: str, change: str) -> None:
    model = make().compute_in(precision)
    model.network.float()
    before = [output.log_probability for output in model.run(WORDS)]
    assert [output.log_probability for output in model.run(WORDS)] == before
    CHANGES[change](model.network)
    after = [output.log_probability for output in model.run(WORDS)]
    fresh = make().compute_in(precision)
    fresh.network.float()
    fresh.network.load_state_dict(model.network.state_dict())
    assert after == [output.log_probability for output in fresh.run(WORDS)] != before


def test_weights_that_have_not_changed_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = packed_networks.packed

    def packed(network: EncoderDecoder, kind: str, file: Path | None) -> EncoderDecoder:
        made.append(kind)
        return real(network, kind, file)

    monkeypatch.setattr(packed_networks, "packed", packed)
    model = make()
    model.network.float()
    for mode in (False, False, True, True, False):
        model.network.train(mode)
        model.run(WORDS)
    assert made == ["float32"]
    model.compute_in("int8").run(WORDS)
    assert made == ["float32", "int8"]


def test_frozen_weights_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    model = load(folder).freeze()
    assert model.frozen
    assert not any(parameter.requires_grad for parameter in model.network.parameters())
    model.run(WORDS)
    looks = []
    monkeypatch.setattr(Fingerprint, "fits", lambda self, network: bool(looks.append(1)) or True)
    model.run(WORDS)
    assert not looks
    model.network.train()  # who trains it after all is not let down
    model.run(WORDS)
    assert looks
    before = [output.log_probability for output in model.run(WORDS)]
    model.network.eval()
    make(seed=8).save(folder)  # weights read from a file are always seen
    model.load_weights(folder / WEIGHTS)
    assert [output.log_probability for output in model.run(WORDS)] != before


def test_a_lens_sees_a_search() -> None:
    model = make()
    expected = model.run(["tea"], beam=1)[0]
    with Lens(model.network, "decoder.*.cross_attention") as lens:
        assert model.run(["tea"], beam=1)[0] == expected
    steps = len(expected.tokens)  # END among them
    assert {weights.shape[2] for weights in lens.weights.values()} == {steps}


def test_training_goes_on_after_use() -> None:
    """What inference mode made must not be met again by gradients."""
    for name in MODELS:
        model = make(name)
        model.run(["iroh made tea"], attention=True)
        target_BT = torch.tensor([[2, 5, 6, 3]])
        model.network.train()
        model.network.loss(target_BT, torch.tensor([4]), target_BT).total.backward()


# ------------------------------------------------------------------------------- attention


@pytest.mark.parametrize(("name", "layers", "heads"), [("transformer", 2, 2), ("attention", 1, 1)])
def test_attention_has_a_row_for_each_token_and_end(name: str, layers: int, heads: int) -> None:
    model = make(name)
    plain = model.run(WORDS, beam=3)
    for output, word, without in zip(
        model.run(WORDS, beam=3, attention=True), WORDS, plain, strict=True
    ):
        assert output.text == without.text
        assert without.attention is None
        if not word:
            continue
        assert output.attention is not None
        assert output.attention.dtype == np.float32
        assert output.attention.shape == (layers, heads, len(output.tokens), len(word) + 1)
        np.testing.assert_allclose(output.attention.sum(axis=-1), 1.0, atol=1e-5)
        assert (output.attention >= 0).all()


def test_attention_is_the_same_in_any_batch(model: Transducer) -> None:
    together = model.run(WORDS, attention=True)
    for output, word in zip(together, WORDS, strict=True):
        if word:
            (alone,) = model.run([word], attention=True)
            np.testing.assert_allclose(output.attention, alone.attention, atol=1e-5)


def test_attention_is_what_the_steps_of_search_attended_to() -> None:
    from transduce.models import Lens

    model = make("attention")
    (output,) = model.run(["iroh"], beam=1, attention=True)
    ids = model.target_tokens.encode(output.text)
    assert len(ids) == len(output.tokens) - 1
    source_BS = torch.tensor([[*model.source_tokens.encode("iroh"), END]])
    with torch.no_grad(), Lens(model.network, "decoder.attention") as lens:
        state = model.network.start(source_BS, torch.tensor([5]))
        for token in (2, *ids):
            _, state = model.network.step(torch.tensor([token]), state)
    expected = lens.weights["decoder.attention"].numpy()[0]
    np.testing.assert_allclose(output.attention[0], expected, atol=1e-5)


def test_a_model_without_attention_has_none_to_show() -> None:
    (output,) = make("fixed").run(["tea"], attention=True)
    assert output.attention is None


def test_outputs_can_be_written_as_json(model: Transducer) -> None:
    import json

    (output,) = model.run(["tea"], beam=3, nbest=2, attention=True)
    values = json.loads(json.dumps(output.to_json()))
    assert values["text"] == output.text
    assert np.array(values["attention"]).shape == (len(output.tokens), 4)
    assert [o["text"] for o in values["nbest"]] == texts(output.alternatives)


# ---------------------------------------------------------------------------------- wishes

UNLIKE = ["tea", "uncle", "iroh made tea"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_as_they_were_asked_for(name: str, way: str) -> None:
    model = make(name)
    begun = model.run(UNLIKE, prefix="tea o", **WAYS[way])
    assert all(text.startswith("tea o") for text in texts(begun))
    each = model.run(UNLIKE, prefix=["", "zu", "u"], **WAYS[way])
    assert each[0].text == model.run(UNLIKE, **WAYS[way])[0].text
    assert each[1].text.startswith("zu")
    found = model.run(UNLIKE, include=[["zuko"], [], ["of", "made"]], **WAYS[way])
    assert "zuko" in found[0].text
    assert found[1].text == model.run(UNLIKE, **WAYS[way])[1].text
    assert all(phrase in found[2].text for phrase in ("of", "made"))
    assert not any(set("aeiou") & set(t) for t in texts(model.run(UNLIKE, exclude=[*"aeiou"])))
    only = model.run(UNLIKE, only=["tea"], unknown=False, **WAYS[way])
    assert all(set(text) <= set("tea") for text in texts(only))
    for output in model.run(UNLIKE, no_repeat_ngram=2, min_length=4, **WAYS[way]):
        pairs = list(pairwise(output.tokens))
        assert len(pairs) == len(set(pairs))
        assert len(output.tokens) > 4
    assert not any("<unk>" in o.tokens for o in model.run(UNLIKE, unknown=False, **WAYS[way]))


def test_wishes_are_met_in_subwords() -> None:
    said = ["the dog runs over the green grass", "a cat sleeps on the green sofa", "dogs run"] * 5
    tokens = Tokens.train(recipe.Tokens(level="subword", size=60), said)
    torch.manual_seed(1)
    model = Transducer.create(make().recipe, tokens, tokens)
    sources = ["the cat", "dogs", "green"]
    for output in model.run(sources, include=["green sofa", "dog"], prefix="a cat o", beam=3):
        assert output.text.startswith("a cat o")
        assert " green sofa" in output.text
        assert " dog" in output.text
    asked: dict[str, Any] = {"beam": 2, "min_length": 2, "unknown": False}  # so there is a text
    (plain,) = model.run(["dogs"], **asked)
    (other,) = model.run(["dogs"], exclude=[plain.text], **asked)
    assert plain.text != other.text


def test_wishes_hold_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    asked: dict[str, Any] = {
        "prefix": ["t", "", "", "u", "", "", "te", ""],
        "include": [["zu"], [], ["cup"], [], ["a", "e"], ["made"], [], ["of tea"]],
        "exclude": [["e"], ["u"], [], [], ["oo"], [], ["t"], []],
        "coverage_penalty": 0.4,
        "no_repeat_ngram": 3,
        "beam": 3,
        "nbest": 2,
    }
    together = model.run(WORDS, **asked)
    for budget in (1, 500):
        monkeypatch.setattr(decode, "PLACES_ON_CPU", budget)
        for ours, theirs in zip(model.run(WORDS, **asked), together, strict=True):
            assert ours.text == theirs.text
            assert texts(ours.alternatives) == texts(theirs.alternatives)
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)


def test_what_contradicts_itself_comes_back_empty_and_says_so(model: Transducer) -> None:
    first, second = model.run(["tea", "uncle"], include=[["cup"], ["tea"]], exclude=["u"])
    assert (first.text, first.score) == ("", float("-inf"))
    assert "satisfies all constraints" in first.warning
    assert first.to_json() | {"warning": ""} == {
        "text": "",
        "score": None,
        "tokens": [],
        "warning": "",
    }
    assert "tea" in second.text
    assert second.warning == ""


@pytest.mark.parametrize("name", ["transformer", "attention"])
def test_coverage_asks_for_what_was_not_attended_to(name: str) -> None:
    model = make(name)
    for output in model.run(UNLIKE, coverage_penalty=0.7, attention=True, length_penalty=0.0):
        assert output.attention is not None
        covered = output.attention[-1].mean(axis=0).sum(axis=0)[:-1]  # END need not be covered
        pays = 0.7 * np.log(np.minimum(covered, 1.0)).sum()
        assert output.score == pytest.approx(output.log_probability + pays, abs=1e-4)
    assert all(part.watch is None for part in attentions(model.network).values())
    with pytest.raises(ModelError, match="coverage_penalty"):
        make("fixed").run(["tea"], coverage_penalty=0.1)


@pytest.mark.parametrize("diversity", [0.0, 0.5])
@pytest.mark.parametrize(("nbest", "groups"), [(2, 2), (3, 2), (4, 4), (5, 3)])
def test_groups_give_as_many_outputs_as_are_asked_for(
    model: Transducer, diversity: float, nbest: int, groups: int
) -> None:
    """Also where groups find the same; what they have found stays among the outputs."""
    asked: dict[str, Any] = {"nbest": nbest, "beam": nbest, "max_length": 4}
    grouped = model.run(UNLIKE, groups=groups, diversity=diversity, **asked)
    for output in grouped:
        texts = [tuple(one.ids) for one in output.alternatives]
        assert len(set(texts)) == len(texts) == nbest
        scores = [one.score for one in output.alternatives]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("patience", [0.01, 0.3, 1.0])
def test_patience_never_leaves_fewer_than_are_asked_for(model: Transducer, patience: float) -> None:
    for output in model.run(UNLIKE, beam=4, nbest=4, patience=patience):
        assert len(output.alternatives) == 4


def test_groups_give_different_outputs(model: Transducer) -> None:
    grouped = model.run(UNLIKE, beam=4, nbest=4, groups=4, diversity=20.0)
    for output in grouped:
        assert len({o.text[:1] for o in output.alternatives}) == 4
    with pytest.raises(ModelError, match="groups") as error:
        model.run(UNLIKE, groups=2, include=["tea"])
    assert sentence(error)


def test_an_ensemble_of_one_model_is_the_model_and_of_two_is_neither() -> None:
    one, other = make(seed=3), make("attention", seed=4)
    alone = one.run(WORDS, beam=3)
    twice = one.run(WORDS, beam=3, ensemble=[one])
    assert texts(twice) == texts(alone)
    assert [o.score for o in twice] == pytest.approx([o.score for o in alone], abs=1e-5)
    both = one.run(WORDS, beam=3, ensemble=[other])
    assert texts(both) == texts(other.run(WORDS, beam=3, ensemble=[one]))
    assert texts(both) != texts(alone)
    assert texts(both) != texts(other.run(WORDS, beam=3))
    other.network.train()
    assert texts(one.run(WORDS, beam=3, ensemble=[other])) == texts(both)
    assert other.network.training


def test_an_ensemble_reads_and_writes_no_further_than_each_of_it_can() -> None:
    learned = {**TRANSFORMER, "positions": "learned", "max_positions": 12}
    short = make(model={"encoder": learned, "decoder": learned}, data={"max_length": 11})
    long = make(decode={"max_ratio": 9.0})
    with torch.no_grad():
        long.network.head.bias[END] = short.network.head.bias[END] = -60.0
    (output,) = long.run(["e" * 15], ensemble=[short])
    assert "positions for 11" in output.warning
    assert len(output.tokens) == 12
    assert len("".join(long.stream("e" * 15, ensemble=[short]))) <= 11


def test_an_ensemble_needs_the_same_tokens() -> None:
    one = make()
    tokens = Tokens.train(recipe.Tokens(level="character"), ["abc"])
    for source, target, said in (
        (one.source_tokens, tokens, "target vocabulary"),
        (tokens, one.target_tokens, "source vocabulary"),
    ):
        other = Transducer.create(one.recipe, source, target)
        with pytest.raises(ModelError, match=f"model 2 .* another {said}") as error:
            one.run(["tea"], ensemble=[other])
        assert sentence(error)


def test_the_choice_of_least_risk_is_one_of_the_samples(model: Transducer) -> None:
    from transduce.decoding.combine.rerank import expected_utility

    drawn = model.run(UNLIKE, sample=True, nbest=12, seed=5)
    for chosen, samples in zip(
        model.run(UNLIKE, mbr="chrf", samples=12, nbest=3, seed=5), drawn, strict=True
    ):
        candidates = texts(samples.alternatives)
        utilities = expected_utility(candidates, "chrf")
        assert chosen.score == pytest.approx(max(utilities))
        assert chosen.text == candidates[int(np.argmax(utilities))]
        assert len(chosen.alternatives) == 3
    with pytest.raises(ModelError, match="mbr and rerank"):
        model.run(UNLIKE, mbr="chrf", rerank=model)


def test_a_second_model_reranks_the_whole_beam() -> None:
    one, reranker = make(seed=4), make("attention", seed=11)
    beam = one.run(UNLIKE, beam=8, nbest=8, unknown=False)
    changed = 0
    for source, ours, listed in zip(
        UNLIKE,
        one.run(UNLIKE, beam=8, unknown=False, rerank=reranker, rerank_weight=1.0),
        beam,
        strict=True,
    ):
        values = {}
        for o in listed.alternatives:
            (rescored,) = reranker.score([source], [o.text])
            length = len(o.tokens)
            total = o.log_probability + rescored.log_probability
            values[o.text] = total / ((5 + length) / 6)
        assert len(values) == 8
        best = max(values, key=values.__getitem__)
        assert ours.text == best
        assert ours.score == pytest.approx(values[best], rel=1e-4)
        assert ours.alternatives == []
        changed += ours.text != listed.text
    assert changed


def test_other_models_of_a_run_are_loaded_alike_for_every_command(tmp_path: Path) -> None:
    tiny().save(tmp_path)
    settings = {"beam": 2, "ensemble": [tmp_path], "rerank": tmp_path, "language_model": tmp_path}
    found = load_models(settings, "cpu", "int8")
    assert found["beam"] == 2
    models = [*found["ensemble"], found["language_model"], found["rerank"]]
    # A reranker scores given texts, which is always done in float32.
    assert [model.precision for model in models] == ["int8", "int8", "auto"]
    assert all(model.frozen for model in models)
    assert load_models({"beam": 2}, "cpu", "int8") == {"beam": 2}


def test_a_reranker_that_reads_a_part_of_a_source_says_so() -> None:
    shape = {"positions": "learned", "max_positions": 8}
    corpus: dict[str, Any] = {"train": {"file": "a.tsv"}, "valid": {"file": "a.tsv"}}
    corpus |= {"tokens": {"both": {"level": "character"}}, "max_length": 7}
    reranker, one = tiny(encoder=shape, data=corpus), tiny(seed=5)
    asked: dict[str, Any] = {"beam": 2, "unknown": False}
    short, long = one.run(["tea", "a cup of tea"], rerank=reranker, **asked)
    assert "reranker" not in short.warning
    assert "the reranker read its beginning alone: the source has 12 tokens" in long.warning
    assert TRUNCATED not in long.warning  # the output is of the whole source


def test_what_a_reranker_cannot_hold_is_left_out() -> None:
    """A text that was cut would have too few tokens to pay for, and win."""
    shape = {"positions": "learned", "max_positions": 8}
    corpus: dict[str, Any] = {"train": {"file": "a.tsv"}, "valid": {"file": "a.tsv"}}
    corpus |= {"tokens": {"both": {"level": "character"}}, "max_length": 7}
    reranker, one = tiny(decoder=shape, data=corpus), tiny(seed=5)
    asked: dict[str, Any] = {"beam": 4, "unknown": False, "length_penalty": 0.0}
    for source in ("tea", "a cup of tea"):
        (listed,) = one.run([source], nbest=4, **asked)
        (output,) = one.run([source], nbest=4, rerank=reranker, **asked)
        short = [o for o in listed.alternatives if len(reranker.target_tokens.encode(o.text)) < 8]
        kept = output.alternatives or [output]
        if not short:
            assert "the order is that of the first model" in output.warning
            assert [o.text for o in kept] == [o.text for o in listed.alternatives]
            continue
        assert {o.text for o in kept} == {o.text for o in short}
        assert ("too long for the reranker" in output.warning) == (len(short) < 4)
        for o in kept:
            (rescored,) = reranker.score([source], [o.text])
            total = o.log_probability + rescored.log_probability
            assert o.score == pytest.approx(total, abs=1e-4)


# ----------------------------------------------------------------------------------- score


def test_a_network_with_logits_of_its_own_is_scored_by_them() -> None:
    class Flatter(EncoderDecoder):
        def logits(self, *given: Any, **named: Any) -> torch.Tensor:
            return 0.5 * super().logits(*given, **named)

    model = tiny()
    (source,), (target,) = model._encode([SOURCES[0]])[0], model.target_tokens.encode_batch(["tea"])
    model.network.__class__ = Flatter
    (score,) = model.score([SOURCES[0]], ["tea"])
    with torch.no_grad():
        rows = (torch.tensor([[*source, END]]), torch.tensor([len(source) + 1]))
        logits_TV = model.network.logits(*rows, torch.tensor([[BEGIN, *target]]))[0]
    wanted = logits_TV.log_softmax(-1)[torch.arange(len(target) + 1), [*target, END]]
    assert score.token_log_probabilities == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_hypothesis_is_worth_what_its_text_is_worth(name: str, way: str) -> None:
    model = make(name)
    words = [word for word in WORDS if word]
    outputs = model.run(words, nbest=3, unknown=False, no_repeat_ngram=3, **WAYS[way])
    pairs = [(w, o) for w, out in zip(words, outputs, strict=True) for o in out.alternatives]
    scores = model.score([w for w, _ in pairs], [o.text for _, o in pairs])
    assert len(pairs) == 3 * len(words)
    for (_, output), score in zip(pairs, scores, strict=True):
        assert score.tokens == output.tokens
        assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)
        expected = np.exp(-score.log_probability / len(score.tokens))
        assert score.perplexity == pytest.approx(expected)


def test_the_scores_of_a_corpus_are_its_loss(model: Transducer) -> None:
    targets = ["uncle", "e", "zuko made tea", "", "tea", "a", "o", "cup"]
    scores = model.score(WORDS, targets)
    for word, target, score in zip(WORDS, targets, scores, strict=True):
        source = [*model.source_tokens.encode(word), END]
        ids = [2, *model.target_tokens.encode(target), END]
        loss = model.network.loss(
            torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([ids])
        )
        assert score.log_probability == pytest.approx(-float(loss.nll.detach()), abs=1e-5)
        assert len(score.token_log_probabilities) == len(ids) - 1
    assert model.score([], []) == []


def test_what_cannot_be_scored(model: Transducer) -> None:
    with pytest.raises(ModelError, match="2 sources, but 1 targets"):
        model.score(["tea", "e"], ["tea"])
    learned = {**TRANSFORMER, "positions": "learned", "max_positions": 12}
    short = make(model={"encoder": learned, "decoder": learned}, data={"max_length": 11})
    with pytest.raises(ModelError, match="target 2 has 12 tokens") as error:
        short.score(["tea", "tea"], ["e", "e" * 12])
    assert sentence(error)


# ---------------------------------------------------------------------------------- stream


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prefix", ["", "tea", "uncle i"])
def test_pieces_of_a_stream_are_the_text_that_run_gives(name: str, prefix: str) -> None:
    model = make(name)
    for word in WORDS:
        for way in ({}, {"sample": True, "seed": 4}, {"exclude": ["e"], "no_repeat_ngram": 2}):
            pieces = list(model.stream(word, prefix=prefix, **way))
            assert "".join(pieces) == model(word, **{"beam": 1, "prefix": prefix, **way})
            assert "".join(pieces).startswith(prefix if word else "")
            assert all(pieces)


def test_a_stream_writes_no_further_than_it_is_read(
    model: Transducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    whole = model.network.step

    def counted(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        return whole(*given)

    monkeypatch.setattr(model.network, "step", counted)
    stream = model.stream("iroh made tea")
    assert steps == 0
    next(stream)
    assert steps <= 2
    assert not torch.is_inference_mode_enabled()  # what the caller does between two pieces


def test_a_stream_of_bytes_shows_whole_characters() -> None:
    model = make()
    tokens = Tokens.train(recipe.Tokens(level="byte"), ["tea"])
    model = Transducer.create(model.recipe, tokens, tokens)
    pieces = list(model.stream("tea", prefix="茶é🎉"))
    assert pieces[:3] == ["茶", "é", "🎉"]


@pytest.mark.parametrize("way", [{"beam": 2}, {"nbest": 2}, {"groups": 2}, {"mbr": "chrf"}])
def test_a_stream_follows_one_hypothesis(model: Transducer, way: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="stream") as error:
        next(model.stream("tea", **way))
    assert sentence(error)


# ---------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"beam": 0}, "beam"),
        ({"beam": -1}, "beam"),
        ({"beam": 2.5}, "beam"),
        ({"beam": "5"}, "beam"),
        ({"nbest": 0}, "nbest"),
        ({"nbest": None}, "nbest"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": 1000}, "length_penalty"),
        ({"length_penalty": -1000.0}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"sample": True, "temperature": 0.0}, "temperature"),
        ({"sample": True, "temperature": -1}, "temperature"),
        ({"sample": True, "temperature": float("inf")}, "temperature"),
        ({"sample": True, "top_k": -1}, "top_k"),
        ({"sample": True, "top_p": 0.0}, "top_p"),
        ({"sample": True, "top_p": 1.5}, "top_p"),
        ({"sample": True, "seed": 1.5}, "seed"),
        ({"temperature": 0.5}, "sample"),
        ({"top_k": 5}, "sample"),
        ({"bean": 5}, "bean"),
        ({"groups": 0}, "groups"),
        ({"groups": 2, "sample": True}, "groups"),
        ({"diversity": -1.0}, "diversity"),
        ({"coverage_penalty": -0.1}, "coverage_penalty"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram"),
        ({"no_repeat_ngram": 1.5}, "no_repeat_ngram"),
        ({"min_length": -1}, "min_length"),
        ({"mbr": "ter"}, "mbr"),
        ({"mbr": "chrf", "samples": 1}, "samples"),
        ({"mbr": "chrf", "samples": 4, "nbest": 5}, "samples"),
        ({"only": "tea"}, "only"),
        ({"only": []}, "only"),
        ({"rerank_weight": "1"}, "rerank_weight"),
        ({"prefix": ["tea", "tea"]}, "prefix"),
        ({"include": ["茶"]}, "include"),
    ],
)
def test_an_impossible_setting_is_one_sentence(
    model: Transducer, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named) as error:
        model.run(["tea"], **settings)
    assert sentence(error)


def test_numbers_of_numpy_are_numbers(model: Transducer) -> None:
    found = model.run(["tea"], beam=np.int64(2), length_penalty=np.float32(1.0), nbest=np.int32(1))
    assert texts(found) == texts(model.run(["tea"], beam=2, length_penalty=1.0))


def test_one_string_is_not_a_list_of_letters(model: Transducer) -> None:
    with pytest.raises(ModelError, match="list") as error:
        model.run("tea")
    assert sentence(error)


@pytest.mark.parametrize("source", [None, 5, b"tea", ["tea"]])
def test_a_source_that_is_not_text(model: Transducer, source: Any) -> None:
    with pytest.raises(ModelError, match="must be a string") as error:
        model.run(["tea", source])
    assert sentence(error)


def test_any_sequence_will_do(model: Transducer) -> None:
    expected = texts(model.run(WORDS))
    assert texts(model.run(tuple(WORDS))) == expected
    assert texts(model.run(np.array(WORDS))) == expected
    assert texts(model.run(word for word in WORDS)) == expected


# ------------------------------------------------------------------------------------ disk


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "model"
    saved = make(seed=5)
    saved.network.float()
    saved.save(folder)
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "model"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tie_embeddings", ["all", "target", "none"])
def test_a_saved_model_is_the_same_model(tmp_path: Path, name: str, tie_embeddings: str) -> None:
    model = make(name, model={"tie_embeddings": tie_embeddings})
    model.network.float()
    model.save(tmp_path / "new" / "folder")
    again = load(tmp_path / "new" / "folder")
    assert again.run(WORDS, beam=3, nbest=2) == model.run(WORDS, beam=3, nbest=2)
    assert again.recipe.model_copy(update={"data": model.recipe.data}) == model.recipe
    assert not again.network.training
    for (ours, w), (theirs, v) in zip(
        weights_of(again.network).items(), weights_of(model.network).items(), strict=True
    ):
        assert ours == theirs
        assert torch.equal(w, v)
    assert not list((tmp_path / "new" / "folder").glob("*.part"))


def test_a_folder_can_be_moved(folder: Path, tmp_path: Path) -> None:
    before = load(folder)("tea")
    moved = folder.rename(tmp_path / "elsewhere")
    assert load(str(moved))("tea") == before


def test_it_is_the_weights_that_were_loaded(folder: Path) -> None:
    """Not those that creation drew: another seed gives the same model."""
    torch.manual_seed(1)
    one = load(folder).run(WORDS)
    torch.manual_seed(2)
    assert load(folder).run(WORDS) == one


def test_a_device_that_is_not_there(folder: Path) -> None:
    with pytest.raises(HardwareError, match="cuda:77") as error:
        load(folder, device="cuda:77")
    assert sentence(error)


@pytest.mark.parametrize("missing", [WEIGHTS, "recipe.yaml", "source.tokens.json"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=missing) as error:
        load(folder)
    assert sentence(error)


def test_a_missing_folder_is_told_apart_from_an_unfinished_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder") as error:
        load(tmp_path / "nowhere")
    assert sentence(error)
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "state").mkdir()
    with pytest.raises(ModelError, match="resume") as error:
        load(tmp_path)
    assert sentence(error)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="not a model folder"):
        load(tmp_path / "file")


def damage(path: Path, how: str) -> None:
    whole = bytearray(path.read_bytes())
    if how == "flipped":
        whole[-100] ^= 0x10
    elif how == "cut short":
        whole = whole[: len(whole) // 2]
    else:
        whole = bytearray(b"" if how == "empty" else b"\xff\xfe not what it should be {")
    path.write_bytes(whole)


@pytest.mark.parametrize("how", ["flipped", "cut short", "empty", "nonsense"])
def test_damaged_weights_are_named(folder: Path, how: str) -> None:
    damage(folder / WEIGHTS, how)
    with pytest.raises(CheckpointError, match=WEIGHTS) as error:
        load(folder)
    assert sentence(error)


@pytest.mark.parametrize("how", ["cut short", "empty", "nonsense"])
@pytest.mark.parametrize("name", ["recipe.yaml", "source.tokens.json", "target.tokens.json"])
def test_damage_to_the_other_files_is_named(folder: Path, name: str, how: str) -> None:
    damage(folder / name, how)
    if name == "recipe.yaml" and how == "cut short":
        (folder / name).write_text("data: {train: {name: copy")
    with pytest.raises(TransduceError, match=name):
        load(folder)


def test_a_recipe_of_another_shape_is_refused(folder: Path) -> None:
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("width: 16", "width: 32"))
    with pytest.raises(ModelError, match="does not fit the recipe") as error:
        load(folder)
    assert "16" in sentence(error)
    assert "32" in str(error.value)
    (folder / "recipe.yaml").write_text(text.replace("layers: 2", "layers: 1"))
    with pytest.raises(ModelError, match=r"blocks\.1"):
        load(folder)


def test_tokens_of_another_model_are_refused(folder: Path) -> None:
    Tokens.train(recipe.Tokens(level="character"), ["xyz"]).save(folder / "target.tokens.json")
    with pytest.raises(ModelError, match=r"target.tokens.json is not the file .* SHA-256") as error:
        load(folder)
    assert sentence(error)
    (folder / SUMS).unlink()  # without it, the shape still tells
    with pytest.raises(ModelError, match=r"embedding|head") as error:
        load(folder)
    assert sentence(error)


def test_two_letters_of_a_tokens_file_that_have_changed_places(folder: Path) -> None:
    """The shapes fit and the file is a right one: only its sum tells."""
    file = folder / "source.tokens.json"
    letters = {'"t"': '"e"', '"e"': '"t"'}
    whole = file.read_text("utf-8")
    swapped = re.sub('"[te]"', lambda found: letters[found[0]], whole)
    assert swapped != whole
    file.write_text(swapped, "utf-8")
    with pytest.raises(ModelError, match="SHA-256") as error:
        load(folder)
    assert str(file) in sentence(error)
    file.write_text(whole, "utf-8")
    load(folder)


def test_weights_of_another_model_of_the_same_shape(folder: Path, tmp_path: Path) -> None:
    other = load(folder)
    with torch.no_grad():
        next(other.network.parameters()).add_(1.0)
    other.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / WEIGHTS, folder / WEIGHTS)
    with pytest.raises(ModelError, match=rf"{WEIGHTS} is not the file") as error:
        load(folder)
    assert sentence(error)


def test_a_recipe_that_was_edited_is_used_and_reported(folder: Path) -> None:
    text = (folder / "recipe.yaml").read_text("utf-8")
    edited = text.replace("beam: 3", "beam: 2 # faster")
    assert edited != text
    (folder / "recipe.yaml").write_text(edited, "utf-8")
    with pytest.warns(TransduceWarning, match=r"recipe.yaml was edited after training"):
        model = load(folder)
    assert model.recipe.decode.beam == 2
    model.save(folder)  # which means the same: the comment stays
    assert (folder / "recipe.yaml").read_text("utf-8") == edited
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder)


def test_where_it_cannot_be_saved_it_says_so(model: Transducer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(CheckpointError, match="file") as error:
            model.save(tmp_path / place)
        assert sentence(error)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["transformer", "attention"])
def test_search_in_fewer_bits(name: str, precision: str) -> None:
    made = make(name, model={"width": 64})
    made.network.float()
    words = [word for word in WORDS if word]
    exact = made.run(words, beam=2)
    few = made.compute_in(precision).run(words, beam=2, length_penalty=0.0)
    again = made.compute_in("float32").run(words, beam=2)
    assert [o.score for o in again] == pytest.approx([o.score for o in exact], abs=1e-5)
    # Rounding may decide between tokens that are nearly as probable: the same outputs are compared.
    same = made.score(words, [output.text for output in few])
    apart = [abs(a.log_probability - b.score) for a, b in zip(same, few, strict=True)]
    if (name, precision) == ("attention", "int8"):  # recurrent, with a small output layer
        assert max(apart) < 1e-5
        return
    assert max(apart) < 0.3
    assert max(apart) > 1e-4


def test_an_unknown_precision_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="precision is int4; it must be one of auto, float32"):
        make().compute_in("int4")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("beam", [1, 3])
def test_on_a_gpu_plain_search_finds_the_same_at_speed(beam: int) -> None:
    made = make().to("cuda")
    made.network.float()
    made.compute_in("float32")
    fast = made.run(WORDS, beam=beam)
    assert made.copies._cuda is not None
    assert made.copies._cuda._pools
    slow = made.run(WORDS, beam=beam, no_repeat_ngram=50)  # bans nothing, but is a part
    assert texts(fast) == texts(slow)
    for mine, other in zip(fast, slow, strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-3)


def test_a_source_that_is_mostly_unknown_is_reported() -> None:
    strange, half, known = make().run(["TEA", "Eat e", "tea"])
    assert "3 of its 3 tokens are not in the vocabulary" in strange.warning
    assert half.warning == known.warning == ""


def tagged_model(train: dict[str, Any], *more: str) -> Transducer:
    """One that knows the tags N, ABL(PL;PSS) and more, trained on this corpus."""
    tags = sorted(["N", "ABL(PL;PSS)", *more])
    tokens = Tokens.train(recipe.Tokens(level="character"), ["aeiou"], tags)
    data = {"train": train, "valid": train, "tokens": {"both": {"level": "character"}}}
    small = {"layers": 1, "heads": 2, "feed_forward": 16}
    shape = {"width": 16, "encoder": small, "decoder": small}
    asked = Recipe.model_validate({"data": data, "model": shape, "decode": {"beam": 1}})
    torch.manual_seed(1)
    return Transducer.create(asked, tokens, tokens)


def test_a_source_without_tags_is_warned_of_where_all_in_training_had_some() -> None:
    model = tagged_model({"file": "a.tsv", "tags": 2})
    bare, one, joined = model.run(["aei", "<N> aei", "<N;ABL(PL;PSS)> aei"])
    assert bare.warning == (
        "the source has no tag, but all in training had one or more; give them with --tag, or "
        "before the source as <TAG>"
    )
    assert [one.warning, joined.warning] == ["", ""]
    assert joined.source_tokens[:2] == ["<N>", "<ABL(PL;PSS)>"]
    some_had = tagged_model({"of": [{"file": "a.tsv", "tag": "N"}, {"file": "b.tsv"}]})
    assert not some_had.run(["aei"])[0].warning


def test_a_tag_that_is_read_as_unknown_is_warned_of() -> None:
    model = tagged_model({"file": "a.tsv", "tags": 2}, UNKNOWN_TAG)
    with pytest.raises(ModelError, match=r"has no tag DAT; its tags are ABL\(PL;PSS\), N$"):
        model.tags_of(["N;DAT"])
    bare, known, unknown = model.run(["aei", "<N> aei", "<N;DAT> aei"])
    assert "the source has no tag, but all in training" in bare.warning
    assert known.warning == ""
    assert unknown.source_tokens[:2] == ["<N>", "<?>"]
    assert "a tag that training does not have, which is read as <?>" in unknown.warning


def test_several_tags_may_be_given_as_one() -> None:
    model = tagged_model({"file": "a.tsv", "tags": 2})
    model.tags_of(["N;ABL(PL;PSS)", "N"])
    with pytest.raises(ModelError, match=r"has no tag ABL\(SG\)"):
        model.tags_of(["N;ABL(SG)"])


def test_tags_of_a_call_are_before_every_source() -> None:
    model = tagged_model({"file": "a.tsv", "tags": 2})
    tags = ["N;ABL(PL;PSS)"]
    blank, bare, own = model.run(["", "aei", "<N> aei"], tags=tags)
    assert (blank.text, blank.source_tokens) == ("", [])
    whole, both = model.run(["<N> <ABL(PL;PSS)> aei", "<N> <ABL(PL;PSS)> <N> aei"])
    assert (bare, own) == (whole, both)
    assert list(model.stream("aei", tags=tags)) == list(model.stream("<N> <ABL(PL;PSS)> aei"))
    assert model("aei", tags=tags) == whole.text
    asked = model.score(["aei"], [whole.text], tags=tags)
    assert asked == model.score(["<N> <ABL(PL;PSS)> aei"], [whole.text])
    for call in (model.run, model.score):
        targets = [["a"]] if call == model.score else []
        with pytest.raises(ModelError, match="has no tag DAT; its tags are"):
            call(["aei"], *targets, tags=["DAT"])
    with pytest.raises(ModelError, match="trained without tags, so N is unknown; leave it out"):
        tiny().run(["aei"], tags=["N"])


def test_loading_draws_no_weights_and_keeps_a_shared_vocabulary_once(tmp_path: Path) -> None:
    """Weights that a file will replace would take memory and time."""
    model = tiny()
    model.save(tmp_path)
    drawn = list[str]()

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            before = torch.get_rng_state()
            for name, layer in (("linear", nn.Linear(3, 4)), ("lstm", nn.LSTM(3, 4))):
                self.add_module(name, layer)
            if not torch.equal(torch.get_rng_state(), before):
                drawn.append("weights")
            self.register_buffer("noise", torch.empty(100).normal_())

    with undrawn():
        watched = Watched()
    assert not drawn
    assert watched.noise.std() > 0.5  # what no file has is drawn
    Watched()
    assert drawn == ["weights"]
    again = load(tmp_path)
    for name, weight in weights_of(again.network).items():
        assert torch.equal(weight, weights_of(model.network)[name])
    same = model.source_tokens.to_json() == model.target_tokens.to_json()
    assert (again.source_tokens is again.target_tokens) == same
