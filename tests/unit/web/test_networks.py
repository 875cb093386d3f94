"""Models as WebAssembly, in Node: the same outputs and scores as in Python."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from language import LSTM, language_model
from node import MISSING, NODE, RUNTIME, relaxed_flags, run_module
from slow_params import some_slow
from tiny_label_networks import FILMS, SENTENCES, classifier, tagger
from tiny_models import SOURCES, tiny
from transduce.data.tokens.tokenizer import END
from transduce.errors import ModelError
from transduce.inspection.look.collect import collect, unpacked
from transduce.interop.quantize import export as quantized
from transduce.runtime import library
from transduce.tasks.transduce import Transducer, load
from transduce.web.export import model_bytes

ROOT = Path(__file__).parents[3]
with_node = pytest.mark.skipif(NODE is None, reason=MISSING)
RUN = """
import { load } from "RUNTIME/index.js";
const found = [];
for (const name of given.names) {
  const model = await load(name);
  found.push(given.options.map((options) => given.sources.map((source) => {
    const output = model.run(source, options);
    const { steps } = model.explain(source, output.ids);
    return {
      ids: output.ids,
      text: output.text,
      score: output.score,
      total: output.logProbability,
      sum: steps.reduce((sum, step) => sum + step.logProbability, 0),
      nbest: output.alternatives.map((one) => one.ids),
      attention: steps.map(({ attention }) =>
        attention.map((layer) => layer.map((head) => Array.from(head)))),
    };
  })));
}
answer(found);
"""
WIDE = {"beam": 5, "nbest": 3}
RECURRENT, CONVOLUTIONAL = {"kind": "recurrent"}, {"kind": "convolutional"}
LABEL = """
import { load } from "RUNTIME/index.js";
const found = [];
for (const name of given.names) {
  const model = await load(name);
  found.push(given.sources.map((source) => model.run(source, { nbest: 2 })));
}
answer(found);
"""


def recurrent(**changes: Any) -> Transducer:
    """A recurrent encoder-decoder; changes: of the decoder, of both their cells, of the encoder."""
    cell = changes.pop("cell", "gru")
    of_encoder = {"kind": "recurrent", "cell": cell, "layers": 2, "bidirectional": True}
    of_encoder |= {
        name: changes.pop(name) for name in ("reverse", "bidirectional") if name in changes
    }
    skip = changes.pop("skip", False)
    model = {
        "width": 16,
        "tie_embeddings": "none",
        "encoder": {**of_encoder, "skip": skip},
        "source_end": changes.pop("source_end", True),
    }
    parts = {name: changes.pop(name) for name in ("tags", "data", "decode") if name in changes}
    model["decoder"] = {"kind": "recurrent", "cell": cell, "layers": 2, "skip": skip, **changes}
    return tiny(RECURRENT, RECURRENT, model=model, **parts)


def pre_norm(**changes: Any) -> Transducer:
    return tiny(changes, changes)


def distances(**changes: Any) -> Transducer:
    """With T5's bias of attention by distance, drawn so that it matters."""
    model = pre_norm(positions="relative", norm="rms", **changes)
    for part in (model.network.encoder, model.network.decoder):
        torch.nn.init.normal_(part.stack[0].self_attention.relative.table_RH, std=2.0)
    return model


def conformer(**changes: Any) -> Transducer:
    model = {
        "width": 16,
        "encoder": {"kind": "conformer", "layers": 2, "heads": 2, "feed_forward": 24, "kernel": 3}
        | changes,
        "decoder": {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 24},
    }
    return tiny(model=model)


