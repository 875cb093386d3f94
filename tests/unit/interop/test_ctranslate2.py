"""CTranslate2 says what our network says, whatever the shape, and is asked as our search is."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import optional
from tiny_models import SOURCES, difference, tiny
from transduce.errors import ModelError, load_package
from transduce.interop.ctranslate2 import export
from transduce.interop.ctranslate2_translator import BATCHES, MAX_TOKENS, MIN_TOKENS, Translator
from transduce.interop.engine import open_model
from transduce.tasks.transduce import Transducer

optional.skip_without("ctranslate2")

ACTIVATIONS = ["relu", "gelu", "swiglu"]
POSITIONS = ["sinusoidal", "fourier", "learned", "rotary", "none"]


def exported(model: Transducer, folder: Path, quantize: str | None = None) -> Transducer:
    export(model, folder / "export", quantize)
    return open_model(folder / "export")


def texts(model: Transducer, **settings: Any) -> list[str]:
    return [output.text for output in model.run(SOURCES, **settings)]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_shape_says_the_same(tmp_path: Path, activation: str, positions: str) -> None:
    shapes = list(itertools.product(["layer", "rms"], ["pre", "post"]))
    odd = (ACTIVATIONS.index(activation) + POSITIONS.index(positions)) % 2
    for number in (0, 3) if odd else (1, 2):
        norm, norm_position = shapes[number]
        part = {
            "activation": activation,
            "positions": positions,
            "norm": norm,
            "norm_position": norm_position,
        }
        model = tiny(part, part, tie_embeddings=["all", "target", "none"][number % 3], seed=number)
        other = exported(model, tmp_path / str(number))
        assert difference(model, other) < 1e-4
        assert texts(model, beam=1) == texts(other, beam=1)


@pytest.mark.parametrize(
    "part",
    [
        {"activation": "gelu_tanh", "norm_epsilon": 0.05, "positions": "learned"},
        {"activation": "geglu", "norm": "rms", "norm_epsilon": 0.05},
        {"activation": "geglu_tanh", "norm": "rms", "positions": "rotary", "rotary_base": 50.0},
    ],
)
def test_parts_as_other_toolkits_have_them(tmp_path: Path, part: dict[str, Any]) -> None:
    model = tiny(part, part)
    other = exported(model, tmp_path)
    assert difference(model, other) < 1e-4
    assert texts(model, beam=1) == texts(other, beam=1)


def test_sources_whose_end_is_not_read(tmp_path: Path) -> None:
    model = tiny(source_end=False)
    other = exported(model, tmp_path)
    filled = [source for source in SOURCES if source]  # CTranslate2 reads no empty source at all
    ours, theirs = (one.score(filled, filled) for one in (model, other))
    for one, two in zip(ours, theirs, strict=True):
        assert one.token_log_probabilities == pytest.approx(two.token_log_probabilities, abs=1e-4)
    assert [o.text for o in model.run(filled, beam=1)] == [
        o.text for o in other.run(filled, beam=1)
    ]
    # it matters: the same weights, but the end is read
    read = tiny()
    read.network.load_state_dict(model.network.state_dict())
    assert difference(model, read) > 1e-3


@pytest.mark.parametrize(
    ("encoder", "decoder", "reason"),
    [({"head_width": 4}, {}, "head_width: 4"), ({"norm_epsilon": 0.1}, {}, "one epsilon")],
)
def test_what_it_has_no_equal_of(
    tmp_path: Path, encoder: dict[str, Any], decoder: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        export(tiny(encoder, decoder), tmp_path / "export")


def test_encoder_and_decoder_may_differ(tmp_path: Path) -> None:
    model = tiny(
        {"norm": "rms", "activation": "gelu", "layers": 1, "positions": "none"},
        {"positions": "rotary", "heads": 4, "feed_forward": 32, "norm_position": "post"},
    )
    assert difference(model, exported(model, tmp_path)) < 1e-4


def test_small_numbers_meet_the_same_epsilon(tmp_path: Path) -> None:
    """Embeddings so small that the norm's epsilon decides."""
    part = {"norm": "rms", "positions": "rotary"}
    model = tiny(part, {**part, "norm": "layer"})
    with torch.no_grad():
        model.network.front.table.weight.mul_(1e-3)
        model.network.decoder.embedding.table.weight.mul_(1e-3)
    assert difference(model, exported(model, tmp_path)) < 1e-4


