"""Decoders: the tokens so far and the memory in, a feature vector for the next token out.

Each gives three ways to the same numbers: `forward` over a whole target at once (training), `start`
and `step` one token at a time (decoding), and `read`, many steps in one pass (a prompt). A decoder
alone, of a language model, has no memory and no parameters for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Unpack, cast

import torch
from torch import Tensor, nn

from transduce.models.call_context import KeptAttention
from transduce.models.convolutional import ConvolutionalDecoder
from transduce.models.encoder_output import EncoderOutput, TagsOfSource, reorder_mask
from transduce.models.registered import RegisteredDecoder
from transduce.nn.attention.attention import SCORES, Attention, build_registered_score
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.location_aware import LocationAware, LocationAwareAttention
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.checkpointing import Checkpointed
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.masks import Mask, Segments, causal
from transduce.nn.positions import ExplicitPositions, Rotary
from transduce.nn.recurrent.cells import State
from transduce.nn.recurrent.stack import Recurrent
from transduce.nn.residual import ResidualStream, normalise
from transduce.nn.transformer import DecoderBlock, LayerSettings
from transduce.nn.watchable import Watch
from transduce.registry import register


class DecoderState(Protocol):
    """What a decoder remembers between two steps, one row for each hypothesis."""

    def reorder(self, index_B: Tensor) -> None:
        """Row i becomes what row index_B[i] was; rows may be repeated or left out."""


# --------------------------------------------------------------------------------- Transformer


@dataclass
class TransformerState(KeptAttention):
    caches: list[KVCache]
    memory: list[Tensor]
    memory_mask: Mask | None
    each: int = 1
    """Rows in a row that share one row of the memory: the hypotheses of one source."""

    def reorder(self, index_B: Tensor) -> None:
        for cache in self.caches:
            cache.reorder(index_B)
        if not self.memory:
            return
        sources, self.each = shared_rows(index_B // self.each, self.each, len(self.memory[0]))
        if sources is not None:
            self.memory = [layer_BS2D[sources] for layer_BS2D in self.memory]
            self.memory_mask = reorder_mask(self.memory_mask, sources)


def shared_rows(source_R: Tensor, each: int, count: int) -> tuple[Tensor | None, int]:
    """Which rows of the memory rows need, and how many in a row share one; None: as they are.

    Only a CPU is asked to look: another device would have to be waited for.
    """
    if source_R.device.type != "cpu":
        return source_R, 1
    for shared in sorted({each, len(source_R) // count}, reverse=True):
        if shared > 0 and len(source_R) % shared == 0:
            grouped_BN = source_R.view(-1, shared)
            first_B = grouped_BN[:, 0]
            if bool((grouped_BN == first_B[:, None]).all()):
                same = len(first_B) == count and bool((first_B == torch.arange(count)).all())
                return None if same else first_B, shared
    return source_R, 1


class TransformerDecoder(Checkpointed):
    """Blocks of masked self-attention, attention to the source, feed-forward (Vaswani 2017)."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        width: int,
        heads: int,
        feed_forward: int,
        layers: int,
        *,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        head_width: int | None = None,
        relative: tuple[int, int] | None = None,
        alone: bool = False,
        layer_heads: Sequence[int] | None = None,
        cross_heads: Sequence[int] | None = None,
        **settings: Unpack[LayerSettings],
    ) -> None:
        """`alone`: there is no encoder, and no block has attention to a source. `relative`: a bias
        by distance, of so many buckets up to such a distance.

        `layer_heads`, `cross_heads`: the heads of each layer's self-attention and cross-attention
        if some were pruned; each is `head_width` wide, by default width / heads.
        """
        super().__init__()
        self.embedding = embedding
        self.alone = alone
        wide = width // heads if head_width is None else head_width
        rotary_angles = Rotary(wide, rotary_base) if rotary else None
        bias = None if relative is None else BucketedBias(heads, *relative, both_directions=False)
        self.blocks = nn.ModuleList(
            DecoderBlock(
                width,
                kept,
                feed_forward,
                head_width=wide,
                cross_heads=across,
                rotary=rotary_angles,
                relative=bias,
                cross=not alone,
                **settings,
            )
            for kept, across in zip(
                layer_heads or [heads] * layers, cross_heads or [heads] * layers, strict=True
            )
        )
        self.norm = self.stack[-1].last_norm()

    @property
    def stack(self) -> Sequence[DecoderBlock]:
        return cast("Sequence[DecoderBlock]", self.blocks)  # a ModuleList does not know its type

    def forward(
        self,
        tokens_BT: Tensor,
        memory: EncoderOutput | None = None,
        segments: Segments | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """Teacher forcing: tokens_BT (from BEGIN on) → features_BTD.

        With segments, the targets lie one after the other in a single row. watch: is called with
        the weights [B, H, T, S] of the last layer's attention to the source.
        """
        positions = 0 if segments is None else segments.positions(tokens_BT.shape[1])
        stream = ResidualStream(self.embedding(tokens_BT, positions))
        mask = causal() & Mask(segments=segments)
        for block in self.stack:
            if memory is None:
                stream = self.run(block, stream, None, None, mask)
                continue
            inputs = (stream, block.project_memory(memory.states_BSD), memory.mask, mask)
            if watch is not None and block is self.blocks[-1]:  # not computed a second time
                stream = block(*inputs, watch=watch)
            else:
                stream = self.run(block, *inputs)
        return normalise(self.norm, stream, half=True)

    def advance(
        self,
        tokens_R: Tensor,
        own: list[StaticSelfAttentionCache],
        source: list[StaticCrossAttentionCache],
    ) -> Tensor:
        """The features_RD after one more token a row, each row at a step of its own."""
        positions = ExplicitPositions(own[0].lengths_R[:, None], own[0].store_RTE.shape[1])
        stream = ResidualStream(self.embedding(tokens_R[:, None], positions))
        for block, past, memory in zip(self.stack, own, source, strict=True):
            stream = block.step(stream, past, memory)
        return normalise(self.norm, stream, half=False).squeeze(1)

    def start(self, memory: EncoderOutput | None = None) -> TransformerState:
        caches = [KVCache() for _ in self.blocks]
        if memory is None:
            return TransformerState(caches, [], None)
        projected = [block.project_memory(memory.states_BSD) for block in self.stack]
        return TransformerState(caches, projected, memory.mask)

    def step(self, tokens_B: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """The features_BD after one more token; the state's caches grow by one."""
        features_B1D, state = self.read(tokens_B[:, None], state)
        return features_B1D.squeeze(1), state

    def read(self, tokens_BT: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """The features_BTD after each of T more tokens, in one pass."""
        x_BTD = self.embedding(tokens_BT, start=state.caches[0].length)
        memories: Sequence[Tensor | None] = state.memory or [None] * len(self.stack)
        last = len(self.stack) - 1
        for number, (block, memory, cache) in enumerate(
            zip(self.stack, memories, state.caches, strict=True)
        ):
            kept = {"watch": state.keep} if state.keeps_attention and number == last else {}
            x_BTD = block(x_BTD, memory, state.memory_mask, mask=causal(), cache=cache, **kept)
        return self.norm(x_BTD), state


# ----------------------------------------------------------------------------------- recurrent


@dataclass
class RecurrentState(KeptAttention):
    layers: list[State]
    """Empty before the first step of a decoder alone, which begins with zeros."""
    attention_state: AttentionState | None
    """None where there is no source."""

    def reorder(self, index_B: Tensor) -> None:
        self.layers = [tuple(part[index_B] for part in layer) for layer in self.layers]
        if self.attention_state is not None:
            self.attention_state.reorder(index_B)


@dataclass
class AttentionState:
    """The source as attention sees it."""

    query_BD: Tensor
    """The last output: what asks the next attention where the context enters the input."""
    keys_BSD: Tensor
    values_BSD: Tensor
    mask: Mask | None
    weights_BS: Tensor | None = None
    """The last weights, for location-aware attention; None before the first step."""
    tags: TagState | None = None

    def reorder(self, index_B: Tensor) -> None:
        self.query_BD = self.query_BD[index_B]
        self.keys_BSD = self.keys_BSD[index_B]
        self.values_BSD = self.values_BSD[index_B]
        self.mask = reorder_mask(self.mask, index_B)
        if self.weights_BS is not None:
            self.weights_BS = self.weights_BS[index_B]
        if self.tags is not None:
            self.tags = self.tags.reordered(index_B)


class TagState(NamedTuple):
    """The tags of a source as a decoder reads them: a part of each input, and attention's."""

    input_BD: Tensor
    keys_BSD: Tensor
    values_BSD: Tensor
    are_BS: Tensor

    def reordered(self, index_B: Tensor) -> TagState:
        return TagState(*(part[index_B] for part in self))


class TagAttention(nn.Module):
    """How a recurrent decoder reads tags where the encoder reads the letters alone: their sum is a
    part of each input, and attention of its own asks for each of them (as in the two-headed
    attention of Peters & Martins 2019, https://aclanthology.org/W19-4207).

    Both are of the tags' embeddings, whatever their order and whichever others there are, so that a
    combination that training does not have is read like those that it has.
    """

    def __init__(self, attention: Attention, width: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.values = nn.Linear(width, width)
        self.sum = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def start(self, tags: TagsOfSource) -> TagState:
        values_BSD = self.dropout(torch.tanh(self.values(tags.embeddings_BSD)))
        input_BD = self.sum(self.dropout(tags.embeddings_BSD.sum(dim=1)))
        return TagState(input_BD, self.attention.prepare(values_BSD), values_BSD, tags.are_BS)

    def forward(self, query_BTD: Tensor, tags: TagState) -> Tensor:
        """The context_BTD of the tags; zeros where a source has none."""
        mask = Mask(visible_BTS=tags.are_BS[:, None])
        context_BTD: Tensor = self.attention(query_BTD, tags.keys_BSD, tags.values_BSD, mask)
        return context_BTD


class RecurrentDecoder(nn.Module):
    """A recurrent network that starts from the encoder's end and may attend to its states.

    Context in the output (Luong et al. 2015): the new state asks, and the prediction comes from
    [h_t; c_t]. Context in the input (Bahdanau et al. 2015): the old state asks, and the next
    input is [e_t; c_t]. Without attention the initial state is all it knows (Sutskever 2014).
    Alone, without an encoder, it begins with zeros (Graves 2013).
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        width: int,
        cell: str = "lstm",
        layers: int = 1,
        *,
        attention: Attention | None = None,
        context: str = "output",
        skip: bool = False,
        dropout: float = 0.0,
        bridge: bool = True,
        alone: bool = False,
        tag_attention: Attention | None = None,
    ) -> None:
        """context: where the attended source enters, the "input", the "output" or "both".

        `bridge`: the mean of the memory is mapped to the initial state; without it, the memory
        has the final states of a recurrent encoder with the same cell and as many layers. `alone`:
        there is no encoder; nothing to attend to and nothing to begin with. `tag_attention`: to the
        tags of the memory, see TagAttention; the context must enter the output.
        """
        super().__init__()
        if context not in ("input", "output", "both"):
            raise ValueError(f'context must be "input", "output" or "both", not "{context}".')
        if alone and attention is not None:
            raise ValueError("A decoder that is alone has no source to attend to.")
        self.embedding = embedding
        self.alone = alone
        self.attention = attention
        attends = attention is not None
        self.context_in_input = attends and context in ("input", "both")
        self.context_in_output = attends and context in ("output", "both")
        input_width = 2 * width if self.context_in_input else width
        self.recurrent = Recurrent(cell, input_width, width, layers, dropout=dropout, skip=skip)
        self.tags = None if tag_attention is None else TagAttention(tag_attention, width, dropout)
        if self.tags is not None and not self.context_in_output:
            raise ValueError('Attention to tags needs context="output" or "both".')
        read_out = (2 if self.tags is None else 3) * width
        self.readout = nn.Linear(read_out, width) if self.context_in_output else None
        self.dropout = nn.Dropout(dropout)
        self.parts = 2 if cell.startswith("lstm") else 1  # h and c, or h alone
        bridged = bridge and not alone
        self.bridge = nn.Linear(width, layers * self.parts * width) if bridged else None

    def forward(
        self, tokens_BT: Tensor, memory: EncoderOutput | None = None, watch: Watch = None
    ) -> Tensor:
        """Teacher forcing: tokens_BT (from BEGIN on) → features_BTD.

        watch: is called with the weights [B, 1, T, S] of attention, of all steps at once or of one
        after the other.
        """
        return self.read(tokens_BT, self.start(memory), watch)[0]

    def start(self, memory: EncoderOutput | None = None) -> RecurrentState:
        if memory is None:
            return RecurrentState([], None)
        layers, keys_BSD = self._initial(memory), memory.states_BSD
        attention_state = AttentionState(
            query_BD=layers[-1][0],
            keys_BSD=keys_BSD if self.attention is None else self.attention.prepare(keys_BSD),
            values_BSD=memory.states_BSD,
            mask=memory.mask,
        )
        if self.tags is not None and memory.tags is not None:
            attention_state.tags = self.tags.start(memory.tags)
        return RecurrentState(layers, attention_state)

    def step(self, tokens_B: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """The features_BD after one more token."""
        x_BD = self._inputs(tokens_B[:, None], state).squeeze(1)
        return self._advance(x_BD, state), state

    def _inputs(self, tokens_BT: Tensor, state: RecurrentState) -> Tensor:
        x_BTD: Tensor = self.embedding(tokens_BT)
        tags = None if state.attention_state is None else state.attention_state.tags
        return x_BTD if tags is None else x_BTD + tags.input_BD[:, None]

    def read(
        self, tokens_BT: Tensor, state: RecurrentState, watch: Watch = None
    ) -> tuple[Tensor, RecurrentState]:
        """The features_BTD after each of T more tokens; in one pass, where that can be."""
        x_BTD = self._inputs(tokens_BT, state)
        if self.context_in_input:
            # Each input needs the answer to the state before it: one step after the other.
            features = [self._advance(x_BD, state, watch) for x_BD in x_BTD.unbind(dim=1)]
            return torch.stack(features, dim=1), state
        outputs_BTD, state.layers = self.recurrent(x_BTD, state.layers or None)
        if state.attention_state is not None:
            state.attention_state.query_BD = outputs_BTD[:, -1]
        context_BTD = self._attend(outputs_BTD, state, watch)
        return self._predicted(outputs_BTD, context_BTD, state), state

    def _advance(self, x_BD: Tensor, state: RecurrentState, watch: Watch = None) -> Tensor:
        context_BD = None
        if self.context_in_input and state.attention_state is not None:
            query_B1D = state.attention_state.query_BD[:, None]
            context_BD = self._attend(query_B1D, state, watch).squeeze(1)
            x_BD = torch.cat([x_BD, context_BD], dim=-1)
        layers = state.layers or self.recurrent.zeros(len(x_BD), x_BD)
        output_BD, state.layers = self.recurrent.step(x_BD, layers)
        if state.attention_state is not None:
            state.attention_state.query_BD = output_BD
        if context_BD is None:
            context_BD = self._attend(output_BD[:, None], state, watch).squeeze(1)
        return self._predicted(output_BD[:, None], context_BD[:, None], state).squeeze(1)

    def _attend(self, query_BTD: Tensor, state: RecurrentState, watch: Watch = None) -> Tensor:
        attention_state = state.attention_state
        if self.attention is None or attention_state is None:
            return query_BTD
        source = (attention_state.keys_BSD, attention_state.values_BSD, attention_state.mask)
        watch = state.keep if state.keeps_attention else watch
        kept: dict[str, Any] = {} if watch is None else {"watch": watch}
        if isinstance(self.attention, LocationAwareAttention):
            context, attention_state.weights_BS = self.attention.along(
                query_BTD, *source, attention_state.weights_BS, **kept
            )
        else:
            context = self.attention(query_BTD, *source, **kept)
        return context

    def _predicted(self, output_BTD: Tensor, context_BTD: Tensor, state: RecurrentState) -> Tensor:
        """h̃_t = tanh(W [h_t; c_t]) (Luong et al. 2015, equation 5); c_t is of letters and of tags
        where these are read apart."""
        if self.readout is not None:
            parts = [output_BTD, context_BTD]
            tags = None if state.attention_state is None else state.attention_state.tags
            if self.tags is not None and tags is not None:
                parts.append(self.tags(output_BTD, tags))
            output_BTD = torch.tanh(self.readout(torch.cat(parts, dim=-1)))
        dropped: Tensor = self.dropout(output_BTD)
        return dropped

    def _initial(self, memory: EncoderOutput) -> list[State]:
        if self.bridge is None:
            assert memory.final is not None
            return memory.final
        return self.divided(torch.tanh(self.bridge(memory.mean_BD())))

    def divided(self, start_BE: Tensor) -> list[State]:
        """The states of the layers before the first step, of what the bridge gives."""
        states = start_BE.chunk(self.recurrent.layers * self.parts, dim=-1)
        return [tuple(states[i : i + self.parts]) for i in range(0, len(states), self.parts)]


def build_attention(
    score: str | None,
    width: int,
    *,
    max_positions: int = 1024,
    location_filters: int = 10,
    location_kernel: int = 51,
) -> Attention | None:
    """Attention of a recurrent decoder by the name of its score (see SCORES); None: none.

    "location" (Luong et al. 2015) points at one of `max_positions` states of the source.
    "location-aware" (Chorowski et al. 2015) sees its own last weights through `location_filters`
    of `location_kernel` states. Raises ValueError for another name.
    """
    if score is None:
        return None
    if score == "location-aware":
        aware = LocationAware(width, width, filters=location_filters, kernel=location_kernel)
        return LocationAwareAttention(aware)
    if score in register.attention_score:
        return Attention(build_registered_score(score, width))
    if score not in SCORES:
        names = ", ".join(["location-aware", *SCORES, *register.attention_score])
        raise ValueError(f"attention must be None or one of {names}, not {score}.")
    size = {"max_length": max_positions} if score == "location" else {}
    return Attention(SCORES[score](width, width, **size))


# ------------------------------------------------------------------------------------- any kind

Decoder = TransformerDecoder | RecurrentDecoder | ConvolutionalDecoder | RegisteredDecoder
