"""Collects all that a page shows, for one model and one input, as a JSON-serializable dict."""

from __future__ import annotations

import base64
import io
import math
import re
import wave
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from transduce.data.audio.corpus import FULL_SCALE
from transduce.data.tokens.tokenizer import END, SPECIALS, Tokens
from transduce.decoding.output import Output
from transduce.decoding.run_lens import LensEntry, RunLens
from transduce.decoding.source_limit import TRUNCATED
from transduce.errors import DataError, ModelError
from transduce.inspection.analysis import attribute, rollout
from transduce.inspection.look.beam import beam_tree, traced
from transduce.inspection.page import visible
from transduce.inspection.speech_figure import ctc_path_of
from transduce.models.lens import (
    CELLS,
    COPIED,
    TO_TAGS,
    attentions,
    is_to_source,
    short_name,
    side_of,
)
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.positions import Positioned, Rotary
from transduce.nn.recurrent.stack import Recurrent
from transduce.tasks import AudioInputModel, LanguageModel
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.classify import Classifier
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.model import Model, inference
from transduce.tasks.speech import SpeechModel
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
        "beam": beam_tree(
            trace,
            [one.output for one in lens],
            partial(model._pieces_of_head, source=entry.source, ids=entry.named.source_ids),
        ),
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
    if isinstance(model, SpeechModel):
        page["ctc"] = _ctc(model, source, tags, output.ids, len(page["axes"]["target"]))
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
    search = "greedy search" if beam == 1 else f"beam search, {beam} hypotheses"
    both = settings.get("bidirectional")
    if model.is_bidirectional if both is None else both:
        search += ", from left to right and from right to left; shown: left to right"
    return search


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
    if any(one["kind"] not in ("cross", "tags", "pool") for one in found):
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
        kind = "tags" if name == TO_TAGS else "cross"
        return _entry(name, kind, number, "target", "source", weights_HTS)
    if side_of(name) == "target":
        return _entry(name, "decoder", number, "target", "prefix", weights_HTS)
    return _entry(name, "encoder", number, "source", "source", weights_HTS)


def _entry(
    name: str, kind: str, layer: int, rows: str, columns: str, weights_HTS: NDArray[Any]
) -> dict[str, Any]:
    about = {"name": name, "kind": kind, "layer": layer, "rows": rows, "columns": columns}
    return {**about, "weights": packed(weights_HTS)}


def _cells(entry: LensEntry) -> list[dict[str, Any]]:
    """Of recurrent networks: each gate's mean over its width, and states' root mean square. Of a
    decoder that copies: how much of each token was copied."""
    rows: dict[str, list[tuple[str, NDArray[Any]]]] = {"source": [], "target": []}
    for name, states_SD in entry.states.items():
        size_S = np.sqrt(np.square(states_SD.astype(np.float64)).mean(axis=1))
        rows[side_of(name)].append((f"{_cell(name, '')} state (RMS)", size_S))
    for name, gates_SD in entry.gates.items():
        rows[side_of(name)].append((_cell(name), gates_SD.mean(axis=1)))
    return [
        {
            "columns": side,
            "rows": [label for label, _ in of_side],
            "values": packed(np.stack([values for _, values in of_side])[None]),
        }
        for side, of_side in rows.items()
        if of_side
    ]


def _cell(name: str, what: str = "gate") -> str:
    """encoder.recurrent.cells.0.forget: cell 0 forget gate."""
    if name == COPIED:
        return "copied from the source"
    number, _, gate = name.partition(".recurrent.cells.")[2].partition(".")
    return " ".join(f"cell {int(number)} {gate} {what}".split())


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


# ----------------------------------------------------------------------------------------------
# Embeddings for a page: the nearest neighbours of the tokens at hand, a map, and positions.

NEAREST = 6
ON_THE_MAP = 300  # tokens
FEWEST_POSITIONS = 32

Floats = NDArray[np.float64]


