"""Encoder-decoders of Hugging Face: Marian, Pegasus, Blenderbot, BART, mBART, M2M100 and NLLB."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.huggingface import layout
from transduce.interop.huggingface.classes import ACTIVATIONS, FAMILIES, Family
from transduce.interop.imports.encoder_decoder_tokens import Read, read_tokens
from transduce.interop.imports.huggingface import model_type, read_config, read_weights
from transduce.interop.imports.parts.configuration import Configuration, read_configuration
from transduce.interop.imports.parts.recipe import create_model, imported_recipe
from transduce.interop.imports.parts.weights import byte_count
from transduce.models.weights import set_weights
from transduce.nn.positions import Sinusoidal
from transduce.recipe import Recipe
from transduce.tasks.model import Model

NAME = "encoder-decoder, of Hugging Face"
BANNED_BIAS = -100.0
"""Added to the bias of rows that are copies: their probability is nothing beside the first's."""
GENERATION = "generation_config.json"
LEFT_OUT = ("dropout", "attention_dropout", "activation_dropout")


def recognises(source: Path) -> bool:
    return model_type(source) in FAMILIES


def read(source: Path) -> Model:
    """The model, with what its export needs again. Raises ModelError, with the reason."""
    config = read_config(source)
    generation = read_configuration(source / GENERATION, optional=True)
    family = FAMILIES[model_type(source)]
    weights = _whole_names(read_weights(source))
    tokens = read_tokens(source, family, config, generation)
    recipe = _recipe(source, family, config, generation, tokens)
    model = create_model(recipe, (tokens.source, tokens.target), byte_count(weights), source)
    used: set[str] = set()
    set_weights(model.network, _parameters(weights, family, config, tokens, used), source)
    model.network.eval()
    rest = {name: tensor for name, tensor in weights.items() if name not in used}
    if family.positions == "learned":
        for side in layout.SIDES:
            name = layout.positions_of(side)[1]
            rest[f"{name}.unused"] = weights[name][: family.offset].clone()
    model.imported = {
        "format": family.type,
        "config": config.values,
        "generation_config": generation.values,
        "ids": tokens.ids.to_json(),
        "target_ids": tokens.target_ids.to_json(),
        "types": {name: str(tensor.dtype)[6:] for name, tensor in weights.items()},
        "languages": tokens.languages,
        "files": tokens.files,
        "tensors": rest,
    }
    return model


