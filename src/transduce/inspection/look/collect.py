"""Collects all that a page shows, for one model and one input, as a JSON-serializable dict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.data.tokens.tokenizer import END
from transduce.decoding.output import Output
from transduce.decoding.run_lens import LensEntry, RunLens
from transduce.decoding.source_limit import TRUNCATED
from transduce.errors import DataError, ModelError
from transduce.inspection.analysis import attribute, rollout
from transduce.inspection.look.arrays import packed, packed_signed
from transduce.inspection.look.audio import audio_of, check_audio
from transduce.inspection.look.beam import beam_tree
from transduce.inspection.look.embedding import embeddings_of
from transduce.inspection.look.trace import traced
from transduce.inspection.page import visible
from transduce.models.lens import CELLS, is_to_source, side_of
from transduce.tasks import AudioInputModel, LanguageModel
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.classify import Classifier
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.model import Model
from transduce.tasks.tag import Tagger

TOP = 8  # alternatives at each step
CONSTRAINTS = ("prefix", "include", "exclude")
KINDS = ("attention", "gate", "logits", "next_token")
LAYER = re.compile(r"\.(\d+)(\.|$)")

Page = dict[str, Any]


def collect(
    model: Model,
    source: Any,
    *,
    target: str | None = None,
    attribution: bool = False,
    tags: Sequence[str] = (),
    rate: int | None = None,
    **settings: Any,
) -> Page:
    """What a model computed for one input: its output, alternatives, attention, n-best list.

    target: a given output, instead of the model's own. attribution: also the integrated gradients
    of each output token, which take dozens of passes per token. tags, rate: for audio; the rate is
    the sample rate of samples. The settings are those of `model.run`. Raises
    DataError where the input is empty or longer than the model reads, ModelError where the model
    does not show what it computes.
    """
    if model.engine:
        raise ModelError(
            f"{model.engine.name} does not show attention; give the folder that `transduce train` "
            f"wrote, not an export"
        )
    audio = isinstance(model, AudioInputModel)
    if not audio and not isinstance(source, str):
        raise DataError(f"a model of text looks at text, not at {type(source).__name__}")
    if not audio and not source.strip() and not isinstance(model, LanguageModel):
        raise DataError("the input is empty; give a text")
    if target is not None and (asked_for := [name for name in CONSTRAINTS if settings.get(name)]):
        raise DataError(
            f"nothing is searched where the target is given; leave out {' and '.join(asked_for)}"
        )
    if isinstance(model, AudioInputModel):
        if rate is not None:
            source = AudioSegment.of_samples(source, rate, model.recordings.settings.sample_rate)
        check_audio(model, source, tags)
    twin, trace = traced(model)
    lens = _lens(twin)
    asked: dict[str, Any] = {"tags": list(tags)} if audio and tags else {}
    with lens:
        if target is None:
            (output,) = twin.run([source], **_search(model, settings), **asked)
        else:
            twin.score([source], [target], **asked)
            output = lens[0].output
    if output.failed or not len(lens):
        raise DataError(output.warning or "the model has no output for this input")
    if TRUNCATED in output.warning:
        raise DataError(f"{output.warning}; give a shorter input")
    entry = lens[0]
    page: Page = {
        "model": model.origin.folder.name if model.origin else model.recipe.name,
        "task": model.recipe.task,
        "source": str(source),
        "text": output.text,
        "warning": output.warning,
        "given": target is not None,
        "how": _how(model, target, settings),
        "score": _number(output.score),
        "log_probability": _number(output.log_probability),
        "confidence": output.confidence,
        "axes": _axes(entry),
        "times": [round(second, 4) for second in entry.times],
        "attention": _attention(entry),
        "cells": _cells(entry),
        "steps": _steps(model, entry),
        "nbest": [_hypothesis(one.output) for one in lens] if target is None else [],
        "beam": beam_tree(trace, [one.output for one in lens], model.target_tokens),
        "no_beam": trace.why_none,
        "labels": [],
        "embeddings": embeddings_of(model, entry),
        "attribution": _attribution(model, source, output.text, asked) if attribution else [],
    }
    if isinstance(model, LanguageModel):
        page["prompt"] = len(entry.source_tokens)
    if isinstance(model, Classifier):
        page["labels"] = _labels(model, entry)
        page["nbest"] = []
    if isinstance(model, Tagger):
        page["nbest"] = []
    if isinstance(model, AudioInputModel):
        page["audio"] = audio_of(model, source, tags)
        page["words"] = [word.to_json() for word in output.words]
    return page


def _lens(model: Model) -> RunLens:
    """All attention, the gates and states of recurrent cells, and next-token alternatives."""
    names = [
        part.name
        for part in model.parts()
        if part.kind in KINDS or (part.kind == "state" and CELLS.fullmatch(part.name))
    ]
    return model.lens(*names, top=TOP)


def _search(model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run; nbest is the beam size unless given."""
    asked = {name: value for name, value in settings.items() if value is not None}
    if not isinstance(model, GenerativeModel):
        model.reject_settings(asked)
        return {}
    if not asked.get("sample"):
        asked.setdefault("nbest", asked.get("beam") or model.recipe.decode.beam)
    if isinstance(model, AudioInputModel):
        asked["times"] = True
    return asked