def embeddings_of(model: Model, entry: LensEntry) -> list[dict[str, Any]]:
    """Of the source's and the target's embedding, as far as the model has them."""
    found = []
    for title, name, side, ids, tokens in _sides(model, entry):
        module = dict(model.network.named_modules()).get(name)
        table = getattr(module, "table", None)
        used = list(dict.fromkeys(ids))
        one: dict[str, Any] = {"title": title, "neighbours": [], "map": None, "positions": None}
        if isinstance(table, nn.Embedding) and used:
            vectors_VD = table.weight.detach().double().cpu().numpy()
            used = [number for number in used if len(SPECIALS) <= number < len(vectors_VD)]
            near = {number: nearest(vectors_VD, number) for number in used}
            one["neighbours"] = [
                [
                    _name(tokens, number),
                    [[_name(tokens, other), round(cosine, 3)] for other, cosine in those],
                ]
                for number, those in near.items()
            ]
            shown = _shown(used, near, len(vectors_VD))
            one["map"] = {
                "names": [_name(tokens, number) for number in shown],
                "places": plane_of(vectors_VD, shown).round(3).tolist(),
                "used": [number in near for number in shown],
            }
        count = max(len(ids) + 1, FEWEST_POSITIONS)
        one["positions"] = positions_of(model, name, side, count)
        if one["map"] or one["positions"]:
            found.append(one)
    return found


def _sides(model: Model, entry: LensEntry) -> list[tuple[str, str, str, list[int], Tokens]]:
    """The title of each side, its embedding, its stack of layers, its ids and tokens."""
    source, target = list(entry.named.source_ids), list(entry.output.ids)
    if isinstance(model, LanguageModel):
        ids = [*source, *target]
        return [("Tokens", "decoder.embedding", "decoder", ids, model.target_tokens)]
    return [
        ("Source", "front", "encoder", source, model.source_tokens),
        ("Target", "decoder.embedding", "decoder", target, model.target_tokens),
    ]


def nearest(vectors_VD: Floats, number: int) -> list[tuple[int, float]]:
    """The tokens whose vectors have the smallest angle to that of one, with their cosines."""
    sizes_V = np.linalg.norm(vectors_VD, axis=1).clip(1e-12)
    cosines_V = vectors_VD @ vectors_VD[number] / (sizes_V * sizes_V[number])
    cosines_V[[number, *range(min(len(SPECIALS), len(cosines_V)))]] = -np.inf
    order = np.argsort(-cosines_V, kind="stable")[:NEAREST]
    return [(int(one), float(cosines_V[one])) for one in order if np.isfinite(cosines_V[one])]


def plane_of(vectors_VD: Floats, shown: Sequence[int]) -> Floats:
    """Where tokens lie on the two axes along which the vocabulary varies most (PCA): [shown, 2].

    Each axis is stretched to −1 … 1.
    """
    centred_VD = vectors_VD - vectors_VD.mean(axis=0)
    _, axes_DD = np.linalg.eigh(centred_VD.T @ centred_VD)
    places_N2 = centred_VD[list(shown)] @ axes_DD[:, [-1, -2]]
    middle_2 = (places_N2.max(axis=0) + places_N2.min(axis=0)) / 2
    half_2 = (places_N2.max(axis=0) - places_N2.min(axis=0)) / 2
    return np.asarray((places_N2 - middle_2) / half_2.clip(1e-12))


def _shown(used: list[int], near: dict[int, list[tuple[int, float]]], size: int) -> list[int]:
    """What is on the map: the tokens at hand, their neighbours, then the vocabulary's first."""
    others = [other for those in near.values() for other, _ in those]
    order = dict.fromkeys([*used, *others, *range(len(SPECIALS), size)])
    return list(order)[: max(ON_THE_MAP, len(used))]


def _name(tokens: Tokens, number: int) -> str:
    (piece,) = tokens.pieces([number])
    return visible(piece)


# ----------------------------------------------------------------------------------------------
# Positional encodings for a page: tables that are added, rotary angles, relative scores.

Shown = dict[str, Any]


def positions_of(model: Model, embedding: str, side: str, count: int) -> Shown | None:
    """What one side of a model knows of positions: {"kind", "title", "note", "rows", "columns",
    "values"}; None where the model has no such side.

    embedding: the name of the part whose vectors may have positions. side: encoder or decoder.
    Without positions, the note says why, and "values" is None.
    """
    modules = dict(model.network.named_modules())
    if side not in modules:
        return None
    with inference(model):
        positioned = getattr(modules.get(embedding), "positions", None)
        if isinstance(positioned, Positioned):
            return _table(positioned, count)
        own = {
            name: part
            for name, part in attentions(model.network).items()
            if name.startswith(f"{side}.") and isinstance(part, MultiHeadAttention)
        }
        rotary = next((part.rotary for part in own.values() if part.rotary is not None), None)
        if rotary is not None:
            return _rotary(rotary, count)
        relative = {n: part for n, part in own.items() if isinstance(part, RelativeAttention)}
        if relative:
            return _relative(relative, count)
        bias = next((part.relative for part in own.values() if part.relative is not None), None)
        if bias is not None:
            return _biased(bias, count)
    recurrent = any(isinstance(part, Recurrent) for part in modules[side].modules())
    note = (
        "A recurrent network reads one position after the other: it has no positional encoding."
        if recurrent
        else "There is no positional encoding."
    )
    return {"kind": "none", "title": "Positions", "note": note, "values": None}