MODELS: dict[str, Callable[[], Transducer]] = {
    "transformer": lambda: tiny(),
    "post-norm": lambda: pre_norm(norm_position="post", activation="gelu"),
    "rotary rms swiglu": lambda: pre_norm(positions="rotary", norm="rms", activation="swiglu"),
    "learned silu": lambda: pre_norm(positions="learned", max_positions=300, activation="silu"),
    "fourier": lambda: pre_norm(positions="fourier", max_positions=300),
    "tied, no source end": lambda: tiny(tie_embeddings="all", source_end=False),
    "gru additive": lambda: recurrent(attention="additive", context="output"),
    "lstm general in both": lambda: recurrent(cell="lstm", attention="general", context="both"),
    "peepholes scaled": lambda: recurrent(cell="lstm-peephole", attention="scaled-dot"),
    "elman cosine input": lambda: recurrent(cell="elman", attention="cosine", context="input"),
    "skip location": lambda: recurrent(skip=True, attention="location", max_positions=300),
    "fixed context, reversed": lambda: recurrent(
        cell="lstm", attention="none", bidirectional=False, reverse=True
    ),
    "bridge": lambda: tiny({}, RECURRENT),
    "conformer": lambda: conformer(positions="rotary"),
    "conformer, relative": lambda: conformer(positions="relative"),
    "by distance": lambda: distances(relative_buckets=8, relative_distance=6),
    "concatenated": lambda: pre_norm(combine="concatenate"),
    "location-aware, input": lambda: recurrent(
        cell="lstm", attention="location-aware", context="input", location_kernel=5
    ),
    "location-aware, output": lambda: recurrent(attention="location-aware", location_kernel=9),
    "copying": lambda: tiny({}, {"copying": True}),
    "copying, recurrent": lambda: recurrent(attention="additive", context="both", copying=True),
    "convolutional": lambda: tiny(CONVOLUTIONAL, CONVOLUTIONAL),
    "convolutional decoder": lambda: tiny({}, CONVOLUTIONAL),
}


@with_node
@pytest.mark.parametrize("asked", some_slow([{}, {"beam": 1}, WIDE], [WIDE]))
def test_outputs_and_scores_are_those_of_python(tmp_path: Path, asked: dict[str, Any]) -> None:
    models = {name: make() for name, make in MODELS.items()}
    for number, model in enumerate(models.values()):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    names = [f"{number}.bin" for number in range(len(models))]
    given = {"names": names, "sources": SOURCES, "options": [asked]}
    found = run_module(tmp_path, RUN, given)
    for (name, model), [answers] in zip(models.items(), found, strict=True):
        outputs = model.run(SOURCES, **asked)
        for source, output, answer in zip(SOURCES, outputs, answers, strict=True):
            where = (name, source)
            assert answer["ids"] == list(output.ids), where
            assert answer["text"] == output.text, where
            assert answer["score"] == pytest.approx(output.score, rel=1e-6, abs=1e-4), where
            if source:
                assert answer["sum"] == pytest.approx(answer["total"], rel=1e-6, abs=1e-4), where
            nbest = [list(one.ids) for one in output.alternatives] or [list(output.ids)]
            assert answer["nbest"] == nbest, where


READ_APART: dict[str, dict[str, Any]] = {
    "output": {"attention": "general"},
    "both, copying": {"context": "both", "copying": True},
    "bridge, reversed": {"layers": 1, "reverse": True, "bidirectional": False},
    "location-aware": {"attention": "location-aware", "location_kernel": 5, "copying": True},
    "no source end": {"source_end": False, "cell": "elman"},
}
TAGGED = [
    *("<PL> <ACC> zuko", "<ACC;PL> e tea", "<SG> uncle", "iroh made tea", "<PL>", "<ACC+SG> tea"),
    *("<XX> tea", "<ACC+XX> a cup", "tea <PL> a", "<PL> été x", ""),
]


