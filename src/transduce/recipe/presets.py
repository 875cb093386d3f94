"""Presets: named model architectures; every key of a preset can be overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _transformer(width: int, layers: int, heads: int, feed_forward: int) -> dict[str, Any]:
    part = {"kind": "transformer", "layers": layers, "heads": heads, "feed_forward": feed_forward}
    return {"width": width, "encoder": dict(part), "decoder": dict(part)}


def _recurrent(width: int, layers: int, cell: str, **decoder: Any) -> dict[str, Any]:
    part = {"kind": "recurrent", "cell": cell, "layers": layers}
    return {"width": width, "encoder": dict(part), "decoder": {**part, **decoder}}


def _convolutional(width: int, encoder: int, decoder: int) -> dict[str, Any]:
    part = {"kind": "convolutional", "kernel": 3}
    layers = {"encoder": encoder, "decoder": decoder}
    return {"width": width, **{side: {**part, "layers": n} for side, n in layers.items()}}


PRESETS: dict[str, dict[str, Any]] = {
    "transformer-tiny": _transformer(128, 2, 4, 512),
    "transformer-small": _transformer(256, 3, 4, 1024),
    # Vaswani et al. 2017, table 3
    "transformer-base": _transformer(512, 6, 8, 2048),
    "transformer-big": _transformer(1024, 6, 16, 4096),
    # Sutskever et al. 2014: the final state alone carries the source, read backwards
    "lstm-seq2seq": {
        **_recurrent(256, 2, "lstm", attention="none"),
        "encoder": {
            "kind": "recurrent",
            "cell": "lstm",
            "layers": 2,
            "bidirectional": False,
            "reverse": True,
        },
    },
    # Luong et al. 2015: attention after the recurrence, read with the output
    "lstm-attention": _recurrent(256, 2, "lstm", attention="general", context="output"),
    # Bahdanau et al. 2015: the previous state is the query; the context enters input and output
    "gru-attention": _recurrent(256, 1, "gru", attention="additive", context="both"),
    # Graves 2013: peepholes, the input to every layer, the output from every layer
    "peephole-attention": _recurrent(
        256, 2, "lstm-peephole", attention="additive", context="output", skip=True
    ),
    "rnn-attention": _recurrent(256, 1, "elman", attention="dot", context="output"),
    # Gehring et al. 2017: the authors' shapes for IWSLT 2014 and for WMT 2016 English-Romanian
    "convolutional-small": _convolutional(256, 4, 3),
    "convolutional-base": _convolutional(512, 20, 20),
}


def expand_preset(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a model merged over those of its preset; the key `preset` is removed.

    An unknown preset is left in place, for validation to report.
    """
    shape = PRESETS.get(str(model.get("preset")))
    if shape is None:
        return dict(model)
    return _merge(shape, {key: value for key, value in model.items() if key != "preset"})


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; an encoder or decoder of another kind replaces, it does not merge."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            kind = old.get("kind")
            merged[key] = _merge(old, value) if value.get("kind", kind) == kind else value
    return merged
