"""A folder in fewer bits says what the model says with that precision, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from tiny_models import SOURCES, TARGETS, tiny
from transduce.decoding.output import Output
from transduce.errors import CheckpointError, ModelError
from transduce.folder import WEIGHTS
from transduce.interop.engine import open_model
from transduce.interop.measure import measure_here
from transduce.interop.native import export
from transduce.nn.quantized import KINDS, has_bfloat16
from transduce.storage import read_tensors, write_tensors

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tied": ({}, {}, "all"),
    "modern": ({"norm": "rms", "activation": "swiglu"}, {"positions": "rotary"}, "target"),
    "untied": ({"positions": "learned"}, {"norm_position": "post"}, "none"),
    "recurrent": ({"kind": "recurrent"}, {"kind": "recurrent"}, "target"),
}


def said(outputs: list[Output]) -> list[tuple[list[str], float, float]]:
    return [(o.tokens, o.score, o.log_probability) for o in outputs]


@pytest.mark.parametrize("quantize", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_says_what_the_precision_says(tmp_path: Path, shape: str, quantize: str) -> None:
    encoder, decoder, tie = SHAPES[shape]
    model = tiny(encoder, decoder, tie=tie)
    model.save(tmp_path / "whole")
    export(model, tmp_path / "small", quantize)
    few = transduce.load(tmp_path / "small", precision=quantize)
    again = transduce.load(tmp_path / "whole", precision=quantize)
    for settings in ({"beam": 1}, {"beam": 3, "nbest": 3}, {"beam": 2, "exclude": ["o"]}):
        assert said(few.run(SOURCES, **settings)) == said(again.run(SOURCES, **settings))
    assert said(few.run(SOURCES)) != said(model.run(SOURCES))  # it is really in fewer bits
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("whole", "small")]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("quantize", KINDS)
def test_the_folder_knows_its_precision(tmp_path: Path, quantize: str) -> None:
    export(tiny(), tmp_path, quantize)
    usual = "auto" if quantize == "bfloat16" and not has_bfloat16() else quantize
    assert open_model(tmp_path, device="cpu").precision == usual
    assert transduce.load(tmp_path).precision == usual
    assert transduce.load(tmp_path, precision="float32").precision == "float32"
    assert transduce.load(tmp_path).score(SOURCES, TARGETS)
    # Another time, from a folder of fewer bits, nothing more is lost.
    export(transduce.load(tmp_path), tmp_path / "again", quantize)
    first, second = (read_tensors(path / WEIGHTS)[0] for path in (tmp_path, tmp_path / "again"))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_report_compares_what_search_computes(tmp_path: Path) -> None:
    export(tiny(), tmp_path, "int8")
    model = transduce.load(tmp_path)
    given = ["tea", "zuko"], ["a cup", "uncle"]
    measured = measure_here(tmp_path, None, given, SOURCES).log_probabilities
    full = [score.token_log_probabilities for score in model.score(*given)]
    assert measured != full
    for one, two in zip(measured, full, strict=True):
        assert one == pytest.approx(two, abs=0.2)


def test_an_int8_folder_computes_elsewhere_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(tiny(), tmp_path, "int8")
    monkeypatch.setattr("transduce.transducer.pick_device", lambda name: torch.device("meta"))
    assert transduce.load(tmp_path, "cuda").precision == "auto"


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    export(tiny(), tmp_path, "int8")
    tensors, facts = read_tensors(tmp_path / WEIGHTS)
    name = "front.table.weight"
    del tensors[f"{name}.scale"]
    write_tensors(tmp_path / WEIGHTS, tensors, facts)
    with pytest.raises(ModelError, match=f"no scales for the rows of {name}"):
        transduce.load(tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-3] + b"abc")
    with pytest.raises(CheckpointError, match="damaged"):
        transduce.load(tmp_path)
    with pytest.raises(ModelError, match="for native it must be one of bfloat16, int8"):
        export(tiny(), tmp_path / "x", "int4")
    assert not (tmp_path / "x").exists()
