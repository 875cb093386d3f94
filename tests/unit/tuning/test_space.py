"""Which keys are searched, over which values."""

from __future__ import annotations

import pytest

from slow_params import some_slow
from transduce.errors import RecipeError
from transduce.recipe import load_recipe, shipped
from transduce.tuning.space import (
    Choices,
    Range,
    named,
    own_values,
    short_names,
    shown,
    usual,
    with_values,
)
from tuning_study import Make

QUICK = ("cmudict", "ewt-tagger", "shakespeare-small", "mboshi")


def test_what_is_named_is_searched(make: Make) -> None:
    searches = ["train.lr=1e-4..1e-2", "model.dropout=0..0.3", "model.encoder.layers=1..3"]
    searches += [
        "model.width=8,16",
        "train.schedule=linear,cosine",
        "train.average=null,{count: 2}",
    ]
    space = named(make(), searches, [])
    assert space["train.lr"] == Range(1e-4, 1e-2)
    assert space["train.lr"].about() == "0.0001..0.01 (log scale)"
    assert space["model.dropout"].about() == "0..0.3"
    assert space["model.encoder.layers"] == Range(1, 3, whole=True)
    assert space["model.width"] == Choices((8, 16))
    assert space["train.schedule"] == Choices(("linear", "cosine"))
    assert space["train.average"] == Choices((None, {"count": 2}))


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("trian.lr=1..2", "unknown key trian; did you mean train?"),
        ("train.lrr=1..2", "unknown key train.lrr; did you mean train.lr?"),
        ("train.lr", "is not of the form train.lr=1e-4..1e-2"),
        ("train.schedule=linear..cosine", "is a range, which has a number at each end"),
        ("train.lr=1e-2..1e-3", "the first end of a range must be below the second"),
        ("train.lr=-1..1", "train.lr is -1; it must be a number above 0"),
        ("train.schedule=linear,cosin", "did you mean cosine?"),
        ("train.lr=1", "has one value; give several, or set it without --search"),
        ("model.width=8,9", "model.width is 9; it must be even"),
        ("validation.metric=loss,exact", "trials that differ in it cannot be compared"),
        ("data.tokens.both.level=character,byte", "losses of different tokens cannot be compared"),
        ("seed=1,2", "seed is searched and set at once"),
    ],
)
def test_mistakes_are_a_sentence(make: Make, search: str, said: str) -> None:
    with pytest.raises(RecipeError) as found:
        named(make(), [search], ["seed"])
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_a_key_is_searched_once(make: Make) -> None:
    with pytest.raises(RecipeError, match=r"gives train\.lr twice"):
        named(make(), ["train.lr=1..2", "train.lr=3..4"], [])


@pytest.mark.parametrize("name", some_slow(shipped(), QUICK))
def test_the_usual_keys_of_a_recipe_hold_its_own_values(name: str) -> None:
    recipe = load_recipe(name)
    space = usual(recipe, [])
    own = own_values(recipe, space)
    assert own is not None, space
    assert with_values(recipe, own) == recipe
    for key, one in space.items():  # each end by itself is a recipe
        ends = [one.low, one.high] if isinstance(one, Range) else one.values
        assert len(set(ends)) > 1
        for end in ends:
            with_values(recipe, {key: end})
    fixed = next(iter(space))
    assert fixed not in usual(recipe, [fixed])


def test_keys_that_a_recipe_does_not_use_are_left_out(make: Make) -> None:
    assert "train.r_drop" not in usual(make(), [])
    assert usual(make("train.r_drop=4"), [])["train.r_drop"] == Range(1.0, 16.0)
    assert "train.batch_tokens" not in usual(make("train.batch_tokens=auto"), [])
    assert "train.warmup" not in usual(make("train.warmup=0"), [])
    # A pretrained model has its sizes.
    tuned = usual(make("train.start={from: runs/x}"), [])
    assert not {"model.width", "model.encoder.layers"} & {*tuned}
    assert "train.lr" in tuned


def test_own_values_outside_of_the_space(make: Make) -> None:
    recipe = make()
    assert own_values(recipe, {"train.lr": Range(0.001, 0.1)}) == {"train.lr": 0.01}
    assert own_values(recipe, {"train.lr": Range(0.1, 1.0)}) is None
    assert own_values(recipe, {"train.schedule": Choices(("linear", "cosine"))}) is None


def test_values_are_rounded_within_the_range() -> None:
    assert Range(0.0, 1.0).rounded(0.123456) == 0.123
    assert Range(0.0012345, 1.0).rounded(0.0012345) == 0.0012345  # not below its end
    assert Range(1, 9, whole=True).rounded(4) == 4


def test_names_and_values_as_they_are_shown() -> None:
    keys = ["train.lr", "model.encoder.layers", "model.decoder.layers", "seed"]
    assert [*short_names(keys).values()] == ["lr", "encoder.layers", "decoder.layers", "seed"]
    assert [shown(one) for one in (1e-4, 8, "linear", None, {"count": 2}, True)] == [
        *("0.0001", "8", "linear", "null", "{count: 2}", "true")
    ]
