"""The graphs say what our network says, and our search works with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import optional
from slow_params import some_slow
from tiny_models import SOURCES, difference, tiny
from transduce.errors import ModelError
from transduce.interop.engine import open_model
from transduce.interop.onnx import DECODER, export

optional.skip_without("onnx", "onnxruntime")

MODERN = {"norm": "rms", "positions": "rotary", "activation": "swiglu"}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "default": ({}, {}, "target"),
    "post": ({"norm_position": "post"}, {"norm_position": "post", "activation": "gelu"}, "none"),
    "modern": (MODERN, MODERN, "all"),
    "mixed": ({"positions": "learned", "layers": 1}, {"positions": "rotary", "heads": 4}, "target"),
    "concatenated": ({"combine": "concatenate"}, {"combine": "concatenate"}, "target"),
    "no positions": ({"positions": "none"}, {"positions": "none"}, "target"),
    "fourier": ({"positions": "fourier"}, {"positions": "fourier"}, "target"),
}
WISHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 3, "nbest": 3, "prefix": "te", "exclude": ["o"]},
    {"beam": 3, "include": ["tea"]},
    {"beam": 4, "groups": 2, "no_repeat_ngram": 2},
    {"sample": True, "nbest": 2, "top_k": 4},
]


@pytest.mark.parametrize("shape", some_slow(SHAPES, list(SHAPES)[::3]))
def test_every_shape_says_the_same(tmp_path: Path, shape: str) -> None:
    encoder, decoder, tie = SHAPES[shape]
    model = tiny(encoder, decoder, tie_embeddings=tie)
    export(model, tmp_path)
    other = open_model(tmp_path)
    assert difference(model, other) < 1e-4
    for settings in WISHES:
        ours, theirs = model.run(SOURCES, **settings), other.run(SOURCES, **settings)
        assert [o.tokens for o in ours] == [o.tokens for o in theirs]
        assert [o.score for o in ours] == pytest.approx([o.score for o in theirs], abs=1e-4)
    assert "".join(model.stream("zuko")) == "".join(other.stream("zuko"))


def test_another_device_than_the_cpu_is_refused(tmp_path: Path) -> None:
    export(tiny(), tmp_path)
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ModelError, match=f"only on the CPU here, not on {device}"):
            open_model(tmp_path, "onnx", device)
    for device in ("auto", "cpu"):
        assert open_model(tmp_path, "onnx", device).device.type == "cpu"


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    model = tiny()
    model.network.double().train()
    export(model, tmp_path)
    assert model.network.training
    assert next(model.network.parameters()).dtype == torch.float64


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="this model's decoder is recurrent"):
        export(tiny({}, {"kind": "recurrent"}), tmp_path)
    with pytest.raises(ModelError, match="this model's encoder is convolutional"):
        export(tiny({"kind": "convolutional"}, {"kind": "convolutional"}), tmp_path)
    export(tiny(), tmp_path)
    with pytest.raises(ModelError, match="ONNX Runtime does not support coverage_penalty"):
        open_model(tmp_path).run(SOURCES, coverage_penalty=0.2)
    (tmp_path / DECODER).write_bytes(b"not a graph")
    with pytest.raises(ModelError, match="ONNX Runtime cannot load"):
        open_model(tmp_path)
