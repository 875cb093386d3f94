"""Export of a language model that was imported from Hugging Face: its own names and ids again.

Weights that were not trained since are those of the folder that it came from, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.interop.huggingface.weights_file import write_weights
from transduce.interop.imports.huggingface import CONFIG, KEPT_FILES, read_origin_tensors
from transduce.models.decoders import TransformerDecoder
from transduce.nn.positions import Learned
from transduce.nn.transformer import DecoderBlock
from transduce.storage import write_json
from transduce.tasks.language_model import LanguageModel


def export_imported_language_model(
    model: LanguageModel, origin: Mapping[str, Any], folder: Path
) -> str:
    """Write the folder again; the name of the class. Raises ModelError for what changed since."""
    assert model.origin is not None
    config = origin["config"]
    tensors = read_origin_tensors(model.origin.folder)
    tensors |= _tensors(model, config, origin["ids"])
    found: dict[str, Tensor] = {}
    for name, (short, kind) in origin["names"].items():
        if short not in tensors:
            raise ModelError(f"{model.origin.folder} has no {name} any more; import it again")
        found[name] = tensors[short].to(getattr(torch, kind))
    known = {short for short, _ in origin["names"].values()}
    for short, values in tensors.items():
        if short.endswith(".bias") and short not in known and bool(values.any()):
            raise ModelError(
                f"{short} was learned since this model was imported, and there is no place for it "
                f"there: freeze biases (train.start: {{freeze: ['*.bias']}}) to export it again"
            )
    write_weights(folder, found)
    write_json(folder / CONFIG, config)
    for name in origin["files"]:
        shutil.copyfile(model.origin.folder / KEPT_FILES / name, folder / name)
    named = config.get("architectures") or [config["model_type"]]
    return str(named[0])


def _tensors(
    model: LanguageModel, config: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[str, Tensor]:
    """By their names there, without what stands before all of them."""
    decoder, head = model.network.decoder, model.network.head
    assert isinstance(decoder, TransformerDecoder)
    written = set(range(len(ids["rows"]))) - set(ids["unwritten"])
    bias_V = head.bias.detach().cpu()
    if any(float(bias_V[number]) for number in written):
        raise ModelError(
            "the output layer has learned a bias since this model was imported, and there is no "
            "place for one: freeze it (train.start: {freeze: ['head.bias']}) to export it again"
        )
    places = {ids["rows"][number]: number for number in written}
    order = torch.tensor([places[row] for row in range(len(places))])
    tables = [one.detach().cpu()[order] for one in (decoder.embedding.table.weight, head.weight)]
    found = {"lm_head.weight": tables[1]}
    gpt2 = config["model_type"] == "gpt2"
    found["wte.weight" if gpt2 else "embed_tokens.weight"] = tables[0]
    for number, block in enumerate(decoder.stack):
        found |= _gpt2_block(block, f"h.{number}") if gpt2 else _llama_block(block, number, config)
    _put(found, "ln_f" if gpt2 else "norm", decoder.norm)
    if gpt2:
        assert decoder.embedding.positions is not None
        learned = decoder.embedding.positions.positions
        assert isinstance(learned, Learned)
        found["wpe.weight"] = learned.table_TD.detach().cpu()
    return found


def _put(found: dict[str, Tensor], name: str, layer: nn.Module, turned: bool = False) -> None:
    for key, parameter in layer.named_parameters():
        values = parameter.detach().cpu()
        found[f"{name}.{key}"] = values.t().contiguous() if turned and key == "weight" else values


def _gpt2_block(block: DecoderBlock, name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    _put(found, f"{name}.attn.c_attn", block.self_attention.in_projection, turned=True)
    _put(found, f"{name}.attn.c_proj", block.self_attention.out_projection, turned=True)
    _put(found, f"{name}.mlp.c_fc", block.feed_forward.expand, turned=True)
    _put(found, f"{name}.mlp.c_proj", block.feed_forward.contract, turned=True)
    _put(found, f"{name}.ln_1", block.self_attention_residual.norm)
    _put(found, f"{name}.ln_2", block.feed_forward_residual.norm)
    return found


def _llama_block(block: DecoderBlock, number: int, config: Mapping[str, Any]) -> dict[str, Tensor]:
    name, attention, layer = f"layers.{number}", block.self_attention, block.feed_forward
    heads = attention.heads
    shared = int(config.get("num_key_value_heads") or heads)
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        query, key, value = getattr(attention.in_projection, part).detach().cpu().chunk(3)
        gate, up = getattr(layer.expand, part).detach().cpu().chunk(2)
        found |= {
            f"{name}.self_attn.q_proj.{part}": pairs_to_halves(query, heads),
            f"{name}.self_attn.k_proj.{part}": pairs_to_halves(_once(key, heads, shared), shared),
            f"{name}.self_attn.v_proj.{part}": _once(value, heads, shared),
            f"{name}.self_attn.o_proj.{part}": getattr(attention.out_projection, part)
            .detach()
            .cpu(),
            f"{name}.mlp.gate_proj.{part}": gate,
            f"{name}.mlp.up_proj.{part}": up,
            f"{name}.mlp.down_proj.{part}": getattr(layer.contract, part).detach().cpu(),
        }
    _put(found, f"{name}.input_layernorm", block.self_attention_residual.norm)
    _put(found, f"{name}.post_attention_layernorm", block.feed_forward_residual.norm)
    return found


def pairs_to_halves(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `halves_to_pairs`."""
    rest = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest)


def _once(rows: Tensor, heads: int, shared: int) -> Tensor:
    """Of keys or values that groups of heads share, those of each group once."""
    grouped = rows.reshape(shared, heads // shared, -1, *rows.shape[1:])
    if not torch.equal(grouped, grouped[:, :1].expand_as(grouped)):
        raise ModelError(
            "heads that shared keys and values were trained apart since this model was imported, "
            "and there they share them"
        )
    return grouped[:, 0].reshape(-1, *rows.shape[1:])