def _whole_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With "model." before names, which checkpoints of a model without its head lack."""
    if any(name.startswith("model.") for name in weights):
        return weights
    raise ModelError(
        "the weights are of a model without an output layer, or of another kind; take the folder "
        "of a model for generation"
    )


# --------------------------------------------------------------------------------- the recipe


def _recipe(
    source: Path, family: Family, config: Configuration, generation: Configuration, tokens: Read
) -> Recipe:
    longest = config.whole("max_position_embeddings", 1024, minimum=4)
    both = {
        "activation": config.choice("activation_function", ACTIVATIONS, "gelu"),
        "norm_position": family.norm_position,
        "norm_embeddings": family.norm_embeddings,
        "positions": "sinusoidal" if family.halves else "learned",
        "max_positions": longest,
        "scale_embeddings": config.switch("scale_embedding"),
        "attention_dropout": config.share("attention_dropout"),
        "activation_dropout": config.share("activation_dropout"),
    }
    parts = {
        side: {
            **both,
            "layers": config.whole(f"{side}_layers"),
            "heads": config.whole(f"{side}_attention_heads"),
            "feed_forward": config.whole(f"{side}_ffn_dim"),
        }
        for side in layout.SIDES
    }
    settings = Configuration({**config.values, **generation.values}, source / GENERATION)
    return imported_recipe(
        source.resolve().name,
        {
            "width": config.whole("d_model"),
            "dropout": config.share("dropout"),
            "tie_embeddings": "all" if tokens.shared else "target",
            **parts,
        },
        (tokens.target, tokens.target) if tokens.shared else (tokens.source, tokens.target),
        max_length=min(256, longest - 2),
        decode={
            "beam": settings.whole("num_beams", 1, minimum=0) or 1,
            "length_penalty": settings.number("length_penalty", 1.0) or 1.0,
            "no_repeat_ngram": settings.whole("no_repeat_ngram_size", 0, minimum=0),
        },
    )


# --------------------------------------------------------------------------------- the weights


def _parameters(
    weights: dict[str, Tensor], family: Family, config: Configuration, tokens: Read, used: set[str]
) -> dict[str, Tensor]:
    layers = {side: config.whole(f"{side}_layers") for side in layout.SIDES}
    found = layout.to_ours(weights, family, layers)
    used |= {name for entry in layout.entries(family, layers) for name in entry.theirs}

    source_VD, target_VD = _tables(weights, tokens.shared, used)
    head_VD = weights.get(layout.HEAD)
    if head_VD is not None and not torch.equal(head_VD, target_VD):
        raise ModelError(
            "its output layer is not tied to its embeddings (tie_word_embeddings: false), and such "
            "a model cannot be imported yet"
        )
    tables = {"front": (source_VD, tokens.ids), "decoder.embedding": (target_VD, tokens.target_ids)}
    if tokens.shared:
        del tables["decoder.embedding"]
    for name, (table_VD, ids) in tables.items():
        if len(table_VD) < ids.vocabulary:
            raise ModelError(
                f"its embeddings have {len(table_VD)} rows, but its tokenizer {ids.vocabulary} "
                f"tokens"
            )
        ours_VD = layout.from_halves(ids.to_ours(table_VD.float()), 1, family)
        found[f"{name}.table.weight"] = ours_VD
    found["head.bias"] = _bias(weights, tokens, used)
    for side in layout.SIDES:
        name, theirs = layout.positions_of(side)
        if family.positions == "learned":
            found[name] = weights[theirs].float()[family.offset :]
            used.add(theirs)
        elif family.positions == "fairseq":
            found[name] = fairseq_positions(config)
        elif theirs in weights:
            _check_sinusoids(weights[theirs].float())
    return found


def _check_sinusoids(table_TD: Tensor) -> None:
    rows, width = table_TD.shape
    sinusoids_TD = torch.cat([Sinusoidal(width)(rows)[:, part::2] for part in (0, 1)], dim=1)
    if float((table_TD - sinusoids_TD).abs().max()) > 1e-3:
        raise ModelError("its positions are not the sinusoidal ones that its class has")


def _tables(weights: dict[str, Tensor], shared: bool, used: set[str]) -> tuple[Tensor, Tensor]:
    """The embeddings of source and target."""
    names = {
        "source": (layout.SHARED, "model.encoder.embed_tokens.weight"),
        "target": (layout.SHARED, "model.decoder.embed_tokens.weight", layout.HEAD),
    }
    if not shared:
        names = {side: some[1:] for side, some in names.items()}
    tables = []
    for some in names.values():
        present = [name for name in some if name in weights]
        if not present:
            raise ModelError(f"the weights have no {some[0]}; download the folder again")
        tables.append(weights[present[0]])
        for name in present:
            if torch.equal(weights[name], tables[-1]):
                used.add(name)
    return tables[0], tables[1]


def _bias(weights: dict[str, Tensor], tokens: Read, used: set[str]) -> Tensor:
    ids = tokens.target_ids
    bias_V = torch.zeros(ids.vocabulary)
    if (theirs := weights.get(layout.BIAS)) is not None:
        used.add(layout.BIAS)
        bias_V = theirs.float().flatten()
    ours_V = ids.to_ours(bias_V)
    ours_V[ids.copies] += BANNED_BIAS
    return ours_V


def fairseq_positions(config: Configuration) -> Tensor:
    """The positions of M2M100 from the first on; there the padding's id is before them."""
    first = config.whole("pad_token_id", minimum=0) + 1
    rows = config.whole("max_position_embeddings", 1024, minimum=4) + first
    return fairseq_sinusoids(rows, config.whole("d_model"))[first:]


def fairseq_sinusoids(rows: int, width: int) -> Tensor:
    """fairseq's sinusoidal positions [rows, width]: frequencies from 1 down to 1/10000, inclusive;
    all sines, then all cosines."""
    half = width // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half).float() * -step)
    angles = torch.arange(rows).float()[:, None] * frequencies[None]
    sinusoids = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.nn.functional.pad(sinusoids, (0, width - 2 * half))
