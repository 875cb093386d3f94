"""Export of a model that was imported from Hugging Face: its own class, names and ids again.

Weights that were not trained since are those of the folder that it came from, bit for bit.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.huggingface import layout
from transduce.interop.huggingface.classes import FAMILIES
from transduce.interop.huggingface.ids import Renumbered
from transduce.interop.huggingface.weights_file import write_weights
from transduce.interop.imports.huggingface import CONFIG, KEPT_FILES, read_origin_tensors
from transduce.interop.positions import table
from transduce.models.weights import weights_of
from transduce.storage import write_json
from transduce.tasks.transduce import Transducer


def export_imported(model: Transducer, origin: dict[str, Any], folder: Path) -> str:
    """Write the folder again; the name of the class. Raises ModelError for what changed since."""
    assert model.origin is not None
    config, family = origin["config"], FAMILIES[origin["format"]]
    kept = read_origin_tensors(model.origin.folder)
    weights = weights_of(model.network)
    layers = {side: int(config[f"{side}_layers"]) for side in layout.SIDES}
    tensors = layout.to_theirs(weights, family, layers)
    tables = {
        "source": (model.network.front.table.weight, Renumbered.from_json(origin["ids"])),
        "target": (
            model.network.decoder.embedding.table.weight,
            Renumbered.from_json(origin["target_ids"]),
        ),
    }
    theirs = {
        side: layout.to_halves(ids.to_theirs(table_VD.detach().cpu()), 1, family)
        for side, (table_VD, ids) in tables.items()
    }
    tensors[layout.SHARED] = theirs["target"]
    tensors["model.encoder.embed_tokens.weight"] = theirs["source"]
    tensors["model.decoder.embed_tokens.weight"] = theirs["target"]
    tensors[layout.HEAD] = theirs["target"]
    bias_V = model.network.head.bias.detach().cpu()
    tensors[layout.BIAS] = tables["target"][1].to_theirs(bias_V)[None]
    for side, embedding in (
        ("encoder", model.network.front),
        ("decoder", model.network.decoder.embedding),
    ):
        name = layout.positions_of(side)[1]
        if family.positions == "learned":
            first = kept[f"{name}.unused"].float()
            own = weights[layout.positions_of(side)[0]].detach().cpu()
            tensors[name] = torch.cat([first, own])
        elif family.positions == "fairseq":
            _check_sinusoids(table(embedding, int(config["max_position_embeddings"])), config)
    types = origin["types"]
    if layout.BIAS not in types and bool(tensors[layout.BIAS].any()):
        types = {**types, layout.BIAS: "float32"}  # it was learned since
    found: dict[str, Tensor] = {}
    for name, kind in types.items():
        tensor = kept[name] if name in kept else tensors[name]
        found[name] = tensor.to(getattr(torch, kind))
    write_weights(folder, found)
    write_json(folder / CONFIG, config)
    if origin.get("generation_config"):
        write_json(folder / "generation_config.json", origin["generation_config"])
    for name in origin["files"]:
        shutil.copyfile(model.origin.folder / KEPT_FILES / name, folder / name)
    return family.architecture


def _check_sinusoids(table_TD: Tensor, config: dict[str, Any]) -> None:
    from transduce.interop.imports.encoder_decoders import fairseq_positions
    from transduce.interop.imports.parts.configuration import Configuration

    if not torch.equal(table_TD, fairseq_positions(Configuration(config, CONFIG))):
        raise ModelError(
            "its positions were trained since it was imported, and there they are fixed waves: "
            "freeze them (train.start: {freeze: ['*.positions.*']}) to export it again"
        )