def _table(positioned: Positioned, count: int) -> Shown:
    """The vectors [positions, width] that are added to embeddings, or put beside them."""
    maximum = getattr(positioned.positions, "max_length", count)
    vectors_TD = positioned.positions(min(count, maximum))
    kind = type(positioned.positions).__name__
    joined = "added to" if positioned.combine == "add" else "concatenated with"
    title = f"{kind} positions (rows), {joined} the embedding (columns)"
    return _shown_positions(kind.lower(), title, "", _numbers(vectors_TD))


def _rotary(rotary: Rotary, count: int) -> Shown:
    """Of each distance, the cosine of the angle between a query's and a key's pair of features."""
    cosines_TK = rotary(count)[:, 0::2]
    return _shown_positions(
        "rotary",
        "Rotary positions: the cosine of the turn of each pair of features (columns) by distance "
        "(rows)",
        "Queries and keys are turned by an angle for each position, so that their product depends "
        "on their distance. At 1 a pair is as at distance 0; at −1 it counts the other way.",
        _numbers(cosines_TK),
    )


def _biased(bias: BucketedBias, count: int) -> Shown:
    """What is added to the scores of each head, by the distance of a key from its query."""
    whole_HTS = bias(count, count)
    values_HR, last = whole_HTS[:, -1], 0  # of the last query: all keys are before it
    if bias.both_directions:  # and of the first one: all are after it
        values_HR, last = torch.cat([values_HR, whole_HTS[:, 0, 1:]], dim=1), count - 1
    return _shown_positions(
        "relative",
        "Relative positions: what the distance of a key (columns; − is before) adds to the score "
        "of each head (rows)",
        "It is learned for buckets of distances, and all layers share it.",
        _numbers(values_HR),
        [f"head {head}" for head in range(bias.heads)],
        [f"{distance:+d}" for distance in range(1 - count, last + 1)],
    )


def _relative(parts: dict[str, RelativeAttention], count: int) -> Shown:
    """The score vᵀ W^R r_d / √K of each distance d, by itself, for each head of each layer."""
    rows: list[str] = []
    scores = []
    for name, part in parts.items():
        distances_RD = part.distances(count).to(part.distance_projection.weight.dtype)
        distances_RHK = part.distance_projection(distances_RD).unflatten(1, (part.heads, -1))
        scores_HR = torch.einsum("hk,rhk->hr", part.distance_bias_HK, distances_RHK)
        scores.append(_numbers(scores_HR / math.sqrt(part.head_width)))
        rows += [f"{short_name(name)}, head {head}" for head in range(part.heads)]
    # Distances fall from count − 1 (the key is far before) to −(count − 1) (far after).
    columns = [f"{-distance:+d}" for distance in range(count - 1, -count, -1)]
    return _shown_positions(
        "relative",
        "Relative positions: what the distance of a key (columns; − is before) adds to the score "
        "of each head (rows)",
        "This is the part of the score that depends on neither query nor key.",
        np.concatenate(scores),
        rows,
        columns,
    )