def reads_tags(**changes: Any) -> Transducer:
    """A recurrent model of which the decoder reads the tags. Its beams end where nothing can become
    better, later than with their first hypothesis that ends."""
    corpus = {"file": "a.tsv", "tags": 2}
    data = {"train": corpus, "valid": corpus, "tokens": {"both": {"level": "character"}}}
    rules = {"beam": 3, "patience": None, "length_penalty": 3.0, "max_ratio": 1.5, "max_extra": 3}
    model = recurrent(
        tag_attention=True,
        tags=["PL", "SG", "ACC", "?"],
        data={**data, "unknown_tags": 0.1, "split_tags": True},
        decode=rules,
        **changes,
    )
    model.network.head.bias.data[END] += 1.5
    return model


@with_node
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_tags_that_the_decoder_reads(tmp_path: Path, int8: bool) -> None:
    models = [reads_tags(**changes) for changes in READ_APART.values()]
    for number, model in enumerate(models):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model, int8=int8))
        if int8:
            (tmp_path / f"int8-{number}").mkdir()
            quantized(model, tmp_path / f"int8-{number}", "int8")
            models[number] = load(tmp_path / f"int8-{number}")
    options = [{"beam": 1}, {}]
    names = [f"{number}.bin" for number in range(len(models))]
    given = {"names": names, "sources": TAGGED, "options": options}
    found = run_module(tmp_path, RUN, given)
    for name, model, each in zip(READ_APART, models, found, strict=True):
        for asked, answers in zip(options, each, strict=True):
            outputs = model.run(TAGGED, **asked)
            for source, output, answer in zip(TAGGED, outputs, answers, strict=True):
                where = (name, source, asked)
                assert answer["ids"] == list(output.ids), where
                assert answer["text"] == output.text, where
                assert answer["score"] == pytest.approx(output.score, rel=1e-6, abs=1e-4), where
                if source:
                    assert answer["sum"] == pytest.approx(answer["total"], abs=1e-4), where
        assert len({output.text for output in outputs}) > 3, name
        [output] = model.run(TAGGED[:1], attention=True)
        assert output.attention is not None
        attention = torch.tensor(each[1][0]["attention"]).permute(1, 2, 0, 3)
        expected = torch.tensor(output.attention[..., : attention.shape[3]])
        torch.testing.assert_close(attention, expected, atol=1e-5, rtol=0)
        assert attention[1, :, :, :2].sum() > 0.99 * attention.shape[2]  # the second is to the tags


@with_node
def test_tags_are_given_as_an_option(tmp_path: Path) -> None:
    model = reads_tags(attention="general")
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = """
import { load } from "RUNTIME/index.js";
import { lookAt } from "RUNTIME/look.js";
const model = await load("model.bin");
const said = (text, tags) => {
  try { return model.run(text, { tags }); } catch (error) { return { text: error.message }; }
};
const { look } = lookAt(model, "tea", { tags: ["ACC;PL"] });
const asked = [["tea", ["ACC;PL"]], ["tea", ["ACC", "SG+PL"]], ["tea", ["ACC;XX"]], ["", ["PL"]]];
const outputs = [...asked, ["tea"], ["<XX> tea"]].map((one) => said(...one));
const texts = outputs.map(({ text, warning }) => [text, warning]);
answer([...texts, look.source, look.axes.source, look.attention.map((one) => one.kind)]);
"""
    found = run_module(tmp_path, script, None)
    outputs = model.run(["<ACC;PL> tea", "<ACC> <SG+PL> tea"])
    assert [text for text, _ in found[:2]] == [output.text for output in outputs]
    assert found[2][0] == "The model has no tag ACC;XX: its tags are ACC, PL, SG."
    assert found[3][0] == ""
    assert [warning for _, warning in found[:2]] == ["", ""]
    assert found[4][1] == "The input has no tag, but all in training had one or more."
    assert found[5][1].startswith("The input has a tag that training does not have")
    look = collect(model, "<ACC> <PL> tea")
    kinds = [one["kind"] for one in look["attention"]]
    assert kinds == ["cross", "tags"]
    assert found[6:] == [look["source"], look["axes"]["source"], kinds]


