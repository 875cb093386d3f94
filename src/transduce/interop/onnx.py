"""Export of a Transformer to ONNX: two graphs, the encoder and one step of the decoder.

encoder.onnx: source [batch, source], mask [batch, source] (True for tokens) → memory [layers,
batch, source, 2 width], keys and values for each layer's cross-attention.

decoder.onnx: tokens [batch], position [1], past [layers, batch, time, 2 width] (the KV cache),
memory, mask → log_probabilities [batch, vocabulary], new_past, one step longer. The first token is
BEGIN, with position 0 and an empty past.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from transduce.errors import ModelError, load_package
from transduce.interop.positions import check_parts, positions, table
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Rotary
from transduce.nn.transformer import Block, EncoderBlock
from transduce.storage import make_folder
from transduce.tasks.transduce import Transducer

ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"
OPSET = 17


def export(model: Transducer, folder: Path) -> None:
    """Write the two graphs, with the model's tokens and recipe; ModelError if it is not
    supported.
    """
    settings = model.recipe.model
    check_parts(settings, "ONNX")
    if not settings.source_end:
        raise ModelError(
            "the export to ONNX knows no sources without an end token (source_end: false): use "
            "transduce's own engine, or export to CTranslate2"
        )
    load_package("onnx", "onnx")
    make_folder(folder)
    # a copy: the model itself is not changed
    network = deepcopy(model.network).float().cpu().eval()
    encoder = EncoderGraph(network, positions(settings.encoder))
    decoder = StepGraph(network, positions(settings.decoder))
    L, D = len(decoder.decoder.blocks), settings.width
    source_BS, mask_BS = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    _write(
        encoder,
        (source_BS, mask_BS),
        folder / ENCODER,
        {"source": {0: "batch", 1: "source"}, "mask": {0: "batch", 1: "source"}},
        {"memory": {1: "batch", 2: "source"}},
    )
    past_LBTE, memory_LBSE = torch.zeros(L, 2, 4, 2 * D), torch.zeros(L, 2, 3, 2 * D)
    _write(
        decoder,
        (torch.ones(2, dtype=torch.int64), torch.tensor([4]), past_LBTE, memory_LBSE, mask_BS),
        folder / DECODER,
        {
            "tokens": {0: "batch"},
            "position": {},
            "past": {1: "batch", 2: "time"},
            "memory": {1: "batch", 2: "source"},
            "mask": {0: "batch", 1: "source"},
        },
        {"log_probabilities": {0: "batch"}, "new_past": {1: "batch", 2: "new_time"}},
    )
    model.save_definition(folder)


def _write(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        # warnings that there is a newer exporter, which needs more packages
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.eval(),
            example,
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: axes for name, axes in (inputs | outputs).items() if axes},
            opset_version=OPSET,
            dynamo=False,
        )


# --------------------------------------------------------------------------------- the graphs


class EncoderGraph(nn.Module):
    """Source tokens to the projected memory of every layer of the decoder."""

    def __init__(self, network: EncoderDecoder, rows: int) -> None:
        super().__init__()
        assert isinstance(network.encoder, TransformerEncoder)
        assert isinstance(network.decoder, TransformerDecoder)
        self.front = Frontend(network.front, rows)
        self.encoder, self.decoder = network.encoder, network.decoder
        self.rotary_angles = RotaryTable(_rotary(network.encoder.blocks), rows)

    def forward(self, source_BS: Tensor, mask_BS: Tensor) -> Tensor:
        position_S = torch.arange(source_BS.shape[1])
        x_BSD = self.front(source_BS, position_S)

        def attend(x_BSD: Tensor, attention: MultiHeadAttention) -> Tensor:
            query_BSD, keys_BSD, values_BSD = attention.in_projection(x_BSD).chunk(3, dim=-1)
            query_BSD = self.rotary_angles(query_BSD, position_S, attention.heads)
            keys_BSD = self.rotary_angles(keys_BSD, position_S, attention.heads)
            return _attended(attention, query_BSD, keys_BSD, values_BSD, mask_BS)

        for block in cast("Sequence[EncoderBlock]", self.encoder.blocks):
            x_BSD = _through(block, x_BSD, {"self_attention": attend})
        states_BSD = _normed(self.encoder.norm, x_BSD)
        return torch.stack([block.project_memory(states_BSD) for block in self.decoder.stack])


class StepGraph(nn.Module):
    """One decoding step: log-probabilities of the next token, and the extended KV cache."""

    def __init__(self, network: EncoderDecoder, rows: int) -> None:
        super().__init__()
        assert isinstance(network.decoder, TransformerDecoder)
        self.front = Frontend(network.decoder.embedding, rows)
        self.decoder, self.head = network.decoder, network.head
        self.rotary_angles = RotaryTable(_rotary(network.decoder.blocks), rows)

    def forward(
        self,
        tokens_B: Tensor,
        position_1: Tensor,
        past_LBTE: Tensor,
        memory_LBSE: Tensor,
        mask_BS: Tensor,
    ) -> tuple[Tensor, Tensor]:
        x_B1D = self.front(tokens_B[:, None], position_1)
        new_past: list[Tensor] = []

        def attend_to_self(x_B1D: Tensor, own: MultiHeadAttention) -> Tensor:
            query_B1D, keys_B1D, values_B1D = own.in_projection(x_B1D).chunk(3, dim=-1)
            query_B1D = self.rotary_angles(query_B1D, position_1, own.heads)
            keys_B1D = self.rotary_angles(keys_B1D, position_1, own.heads)
            new_B1E = torch.cat((keys_B1D, values_B1D), dim=-1)
            new_past.append(torch.cat((past_LBTE[len(new_past)], new_B1E), dim=1))
            return _attended(own, query_B1D, *new_past[-1].chunk(2, dim=-1))

        for layer, block in enumerate(self.decoder.stack):

            def attend_to_source(
                x_B1D: Tensor, cross: MultiHeadAttention, layer: int = layer
            ) -> Tensor:
                D = cross.width
                weight_DD, bias_D = cross.in_projection.weight[:D], cross.in_projection.bias[:D]
                query_B1D = nn.functional.linear(x_B1D, weight_DD, bias_D)
                keys_BSD, values_BSD = memory_LBSE[layer].chunk(2, dim=-1)
                return _attended(cross, query_B1D, keys_BSD, values_BSD, mask_BS)

            x_B1D = _through(
                block,
                x_B1D,
                {"self_attention": attend_to_self, "cross_attention": attend_to_source},
            )
        logits_BV = self.head(_normed(self.decoder.norm, x_B1D).squeeze(1))
        return torch.log_softmax(logits_BV, dim=-1), torch.stack(new_past)


class Frontend(nn.Module):
    """Embeddings with positions from a table."""

    table_TD: Tensor

    def __init__(self, embedding: TokenEmbedding, rows: int) -> None:
        super().__init__()
        self.table, self.scale, self.norm = embedding.table, embedding.scale, embedding.norm
        # Without positions zeros are added, so that every step has the same inputs.
        self.combine = "add" if embedding.positions is None else embedding.positions.combine
        self.register_buffer("table_TD", table(embedding, rows))

    def forward(self, tokens_BT: Tensor, position_T: Tensor) -> Tensor:
        x_BTD: Tensor = self.table(tokens_BT) * self.scale
        if self.combine == "add":
            x_BTD = x_BTD + self.table_TD[position_T]
        else:
            position_BTD = self.table_TD[position_T].expand(x_BTD.shape[0], -1, -1)
            x_BTD = torch.cat((x_BTD, position_BTD), dim=-1)
        return x_BTD if self.norm is None else _normed(self.norm, x_BTD)


class RotaryTable(nn.Module):
    """Rotary positions from a table; the identity if there are none."""

    table_TK: Tensor

    def __init__(self, rotary: Rotary | None, rows: int) -> None:
        super().__init__()
        self.turning = rotary is not None
        if rotary is not None:
            self.register_buffer("table_TK", rotary(rows).detach().float().clone())

    def forward(self, x_BTD: Tensor, position_T: Tensor, heads: int) -> Tensor:
        if not self.turning:
            return x_BTD
        rotary_T1K = self.table_TK[position_T][:, None]
        cos, sin = rotary_T1K[..., 0::2], rotary_T1K[..., 1::2]
        x_BTHK = x_BTD.view(x_BTD.shape[0], x_BTD.shape[1], heads, -1)
        even, odd = x_BTHK[..., 0::2], x_BTHK[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(2)


def _rotary(blocks: nn.ModuleList) -> Rotary | None:
    rotary: Rotary | None = blocks[0].self_attention.rotary  # type: ignore[union-attr, assignment]
    return rotary


def _attended(
    attention: MultiHeadAttention,
    query_BTD: Tensor,
    keys_BSD: Tensor,
    values_BSD: Tensor,
    mask_BS: Tensor | None = None,
) -> Tensor:
    """Attention written out: fused kernels of one backend cannot be exported."""
    B, T, D = query_BTD.shape
    query_BHTK, keys_BHSK, values_BHSK = (
        x_BTD.view(B, -1, attention.heads, D // attention.heads).transpose(1, 2)
        for x_BTD in (query_BTD, keys_BSD, values_BSD)
    )
    scores_BHTS = query_BHTK @ keys_BHSK.transpose(2, 3) / math.sqrt(D // attention.heads)
    if mask_BS is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask_BS[:, None, None], float("-inf"))
    context_BTD = (scores_BHTS.softmax(dim=-1) @ values_BHSK).transpose(1, 2).reshape(B, T, D)
    output_BTD: Tensor = attention.out_projection(context_BTD)
    return output_BTD


Attend = Callable[[Tensor, MultiHeadAttention], Tensor]


def _through(block: Block, x: Tensor, attend: Mapping[str, Attend]) -> Tensor:
    """The sublayers of a block, each with its residual connection."""
    for sublayer in block.sublayers:
        norm, pre = sublayer.residual.norm, sublayer.residual.norm_position == "pre"
        entered = _normed(norm, x) if pre else x
        if sublayer.kind == "feed_forward":
            left = sublayer.feed_forward(entered)
        else:
            left = attend[sublayer.kind](entered, sublayer.attention)
        x = x + left if pre else _normed(norm, x + left)
    return x


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(norm, nn.RMSNorm):
        y: Tensor = norm(x)
        return y
    assert norm.eps is not None
    # Written out, as older operator sets have no RMSNorm.
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + norm.eps) * norm.weight
