"""How large a model would be is known before it is built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError, TransduceWarning
from transduce.recipe import Recipe, load_recipe
from transduce.recipe import Tokens as Cut
from transduce.tasks import model_size
from transduce.tasks.model_size import check_trainable, check_weights, count_parameters
from transduce.tasks.transduce import Transducer, kind_of, load

GIGABYTE = 10**9


@pytest.mark.parametrize(
    "name",
    ["pronounce", "copy", "shakespeare-lstm", "ewt-rnn", "imdb-attention", "udhr-small", "digits"],
)
def test_parameters_are_counted_without_building(name: str) -> None:
    recipe = load_recipe(name)
    tokens = Tokens.train(Cut(level="byte"), [])
    kind = kind_of(recipe)
    built = kind.build(recipe, tokens, tokens)
    assert built.as_built
    assert count_parameters(kind, recipe, tokens, tokens) == sum(
        parameter.numel() for parameter in built.parameters()
    )


def test_of_a_deep_network_the_first_layers_are_enough() -> None:
    recipe = load_recipe("copy", ["model.encoder.layers=14", "model.decoder.layers=17"])
    tokens = Tokens.train(Cut(level="byte"), [])
    built = Transducer.build(recipe, tokens, tokens)
    count = sum(parameter.numel() for parameter in built.parameters())
    assert count_parameters(Transducer, recipe, tokens, tokens) == count


def shape(*overrides: str) -> Recipe:
    return load_recipe("copy", overrides)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "model.encoder.layers=100000",
            r"at least 8,[\d,]{11} parameters; training it needs [\d,.]+ GB",
        ),
        ("model.width=100000000", r"at least [\d,]{20,} parameters; training it needs [\d,.]+ GB"),
        ("model.decoder.feed_forward=1000000000000", "lower model.width, the layers"),
    ],
)
def test_what_no_memory_holds_is_refused_before_any_work(override: str, said: str) -> None:
    recipe = shape(override)
    with pytest.raises(RecipeError, match=said):
        check_trainable(Transducer, recipe, 64 * GIGABYTE)


def test_more_layers_than_can_be_built() -> None:
    recipe = shape("model.width=8", "model.encoder.layers=100000")
    with pytest.raises(RecipeError, match=r"layers is 100000; the maximum is 1000; the model wo"):
        check_trainable(Transducer, recipe, 10**15)


def test_several_processes_share_the_weights() -> None:
    recipe = shape()
    tokens = Tokens.train(Cut(level="byte"), [])
    needed = 16 * count_parameters(Transducer, recipe, tokens, tokens)
    check_trainable(Transducer, recipe, needed)
    with pytest.raises(RecipeError):
        check_trainable(Transducer, recipe, needed - 16)
    check_trainable(Transducer, recipe, needed // 2, processes=2)


def test_weights_that_are_too_few_are_reported_before_the_network_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_size, "free_memory", lambda device: 64 * GIGABYTE)
    model = tiny()
    tokens = model.source_tokens, model.target_tokens
    check_weights(Transducer, model.recipe, *tokens, 0)
    large = shape("model.width=4096")
    count = count_parameters(Transducer, large, *tokens)
    check_weights(Transducer, large, *tokens, count)
    with pytest.raises(ModelError, match=f"has {count:,} parameters, the weights 9,999,999 bytes"):
        check_weights(Transducer, large, *tokens, 9_999_999)


def test_a_width_beyond_counting(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny().save(folder)
    recipe = (folder / "recipe.yaml").read_text()
    wide = re.sub(r"(?m)^  width: \d+$", "  width: 1073741824", recipe)
    assert wide != recipe
    (folder / "recipe.yaml").write_text(wide)
    with pytest.warns(TransduceWarning, match="edited"), pytest.raises(ModelError) as raised:
        load(folder)
    assert "model.width is 1073741824" in str(raised.value)
    with pytest.raises(RecipeError, match="larger than any memory"):
        check_trainable(Transducer, shape("model.width=1073741824"), 64 * GIGABYTE)


def test_a_model_larger_than_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = shape("model.width=1024", "model.encoder.layers=2")
    tokens = Tokens.train(Cut(level="byte"), [])
    count = count_parameters(Transducer, recipe, tokens, tokens)
    monkeypatch.setattr(model_size, "free_memory", lambda device: 4 * count)
    check_weights(Transducer, recipe, tokens, tokens, 4 * count)
    monkeypatch.setattr(model_size, "free_memory", lambda device: 4 * count - 1)
    with pytest.raises(ModelError, match=r"needs [\d.]+ GB of memory, and only [\d.]+ GB are free"):
        check_weights(Transducer, recipe, tokens, tokens, 4 * count)