@with_node
def test_letters_that_no_vocabulary_has_are_copied(tmp_path: Path) -> None:
    model = tiny({}, {"copying": True})
    gate = model.network.pointer.gate  # type: ignore[attr-defined]
    torch.nn.init.constant_(gate.bias, -6.0)
    torch.nn.init.zeros_(gate.weight)
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    sources = ["été", "x", "tea ß ü ß"]
    given = {"names": ["model.bin"], "sources": sources, "options": [{"beam": 4}]}
    [[answers]] = run_module(tmp_path, RUN, given)
    for answer, output in zip(answers, model.run(sources, beam=4), strict=True):
        assert answer["text"] == output.text
        assert answer["score"] == pytest.approx(output.score, abs=1e-4)
    assert any(set("éßxü") & set(answer["text"]) for answer in answers)


@with_node
def test_language_models_continue_as_in_python(tmp_path: Path) -> None:
    convolutional = {"kind": "convolutional", "layers": 2, "kernel": 3}
    models = [
        language_model(),
        language_model(lines="apart"),
        language_model(decoder=LSTM),
        language_model(decoder=convolutional),
        language_model(decoder={"heads": 2, "feed_forward": 16, "positions": "rotary"}),
    ]
    prompts = ["", "tea", "uncle iroh made a cup", "zuko é"]  # some are longer than the window
    for number, model in enumerate(models):
        model.network.float()
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    names = [f"{number}.bin" for number in range(len(models))]
    options = [{"beam": 1}, {"beam": 3, "nbest": 2, "maxLength": 5}]
    script = """
import { load } from "RUNTIME/index.js";
const found = [];
for (const name of given.names) {
  const model = await load(name);
  found.push(given.options.map((options) => given.prompts.map((prompt) => {
    try { return model.run(prompt, options); } catch (error) { return error.message; }
  })));
}
answer(found);
"""
    given = {"names": names, "prompts": prompts, "options": options}
    for model, (greedy, beam) in zip(models, run_module(tmp_path, script, given), strict=True):
        for prompt, answer, output in zip(prompts, greedy, model.run(prompts), strict=True):
            assert answer["text"] == output.text, prompt
            assert answer["ids"] == list(output.ids)
            assert answer["score"] == pytest.approx(output.score, abs=1e-4)
        assert greedy[3]["warning"] == "Not in the vocabulary: é."
        for prompt, answer in zip(prompts, beam, strict=True):
            if isinstance(answer, str):
                assert len(prompt) > 3
                assert "choose greedy search or sampling" in answer
                continue
            [output] = model.run([prompt], beam=3, nbest=2, max_length=4)
            assert [one["text"] for one in answer["alternatives"]] == [
                one.text for one in output.alternatives
            ]
            assert answer["score"] == pytest.approx(output.score, abs=1e-4)


@with_node
def test_samples_have_the_distribution_of_the_model(tmp_path: Path) -> None:
    """The first token of many samples, against softmax with a temperature, top-k and top-p."""
    model, count = tiny(banned=True), 2000
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"topK": 4}, {"topP": 0.6}]
    script = """
import { load } from "RUNTIME/index.js";
const model = await load("model.bin");
answer(given.kinds.map((kind) => {
  const counts = {};
  const options = { sample: true, maxLength: 2, nbest: given.count, ...kind };
  const { alternatives, score } = model.run("tea", options);
  const before = (place) => alternatives[Math.max(0, place - 1)].score;
  const ordered = alternatives.every(({ score }, place) => score <= before(place));
  if (!ordered || score !== alternatives[0].score) throw new Error("the best is not first");
  for (const { ids: [id = 3] } of alternatives) counts[id] = (counts[id] ?? 0) + 1;
  return counts;
}));
"""
    found = run_module(tmp_path, script, {"kinds": kinds, "count": count})
    with model.lens("next_token", top=len(model.target_tokens)) as lens:
        model.run(["tea"], beam=1)
    assert lens[0].next_tokens is not None
    ids = lens[0].next_tokens.ids[0]
    p = np.asarray(lens[0].next_tokens.probabilities[0], dtype=np.float64)
    expected = [
        p,
        p**2,
        np.where(np.arange(len(p)) < 4, p, 0),
        np.where(p.cumsum() - p < 0.6, p, 0),
    ]
    for counts, weights in zip(found, expected, strict=True):
        seen = np.array([counts.get(str(one), 0) for one in ids]) / count
        np.testing.assert_allclose(seen, weights / weights.sum(), atol=0.05)
        assert not seen[weights == 0].any()


