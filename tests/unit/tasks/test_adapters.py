"""Adapters of trained models: which one is used, by every runtime; their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tiny_models import SOURCES, TARGETS, adapter_state, difference, tiny
from transduce.adapters import AdapterState, adaptable
from transduce.errors import ModelError
from transduce.interop.adapters import merge_folder
from transduce.models.weights import fingerprint_of, weights_of
from transduce.serving.models import open_models
from transduce.tasks.adapter_folder import base_of, is_adapter, read_adapter, write_adapter
from transduce.tasks.members import write_members
from transduce.tasks.transduce import Transducer, load


def save(model: Transducer, folder: Path, state: AdapterState, beneath: Path) -> Path:
    """The folder of an adapter, as training writes it."""
    model.save_definition(folder)
    write_adapter(
        folder, state, base_of(folder, beneath, fingerprint_of(weights_of(model.network)))
    )
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny(banned=True).save(tmp_path / "base")
    return tmp_path / "base"


def opened(folder: Path, **more: str) -> Transducer:
    model = load(folder, **more)  # type: ignore[arg-type]
    assert isinstance(model, Transducer)
    return model


@pytest.fixture
def adapters(base: Path) -> dict[str, Path]:
    model = opened(base)
    return {
        kind: save(model, base.parent / kind, adapter_state(model, seed, kind), base)
        for seed, kind in enumerate(("lora", "dora"))
    }


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_merged_folder_says_what_the_adapter_says(
    base: Path, adapters: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    model = opened(adapters[kind])
    assert difference(model, opened(base)) > 0.05
    merge_folder(adapters[kind], tmp_path / "merged")
    merged = opened(tmp_path / "merged")
    assert difference(model, merged) < 1e-5
    assert not is_adapter(tmp_path / "merged")
    assert merged.recipe.train.adapter is None
    model.use_adapter(None)
    assert difference(model, opened(base)) == 0.0


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_every_runtime_sees_the_chosen_adapter(
    base: Path, adapters: dict[str, Path], precision: str, frozen: bool, tmp_path: Path
) -> None:
    """Steps in C, packed weights, int8: also where weights were said not to change any more."""
    merge_folder(adapters["lora"], tmp_path / "merged")
    texts = {}
    for name, folder in (("base", base), ("lora", tmp_path / "merged")):
        model = opened(folder, precision=precision)
        texts[name] = [(o.text, o.score) for o in model.run(SOURCES, beam=3)]
    assert texts["base"] != texts["lora"]
    model = opened(base, precision=precision)
    if frozen:
        model.freeze()
    model.add_adapter(adapters["lora"], "first")
    for name, chosen in (("base", None), ("lora", "first"), ("base", None), ("lora", "first")):
        outputs = model.use_adapter(chosen).run(SOURCES, beam=3)
        assert [o.text for o in outputs] == [text for text, _ in texts[name]], chosen
        scores = [score for _, score in texts[name]]
        assert [o.score for o in outputs] == pytest.approx(scores, abs=1e-4)


def test_a_lens_sees_the_adapted_weights(base: Path, adapters: dict[str, Path]) -> None:
    model = opened(base)
    seen = {}
    for name in (None, "lora"):
        if name:
            model.add_adapter(adapters[name])
        with model.use_adapter(name).lens("decoder.*cross*") as lens:
            model.score(SOURCES[:1], TARGETS[:1])
        seen[name] = next(iter(lens[0].weights.values()))
    assert abs(seen[None] - seen["lora"]).max() > 1e-3


def test_an_adapter_for_a_while(base: Path, adapters: dict[str, Path]) -> None:
    model, plain = opened(base), opened(base)
    with model.adapter(adapters["dora"]) as same:
        assert same is model
        assert difference(model, opened(adapters["dora"])) < 1e-6
        with model.adapter(adapters["lora"]):
            assert difference(model, opened(adapters["lora"])) < 1e-6
        assert difference(model, opened(adapters["dora"])) < 1e-6
    assert difference(model, plain) == 0.0
    assert fingerprint_of(weights_of(model.network)) == fingerprint_of(weights_of(plain.network))


def test_an_adapted_model_leaves_the_models_of_its_folder_out(
    base: Path, adapters: dict[str, Path]
) -> None:
    """They were not trained for what the adapter is for."""
    alone = opened(base)
    tiny(banned=True, seed=5).save(base / "seed-2")
    write_members(base, [base / "seed-2"])
    together, (name, place) = opened(base), next(iter(adapters.items()))
    before = [output.score for output in together.run(SOURCES)]
    assert before != [output.score for output in alone.run(SOURCES)]
    with alone.adapter(place), together.adapter(place):
        expected = alone.run(SOURCES)
        found = together.run(SOURCES)
    assert [output.score for output in found] == [output.score for output in expected], name
    assert [output.score for output in together.run(SOURCES)] == before


def test_unknown_names_are_reported(base: Path, adapters: dict[str, Path]) -> None:
    model = opened(base)
    with pytest.raises(ModelError, match="there are none: add it with add_adapter"):
        model.use_adapter("medical")
    model.add_adapter(adapters["lora"], "medical")
    with pytest.raises(ModelError, match="did you mean medical"):
        model.use_adapter("medcal")


def test_another_model_shares_what_the_adapter_leaves_alone(
    base: Path, adapters: dict[str, Path]
) -> None:
    model = opened(base)
    other = model.with_adapter(adapters["lora"])
    own, theirs = weights_of(model.network), weights_of(other.network)
    shared = {name for name in own if own[name].data_ptr() == theirs[name].data_ptr()}
    touched = {p.parameter for p in adaptable(model.network).values()} | {"head.bias"}
    assert shared == set(own) - touched
    assert difference(model, opened(base)) == 0.0
    assert difference(other, opened(adapters["lora"])) < 1e-6


def test_the_base_may_move_with_it_or_be_given(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    expected = opened(adapters["lora"])
    place = tmp_path / "elsewhere"
    place.mkdir()
    shutil.move(base, place / "base")
    with pytest.raises(ModelError, match="which is not there any more; say where it is: --base"):
        load(adapters["lora"])
    moved = load(adapters["lora"], base=place / "base")
    assert isinstance(moved, Transducer)
    assert difference(moved, expected) == 0.0
    shutil.move(adapters["lora"], place / "lora")  # both are side by side again
    assert difference(opened(place / "lora"), expected) == 0.0


def test_other_weights_than_it_was_trained_on_are_refused(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    other = tiny(seed=4, banned=True)
    other.save(tmp_path / "other")
    with pytest.raises(ModelError, match="trained on other weights"):
        load(adapters["lora"], base=tmp_path / "other")
    tiny({"feed_forward": 8}).save(tmp_path / "narrow")
    with pytest.raises(ModelError, match=r"does not fit this model: .*contract needs 2 x 8"):
        load(adapters["lora"], base=tmp_path / "narrow")
    with pytest.raises(ModelError, match="whole model, not an adapter"):
        load(base, base=base)
    with pytest.raises(ModelError, match="whole model, not an adapter"):
        other.add_adapter(base)
    with pytest.raises(ModelError, match="already holds a model"):
        merge_folder(adapters["lora"], base)


def test_a_damaged_adapter_is_reported(base: Path, adapters: dict[str, Path]) -> None:
    path = adapters["lora"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    with pytest.raises(Exception, match=r"damaged|checksum"):
        read_adapter(adapters["lora"])


def test_adapters_are_served_under_their_own_names(base: Path, adapters: dict[str, Path]) -> None:
    catalogue = open_models([f"plain={base}"], "cpu", adapters=[f"med={adapters['lora']}"])
    assert list(catalogue) == ["plain", "med"]
    for name, folder in (("plain", base), ("med", adapters["lora"])):
        said = [o.text for o in catalogue[name].model.run(SOURCES)]
        assert said == [o.text for o in opened(folder).run(SOURCES)]
    own, theirs = (weights_of(one.model.network) for one in catalogue.values())
    assert own["front.table.weight"].data_ptr() == theirs["front.table.weight"].data_ptr()
    with pytest.raises(ModelError, match="two models are called plain"):
        open_models([f"plain={base}"], "cpu", adapters=[f"plain={adapters['lora']}"])
    tiny(seed=4).save(base.parent / "other")
    with pytest.raises(ModelError, match="trained on other weights"):
        open_models([str(base.parent / "other")], "cpu", adapters=[str(adapters["lora"])])


def test_the_folder_is_small_and_names_its_base(base: Path, adapters: dict[str, Path]) -> None:
    read = read_adapter(adapters["dora"])
    assert read.base is not None
    assert (read.base.folder, read.base.beside) == (str(base), "../base")
    assert read.base.fingerprint == fingerprint_of(weights_of(opened(base).network))
    again = json.loads(json.dumps(read.base.__dict__))
    assert again["fingerprint"] == read.base.fingerprint
