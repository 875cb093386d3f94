"""A Transformer searched by the library in C: a decoder's step is one call, the encoder another.

For networks packed in int8, where there is such a library; see native/.

What is past stays where it was written: a row of a search knows where each of its steps lies, and
only that is reordered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.models.copies import is_watched
from transduce.models.decoders import DecoderState, TransformerDecoder
from transduce.models.embedding import TokenEmbedding
from transduce.models.encoders import TransformerEncoder
from transduce.models.flat import ROOM, FlatSteps
from transduce.models.learner import modules_of
from transduce.models.memory import Memory, padding_mask
from transduce.models.network import Network
from transduce.native import Product, library
from transduce.native.product import Kernel, Weight
from transduce.native.stack import ACTIVATIONS, Layer, Norm, Sources, Stack, Step, Sublayer
from transduce.nn.blocks import DecoderBlock, EncoderBlock, Residual
from transduce.nn.packed import PackedWeight
from transduce.nn.positions import Learned, Waves


def steps_of(network: Network) -> FlatSteps | NativeSteps:
    """What searches a network that has_flat_steps: the library if it can, else torch."""
    return NativeSteps(network) if has_native_steps(network) else FlatSteps(network)


def has_native_steps(network: Network) -> bool:
    """Whether its decoder's products are all the library's."""
    if not isinstance(network.decoder, TransformerDecoder):
        return False
    plain = isinstance(network.head.narrow, nn.Identity)
    return plain and is_native(network.head.weight) and all(map(_is_packed, network.decoder.stack))


class NativeSteps:
    """Searched in place of a network; under a lens or with forward hooks, the network itself is."""

    def __init__(self, network: Network, kernel: Kernel = Kernel.BEST) -> None:
        assert isinstance(network.decoder, TransformerDecoder)
        made = library()
        assert made is not None
        self.network, self._library = network, made
        self.decoder = network.decoder
        self._modules = modules_of(network)
        self._stack = Compiled(
            self.decoder.embedding, self.decoder.stack, self.decoder.norm, kernel
        )
        head = _product(network.head.weight)
        assert head is not None
        self._head = head
        self._encoder = self._compiled_encoder(kernel)

    def _compiled_encoder(self, kernel: Kernel) -> Compiled | None:
        """A network that reads sound has more before its encoder."""
        network, encoder = self.network, self.network.encoder
        if type(network) is not Network or not isinstance(encoder, TransformerEncoder):
            return None
        if not all(map(_is_packed, encoder.stack)):
            return None
        return Compiled(network.front, encoder.stack, encoder.norm, kernel)

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
        return self.begin(self.encode(source_BS, lengths_B))

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """What network.encode gives, zero beyond the ends of sources."""
        encoder = self._encoder
        if encoder is None or self._is_watched():
            return self.network.encode(source_BS, lengths_B)
        B, S = source_BS.shape
        source_BS, lengths_B = source_BS.long().contiguous(), lengths_B.long().contiguous()
        states_BSD = source_BS.new_empty(B, S, encoder.width, dtype=torch.float32)
        embedded_BSD = None if encoder.embeds else encoder.embedding(source_BS)
        bytes_wanted = self._library.stack_room(encoder.address, int(lengths_B.sum()), S)
        room = source_BS.new_empty(bytes_wanted, dtype=torch.uint8)
        told = Sources(
            sources=B,
            longest=S,
            tokens=source_BS.data_ptr(),
            lengths=lengths_B.data_ptr(),
            embedded=None if embedded_BSD is None else embedded_BSD.data_ptr(),
            positions=encoder.added.at(0, S),
            turns=encoder.turns.at(0, S),
            states=states_BSD.data_ptr(),
            room=room.data_ptr(),
        )
        self._library.encode(encoder.address, ctypes.addressof(told))
        return Memory(states_BSD, lengths_B, padding_mask(lengths_B, S, source_BS.device))

    def begin(self, memory: Memory) -> DecoderState:
        """What steps start from that have this memory."""
        B, S, _ = memory.states_BSD.shape
        lengths_B = memory.states_BSD.new_full((B,), S, dtype=torch.int64)
        visible_B1S = None if memory.mask is None else memory.mask.dense(1, S)
        if visible_B1S is not None:
            lengths_B = visible_B1S.sum(dim=(1, 2)).expand(B).contiguous()
            place_S = torch.arange(S, device=lengths_B.device)
            ends_early = torch.equal(visible_B1S[:, 0], place_S < lengths_B[:, None])
        if self._is_watched() or (visible_B1S is not None and not ends_early):
            return self.decoder.start(memory)
        projected = [block.project_memory(memory.states_BSD) for block in self.decoder.stack]
        return NativeState(projected, lengths_B)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the token after tokens_R, in float32."""
        if not isinstance(state, NativeState):
            return self.network.step(tokens_R, state)
        rows, t, told = len(tokens_R), state.length, state.told
        if state.has_to_grow(rows):
            state.grow(rows)
            self._tell(state)
        tokens_R = tokens_R.long().contiguous()
        log_probs_RV = state.room_for(rows, self._head.weight.outputs)
        told.rows, told.step = rows, t
        told.tokens, told.log_probs = tokens_R.data_ptr(), log_probs_RV.data_ptr()
        told.origins = state.origins_RT.data_ptr()
        told.position, told.turns = self._stack.added.at(t), self._stack.turns.at(t)
        if not self._stack.embeds:
            embedded_RD = self._stack.embedding(tokens_R[:, None], start=t)
            told.embedded = embedded_RD.data_ptr()
        self._library.decoder_step(self._stack.address, ctypes.addressof(told))
        state.length += 1
        return log_probs_RV, state

    def _tell(self, state: NativeState) -> None:
        """What stays the same until the state grows again."""
        T, _, most_rows, _ = state.past_TLRE.shape
        places = max(T, state.memory_length)
        bytes_wanted = self._library.stack_room(self._stack.address, most_rows, places)
        state.room = state.past_TLRE.new_empty(bytes_wanted, dtype=torch.uint8)
        told = state.told
        told.past, told.most_rows, told.most_steps = state.past_TLRE.data_ptr(), most_rows, T
        told.memory, told.memory_length = ctypes.addressof(state.memory), state.memory_length
        told.lengths, told.room = state.lengths_B.data_ptr(), state.room.data_ptr()
        told.head = self._head.weight

    def _is_watched(self) -> bool:
        return is_watched(self._modules)


