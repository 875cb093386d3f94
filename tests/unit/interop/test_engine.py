"""What another engine runs shows nothing and takes no gates: it says so."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.errors import ModelError
from transduce.inspection.look import look
from transduce.interop.engine import open_model

ENGINES = {
    "onnx": ("ONNX Runtime", ["onnx", "onnxruntime"]),
    "ctranslate2": ("CTranslate2", ["ctranslate2"]),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_an_exported_model_refuses_lens_gates_and_look(kind: str, tmp_path: Path) -> None:
    name, packages = ENGINES[kind]
    for package in packages:
        pytest.importorskip(package)
    importlib.import_module(f"transduce.interop.{kind}").export(tiny(banned=True), tmp_path)
    model = open_model(tmp_path)
    assert model.run(["tea"], min_length=1)[0].ids
    with pytest.raises(ModelError, match=f"{name}.* does not show what it computes; leave out"):
        model.lens("decoder.*.cross")
    with pytest.raises(ModelError, match=f"{name}.* does not take gates; leave out the engine"):
        model.gates()
    with pytest.raises(ModelError, match=f"{name}.* does not show attention"):
        look(model, "tea")