@with_node
def test_attention_is_that_of_python(tmp_path: Path) -> None:
    for number, name in enumerate(("transformer", "gru additive")):
        model = MODELS[name]()
        (tmp_path / "model.bin").write_bytes(model_bytes(model))
        source = "a cup of tea"
        given = {"names": ["model.bin"], "sources": [source], "options": [{"beam": 1}]}
        [[[answer]]] = run_module(tmp_path, RUN, given)
        with model.lens() as lens:
            model.run([source], beam=1)
        parts = [weights for part, weights in lens[0].weights.items() if "cross" in part or number]
        expected = torch.tensor([part.tolist() for part in parts])  # [layers, heads, T, S]
        found = torch.tensor(answer["attention"]).permute(1, 2, 0, 3)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@with_node
def test_alternatives_are_the_most_probable_tokens(tmp_path: Path) -> None:
    model, source = tiny(banned=True), "iroh made tea"
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = """
import { load } from "RUNTIME/index.js";
const model = await load("model.bin");
const { ids } = model.run(given, { beam: 1 });
answer([ids, model.explain(given, ids, 4).steps.map(({ alternatives, entropy }) =>
  [alternatives.map((one) => one.id), alternatives.map((one) => one.logProbability), entropy])]);
"""
    ids, steps = run_module(tmp_path, script, source)
    with model.lens("next_token", top=4) as lens:
        model.run([source], beam=1)
    nearly = lens[0].next_tokens
    assert nearly is not None
    assert [one[0][0] for one in steps[:-1]] == ids
    for step, (found, values, entropy) in enumerate(steps):
        assert found == nearly.ids[step].tolist()
        expected = np.log(nearly.probabilities[step])
        np.testing.assert_allclose(values, expected, atol=1e-4)
        assert entropy == pytest.approx(float(nearly.entropy[step]), abs=1e-4)


@with_node
def test_the_beam_tree_is_that_of_transduce_look(tmp_path: Path) -> None:
    model = tiny(banned=True)
    model.network.head.bias.data[END] += 3.0  # so that outputs end before they must
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = """
import { load } from "RUNTIME/index.js";
import { lookAt } from "RUNTIME/look.js";
const model = await load("model.bin");
answer(given.map((source) => lookAt(model, source, { beam: 3 }).look.beam.nodes));
"""
    sources = [source for source in SOURCES if source]
    fates = set()
    for source, found in zip(sources, run_module(tmp_path, script, sources), strict=True):
        tree = collect(model, source, beam=3)["beam"]["nodes"]
        assert fates_of(found) == fates_of(tree), source
        scores = [{p: one[5] for p, one in by_path(nodes).items()} for nodes in (found, tree)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4), source
        fates |= {fate for fate, *_ in fates_of(tree).values()}
    assert fates >= {"kept", "ended", "pruned", "open"}