def _numbers(values: torch.Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found


def _shown_positions(
    kind: str,
    title: str,
    note: str,
    values: NDArray[np.float64],
    rows: list[str] | None = None,
    columns: list[str] | None = None,
) -> Shown:
    return {
        "kind": kind,
        "title": title,
        "note": note,
        "rows": rows or [str(place) for place in range(values.shape[0])],
        "columns": columns or [str(place) for place in range(values.shape[1])],
        "values": packed_signed(values),
    }


# ----------------------------------------------------------------------------------------------
# Audio for a page: its spectrogram as a small picture, and the samples to play.

MAX_PLAYED = 60.0  # seconds of audio that a page carries to play
DARKEST, BRIGHTEST = 0.05, 0.998  # quantiles of log-mel energy


def check_audio(model: AudioInputModel, source: Any, tags: Sequence[str]) -> None:
    """Raise DataError for audio that cannot be used, or that is too long for one segment."""
    (recording,) = model.recordings.split([source], None, tags)
    if recording.error or (isinstance(recording.source, AudioSegment) and recording.source.silent):
        raise DataError(
            recording.error or f"{source} contains only silence; give another recording"
        )
    if len(recording.segments) > 1 or not recording.whole:
        longest = model.recordings.longest
        raise DataError(
            f"{source} is longer than the {longest:g} s that this model reads at once; give a part "
            f"of it, such as {source}#t=0,{longest:g}"
        )


def audio_of(model: AudioInputModel, source: Any, tags: Sequence[str]) -> dict[str, Any]:
    """The spectrogram [mel bands, frames] of a recording, and up to a minute of it as WAV."""
    (recording,) = model.recordings.split([source], None, tags)
    ((samples, remark, _),) = model.recordings.waves_of([recording.source])
    if samples is None:
        raise DataError(remark)
    rate = model.recordings.settings.sample_rate
    seconds = len(samples) / rate
    mel_FM = _log_mel(model, samples)
    low, high = (float(np.quantile(mel_FM, q)) for q in (DARKEST, BRIGHTEST))
    shades_MF = ((mel_FM.T - low) / max(high - low, 1e-6)).clip(0.0, 1.0)
    return {
        "start": recording.start,
        "seconds": round(seconds, 4),
        "rate": rate,
        "spectrogram": packed(shades_MF, 255),
        "wav": _wav(samples, rate) if seconds <= MAX_PLAYED else "",
    }


def _ctc(
    model: SpeechModel, source: Any, tags: Sequence[str], ids: Sequence[int], rows: int
) -> dict[str, Any] | None:
    """CTC's alignment: the probability of each token at each state [1, rows, states], and its best
    path, the first and the last state of each token. The end of the output is nowhere."""
    (recording,) = model.recordings.split([source], None, tags)
    ((samples, _, _),) = model.recordings.waves_of([recording.source])
    path = None if samples is None else ctc_path_of(model, samples, recording.tags, ids)
    if path is None:
        return None
    shown_TS = path.probabilities_TS[:rows]
    padded_TS = np.pad(shown_TS, ((0, rows - len(shown_TS)), (0, 0)))
    return {
        "probabilities": packed(padded_TS[None]),
        "first": list(path.first[:rows]),
        "last": list(path.last[:rows]),
    }


def _log_mel(model: AudioInputModel, samples: NDArray[np.int16]) -> NDArray[np.float32]:
    samples_BW = torch.from_numpy(samples[None]).to(model.device).float() / FULL_SCALE
    with inference(model):
        mel_BFM, _ = model.network.front.mel(
            samples_BW, torch.tensor([len(samples)], device=model.device)
        )
    found: NDArray[np.float32] = mel_BFM[0].float().cpu().numpy()
    return found


def _wav(samples: NDArray[np.int16], rate: int) -> str:
    """A WAV file of 16 bits, as base64."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return base64.b64encode(held.getvalue()).decode("ascii")


# ----------------------------------------------------------------------------------------------
# Arrays of numbers inside JSON: whole numbers of 8 or 16 bits, deflated, as base64.

TEN_THOUSANDTHS = 10_000
Packed = dict[str, Any]


def packed(values: ArrayLike, scale: int = TEN_THOUSANDTHS) -> Packed:
    """Numbers from 0 to 6.5 to four decimals: {"shape", "scale", "bits", "data"}.

    With a scale of 255 it is bytes of numbers from 0 to 1, for pictures.
    """
    given = np.asarray(values, np.float64)
    bits = 8 if scale < 256 else 16
    whole = np.rint(given * scale).clip(0, 2**bits - 1).astype("u1" if bits == 8 else "<u2")
    data = base64.b64encode(zlib.compress(whole.tobytes(), 6)).decode("ascii")
    return {"shape": list(given.shape), "scale": scale, "bits": bits, "data": data}


def packed_signed(values: ArrayLike) -> Packed:
    """Numbers of either sign, to a ten-thousandth of the largest of them, which is "signed"."""
    given = np.asarray(values, np.float64)
    largest = float(np.abs(given).max(initial=0.0)) or 1.0
    return {**packed((given / largest + 1.0) / 2.0, 2 * TEN_THOUSANDTHS), "signed": largest}


def unpacked(one: Packed) -> NDArray[np.float64]:
    """What was packed."""
    kind = "u1" if one["bits"] == 8 else "<u2"
    whole = np.frombuffer(zlib.decompress(base64.b64decode(one["data"])), kind)
    shares = whole.reshape(one["shape"]).astype(np.float64) / one["scale"]
    return np.asarray((2.0 * shares - 1.0) * one["signed"] if "signed" in one else shares)