def _how(model: Model, target: str | None, settings: Mapping[str, Any]) -> str:
    if target is not None:
        return "target given"
    if not isinstance(model, GenerativeModel):
        return ""
    if settings.get("sample"):
        return "sampled"
    beam = settings.get("beam") or model.recipe.decode.beam
    return "greedy search" if beam == 1 else f"beam search, {beam} hypotheses"


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None  # JSON has no infinity


def _axes(entry: LensEntry) -> dict[str, list[str]]:
    """Labels of positions: tokens, or times where the source is audio."""
    named = entry.named
    tokens = {"source": named.source_tokens, "target": named.target_tokens}
    tokens["prefix"] = named.prefix_tokens
    axes = {side: [visible(token) for token in some] for side, some in tokens.items()}
    if named.times:
        axes["source"] = [f"{second:.2f} s" for second in named.times]
    return axes | {"pooled": ["pooled"]}


def _attention(entry: LensEntry) -> list[dict[str, Any]]:
    """Every part's weights [heads, rows, columns], and which axes these are."""
    found = [_part(name, weights_HTS) for name, weights_HTS in entry.weights.items()]
    if any(one["kind"] not in ("cross", "pool") for one in found):
        try:
            rolled = rollout(entry)
        except ModelError:
            return found
        if rolled.source.size:
            rows = "target" if rolled.prefix.size else "source"
            found.append(_entry("rollout", "rollout", 0, rows, "source", rolled.source[None]))
        else:
            found.append(_entry("rollout", "rollout", 0, "target", "prefix", rolled.prefix[None]))
    return found


def _part(name: str, weights_HTS: NDArray[np.float32]) -> dict[str, Any]:
    layer = LAYER.search(name)
    number = int(layer[1]) if layer else 0
    if name.startswith("pool."):
        pooled_H1S = weights_HTS.mean(axis=1, keepdims=True)
        return _entry(name, "pool", number, "pooled", "source", pooled_H1S)
    if is_to_source(name):
        return _entry(name, "cross", number, "target", "source", weights_HTS)
    if side_of(name) == "target":
        return _entry(name, "decoder", number, "target", "prefix", weights_HTS)
    return _entry(name, "encoder", number, "source", "source", weights_HTS)


def _entry(
    name: str, kind: str, layer: int, rows: str, columns: str, weights_HTS: NDArray[Any]
) -> dict[str, Any]:
    about = {"name": name, "kind": kind, "layer": layer, "rows": rows, "columns": columns}
    return {**about, "weights": packed(weights_HTS)}