@with_node
def test_the_views_show_what_transduce_look_shows(tmp_path: Path) -> None:
    """Attention beside its tokens, alternatives beside what was chosen, n-best in order."""
    model, source = tiny(banned=True), "iroh made tea"
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = """
import { load } from "RUNTIME/index.js";
import { lookAt } from "RUNTIME/look.js";
const { look } = lookAt(await load("model.bin"), given, { beam: 3 });
for (const { weights } of look.attention) weights.values = Array.from(weights.values);
answer(look);
"""
    found = run_module(tmp_path, script, source)
    expected = collect(model, source, beam=3)
    for side in ("source", "target", "prefix"):
        assert found["axes"][side] == expected["axes"][side]
    theirs = {(one["kind"], one["layer"]): one for one in expected["attention"]}
    assert {one["kind"] for one in found["attention"]} == {"cross", "encoder"}
    for one in found["attention"]:
        other = theirs[one["kind"], one["layer"]]
        assert (one["rows"], one["columns"]) == (other["rows"], other["columns"])
        weights = np.array(one["weights"]["values"]).reshape(one["weights"]["shape"])
        shares = weights / one["weights"]["scale"]
        np.testing.assert_allclose(shares, unpacked(other["weights"]), atol=2e-4)
    assert len({step["chosen"] for step in expected["steps"]}) > 1
    for step, other in zip(found["steps"], expected["steps"], strict=True):
        assert step["chosen"] == other["chosen"]
        assert [name for name, _ in step["alternatives"]] == [n for n, _ in other["alternatives"]]
        assert step["log_probability"] == pytest.approx(other["log_probability"], abs=2e-4)
    assert [one["tokens"] for one in found["nbest"]] == [one["tokens"] for one in expected["nbest"]]


def by_path(nodes: list[Any]) -> dict[tuple[str, ...], Any]:
    """The nodes of a tree, by the tokens from its root to them."""
    paths: list[tuple[str, ...]] = []
    for parent, token, *_ in nodes:
        paths.append(() if parent is None else (*paths[parent], token))
    return dict(zip(paths, nodes, strict=True))


def fates_of(nodes: list[Any]) -> dict[tuple[str, ...], tuple[str, Any, Any]]:
    """Of each hypothesis its fate, its rank among the candidates, and its place in the n-best."""
    return {path: (one[3], one[4], one[6]) for path, one in by_path(nodes).items()}


def in_c(encoder: dict[str, Any], decoder: dict[str, Any]) -> Transducer:
    """A model of which all is computed in C, wide enough that a rounding error shows."""
    sides = {"encoder": encoder, "decoder": decoder}
    return tiny(model={"width": 96, "tie_embeddings": "none", **sides})


SIDE = {"layers": 2, "heads": 2, "feed_forward": 70, "activation": "gelu"}
GRU, SKIP = RECURRENT | {"cell": "gru"}, RECURRENT | {"layers": 2, "skip": True}
IN_C: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "transformer": (SIDE | {"heads": 3}, SIDE),  # of heads with 32 columns, four scores at once
    "gru": (GRU, GRU | {"attention": "additive"}),
    "lstm, cosine": (SKIP, SKIP | {"attention": "cosine"}),
    "bridge": (SIDE, GRU | {"attention": "general"}),
}
SCORES = """
import { load } from "RUNTIME/index.js";
const models = await Promise.all(given.names.map((name) => load(name)));
answer(models.map((model) => given.sources.map((source) => model.run(source, { beam: 1 }))));
"""


@with_node
@pytest.mark.parametrize("relaxed", [False, True], ids=["", "relaxed"])
def test_int8_is_that_of_a_model_folder_in_int8(tmp_path: Path, relaxed: bool) -> None:
    """A rounding error of float32 may be a whole level of int8: scores are the same only where sums
    have one order, and each product is rounded alike."""
    flags = relaxed_flags() if relaxed else []
    if flags is None:
        pytest.skip("this Node has no relaxed SIMD")
    native = library()
    fused = relaxed and native is not None and native.variant != "baseline"
    models = {name: in_c(*sides) for name, sides in IN_C.items()}
    for name, model in models.items():
        (tmp_path / f"{name}.bin").write_bytes(model_bytes(model, int8=True))
    letters = torch.randint(0, 26, (24, 15), generator=torch.Generator().manual_seed(1))
    sources = [*SOURCES, *("".join(chr(97 + n) for n in row) for row in letters.tolist())]
    given = {"names": [f"{name}.bin" for name in models], "sources": sources}
    found = run_module(tmp_path, SCORES, given, flags)
    for (name, model), answers in zip(models.items(), found, strict=True):
        folder = tmp_path / name
        folder.mkdir()
        quantized(model, folder, "int8")
        # Products of Transformers are of integers. Others are of float32, and without relaxed SIMD
        # there is no product and sum that are rounded together, as those of a CPU are: a last bit,
        # or a level of int8 where there are products of int8 after it.
        near = 2e-6 if fused or name == "transformer" else 2e-3 if name == "bridge" else 1e-4
        for answer, output in zip(answers, load(folder).run(sources, beam=1), strict=True):
            assert answer["ids"] == list(output.ids), name
            assert answer["score"] == pytest.approx(output.score, abs=near), name


