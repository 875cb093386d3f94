"""A folder in fewer bits is a model as any other, and says what its rounded weights say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from slow_params import some_slow
from tiny_models import SOURCES, TARGETS, tiny
from transduce.decoding.output import Output
from transduce.errors import CheckpointError, ModelError
from transduce.interop.engine import open_model
from transduce.interop.parity import measure_here
from transduce.interop.quantize import KINDS, export
from transduce.runtime.packed_weight import has_bfloat16
from transduce.storage import read_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.transduce import Transducer

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tied": ({}, {}, "all"),
    "modern": ({"norm": "rms", "activation": "swiglu"}, {"positions": "rotary"}, "target"),
    "untied": ({"positions": "learned"}, {"norm_position": "post"}, "none"),
    "recurrent": ({"kind": "recurrent"}, {"kind": "recurrent"}, "target"),
    "convolutional": ({"kind": "convolutional"}, {"kind": "convolutional"}, "all"),
}


def said(outputs: list[Output]) -> list[tuple[list[str], float, float]]:
    return [(o.tokens, o.score, o.log_probability) for o in outputs]


def rounded(model: Transducer, quantize: str) -> Transducer:
    """The same model with weights that were rounded by hand."""
    with torch.no_grad():
        for weight in model.network.parameters():
            if quantize == "bfloat16":
                weight.copy_(weight.bfloat16())
            elif weight.dim() == 2:
                exact = weight.numpy().copy()
                scale = np.abs(exact).max(axis=1, keepdims=True) / np.float32(127)
                weight.copy_(torch.from_numpy(np.rint(exact / scale) * scale))
    return model


ALL = [(shape, kind) for shape in SHAPES for kind in KINDS]
QUICK = [(shape, list(KINDS)[n % len(KINDS)]) for n, shape in enumerate(list(SHAPES)[::2])]


@pytest.mark.parametrize(("shape", "quantize"), some_slow(ALL, QUICK))
def test_it_says_what_rounded_weights_say(tmp_path: Path, shape: str, quantize: str) -> None:
    encoder, decoder, tie = SHAPES[shape]
    model = tiny(encoder, decoder, tie_embeddings=tie)
    model.save(tmp_path / "whole")
    export(model, tmp_path / "small", quantize)
    few = transduce.load(tmp_path / "small", precision=quantize)
    by_hand = rounded(tiny(encoder, decoder, tie_embeddings=tie), quantize).compute_in(quantize)
    for settings in ({"beam": 1}, {"beam": 3, "nbest": 3}, {"beam": 2, "exclude": ["o"]}):
        assert said(few.run(SOURCES, **settings)) == said(by_hand.run(SOURCES, **settings))
    assert said(few.run(SOURCES)) != said(model.run(SOURCES))  # it is really in fewer bits
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("whole", "small")]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("quantize", KINDS)
def test_the_folder_knows_its_precision(tmp_path: Path, quantize: str) -> None:
    export(tiny(), tmp_path, quantize)
    # Other CPUs would be slower in bfloat16.
    usual = "auto" if quantize == "bfloat16" and not has_bfloat16() else quantize
    assert open_model(tmp_path, device="cpu").precision == usual
    model = transduce.load(tmp_path)
    assert model.precision == usual
    assert transduce.load(tmp_path, precision="float32").precision == "float32"
    assert model.score(SOURCES, TARGETS)
    # Another time, from a folder of fewer bits, nothing more is lost.
    assert isinstance(model, Transducer)
    export(model, tmp_path / "again", quantize)
    first, second = (read_tensors(path / WEIGHTS)[0] for path in (tmp_path, tmp_path / "again"))
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.allclose(tensor.float(), second[name].float(), rtol=1e-6, atol=0)


def test_saved_again_it_is_a_model_of_full_size(tmp_path: Path) -> None:
    export(tiny(), tmp_path / "small", "int8")
    few = transduce.load(tmp_path / "small")
    few.save(tmp_path / "whole")
    whole = transduce.load(tmp_path / "whole")
    assert whole.precision == "auto"
    assert whole.score(SOURCES, TARGETS) == few.score(SOURCES, TARGETS)


@pytest.mark.parametrize("quantize", KINDS)
def test_the_report_compares_what_search_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantize: str
) -> None:
    monkeypatch.setattr("transduce.tasks.transduce.has_bfloat16", lambda: True)
    export(tiny(), tmp_path, quantize)
    model = transduce.load(tmp_path)
    given = ["tea", "zuko"], ["a cup", "uncle"]
    measured = measure_here(tmp_path, None, given, SOURCES).log_probabilities
    full = [score.token_log_probabilities for score in model.score(*given)]
    assert measured != full
    for one, two in zip(measured, full, strict=True):
        assert one == pytest.approx(two, abs=0.2)


@pytest.mark.parametrize("quantize", KINDS)
def test_elsewhere_than_on_a_cpu_it_computes_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantize: str
) -> None:
    export(tiny(), tmp_path, quantize)
    monkeypatch.setattr("transduce.tasks.transduce.pick_device", lambda name: torch.device("meta"))
    assert transduce.load(tmp_path, "cuda").precision == "auto"


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    export(tiny(), tmp_path, "int8")
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-3] + b"abc")
    with pytest.raises(CheckpointError, match="damaged"):
        transduce.load(tmp_path)
    for quantize in (None, "int4", "float32"):
        with pytest.raises(ModelError, match="for native it must be one of bfloat16, int8"):
            export(tiny(), tmp_path / "x", quantize)
    assert not (tmp_path / "x").exists()