@pytest.mark.parametrize(
    "asked",
    [
        {"no_repeat_ngram": 2},
        {"min_length": 6},
        {"prefix": "tea"},
        {"prefix": ["tea", "", "", "a cup", "o", "z"]},
        {"exclude": ["te", "o"]},
        {"exclude": [["o"], [], ["a"], ["e", "z"], [], ["o"]]},
        {"only": ["tea", "cup"]},
        {"unknown": False},
        {"beam": 3, "length_penalty": 0.0},
    ],
    ids=str,
)
def test_wishes_are_kept_and_scores_are_the_models(tmp_path: Path, asked: dict[str, Any]) -> None:
    model = tiny(banned=True, seed=1)
    with torch.no_grad():
        model.network.head.bias[3] += 2.0  # END, so that sentences end before their limits
    other = exported(model, tmp_path)
    ours, theirs = (m.run(SOURCES, **{"beam": 1, **asked}) for m in (model, other))
    capacity = [int((len(source) + 1) * 1.5) + 3 for source in SOURCES]
    assert any(0 < len(o.tokens) < limit for o, limit in zip(ours, capacity, strict=True))
    assert [o.tokens for o in ours] == [o.tokens for o in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one.log_probability == pytest.approx(two.log_probability, abs=1e-4)
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_what_may_not_be_written_is_not(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.network.head.bias[:3] += 4.0  # PAD, UNKNOWN, BEGIN
    other = exported(model, tmp_path)
    for settings in ({"beam": 1}, {"beam": 3, "nbest": 3}, {"sample": True, "nbest": 4}):
        for output in other.run(SOURCES, **settings):
            for one in output.alternatives or [output]:
                assert not {"<pad>", "<s>"} & set(one.tokens)
    assert texts(model, beam=1) == texts(other, beam=1)


def test_a_beam_is_ranked_by_our_rule(tmp_path: Path) -> None:
    model = tiny(banned=True)
    other = exported(model, tmp_path)
    for output in other.run(SOURCES, beam=4, nbest=4, length_penalty=2.0):
        scores = [one.score for one in output.alternatives]
        assert scores == sorted(scores, reverse=True)
        for one in output.alternatives:
            weight = ((5 + len(one.tokens)) / 6) ** 2.0
            assert one.score == pytest.approx(one.log_probability / weight)


def test_no_output_is_longer_than_its_limit(tmp_path: Path) -> None:
    """Neighbours in a batch share CTranslate2's one limit; ours is each sentence's own."""
    model = tiny(decode={"beam": 3, "max_ratio": 1.0, "max_extra": 1}, banned=True)
    with torch.no_grad():
        model.network.head.bias[3] -= 20.0  # END
    other = exported(model, tmp_path)
    for beam in (1, 3):
        for source, output in zip(SOURCES, other.run(SOURCES, beam=beam), strict=True):
            assert len(output.tokens) == (len(source) + 2 if source else 0)
    assert texts(model, beam=1) == texts(other, beam=1)


@pytest.mark.parametrize("asked", [{}, {"exclude": ["o"]}, {"prefix": "tea"}], ids=str)
def test_greedy_outputs_are_the_same_without_scores(tmp_path: Path, asked: dict[str, Any]) -> None:
    other = exported(tiny(banned=True), tmp_path)
    scored = other.run(SOURCES, beam=1, **asked)
    plain = other.run(SOURCES, beam=1, scores=False, **asked)
    assert [o.tokens for o in scored] == [o.tokens for o in plain]
    for source, one, two in zip(SOURCES, scored, plain, strict=True):
        assert math.isfinite(one.log_probability)
        assert math.isnan(two.score) == math.isnan(two.log_probability) == bool(source)
        assert source == "" or two.to_json()["score"] is None


@pytest.mark.parametrize(
    ("asked", "costs"),
    [
        ({"beam": 1, "scores": False}, False),
        ({"beam": 1}, True),
        ({"beam": 2, "scores": False}, True),
    ],
)
def test_a_score_is_asked_for_only_where_it_is_needed(
    tmp_path: Path, asked: dict[str, Any], costs: bool
) -> None:
    other = exported(tiny(banned=True), tmp_path)
    engine, seen = other.engine, []
    assert isinstance(engine, Translator)
    real = engine._translator

    class Spy:
        score_batch = staticmethod(real.score_batch)

        def translate_batch(self, *given: Any, **options: Any) -> Any:
            seen.append(options["return_scores"])
            return real.translate_batch(*given, **options)

    engine._translator = Spy()
    other.run(SOURCES, **asked)
    assert set(seen) == {costs}


def test_a_beam_is_ranked_without_scores_too(tmp_path: Path) -> None:
    other = exported(tiny(banned=True), tmp_path)
    for settings in ({"beam": 4, "nbest": 4}, {"beam": 1, "rerank": tiny(seed=4)}):
        scored, plain = (other.run(SOURCES, **settings, scores=scores) for scores in (True, False))
        assert scored == plain
        assert all(math.isfinite(output.score) for output in plain)


@hypothesis.given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=400), workers=st.integers(1, 9)
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_no_worker_has_more_batches_than_another(sizes: list[int], workers: int) -> None:
    translator = Translator.__new__(Translator)
    translator._on_gpu, translator._workers, translator._maximum = False, workers, MAX_TOKENS
    batches = translator._packed(list(range(len(sizes))), sizes)
    assert sorted(place for batch in batches for place in batch) == list(range(len(sizes)))
    several = workers * max(BATCHES, math.ceil(sum(sizes) / (MAX_TOKENS * workers)))
    assert len(batches) <= several
    smallest = [sizes[batch[0]] * (len(batch) + 1) for batch in batches[:-1]]
    assert len(batches) == several or all(tokens > MIN_TOKENS for tokens in smallest)


def test_samples_follow_the_model(tmp_path: Path) -> None:
    model = tiny(banned=True)
    other = exported(model, tmp_path)
    (output,) = other.run(["zuko"], sample=True, nbest=400, temperature=0.7)
    ours = model.run(["zuko"], sample=True, nbest=400, temperature=0.7)[0]
    firsts = [[one.tokens[0] for one in o.alternatives] for o in (output, ours)]
    for token in set(firsts[1]):
        shares = [first.count(token) / 400 for first in firsts]
        assert shares[0] == pytest.approx(shares[1], abs=0.12)  # five deviations
    # Its random numbers are its own: the best of eight samples may be the empty text.
    assert 0 < other.run(["zuko"], mbr="chrf", samples=8)[0].score <= 100


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"include": ["tea"]}, "has no required phrases"),
        ({"beam": 4, "groups": 2}, "has no diverse beam search"),
        ({"coverage_penalty": 0.2}, "does not support coverage_penalty"),
        ({"attention": True}, "does not show attention"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    other = exported(tiny(), tmp_path)
    with pytest.raises(ModelError, match=said):
        other.run(SOURCES, **asked)


def test_no_stream_no_partner_no_weights(tmp_path: Path) -> None:
    other = exported(tiny(), tmp_path)
    with pytest.raises(ModelError, match="does not stream"):
        list(other.stream("tea"))
    with pytest.raises(ModelError, match="does not support ensembles"):
        other.run(SOURCES, ensemble=[tiny()])
    with pytest.raises(ModelError, match="copy the exported folder"):
        other.save(tmp_path / "copy")


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"),
    [
        ({"kind": "recurrent"}, {}, "this model's encoder is recurrent"),
        ({}, {"kind": "recurrent"}, "this model's decoder is recurrent"),
        ({"kind": "convolutional"}, {}, "this model's encoder is convolutional"),
        ({}, {"kind": "convolutional"}, "this model's decoder is convolutional"),
        ({"combine": "concatenate"}, {}, "this model's encoder concatenates"),
    ],
)
def test_what_it_cannot_express_is_refused(
    tmp_path: Path, encoder: dict[str, Any], decoder: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        export(tiny(encoder, decoder), tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("quantize", ["int8", "int8_float32", "float16", "bfloat16"])
def test_quantized_it_is_smaller_and_near(tmp_path: Path, quantize: str) -> None:
    model = tiny()
    sizes = {}
    for kind in (None, quantize):
        other = exported(model, tmp_path / str(kind), kind)
        sizes[kind] = (tmp_path / str(kind) / "export" / "model.bin").stat().st_size
    # Kernels of int8 round differently on different CPUs: the plainest is off by 0.4.
    assert 0 < difference(model, other) < (0.8 if "int8" in quantize else 0.3)
    assert sizes[quantize] < 0.9 * sizes[None]
    with pytest.raises(ModelError, match="quantize is int3; it must be one of int8"):
        export(model, tmp_path / "x", "int3")


def test_a_source_beyond_the_table_is_cut_with_a_warning(tmp_path: Path) -> None:
    model = tiny()
    data = model.recipe.data.model_copy(update={"max_length": 1000})
    model.recipe = model.recipe.model_copy(update={"data": data})
    other = exported(model, tmp_path)
    (output,) = other.run(["a" * 3000], beam=1)
    assert "this model has positions for 2047" in output.warning


def test_a_missing_package_is_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"pip install '\.\[ctranslate2\]'"):
        load_package("no_such_package", "ctranslate2")


def test_a_folder_without_an_export_says_what_to_do(tmp_path: Path) -> None:
    tiny().save(tmp_path / "model")
    with pytest.raises(ModelError, match=r"transduce export .* --to ctranslate2"):
        open_model(tmp_path / "model", "ctranslate2")
    with pytest.raises(ModelError, match="there is no engine abacus"):
        open_model(tmp_path / "model", "abacus")
    assert math.isfinite(open_model(tmp_path / "model").run(["tea"])[0].score)
