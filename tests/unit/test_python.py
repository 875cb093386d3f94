"""What Python is given from outside: recipes as dicts, networks, states, changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import transduce
import transduce.nn as library
from tiny_models import SOURCES, TARGETS, tiny
from transduce.data.batches.batch import collate
from transduce.errors import DataError, ModelError, RecipeError
from transduce.models import EncoderDecoder, LabelNetwork, TrainableNetwork
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import load_recipe, parse_recipe, read_recipe
from transduce.tasks.transduce import Transducer, load

DATA: dict[str, Any] = {
    "train": {"name": "copy", "split": "train"},
    "valid": {"name": "copy", "split": "valid"},
}
SMALL = {"layers": 1, "heads": 2, "feed_forward": 8}
MODEL = {"width": 8, "encoder": SMALL, "decoder": SMALL}


# --------------------------------------------------------------------------------------- recipes

WRONG = [
    ("train: {stepps: 3}", {"train": {"stepps": 3}}),
    ("train: {learning_rate: 3}", {"train": {"learning_rate": 3}}),
    ("seed: yes", {"seed": True}),
    ("model: {preset: transformer-tyny}", {"model": {"preset": "transformer-tyny"}}),
    ("model: {encoder: {kind: recurent}}", {"model": {"encoder": {"kind": "recurent"}}}),
    ("metrics: blue", {"metrics": "blue"}),
    ("decode: {coverage_penalty: 1.5, beam: 0}", {"decode": {"coverage_penalty": 1.5, "beam": 0}}),
]
YAML = "data: {train: {name: copy, split: train}, valid: {name: copy, split: valid}}\n"


@pytest.mark.parametrize(("text", "values"), WRONG, ids=[text for text, _ in WRONG])
def test_a_mistake_in_a_dict_is_told_as_in_yaml(text: str, values: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as of_yaml:
        parse_recipe(YAML + text, "the recipe", Path.cwd())
    with pytest.raises(RecipeError) as of_dict:
        read_recipe({"data": DATA, **values})
    assert str(of_dict.value) == str(of_yaml.value).replace("recipe:2:", "recipe:")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seed": object()}, "seed is a object; a recipe holds text, numbers"),
        ({"train": {3: 4}}, "the key 3 in train is not text"),
        ({"train": [nn.Identity()]}, "train.0 is a Identity"),
    ],
)
def test_what_no_recipe_can_hold(values: dict[Any, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read_recipe({"data": DATA, **values})


def test_a_dict_is_the_recipe_that_its_yaml_is(tmp_path: Path) -> None:
    values = {
        "data": {**DATA, "folder": tmp_path, "max_length": np.int64(50)},
        "model": {"preset": "transformer-tiny", "dropout": np.float64(0.25)},
        "train": {"steps": 1e3, "betas": (0.9, 0.98)},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"{YAML.strip()[:-1]}, folder: {tmp_path}, max_length: 50}}\n"
        "model: {preset: transformer-tiny, dropout: 0.25}\n"
        "train: {steps: 1000, betas: [0.9, 0.98]}\n"
    )
    made = read_recipe(values)
    assert made == load_recipe(file)
    assert made.model.width < 512, "the preset counts"
    assert values["model"] == {"preset": "transformer-tiny", "dropout": 0.25}, "left as it was"
    assert read_recipe(made) is made
    assert read_recipe(made, ["seed=9"]).seed == 9
    assert read_recipe(values, ["train.steps=7"]).train.steps == 7
    assert read_recipe(str(file)) == read_recipe(file) == made


def test_training_takes_a_folder_by_its_name(tmp_path: Path) -> None:
    """What is wrong is then the data, which is not there."""
    data = {"train": {"file": "nothing.tsv"}, "valid": {"file": "nothing.tsv"}}
    with pytest.raises(DataError, match=r"nothing\.tsv"):
        transduce.train({"data": data, "model": MODEL}, str(tmp_path / "run"))


# -------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ({"model": MODEL}, EncoderDecoder),
        ({"model": {**MODEL, "tie_embeddings": "all"}}, EncoderDecoder),
        ({"task": "classify", "model": {"width": 8, "encoder": SMALL}}, LabelNetwork),
        ({"task": "tag", "model": {"width": 8, "encoder": SMALL}}, LabelNetwork),
        (
            {"task": "language_modeling", "model": {"width": 8, "decoder": SMALL}},
            LanguageModelNetwork,
        ),
        ({"audio": {"mel_bands": 20}, "model": MODEL}, SpeechEncoderDecoder),
    ],
)
def test_a_network_is_built_of_a_recipe_and_sizes(recipe: dict[str, Any], kind: type) -> None:
    network = transduce.build(recipe, 12)
    assert type(network) is kind
    assert network.as_built
    labels = 12 - 4 if kind is LabelNetwork else 12
    assert len(network.head.bias) == labels


def test_sizes_of_two_sides_and_what_is_wrong_with_them() -> None:
    network = transduce.build({"model": MODEL}, 12, 20)
    assert len(network.front.table.weight) == 12
    assert len(network.head.bias) == 20
    loss = network.loss(torch.tensor([[5, 3]]), torch.tensor([2]), torch.tensor([[2, 19, 3]]))
    loss.total.backward()
    with pytest.raises(ModelError, match="4 are special"):
        transduce.build({"model": MODEL}, 4)
    with pytest.raises(RecipeError, match=r"did you mean model\.width"):
        transduce.build({"model": {"widht": 8}}, 12)
    letters = {"task": "tag", "model": {"characters": {}, "encoder": SMALL, "width": 128}}
    with pytest.raises(ModelError, match="give Tokens"):
        transduce.build(letters, 12)


def test_every_name_of_the_library_is_there() -> None:
    for name in library.__all__:
        assert getattr(library, name).__module__.startswith("transduce.nn.")
    from transduce.nn import MultiHeadAttention

    attention = MultiHeadAttention(8, 2)
    assert attention(torch.zeros(1, 3, 8)).shape == (1, 3, 8)
    with pytest.raises(AttributeError, match="no attribute 'MultiHedAttention'"):
        _ = library.MultiHedAttention


# ---------------------------------------------------------------------------- states and scores


def test_states_of_the_encoder_come_in_order_without_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transduce.decoding import encode as encoding

    model = tiny()
    monkeypatch.setattr(encoding, "PLACES", 20)  # several batches
    found = model.encode(SOURCES)
    ids = model.source_tokens.encode_batch(SOURCES)
    assert found.lengths_B.tolist() == [len(row) + 1 for row in ids]
    assert found.mask_BS.sum(dim=1).tolist() == found.lengths_B.tolist()
    for row, (states_SD, length) in enumerate(zip(found.states_BSD, found.lengths_B, strict=True)):
        batch = collate([ids[row]], None)
        alone_SD = model.network.encode(batch.source_BS, batch.source_lengths_B).states_BSD[0]
        torch.testing.assert_close(states_SD[:length], alone_SD.detach())
        assert not states_SD[length:].any()
        assert len(found.tokens[row]) == int(length)
    probe = nn.Linear(16, 2)
    probe(found.states_BSD).sum().backward()  # states of inference mode could not be learnt from
    assert model.encode([]).states_BSD.shape == (0, 0, 16)


def test_scores_with_attention_are_those_without() -> None:
    model = tiny()
    plain, seen = model.score(SOURCES, TARGETS), model.score(SOURCES, TARGETS, attention=True)
    for source, one, other in zip(SOURCES, plain, seen, strict=True):
        assert one.token_log_probabilities == other.token_log_probabilities
        assert one.attention is None
        assert other.attention is not None
        assert other.attention.shape == (2, 2, len(other.tokens), len(other.source_tokens))
        assert len(other.source_tokens) == len(source) + 1
        np.testing.assert_allclose(other.attention.sum(axis=-1), 1, atol=1e-5)
        assert "attention" in other.to_json()
    outputs = model.run(["iroh made tea"], attention=True)
    (score,) = model.score(["iroh made tea"], [outputs[0].text], attention=True)
    assert score.attention is not None
    if len(score.tokens) == len(outputs[0].tokens):
        np.testing.assert_allclose(score.attention, outputs[0].attention, atol=1e-5)


def test_where_there_is_no_attention_it_is_reported() -> None:
    fixed = {"kind": "recurrent", "attention": "none"}
    model = Transducer.create(
        read_recipe({"data": DATA, "model": {"width": 8, "encoder": SMALL, "decoder": fixed}}),
        tiny().source_tokens,
        tiny().target_tokens,
    )
    with pytest.raises(ModelError, match="does not have attention"):
        model.score(["a"], ["a"], attention=True)


# ---------------------------------------------------------------------------- changed networks


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.full((1,), 2.0))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.scale * self.inner(x_BTD)


def doubled(network: EncoderDecoder) -> None:
    for block in network.decoder.blocks:
        block.feed_forward = Doubled(block.feed_forward)


def test_a_changed_network_is_stored_and_loaded_with_its_change(tmp_path: Path) -> None:
    plain = tiny(banned=True)
    before = [output.score for output in plain.run(SOURCES)]
    model = plain.change(doubled)
    after = [output.score for output in model.run(SOURCES)]
    assert after != before, "the change is computed, not left out"
    model.save(tmp_path)
    with pytest.raises(ModelError, match=r"changed in Python by .*\.doubled.*change="):
        load(tmp_path)
    again = load(tmp_path, change=doubled)
    assert [output.score for output in again.run(SOURCES)] == after
    with pytest.raises(ModelError, match="only one of them"):
        load(tmp_path, change=lambda network: None)


def test_a_change_may_give_another_network() -> None:
    model = tiny()
    other = tiny(seed=9).network
    assert model.change(lambda _: other).network is other


def test_what_a_change_may_not_give() -> None:
    def buffered(network: TrainableNetwork) -> None:
        network.register_buffer("seen", torch.zeros(2))

    with pytest.raises(ModelError, match=r"returned a Linear; it must .*TrainableNetwork"):
        tiny().change(lambda network: nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"buffer seen, which is not saved.*requires_grad=False"):
        tiny().change(buffered)
    tiny().change(lambda n: n.register_buffer("seen", torch.zeros(2), persistent=False))


def test_an_unchanged_network_packs_its_batches_and_a_changed_one_does_not() -> None:
    network = transduce.build({"model": {**MODEL, "width": 32}}, 12)
    assert network.packs(16)
    doubled(network)
    assert not network.packs(16)
