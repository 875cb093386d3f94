"""g2p-en pronounces as its own code does."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import transduce
from real_weights import real_weights
from transduce.errors import ModelError
from transduce.interop.imports import g2p_en
from transduce.interop.imports.registry import import_model
from transduce.tasks.transduce import Model

Arrays = dict[str, NDArray[np.float32]]


def imported(source: Path, output: Path) -> Model:
    import_model(source, output)
    return transduce.load(output)


def random_arrays(width: int = 12) -> Arrays:
    draw = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"enc_emb": (29, width), "dec_emb": (74, width)}
    for side in ("enc", "dec"):
        shapes |= {f"{side}_w_ih": (3 * width, width), f"{side}_w_hh": (3 * width, width)}
        shapes |= {f"{side}_b_ih": (3 * width,), f"{side}_b_hh": (3 * width,)}
    shapes |= {"fc_w": (74, width), "fc_b": (74,)}
    return {name: draw.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def pronounce(arrays: Arrays, word: str) -> list[int]:
    """The network written out: the ids of at most 20 phones."""

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def cell(x: Any, h: Any, side: str) -> Any:
        from_x = arrays[f"{side}_w_ih"] @ x + arrays[f"{side}_b_ih"]
        from_h = arrays[f"{side}_w_hh"] @ h + arrays[f"{side}_b_hh"]
        (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(from_x, 3), np.split(from_h, 3)
        reset, update = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        return (1 - update) * np.tanh(n_x + reset * n_h) + update * h

    h = np.zeros_like(arrays["enc_b_ih"][: arrays["enc_emb"].shape[1]])
    for letter in [*word, None]:
        unknown = letter is not None and letter not in g2p_en.LETTERS
        number = 2 if letter is None else 1 if unknown else g2p_en.LETTERS.index(letter) + 3
        h = cell(arrays["enc_emb"][number], h, "enc")
    said, last = [], 2
    while len(said) < 20:
        h = cell(arrays["dec_emb"][last], h, "dec")
        last = int((arrays["fc_w"] @ h + arrays["fc_b"]).argmax())
        if last == 3:
            break
        said.append(last)
    return said


def test_random_weights(tmp_path: Path) -> None:
    arrays = random_arrays()
    arrays["fc_b"][3] += 4.0
    arrays["fc_b"][[0, 2]] = -50.0  # padding and begin are never written, as after training
    np.savez(tmp_path / "checkpoint20.npz", **arrays)
    assert g2p_en.recognises(tmp_path)
    model = imported(tmp_path, tmp_path / "model")
    draw = random.Random(5)
    words = ["".join(draw.choices(g2p_en.LETTERS + "'", k=draw.randint(1, 12))) for _ in range(60)]
    outputs = model.run(words)
    assert [output.ids for output in outputs] == [pronounce(arrays, word) for word in words]
    assert len({output.text for output in outputs}) > 20
    assert {len(output.ids) for output in outputs} & set(range(20)), "some end by themselves"
    assert model("TEA") == model("tea")


def its_own_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the package itself, with no dictionary to ask first."""
    stubs: dict[str, dict[str, Any]] = {
        "nltk": {"pos_tag": None, "data": SimpleNamespace(find=lambda name: name)},
        "nltk.corpus": {"cmudict": SimpleNamespace(dict=dict)},
        "nltk.tokenize": {"TweetTokenizer": lambda: SimpleNamespace(tokenize=str.split)},
        "inflect": {"engine": lambda: None},
    }
    for name, values in stubs.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("expand", "g2p"):
        spec = importlib.util.spec_from_file_location(f"g2p_en.{name}", package / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"g2p_en.{name}", module)
        spec.loader.exec_module(module)
    return module.G2p()


def test_300_words_as_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = real_weights("g2p_en")
    monkeypatch.setitem(sys.modules, "g2p_en", ModuleType("g2p_en"))
    theirs = its_own_code(package, monkeypatch)
    draw = random.Random(6)
    words = sorted(word for word in theirs.homograph2features if word.isalpha())[:150]
    words += ["".join(draw.choices(g2p_en.LETTERS, k=draw.randint(2, 14))) for _ in range(150)]
    model = imported(package, tmp_path / "model")
    assert len(words) == 300
    said = [output.text.split() for output in model.run(words)]
    assert said == [theirs.predict(word) for word in words]


def test_what_is_not_g2p_en(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, weights=np.ones(3))
    assert not g2p_en.recognises(path)
    arrays = random_arrays()
    np.savez(path, **(arrays | {"enc_w_hh": np.ones((3, 3), np.float32)}))
    with pytest.raises(ModelError, match=r"enc_w_hh is \[3, 3\]"):
        g2p_en.read(path)
    np.savez(path, **arrays, another=np.ones(3, np.float32))
    with pytest.raises(ModelError, match=r"another .* no place for"):
        g2p_en.read(path)
    np.savez(path, **(arrays | {"fc_b": np.ones(74, np.complex64)}))
    with pytest.raises(ModelError, match="float32"):
        g2p_en.read(path)


def test_pickles_in_it_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint20.npz"
    arrays: dict[str, Any] = {**random_arrays(), "fc_b": np.array([print], dtype=object)}
    np.savez(path, **arrays)
    with pytest.raises(ModelError, match="damaged"):
        import_model(path, tmp_path / "model")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"damaged|no format"):
        import_model(path, tmp_path / "model")