class NativeState:
    """What each row has read and written; E keys and values of one place."""

    def __init__(self, memory: Sequence[Tensor], lengths_B: Tensor) -> None:
        """memory: of each layer the keys and values_BSE of the sources."""
        self._kept = [layer_BSE.float().contiguous() for layer_BSE in memory]
        self.memory = (ctypes.c_void_p * len(memory))(*(kept.data_ptr() for kept in self._kept))
        self.memory_length, self.lengths_B = memory[0].shape[1], lengths_B
        self.length = 0
        # The first column is the row of the memory, those after it the places of the past.
        source_B = torch.arange(len(lengths_B), dtype=torch.int32, device=lengths_B.device)
        self.origins_RT = source_B[:, None]
        self.past_TLRE = self._kept[0].new_empty(0, len(memory), 0, memory[0].shape[2])
        self.room = self.past_TLRE
        self._log_probs_RV = self._kept[0].new_empty(0, 0)
        self.told = Step()

    def has_to_grow(self, rows: int) -> bool:
        T, _, most_rows, _ = self.past_TLRE.shape
        return self.length == T or rows > most_rows

    def grow(self, rows: int) -> None:
        """Room for one step more, and for so many rows."""
        T, L, R, E = self.past_TLRE.shape
        steps = max(2 * T, ROOM) if self.length == T else T
        grown_TLRE = self.past_TLRE.new_empty(steps, L, max(rows, R), E)
        grown_TLRE[: self.length, :, :R] = self.past_TLRE[: self.length]
        self.past_TLRE = grown_TLRE
        origins_RT = self.origins_RT.new_empty(len(self.origins_RT), 1 + steps)
        origins_RT[:, : 1 + self.length] = self.origins_RT[:, : 1 + self.length]
        self.origins_RT = origins_RT

    def room_for(self, rows: int, vocabulary: int) -> Tensor:
        """For log-probabilities_RV, the same at every step: new memory is slow at first."""
        if rows > len(self._log_probs_RV):
            self._log_probs_RV = self._kept[0].new_empty(rows, vocabulary)
        return self._log_probs_RV[:rows]

    def reorder(self, index_R: Tensor) -> None:
        self.origins_RT = self.origins_RT.index_select(0, index_R)