def _cells(entry: LensEntry) -> list[dict[str, Any]]:
    """Of recurrent networks: each gate's mean over its width, and states' root mean square."""
    rows: dict[str, list[tuple[str, NDArray[Any]]]] = {"source": [], "target": []}
    for name, states_SD in entry.states.items():
        size_S = np.sqrt(np.square(states_SD.astype(np.float64)).mean(axis=1))
        rows[side_of(name)].append((f"{_cell(name)} state (RMS)", size_S))
    for name, gates_SD in entry.gates.items():
        rows[side_of(name)].append((f"{_cell(name)} gate", gates_SD.mean(axis=1)))
    return [
        {
            "columns": side,
            "rows": [label for label, _ in of_side],
            "values": packed(np.stack([values for _, values in of_side])[None]),
        }
        for side, of_side in rows.items()
        if of_side
    ]


def _cell(name: str) -> str:
    """encoder.recurrent.cells.0.forget: cell 1 forget."""
    number, _, gate = name.partition(".recurrent.cells.")[2].partition(".")
    return f"cell {int(number)} {gate}".strip()


def _steps(model: Model, entry: LensEntry) -> list[dict[str, Any]]:
    """Each step: the log-probability of its token, the alternatives, the entropy."""
    nearly = entry.next_tokens
    if nearly is None or entry.logits is None:
        return []
    log_probs_TV = _log_softmax(entry.logits)
    if isinstance(model, GenerativeModel):
        prompt = entry.named.source_ids if isinstance(model, LanguageModel) else []
        ids = [*prompt, *entry.output.ids]
        ids += [END] * (len(log_probs_TV) - len(ids))
    else:
        ids = nearly.ids[:, 0].tolist()
    steps = []
    for step, chosen in enumerate(ids):
        alternatives = [
            [visible(token), round(float(probability), 4)]
            for token, probability in zip(
                nearly.tokens[step], nearly.probabilities[step], strict=True
            )
        ]
        place = nearly.ids[step].tolist().index(chosen) if chosen in nearly.ids[step] else -1
        steps.append(
            {
                "log_probability": _number(float(log_probs_TV[step, chosen])),
                "alternatives": alternatives,
                "chosen": place,
                "entropy": round(float(nearly.entropy[step]), 4),
            }
        )
    return steps


def _attribution(
    model: Model, source: Any, text: str, asked: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Integrated gradients of each output token, by source token and by prefix token."""
    if isinstance(model, LanguageModel):
        text = text[len(source) :] if text.startswith(source) else text
    why = attribute(model, source, text, **asked)
    source_names = why.source_tokens or [f"{second:.2f} s" for second in why.times]
    sides = (("source", why.source, source_names), ("prefix", why.prefix, why.prefix_tokens))
    return [
        {
            "columns": side,
            "row_names": [visible(token) for token in why.target_tokens],
            "column_names": [visible(name) for name in names] if not why.times else names,
            "values": packed_signed(values_TS),
            "method": why.method.replace("_", " "),
            "gap": 0.0 if why.gap is None else round(float(np.abs(why.gap).max()), 3),
        }
        for side, values_TS, names in sides
        if values_TS is not None and values_TS.size
    ]


def _labels(model: Classifier, entry: LensEntry) -> list[list[Any]]:
    """All labels with their probabilities, the likeliest first."""
    if entry.logits is None:
        return []
    probabilities_V = np.exp(_log_softmax(entry.logits)[0])
    order = np.argsort(-probabilities_V, kind="stable").tolist()
    pieces = model._pieces_of_head(order)
    return [
        [piece, round(float(probabilities_V[number]), 4)]
        for piece, number in zip(pieces, order, strict=True)
    ]


def _log_softmax(logits_TV: NDArray[Any]) -> NDArray[np.float64]:
    exact_TV = logits_TV.astype(np.float64)
    exact_TV -= exact_TV.max(axis=1, keepdims=True)
    return np.asarray(exact_TV - np.log(np.exp(exact_TV).sum(axis=1, keepdims=True)))


def _hypothesis(output: Output) -> dict[str, Any]:
    return {
        "text": output.text,
        "score": _number(output.score),
        "log_probability": _number(output.log_probability),
        "tokens": [visible(token) for token in output.tokens],
    }