@with_node
def test_classifiers_and_taggers_say_what_python_says(tmp_path: Path) -> None:
    encoder = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16}
    bigrams = classifier(ngrams={"max_n": 3, "size": 50})
    assert bigrams.network.front.ngrams is not None
    torch.nn.init.normal_(bigrams.network.front.ngrams.table.weight)
    models = [
        classifier(),
        classifier(pooling="attention"),
        classifier(pooling="last", encoder=encoder),
        tagger(),
        tagger(encoder=encoder),
        tagger(characters={"kind": "lstm", "width": 4, "words": 2}),
        tagger(characters={"kind": "cnn", "width": 4}, encoder=encoder),
        bigrams,
    ]
    for number, model in enumerate(models):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    long = f"{'do' * 9}gs{'ru' * 9} \ufeffDog\x1cruns\x85."  # more letters than are read
    sources = [*FILMS, *SENTENCES, "", "nothing that it knows", long]
    names = [f"{number}.bin" for number in range(len(models))]
    found = run_module(tmp_path, LABEL, {"names": names, "sources": sources})
    for model, answers in zip(models, found, strict=True):
        for source, answer, output in zip(sources, answers, model.run(sources), strict=True):
            assert answer["text"] == output.text, source
            assert answer["score"] == pytest.approx(output.score, abs=1e-5), source
            assert answer["tokens"] == output.tokens


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(ModelError, match=r"decode\.no_repeat_ngram is not supported in a browser"):
        model_bytes(tiny(decode={"no_repeat_ngram": 2}))


@with_node
def test_options_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model_bytes(tiny(banned=True)))
    refused = {
        "{ beam: 0 }": "beam is 0; it must be a whole number, 1 or more.",
        "{ beam: 2.5 }": "beam is 2.5; it must be a whole number, 1 or more.",
        "{ nbest: NaN }": "nbest is NaN; it must be a whole number, 1 or more.",
        "{ minLength: 9, maxLength: 4 }": "minLength is 9, above maxLength, 4: lower it.",
        "{ lengthPenalty: NaN }": "lengthPenalty is NaN; it must be a number.",
        "{ sample: true, temperature: 0 }": "temperature is 0; it must be a number above 0.",
        "{ sample: true, temperature: Infinity }": (
            "temperature is Infinity; it must be a number above 0."
        ),
        "{ sample: true, topK: -1 }": "topK is -1; it must be a whole number, 0 or more.",
        "{ sample: true, topP: 0 }": "topP is 0; it must be a number above 0, and 1 at most.",
        "{ topK: 3 }": "temperature, topK and topP are for sampling: set sample as well.",
    }
    script = f"""
import {{ load }} from "RUNTIME/index.js";
const model = await load("model.bin");
const said = (source, options) => {{
  try {{ return model.run(source, options).text; }} catch (error) {{ return error.message; }}
}};
const likeliest = said("iroh", {{ sample: true, topK: 1 }});
answer([[{", ".join(refused)}].map((one) => said("iroh", one)), said(new Float32Array(9)), [
  likeliest === said("iroh", {{ sample: true, temperature: 1e-300, topK: 1e6 }}),
  likeliest === said("iroh", {{ sample: true, topP: 1e-9 }})]]);
"""
    found, no_text, same = run_module(tmp_path, script, None)
    assert found == list(refused.values())
    assert no_text == "This model reads texts: give it a string."
    assert same == [True, True]


