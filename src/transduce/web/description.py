"""A network as the browser's runtime reads it: its layers in the terms of the C library, and the
tensors that they name.

The JavaScript side (runtime/networks.js) knows no names of weights and no recipe: it builds what is
described here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.decoders import (
    Decoder,
    RecurrentDecoder,
    TagAttention,
    TransformerDecoder,
)
from transduce.models.encoder_decoder import EncoderDecoder, Head
from transduce.models.encoders import (
    ConformerEncoder,
    PooledEncoder,
    RecurrentEncoder,
    TransformerEncoder,
)
from transduce.models.label_network import AttentionPool, LabelNetwork, LastPool, MeanPool
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.speech import SpeechEncoderDecoder, SpeechFrontend, SpeechLabelNetwork
from transduce.models.transducer import SpeechTransducer
from transduce.models.word_embedding import LONGEST, WordEmbedding
from transduce.nn import transformer as blocks
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.attention import attention as scores
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.location_aware import LocationAware
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.conformer import ConformerBlock, MaskedBatchNorm
from transduce.nn.embedding.characters import ConvolvedLetters, RecurrentLetters
from transduce.nn.embedding.ngrams import MULTIPLIER, PRIME, SCATTER
from transduce.nn.embedding.ngrams import SCALE as NGRAM_SCALE
from transduce.nn.embedding.tokens import TaggedEmbedding, TokenEmbedding
from transduce.nn.gated_convolution import ConvolutionalDecoderBlock, ConvolutionalEncoderBlock
from transduce.nn.positions import Learned, Sinusoids
from transduce.nn.recurrent import cells
from transduce.nn.recurrent.stack import Recurrent
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.subsampling import Subsampling
from transduce.runtime.int8_file import quantize_weights
from transduce.runtime.packed_copy import head_in_int8
from transduce.runtime.recurrent import SCORES
from transduce.runtime.recurrent_stack import KINDS as CELL_NAMES
from transduce.runtime.structures import CELLS, FUNCTIONS, KINDS

Described = dict[str, Any]


class Description:
    """Describes the parts of a network, and collects their tensors; each tensor is kept once,
    however many parts share it."""

    def __init__(self, int8: bool = False) -> None:
        """int8: matrices are stored in int8, as in a model folder of that precision, and products
        that the C library computes in int8 are."""
        self.int8 = int8
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []

    def network(self, network: nn.Module) -> Described:
        """Raises ModelError for what a browser cannot run yet."""
        self.head_in_int8 = head_in_int8(network)
        if type(network) in (LabelNetwork, SpeechLabelNetwork):
            assert isinstance(network, LabelNetwork)
            return self.label_network(network)
        if type(network) is LanguageModelNetwork:
            return {"kind": "language-model", **self.writer(network.decoder, network.head)}
        if type(network) is SpeechEncoderDecoder:
            written = self.writer(network.decoder, network.head)
            return {"kind": "speech", **self.speech(network), **written}
        if type(network) is SpeechTransducer:
            return {
                "kind": "transducer",
                **self.speech(network),
                **self.writer(network.decoder, network.head),
                "joint": {
                    "states": self.linear(network.joint.of_states),
                    "features": self.linear(network.joint.of_features),
                },
            }
        if type(network) not in (EncoderDecoder, CopyingEncoderDecoder):
            raise ModelError(
                f"a {type(network).__name__} does not run in a browser yet: encoder-decoders, "
                f"language models, classifiers and taggers do"
            )
        assert isinstance(network, EncoderDecoder)
        return {
            "kind": "encoder-decoder",
            "source": self.embedding(network.front),
            "source_end": network.source_end,
            "tags": None if network.is_tag_V is None else _places(network.is_tag_V),
            "encoder": self.encoder(network.encoder, _width(network.front)),
            **self.writer(network.decoder, network.head),
            "copying": self.copying(network),
        }

    def speech(self, network: SpeechEncoderDecoder | SpeechTransducer) -> Described:
        """What hears: features, encoder, CTC."""
        return {
            "source": self.speech_front(network.front),
            "encoder": self.encoder(network.encoder, _speech_width(network.front)),
            "ctc": None if network.ctc is None else self.linear(network.ctc),
        }

    def writer(self, decoder: Decoder, head: Head) -> Described:
        """A decoder, with the embeddings below it and the output head above."""
        return {
            "target": self.embedding(decoder.embedding),
            "decoder": self.decoder(decoder),
            "head": self.head(head),
        }

    def head(self, head: Head) -> Described:
        narrow = head.narrow
        return {
            "vocabulary": self.product(head.weight, head.bias, packed=self.head_in_int8),
            "narrow": self.linear(narrow) if isinstance(narrow, nn.Linear) else None,
        }

    def copying(self, network: EncoderDecoder) -> Described | None:
        if not isinstance(network, CopyingEncoderDecoder):
            return None
        if isinstance(network.decoder, TransformerDecoder):
            last = network.decoder.stack[-1].cross_attention
            if last is not None and last.inner != last.width:
                raise ModelError("copying with pruned heads does not run in a browser yet")
        return {
            "gate": self.linear(network.pointer.gate),
            "copied_as": network.copied_as_V.tolist(),
        }

    def label_network(self, network: LabelNetwork) -> Described:
        if isinstance(network, SpeechLabelNetwork):
            source, width = self.speech_front(network.front), _speech_width(network.front)
        else:
            source, width = self.word_embedding(network.front), _width(network.front)
        pools = {MeanPool: "mean", AttentionPool: "attention", LastPool: "last"}
        return {
            "kind": "labels",
            "source": source,
            "encoder": self.encoder(network.encoder, width),
            "pool": None if network.pool is None else pools[type(network.pool)],
            "head": self.head(network.head),
        }

    # ------------------------------------------------------------------------------- tensors

    def tensor(self, tensor: Tensor | None, *, exact: bool = False) -> str | None:
        """The name of a tensor in the file. exact: in float32, also where the model is in int8."""
        if tensor is None:
            return None
        name = self._names.get(id(tensor))
        if name is None:
            name = self._names[id(tensor)] = str(len(self._names))
            self._kept.append(tensor)  # or another could have its id
            kept = {name: tensor.detach().float().contiguous()}
            self.tensors |= quantize_weights(kept) if self.int8 and not exact else kept
        return name

    def product(
        self,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        rows: tuple[int, int] | None = None,
        *,
        packed: bool = False,
        exact: bool = False,
    ) -> Described:
        """x Wᵀ + b. rows: those of the weight and the bias that count. packed: computed in int8 if
        the model is; otherwise in float32. exact: stored in float32 as well."""
        return {
            "weight": self.tensor(weight_FD, exact=exact),
            "bias": self.tensor(bias_F),
            "rows": rows or (0, len(weight_FD)),
            "int8": packed and self.int8,
        }

    def linear(self, layer: nn.Linear, *, packed: bool = False) -> Described:
        return self.product(layer.weight, layer.bias, packed=packed)

    def norm(self, norm: nn.Module | None) -> Described | None:
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
            return {
                "weight": self.tensor(norm.weight),
                "bias": self.tensor(bias),
                "epsilon": norm.eps,
            }
        return None

    # ---------------------------------------------------------------------------------- speech

    def speech_front(self, front: SpeechFrontend) -> Described:
        mel, subsampling = front.mel, front.subsampling
        if not isinstance(mel, LogMel) or not isinstance(subsampling, Subsampling):
            raise ModelError("Whisper's features do not run in a browser yet")
        positions = front.positions
        first, second = subsampling.first, subsampling.second
        channels = second.out_channels
        # Columns in the order of windows [frame][band][channel], and of states [band][channel].
        first_CE = first.weight.permute(0, 2, 3, 1).flatten(1)
        second_CE = second.weight.permute(0, 2, 3, 1).flatten(1)
        width = subsampling.projection.out_features
        projection_DCG = subsampling.projection.weight.view(width, channels, -1)
        projection_DE = projection_DCG.transpose(1, 2).flatten(1)
        norm = front.norm
        return {
            "kind": "speech",
            "mel": {
                "rate": mel.rate,
                "frame": mel.frame,
                "hop": mel.hop,
                "padded": mel.padded,
                "bands": mel.bands,
                "low": mel.low,
                "high": mel.high,
            },
            "norm": norm
            and {
                "mean": self.tensor(norm.mean_M),
                "deviation": self.tensor(norm.deviation_M),
            },
            "first": self.product(first_CE, first.bias, exact=True),
            "second": self.product(second_CE, second.bias, exact=True),
            "projection": self.product(projection_DE, subsampling.projection.bias),
            "factor": subsampling.factor,
            "scale": front.scale,
            "tags": None if front.tags is None else self.tensor(front.tags.weight),
            "tag_count": 0 if front.tags is None else front.tags.in_features,
            "positions": None if positions is None else self.positions(positions.positions),
            "concatenated": positions is not None and positions.combine == "concatenate",
        }

    # ---------------------------------------------------------------- embeddings and positions

    def embedding(self, embedding: TokenEmbedding) -> Described:
        positions, tags = embedding.positions, None
        if isinstance(embedding, TaggedEmbedding):
            tags = _places(embedding.is_tag_V)
        return {
            "kind": "tokens",
            "table": self.tensor(embedding.table.weight),
            "tokens": embedding.table.num_embeddings,
            "width": embedding.table.embedding_dim,
            "scale": embedding.scale,
            "positions": None if positions is None else self.positions(positions.positions),
            "concatenated": positions is not None and positions.combine == "concatenate",
            "tags": tags,
            "norm": self.norm(embedding.norm),
        }

    def word_embedding(self, front: WordEmbedding) -> Described:
        """Beside the table of words, features of their letters, and n-grams."""
        ngrams = front.ngrams
        return {
            **self.embedding(front),
            "kind": "words",
            "letters": None if front.letters is None else self.letters(front, front.letters),
            "ngrams": ngrams
            and {
                "table": self.tensor(ngrams.table.weight),
                "size": ngrams.table.num_embeddings,
                "longest": ngrams.longest,
                "hash": (PRIME, MULTIPLIER, SCATTER),
                "scale": NGRAM_SCALE,
            },
        }

    def letters(
        self, front: WordEmbedding, letters: RecurrentLetters | ConvolvedLetters
    ) -> Described:
        width = letters.table.embedding_dim
        described = {
            "letters": list(front.spelling.numbers),
            "longest": LONGEST,
            "table": self.tensor(letters.table.weight),
            "width": width,
            "recurrent": None,
            "convolution": None,
        }
        if isinstance(letters, RecurrentLetters):
            both = {"input_width": width, "reverse": False}
            return {**described, "recurrent": {**self.recurrent(letters.recurrent), **both}}
        convolution = letters.convolution
        weight_FE = convolution.weight.mT.flatten(1)  # columns in the order of windows
        return {
            **described,
            "convolution": self.product(weight_FE, convolution.bias, exact=True),
            "span": convolution.kernel_size[0],
        }

    def positions(self, positions: nn.Module | None) -> Described | None:
        """Fixed positions by the frequency of each pair of features, learned ones by a table."""
        if positions is None:
            return None
        if isinstance(positions, Learned):
            return {"table": self.tensor(positions.table_TD), "width": positions.width}
        if not isinstance(positions, Sinusoids):
            raise ModelError("positions of a plugin do not run in a browser")
        first, _ = positions.sinusoids(torch.zeros(1, dtype=torch.float64))
        return {
            "frequencies": positions.frequencies().tolist(),
            "sine_first": bool(first.item() == 0.0),
            "width": positions.width,
        }

    # ----------------------------------------------------------------------------- encoders

    def encoder(self, encoder: nn.Module, width: int) -> Described:
        """width: that of the vectors that it reads."""
        if isinstance(encoder, TransformerEncoder):
            return self.stack(encoder.stack, encoder.norm)
        if isinstance(encoder, ConformerEncoder):
            return self.conformer(encoder)
        if isinstance(encoder, ConvolutionalEncoder):
            return self.convolutional_encoder(encoder)
        if isinstance(encoder, PooledEncoder):
            return {"kind": "pooled", "width": width}
        if isinstance(encoder, RecurrentEncoder):
            return {
                **self.recurrent(encoder.recurrent),
                "input_width": width,
                "reverse": encoder.reverse,
            }
        raise ModelError(f"a {type(encoder).__name__} does not run in a browser yet")

    def decoder(self, decoder: nn.Module) -> Described:
        if isinstance(decoder, TransformerDecoder):
            return self.stack(decoder.stack, decoder.norm)
        if isinstance(decoder, RecurrentDecoder):
            return self.recurrent_decoder(decoder)
        if isinstance(decoder, ConvolutionalDecoder):
            return self.convolutional_decoder(decoder)
        raise ModelError(f"a {type(decoder).__name__} does not run in a browser yet")

    # -------------------------------------------------------------------------- Transformers

    def stack(self, stack: Sequence[blocks.Block], norm: nn.Module) -> Described:
        first = stack[0].sublayers[0].attention
        for block in stack:
            for sublayer in block.sublayers:
                if sublayer.kind != "feed_forward":
                    _check_attention(sublayer.attention)
        return {
            "kind": "transformer",
            "width": first.width,
            "head_width": first.head_width,
            "layers": len(stack),
            "rotary": self.positions(first.rotary),
            **self.by_distance(first.relative),
            "norm": self.norm(norm),
            "sublayers": [
                self.sublayer(sublayer, layer)
                for layer, block in enumerate(stack)
                for sublayer in block.sublayers
            ],
        }

    def by_distance(self, relative: BucketedBias | None) -> Described:
        """T5's bias of the scores of self-attention, the same in all layers: of each head the
        numbers of the distances from -reach to reach, from which on they are all the same."""
        if relative is None:
            return {"by_distance": None, "reach": 0}
        away_R = torch.arange(-relative.distance, relative.distance + 1)
        bias_HR = relative.table_RH[relative.bucket(away_R)].T
        return {"by_distance": self.tensor(bias_HR, exact=True), "reach": relative.distance}

    def sublayer(self, sublayer: blocks.Sublayer, layer: int) -> Described:
        described = {
            "kind": KINDS.index(sublayer.kind),
            "norm_before": sublayer.residual.norm_position == "pre",
            "layer": layer,
            "norm": self.norm(sublayer.residual.norm),
        }
        if sublayer.kind == "feed_forward":
            body = sublayer.feed_forward
            activation = ACTIVATIONS[body.activation]
            return {
                **described,
                "activation": FUNCTIONS.index(activation.function),
                "gated": activation.gated,
                "into": self.linear(body.expand, packed=True),
                "out_of": self.linear(body.contract, packed=True),
            }
        attention = sublayer.attention
        weight, bias = attention.in_projection.weight, attention.in_projection.bias
        described["out_of"] = self.linear(attention.out_projection, packed=True)
        if sublayer.kind == "self_attention":
            return {**described, "into": self.product(weight, bias, packed=True)}
        inner = attention.inner
        return {
            **described,
            "into": self.product(weight, bias, (0, inner), packed=True),
            "memory": self.product(weight, bias, (inner, 3 * inner), packed=True),
        }

    # ----------------------------------------------------------------------------- Conformers

    def conformer(self, encoder: ConformerEncoder) -> Described:
        first = encoder.stack[0].self_attention
        return {
            "kind": "conformer",
            "width": first.width,
            "rotary": self.positions(first.rotary),
            "blocks": [self.conformer_block(block) for block in encoder.stack],
        }

    def conformer_block(self, block: ConformerBlock) -> Described:
        attention, convolution = block.self_attention, block.convolution
        _check_attention(attention)
        return {
            "first": self.feed_forward(block.first_feed_forward, block.first_feed_forward_residual),
            "attention": {
                "norm": self.norm(block.self_attention_residual.norm),
                "into": self.linear(attention.in_projection),
                "out_of": self.linear(attention.out_projection),
                "heads": attention.heads,
                "relative": self.relative(attention),
            },
            "convolution": {
                "norm": self.norm(block.convolution_residual.norm),
                "expand": self.linear(convolution.expand),
                "contract": self.linear(convolution.contract),
                "weight": self.tensor(convolution.depthwise.weight),
                "bias": self.tensor(convolution.depthwise.bias),
                "left": convolution.depthwise.left,
                "kernel": convolution.depthwise.kernel_size[0],
                "inner": self.norm(convolution.norm),
                "batch": self.batch_norm(convolution.norm),
            },
            "last": self.feed_forward(block.last_feed_forward, block.last_feed_forward_residual),
            "norm": self.norm(block.norm),
        }

    def feed_forward(self, body: blocks.FeedForward, residual: blocks.Residual) -> Described:
        activation = ACTIVATIONS[body.activation]
        return {
            "norm": self.norm(residual.norm),
            "activation": FUNCTIONS.index(activation.function),
            "gated": activation.gated,
            "into": self.linear(body.expand),
            "out_of": self.linear(body.contract),
        }

    def relative(self, attention: nn.Module) -> Described | None:
        if not isinstance(attention, RelativeAttention):
            return None
        return {
            "sinusoids": self.positions(attention.sinusoids),
            "projection": self.linear(attention.distance_projection),
            "content": self.tensor(attention.content_bias_HK),
            "distance": self.tensor(attention.distance_bias_HK),
        }

    def batch_norm(self, norm: nn.Module) -> Described | None:
        """By running statistics: one scale and one shift for each feature."""
        if not isinstance(norm, MaskedBatchNorm):
            return None
        scale_D = norm.weight * (norm.running_variance_D + norm.eps).rsqrt()
        shift_D = norm.bias - norm.running_mean_D * scale_D
        return {"scale": self.tensor(scale_D), "shift": self.tensor(shift_D)}

    # ---------------------------------------------------------------------- gated convolutions

    def convolutional_encoder(self, encoder: ConvolutionalEncoder) -> Described:
        stack = cast("Sequence[ConvolutionalEncoderBlock]", encoder.blocks)
        return {
            "kind": "convolutional",
            "width": encoder.into.in_features,
            "kernel": stack[0].convolution.kernel,
            "into": self.linear(encoder.into, packed=True),
            "products": [self.linear(one.convolution.product, packed=True) for one in stack],
            "out_of": self.linear(encoder.out_of, packed=True),
        }

    def convolutional_decoder(self, decoder: ConvolutionalDecoder) -> Described:
        return {
            "kind": "convolutional",
            "width": decoder.into.in_features,
            "kernel": decoder.stack[0].convolution.kernel,
            "into": self.linear(decoder.into, packed=True),
            "out_of": self.linear(decoder.out_of, packed=True),
            "blocks": [
                {
                    "product": self.linear(block.convolution.product, packed=True),
                    **self.source_attention(block),
                }
                for block in decoder.stack
            ],
        }

    def source_attention(self, block: ConvolutionalDecoderBlock) -> Described:
        """Of a decoder alone there is none."""
        if block.cross_attention is None:
            return {"query": None, "context": None}
        return {
            "query": self.linear(block.query_projection, packed=True),
            "context": self.linear(block.context_projection, packed=True),
        }

    # --------------------------------------------------------------------- recurrent networks

    def recurrent(self, stack: Recurrent) -> Described:
        summed = stack.sum_over_layers
        first = stack.cells[0]
        assert isinstance(first, cells.Cell)
        return {
            "kind": "recurrent",
            "cell": CELLS.index(CELL_NAMES[type(first)]),
            "width": first.width,
            "layers": stack.layers,
            "directions": stack.directions,
            "skip": stack.skip,
            "cells": [self.cell(cell) for cell in stack.cells],
            "sum": None if summed is None else self.linear(summed.W_he),
        }

    def cell(self, cell: nn.Module) -> Described:
        if isinstance(cell, cells.PeepholeLSTM):
            peepholes = [self.tensor(one) for one in (cell.W_ci, cell.W_cf, cell.W_co)]
            return {
                "from_input": self.linear(cell.W_x),
                "from_state": self.linear(cell.W_h),
                "peepholes": peepholes,
            }
        assert isinstance(cell, cells.KernelCell)
        W_x, W_h, bias_x, bias_h = cell.weights()
        return {
            "from_input": self.product(W_x, bias_x),
            "from_state": self.product(W_h, bias_h),
            "peepholes": None,
        }

    def recurrent_decoder(self, decoder: RecurrentDecoder) -> Described:
        if decoder.embedding.positions is not None:
            raise ModelError("positions in a recurrent decoder do not run in a browser yet")
        return {
            **self.recurrent(decoder.recurrent),
            "context_in_input": decoder.context_in_input,
            "context_in_output": decoder.context_in_output,
            "readout": None if decoder.readout is None else self.linear(decoder.readout),
            "bridge": None if decoder.bridge is None else self.linear(decoder.bridge),
            "attention": self.score(decoder.attention),
            "tags": None if decoder.tags is None else self.tag_attention(decoder.tags),
        }

    def tag_attention(self, tags: TagAttention) -> Described:
        return {
            "attention": self.score(tags.attention),
            "values": self.linear(tags.values),
            "sum": self.linear(tags.sum),
        }

    def score(self, attention: scores.Attention | None) -> Described | None:
        if attention is None:
            return None
        score = attention.score
        if isinstance(score, LocationAware):
            return {
                **self.additive(score),
                "filters": self.tensor(score.filters.weight),
                "kernel": score.filters.kernel_size[0],
                "location": self.linear(score.location_projection),
            }
        if type(score) not in SCORES:
            raise ModelError(
                f"attention by {type(score).__name__} does not run in a browser yet; the scores "
                f"{', '.join(sorted(one.__name__ for one in SCORES))} do"
            )
        if isinstance(score, scores.Additive):
            return self.additive(score)
        keys, query = None, None
        if isinstance(score, scores.General):
            keys = self.linear(score.key_projection)
        elif isinstance(score, scores.Location):
            query = self.linear(score.position_projection)
        return {
            "score": SCORES[type(score)],
            "keys": keys,
            "query": query,
            "energy": None,
            "normalised": isinstance(score, scores.Cosine),
            "scale": score.key_width**-0.5 if isinstance(score, scores.ScaledDot) else 1.0,
        }

    def additive(self, score: scores.Additive) -> Described:
        return {
            "score": SCORES[scores.Additive],
            "keys": self.linear(score.key_projection),
            "query": self.linear(score.query_projection),
            "energy": self.tensor(score.energy.weight),
            "normalised": False,
            "scale": 1.0,
        }


def _places(is_tag_V: Tensor) -> list[int]:
    found: list[int] = is_tag_V.nonzero().flatten().tolist()
    return found


def _width(embedding: TokenEmbedding) -> int:
    """That of the vectors that an encoder reads."""
    content = embedding.table.embedding_dim
    if isinstance(embedding, WordEmbedding) and embedding.letters is not None:
        content += embedding.letters.table.embedding_dim
    return content if embedding.positions is None else embedding.positions.output_width(content)


def _speech_width(front: SpeechFrontend) -> int:
    assert isinstance(front.subsampling, Subsampling)
    content = front.subsampling.projection.out_features
    return content if front.positions is None else front.positions.output_width(content)


def _check_attention(attention: Any) -> None:
    if attention.inner > attention.width:
        raise ModelError("heads that are wider than width / heads do not run in a browser yet")