# ------------------------------------------------------------------------------ what C is told


class Rows:
    """Where the vectors of positions lie; without a table of them, nowhere."""

    def __init__(self, table: Waves | Learned | None) -> None:
        self._table = table
        self._kept = [torch.empty(0, 0)]  # all there were: another thread may read an older one

    def at(self, start: int, length: int = 1) -> int | None:
        """The address of the first of so many; ValueError past the last."""
        if self._table is None:
            return None
        rows_TD, end = self._kept[-1], start + length
        if end > len(rows_TD):
            enough = self._table.max_length if isinstance(self._table, Learned) else 2 * end
            rows_TD = self._table(max(enough, end)).float()
            self._kept.append(rows_TD)
        return rows_TD.data_ptr() + 4 * start * rows_TD.shape[1]


class Compiled:
    """A stack of layers as C sees it, and the tensors that it points to."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        blocks: Sequence[EncoderBlock | DecoderBlock],
        norm: nn.Module,
        kernel: Kernel,
    ) -> None:
        first = blocks[0]
        self.embedding, self.width = embedding, first.self_attention.width
        positions = embedding.positions
        # Concatenated positions are put on by torch.
        self.embeds = positions is None or positions.combine == "add"
        self.added = Rows(positions.positions if positions is not None and self.embeds else None)
        self.turns = Rows(first.self_attention.rotary)
        self._kept: list[object] = []
        layers = (Layer * len(blocks))(*map(self._layer, blocks))
        self._stack = Stack(
            layers,
            len(blocks),
            self.width,
            first.self_attention.heads,
            first.self_attention_residual.norm_position == "pre",
            ACTIVATIONS.index(first.feed_forward.activation),
            self._norm(norm),
            self._keep(embedding.table.weight) if self.embeds else None,
            embedding.scale,
            kernel,
        )
        self.address = ctypes.addressof(self._stack)

    def _layer(self, block: EncoderBlock | DecoderBlock) -> Layer:
        own = self._sublayer(
            block.self_attention_residual,
            block.self_attention.in_projection.weight,
            block.self_attention.out_projection.weight,
        )
        feed_forward = self._sublayer(
            block.feed_forward_residual,
            block.feed_forward.expand.weight,
            block.feed_forward.contract.weight,
        )
        if isinstance(block, EncoderBlock):
            return Layer(own, Sublayer(), feed_forward)
        attention = block.cross_attention
        assert attention is not None
        cross = self._sublayer(
            block.cross_attention_residual,
            attention.in_projection.weight[: attention.width],
            attention.out_projection.weight,
        )
        return Layer(own, cross, feed_forward)

    def _sublayer(self, residual: Residual, into: object, out_of: object) -> Sublayer:
        return Sublayer(self._norm(residual.norm), self._weight(into), self._weight(out_of))

    def _weight(self, packed: object) -> Weight:
        product = _product(packed)
        assert product is not None
        self._kept.append(product)
        return product.weight

    def _norm(self, norm: nn.Module) -> Norm:
        if isinstance(norm, nn.LayerNorm):
            return Norm(self._keep(norm.weight), self._keep(norm.bias), norm.eps)
        if isinstance(norm, nn.RMSNorm):
            return Norm(self._keep(norm.weight), None, norm.eps)
        return Norm()

    def _keep(self, tensor: Tensor) -> int:
        kept = tensor.detach().float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _is_packed(block: nn.Module) -> bool:
    """Whether all its products are the library's."""
    if not isinstance(block, EncoderBlock | DecoderBlock):
        return False
    own, feed_forward = block.self_attention, block.feed_forward
    layers = [own.in_projection, own.out_projection, feed_forward.expand, feed_forward.contract]
    weights: list[object] = [layer.weight for layer in layers]
    cross = block.cross_attention if isinstance(block, DecoderBlock) else None
    if cross is not None:
        weights += [cross.in_projection.weight[: cross.width], cross.out_projection.weight]
    return feed_forward.activation in ACTIVATIONS and all(map(is_native, weights))


def is_native(weight: object) -> bool:
    return _product(weight) is not None


def _product(weight: object) -> Product | None:
    """The library's product of a weight that is packed for it."""
    if not isinstance(weight, PackedWeight) or weight.kind != "int8":
        return None
    multiply = weight.pack()
    return multiply if isinstance(multiply, Product) else None