@with_node
def test_the_memory_of_a_long_continuation_is_that_of_a_window(tmp_path: Path) -> None:
    model = language_model()
    model.network.float()
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = """
import { load } from "RUNTIME/index.js";
const model = await load("model.bin");
const before = model.network.runtime.buffer.byteLength;
const { ids } = model.run("tea", { beam: 1, maxLength: 1501 });
answer([ids.length, model.network.runtime.buffer.byteLength - before]);
"""
    assert run_module(tmp_path, script, None) == [1500, 0]


@with_node
def test_outputs_have_the_fields_of_the_types(tmp_path: Path) -> None:
    text = (RUNTIME / "index.d.ts").read_text("utf-8")
    fields: dict[str, set[str]] = {}
    for name, parent, body in re.findall(
        r"export interface (\w+)(?: extends (\w+))? \{\n(.*?)\n\}", text, re.DOTALL
    ):
        own = set(re.findall(r"^  (\w+)\??[:(]", body, re.MULTILINE))
        fields[name] = own | fields.get(parent, set())
    language = language_model()
    language.network.float()
    models: dict[str, list[Any]] = {
        "Output": [tiny(banned=True), language],
        "LabelOutput": [classifier(), tagger()],
    }
    script = """
import { load } from "RUNTIME/index.js";
const model = await load("model.bin");
const output = model.run(given, { nbest: 2, ...(model.explain && { beam: 2, maxLength: 3 }) });
const step = model.explain?.(given, output.ids).steps[0] ?? {};
answer([output, output.alternatives[0] ?? {}, step].map(Object.keys));
"""
    for kind, some in models.items():
        for model in some:
            (tmp_path / "model.bin").write_bytes(model_bytes(model))
            output, one, step = map(set, run_module(tmp_path, script, "a"))
            assert output == fields[kind]
            assert not one or one == fields["Hypothesis" if kind == "Output" else "Labels"]
            assert not step or step == fields["Step"]


@with_node
def test_a_wrong_file_says_how_to_write_one(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"not a model of any kind")
    script = 'import { load } from "RUNTIME/index.js";\n'
    script += 'try { await load("model.bin"); } catch (error) { answer(error.message); }\n'
    assert run_module(tmp_path, script, None) == (
        "This is not a model for the browser: write one with transduce export MODEL --to web."
    )
    whole = model_bytes(tiny())
    (tmp_path / "model.bin").write_bytes(whole[:-1])
    assert run_module(tmp_path, script, None) == (
        f"The model file is cut off: it has {len(whole) - 1} of {len(whole)} bytes. "
        "Copy or download it again."
    )


@with_node
def test_an_engine_without_simd_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model_bytes(tiny()))
    script = """
import { load } from "RUNTIME/index.js";
WebAssembly.validate = () => false;
try { await load("model.bin"); } catch (error) { answer(error.message); }
"""
    assert "it needs WebAssembly with SIMD (Chrome 91" in run_module(tmp_path, script, None)


def test_the_wasm_files_are_what_the_source_gives() -> None:
    tool = runpy.run_path(str(ROOT / "tools/make_wasm.py"))
    made = (RUNTIME / "transduce.sources").read_text().strip()
    assert made == tool["digest"](), "run make wasm"
    assert (RUNTIME / "structures.js").read_text() == tool["structures_js"](), "run make wasm"
    if tool["compiler_version"]() != tool["COMPILER"]:
        pytest.skip("ziglang is not installed: the WebAssembly files were not built again")
    for name in tool["CPUS"]:
        assert tool["compiled"](name) == (RUNTIME / name).read_bytes(), name
