"""Export of a Transformer to CTranslate2, by filling its public model specification.

https://opennmt.net/CTranslate2. Weights are [out, in] as torch's; the norm of a sublayer belongs to
the sublayer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, SPECIALS, UNKNOWN
from transduce.errors import ModelError, load_package
from transduce.interop.positions import check_parts, positions, table
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.transformer import DecoderBlock, EncoderBlock, FeedForward
from transduce.storage import make_folder
from transduce.tasks.transduce import Transducer

MODEL = "model.bin"
QUANTIZATIONS = ("int8", "int8_float32", "float16", "bfloat16")


def export(model: Transducer, folder: Path, quantize: str | None = None) -> None:
    """Write the model, with its tokens and recipe, so that CTranslate2 can run the folder.

    Raises ModelError for what CTranslate2 does not support.
    """
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ModelError(f"quantize is {quantize}; it must be one of {', '.join(QUANTIZATIONS)}")
    check(model.recipe.model)
    specification = _specification(model)
    specification.validate()
    specification.optimize(quantization=quantize)
    make_folder(folder)
    specification.save(str(folder))
    model.save_definition(folder)


def check(settings: recipe.Model) -> None:
    """ModelError, with the reason, if CTranslate2 does not support the model."""
    check_parts(settings, "CTranslate2")
    for name, part in settings.parts.items():
        if getattr(part, "combine", "") == "concatenate":
            raise ModelError(
                f"CTranslate2 adds positions to embeddings, and this model's {name} concatenates "
                f"them (combine: concatenate): use transduce's own engine or export to ONNX"
            )

    if _epsilon(settings.encoder) != _epsilon(settings.decoder):
        raise ModelError(
            "CTranslate2 has one epsilon for all norms, and this model's encoder and decoder have "
            "different ones (norm_epsilon): use transduce's own engine or export to ONNX"
        )


def _epsilon(part: recipe.Encoder | recipe.Decoder | None) -> float | None:
    """What it has to be told; None where it is the usual one."""
    assert isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder)
    usual = 1e-5 if part.norm == "layer" else 1e-6
    return None if part.norm_epsilon in (None, usual) else part.norm_epsilon


# ---------------------------------------------------------------------------- the specification


def _specification(model: Transducer) -> Any:
    specs = load_package("ctranslate2", "ctranslate2").specs
    parts = model.recipe.model.parts
    encoder = specs.TransformerEncoderSpec(**_shape(specs, parts["encoder"]))
    decoder = specs.TransformerDecoderSpec(**_shape(specs, parts["decoder"]))
    network = model.network
    assert isinstance(network.encoder, TransformerEncoder)
    assert isinstance(network.decoder, TransformerDecoder)

    rows = positions(model.recipe.model.encoder)
    _fill_embedding(encoder, encoder.embeddings[0], network.front, rows)
    for spec, block in zip(encoder.layer, network.encoder.blocks, strict=True):
        assert isinstance(block, EncoderBlock)
        _fill_block(spec, block)
    _fill_last_norm(encoder, network.encoder.norm)

    rows = positions(model.recipe.model.decoder)
    _fill_embedding(decoder, decoder.embeddings, network.decoder.embedding, rows)
    for spec, decoder_block in zip(decoder.layer, network.decoder.stack, strict=True):
        _fill_block(spec, decoder_block)
        assert decoder_block.cross_attention is not None
        _fill_cross(spec.attention, decoder_block.cross_attention)
        _fill_norm(spec.attention.layer_norm, decoder_block.cross_attention_residual.norm)
    _fill_last_norm(decoder, network.decoder.norm)
    decoder.projection.weight = _array(network.head.weight)
    decoder.projection.bias = _array(network.head.bias)

    whole = specs.TransformerSpec(encoder, decoder)
    whole.register_source_vocabulary(model.source_tokens.names())
    whole.register_target_vocabulary(model.target_tokens.names())
    whole.config.unk_token = SPECIALS[UNKNOWN]
    whole.config.bos_token = whole.config.decoder_start_token = SPECIALS[BEGIN]
    whole.config.eos_token = SPECIALS[END]
    whole.config.add_source_eos = model.recipe.model.source_end
    whole.config.layer_norm_epsilon = _epsilon(model.recipe.model.decoder)
    return whole


def _shape(specs: Any, part: recipe.Encoder | recipe.Decoder) -> dict[str, Any]:
    assert isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder)
    activation = ACTIVATIONS[part.activation]
    known = specs.common_spec.Activation
    shape = {
        "num_layers": part.layers,
        "num_heads": part.heads,
        "pre_norm": part.norm_position == "pre",
        "activation": {
            "relu": known.RELU,
            "gelu": known.GELU,
            "gelu_tanh": known.GELUTanh,
            "silu": known.SWISH,
        }[activation.function],
        "ffn_glu": activation.gated,
        "rms_norm": part.norm == "rms",
        "layernorm_embedding": part.norm_embeddings,
    }
    if part.positions == "rotary":  # 0: all features of a head, in neighbouring pairs
        shape |= {
            "rotary_dim": 0,
            "rotary_interleave": True,
            "rotary_base": part.rotary_base,
        }
    return shape


def _fill_embedding(side: Any, spec: Any, embedding: TokenEmbedding, rows: int) -> None:
    spec.weight = _array(embedding.table.weight)
    side.scale_embeddings = embedding.scale != 1.0  # by the square root of the width, as ours
    if embedding.norm is not None:
        _fill_norm(side.layernorm_embedding, embedding.norm)
    if not hasattr(side, "position_encodings"):
        return
    # Without a table it would compute its own sinusoids.
    side.position_encodings.encodings = _array(table(embedding, rows))


def _fill_block(spec: Any, block: EncoderBlock | DecoderBlock) -> None:
    attention = block.self_attention
    _fill_linear(spec.self_attention.linear[0], attention.in_projection)
    _fill_linear(spec.self_attention.linear[1], attention.out_projection)
    _fill_norm(spec.self_attention.layer_norm, block.self_attention_residual.norm)
    _fill_feed_forward(spec.ffn, block.feed_forward)
    _fill_norm(spec.ffn.layer_norm, block.feed_forward_residual.norm)


def _fill_cross(spec: Any, attention: MultiHeadAttention) -> None:
    weight_3DD, bias_3D = attention.in_projection.weight, attention.in_projection.bias
    D = attention.width
    spec.linear[0].weight, spec.linear[0].bias = _array(weight_3DD[:D]), _array(bias_3D[:D])
    spec.linear[1].weight, spec.linear[1].bias = _array(weight_3DD[D:]), _array(bias_3D[D:])
    _fill_linear(spec.linear[2], attention.out_projection)


def _fill_feed_forward(spec: Any, layer: FeedForward) -> None:
    _fill_linear(spec.linear_1, layer.contract)
    if not ACTIVATIONS[layer.activation].gated:
        _fill_linear(spec.linear_0, layer.expand)
        return
    (gate_FD, value_FD), (gate_F, value_F) = (
        layer.expand.weight.chunk(2),
        layer.expand.bias.chunk(2),
    )
    spec.linear_0.weight, spec.linear_0.bias = _array(gate_FD), _array(gate_F)
    spec.linear_0_noact.weight, spec.linear_0_noact.bias = _array(value_FD), _array(value_F)


def _fill_linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight, spec.bias = _array(layer.weight), _array(layer.bias)


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _fill_last_norm(side: Any, norm: nn.Module) -> None:
    if not isinstance(norm, nn.Identity):
        _fill_norm(side.layer_norm, norm)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    # A copy: quantization works in place, and would change the exported model.
    values: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).numpy().copy()
    return values
