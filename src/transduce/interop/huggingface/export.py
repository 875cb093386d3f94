"""Export of a Transformer to a folder that transformers loads as one of its own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import ModelError
from transduce.interop.huggingface import layout
from transduce.interop.huggingface.files import put_back, write_card, write_tokenizer, write_weights
from transduce.interop.huggingface.ids import Renumbered
from transduce.interop.huggingface.language_models import (
    export_imported_language_model,
    export_language_model,
)
from transduce.interop.huggingface.layout import FAMILIES, Family, choose_family
from transduce.interop.imports.huggingface import (
    CONFIG,
    read_origin,
    read_origin_tensors,
)
from transduce.interop.positions import positions, table
from transduce.models.weights import weights_of
from transduce.recipe.model import max_length_of
from transduce.storage import make_folder, write_json
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model
from transduce.tasks.transduce import Transducer

MODEL = CONFIG
BANNED_BIAS = -1e9  # the bias of ids that are of the source alone


def export(model: Model, folder: Path) -> str:
    """Write configuration, weights, tokenizer and card; the name of the class there.

    Raises ModelError, with the reason, where no class is exactly equal to the model.
    """
    if model.recipe.audio is not None or not isinstance(model, Transducer | LanguageModel):
        what = "speech" if model.recipe.audio is not None else f"task: {model.recipe.task}"
        raise ModelError(
            f"models of {what} are not exported to Hugging Face; only translation models and other "
            f"text to text (task: transduce), and language models (task: language_modeling)"
        )
    if isinstance(model, Transducer) and model.is_bidirectional:
        raise ModelError(
            "this model decodes in both directions (data.bidirectional), and transformers has no "
            "such search: set decode.bidirectional: false in its recipe.yaml to export it for "
            "left to right alone"
        )
    make_folder(folder)
    origin = None if model.origin is None else read_origin(model.origin.folder)
    if origin is not None and "config" in origin and isinstance(model, Transducer):
        name = export_imported(model, origin, folder)
    elif origin is not None and "config" in origin and isinstance(model, LanguageModel):
        name = export_imported_language_model(model, origin, folder)
    elif isinstance(model, LanguageModel):
        name = export_language_model(model, folder)
    else:
        name = _export(model, folder)
    write_card(model, folder, name)
    return name


def _export(model: Transducer, folder: Path) -> str:
    settings = model.recipe.model
    family = choose_family(settings)
    longest = _longest(settings)
    first = first_target_id(model)
    weights = weights_of(model.network)
    layers = {side: part.layers for side, part in _sides(settings).items()}
    tensors = layout.to_theirs(weights, family, layers)
    tables = [layout.to_halves(model.network.decoder.embedding.table.weight.detach(), 1, family)]
    bias_V = model.network.head.bias.detach()
    if first:
        tables.insert(0, layout.to_halves(model.network.front.table.weight.detach(), 1, family))
        bias_V = torch.cat([torch.full((first,), BANNED_BIAS), bias_V.cpu()])
    tensors[layout.SHARED] = torch.cat([table.cpu() for table in tables])
    tensors[layout.BIAS] = bias_V.cpu()[None].clone()
    for side, embedding in (
        ("encoder", model.network.front),
        ("decoder", model.network.decoder.embedding),
    ):
        table_TD = layout.to_halves(table(embedding, longest), 1, family)
        unused = torch.zeros(family.offset, table_TD.shape[1])
        tensors[layout.positions_of(side)[1]] = torch.cat([unused, table_TD])
    write_weights(folder, tensors)
    write_json(folder / CONFIG, _config(model, family, first, longest))
    write_json(folder / "generation_config.json", _generation(model, first, longest))
    write_tokenizer(folder, model.source_tokens, model.target_tokens if first else None, longest)
    return family.architecture


def first_target_id(model: Transducer) -> int:
    """The first id of target tokens there: 0 where source and target share one table."""
    return 0 if model.recipe.model.tie_embeddings == "all" else len(model.source_tokens)


def _sides(
    settings: recipe.Model,
) -> dict[str, recipe.TransformerEncoder | recipe.TransformerDecoder]:
    parts = settings.parts
    for part in parts.values():
        assert isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder)
    return parts  # type: ignore[return-value]


def _longest(settings: recipe.Model) -> int:
    """The longest sequence that both sides have positions for."""
    return min(positions(settings.encoder), positions(settings.decoder))


def _config(model: Transducer, family: Family, first: int, longest: int) -> dict[str, Any]:
    settings = model.recipe.model
    encoder, decoder = (_sides(settings)[side] for side in layout.SIDES)
    rows = first + len(model.target_tokens)
    return {
        "architectures": [family.architecture],
        "model_type": family.type,
        "is_encoder_decoder": True,
        "torch_dtype": "float32",
        "vocab_size": rows,
        **({"decoder_vocab_size": rows} if family.type == "marian" else {}),
        "d_model": settings.width,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "num_hidden_layers": encoder.layers,
        "encoder_attention_heads": encoder.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": encoder.feed_forward,
        "decoder_ffn_dim": decoder.feed_forward,
        "activation_function": decoder.activation,
        "max_position_embeddings": longest,
        "scale_embedding": decoder.scale_embeddings,
        "dropout": settings.dropout,
        "attention_dropout": decoder.attention_dropout,
        "activation_dropout": decoder.activation_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "use_cache": True,
        **_special_ids(first),
    }


def _special_ids(first: int) -> dict[str, Any]:
    return {
        "pad_token_id": PAD,
        "bos_token_id": first + BEGIN,
        "eos_token_id": first + END,
        "decoder_start_token_id": first + BEGIN,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _generation(model: Transducer, first: int, longest: int) -> dict[str, Any]:
    decode = model.recipe.decode
    # Theirs is one number, ours follows from each source: that of the longest one of training.
    # Theirs counts the token that an output starts with, ours the one that ends it.
    limit = int(decode.max_ratio * (model.recipe.data.max_length + 1)) + decode.max_extra
    output = min(limit, longest)
    return {
        **_special_ids(first),
        "num_beams": decode.beam,
        "length_penalty": decode.length_penalty,
        "early_stopping": False,
        "no_repeat_ngram_size": decode.no_repeat_ngram,
        "encoder_no_repeat_ngram_size": 0,
        "max_length": min(output, max_length_of(model.recipe.model.decoder)),
        # Never written, as by our search; they keep their share of the probabilities.
        "suppress_tokens": [first + PAD, first + BEGIN],
    }


# ----------------------------------------------------------------------------------------------
# Export of a model that was imported from Hugging Face: its own class, names and ids again.
#
# Weights that were not trained since are those of the folder that it came from, bit for bit.


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
    if origin.get("generation_config"):
        write_json(folder / "generation_config.json", origin["generation_config"])
    put_back(folder, found, origin, model.origin.folder)
    return family.architecture


def _check_sinusoids(table_TD: Tensor, config: dict[str, Any]) -> None:
    from transduce.interop.imports.configuration import Configuration
    from transduce.interop.imports.encoder_decoders import fairseq_positions

    if not torch.equal(table_TD, fairseq_positions(Configuration(config, CONFIG))):
        raise ModelError(
            "its positions were trained since it was imported, and there they are fixed waves: "
            "freeze them (train.start: {freeze: ['*.positions.*']}) to export it again"
        )
