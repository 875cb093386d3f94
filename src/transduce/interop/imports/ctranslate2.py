"""Transformers of CTranslate2: a folder with model.bin and vocabularies.

https://opennmt.net/CTranslate2. Its folders say nothing of how texts are tokenized: outside of our
own exports, a source is tokens of the vocabulary with spaces between them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN
from transduce.errors import ModelError
from transduce.interop.imports.ctranslate2_file import ModelFile, read_model_file
from transduce.interop.imports.ctranslate2_settings import HEADS, Settings, Side
from transduce.interop.imports.ctranslate2_vocabulary import read_vocabularies
from transduce.interop.imports.parts.recipe import create_model, imported_recipe
from transduce.interop.imports.parts.weights import (
    Linear,
    fill,
    fill_attention,
    fill_feed_forward,
    fill_norm,
    halves_to_pairs,
    joined,
)
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Learned
from transduce.nn.transformer import Block, DecoderBlock, EncoderBlock
from transduce.tasks.folder import RECIPE, read_definition
from transduce.tasks.transduce import Transducer

NAME = "a Transformer of CTranslate2"
MODEL = "model.bin"


def recognises(source: Path) -> bool:
    if not (source / MODEL).is_file():
        return False
    try:
        name = read_model_file(source / MODEL).specification
    except ModelError:
        return True  # `read` says what is wrong with it
    return name in HEADS or name == "TransformerSpec"


def read(source: Path) -> Transducer:
    """The model. Raises ModelError where we have no equal of it."""
    file = read_model_file(source / MODEL)
    if file.specification not in (*HEADS, "TransformerSpec"):
        raise ModelError(f"{file.path} is a {file.specification}, which is not a Transformer")
    settings = Settings(source, file)
    sides = [settings.side("encoder"), settings.side("decoder")]
    own = read_definition(source) if (source / RECIPE).is_file() else None  # an export of ours
    tokens = None if own is None else (own.source_tokens, own.target_tokens)
    vocabularies = read_vocabularies(source, settings.config, tokens)
    tables = [
        layout.embeddings(_rows(file, side, layout.size) * side.factor)
        for layout, side in zip(vocabularies.layouts, sides, strict=True)
    ]
    head = _linear(file, "decoder/projection")
    target = vocabularies.layouts[1]
    if settings.on("decoder/start_from_zero_embedding"):
        tables[1][BEGIN] = 0.0
    bias_V = torch.zeros(len(head.weight)) if head.bias is None else head.bias
    head_VD, bias_V = target.embeddings(head.weight), target.bias(bias_V)
    shared = vocabularies.source is vocabularies.target
    recipe = imported_recipe(
        source.resolve().name,
        {
            "width": tables[1].shape[1],
            "tie_embeddings": _tied(tables[0], tables[1], head_VD, shared),
            "source_end": settings.config.switch("add_source_eos"),
            "encoder": sides[0].section,
            "decoder": sides[1].section,
        },
        (vocabularies.source, vocabularies.target),
        max_length=settings.max_length(sides),
    )
    if own is not None:
        recipe = own.recipe.model_copy(update={"model": recipe.model})
    tokens = (vocabularies.source, vocabularies.target)
    model = create_model(recipe, tokens, file.path.stat().st_size, source)
    assert isinstance(model, Transducer)
    network = model.network
    fill(network.head.weight, head_VD, "the output layer")
    fill(network.head.bias, bias_V, "the bias of the output layer")
    assert isinstance(network.encoder, TransformerEncoder)
    assert isinstance(network.decoder, TransformerDecoder)
    _fill_side(file, sides[0], tables[0], network.front, network.encoder)
    _fill_side(file, sides[1], tables[1], network.decoder.embedding, network.decoder)
    settings.check_all_used()
    model.imported = {"format": "ctranslate2", "specification": file.specification}
    network.eval()
    return model


def _rows(file: ModelFile, side: Side, names: int) -> Tensor:
    table_VD = file.tensor(side.table)
    if len(table_VD) != names:
        raise ModelError(
            f"{file.path}: {side.table} has {len(table_VD)} rows for a vocabulary of {names}"
        )
    return table_VD


def _tied(source_VD: Tensor, target_VD: Tensor, head_VD: Tensor, shared: bool) -> str:
    """As `model.tie_embeddings`, by what is equal."""
    if not torch.equal(target_VD, head_VD):
        return "none"
    return "all" if shared and torch.equal(source_VD, target_VD) else "target"


def _fill_side(
    file: ModelFile,
    side: Side,
    table_VD: Tensor,
    embedding: TokenEmbedding,
    stack: TransformerEncoder | TransformerDecoder,
) -> None:
    fill(embedding.table.weight, table_VD, f"{file.path}: {side.table}")
    if side.positions_TD is not None:
        assert embedding.positions is not None
        learned = embedding.positions.positions
        assert isinstance(learned, Learned)
        fill(learned.table_TD, side.positions_TD, f"{file.path}: the positions of the {side.name}")
    if embedding.norm is not None:
        name = f"{side.name}/layernorm_embedding"
        fill_norm(embedding.norm, _norm(file, name), f"{file.path}: {name}")
    for number, block in enumerate(stack.stack):
        _fill_block(file, side, f"{side.name}/layer_{number}", block)
    if side.section["norm_position"] == "pre":
        name = f"{side.name}/layer_norm"
        fill_norm(stack.norm, _norm(file, name), f"{file.path}: {name}")


def _fill_block(file: ModelFile, side: Side, name: str, block: Block) -> None:
    assert isinstance(block, EncoderBlock | DecoderBlock)
    where = f"{file.path}: {name}"
    into = _linear(file, f"{name}/self_attention/linear_0")
    if side.halves:
        into = _paired(into, side.section["heads"])
    out_of = _linear(file, f"{name}/self_attention/linear_1")
    fill_attention(block.self_attention, [into], out_of, f"{where}/self_attention")
    norm = _norm(file, f"{name}/self_attention/layer_norm")
    fill_norm(block.self_attention_residual.norm, norm, f"{where}/self_attention/layer_norm")
    if isinstance(block, DecoderBlock):
        assert block.cross_attention is not None
        cross = [_linear(file, f"{name}/attention/linear_{number}") for number in range(3)]
        fill_attention(block.cross_attention, cross[:2], cross[2], f"{where}/attention")
        norm = _norm(file, f"{name}/attention/layer_norm")
        fill_norm(block.cross_attention_residual.norm, norm, f"{where}/attention/layer_norm")
    gated = f"{name}/ffn/linear_0_noact/weight" in file
    parts = ["linear_0", "linear_0_noact"] if gated else ["linear_0"]
    expand = [_linear(file, f"{name}/ffn/{part}") for part in parts]
    fill_feed_forward(
        block.feed_forward, expand, _linear(file, f"{name}/ffn/linear_1"), f"{where}/ffn"
    )
    norm = _norm(file, f"{name}/ffn/layer_norm")
    fill_norm(block.feed_forward_residual.norm, norm, f"{where}/ffn/layer_norm")


def _paired(into: Linear, heads: int) -> Linear:
    """Queries and keys for rotary positions of neighbouring features."""
    weights = into.weight.chunk(3)
    biases = (None,) * 3 if into.bias is None else into.bias.chunk(3)
    query, key, value = (Linear(w, b) for w, b in zip(weights, biases, strict=True))
    return joined([halves_to_pairs(query, heads), halves_to_pairs(key, heads), value])


def _linear(file: ModelFile, name: str) -> Linear:
    bias = file.tensor(f"{name}/bias") if f"{name}/bias" in file else None
    return Linear(file.tensor(f"{name}/weight"), bias)


def _norm(file: ModelFile, name: str) -> Linear:
    bias = file.tensor(f"{name}/beta") if f"{name}/beta" in file else None
    return Linear(file.tensor(f"{name}/gamma"), bias)
