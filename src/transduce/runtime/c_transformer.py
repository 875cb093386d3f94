"""Transformer inference in C: one library call for a decoder step, another for the encoder.

For networks packed in float32 or int8, where the C library can be compiled; see runtime/c/.

The KV cache is never copied: each row of a search has a table of where its steps were written, and
only that table is reordered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.decoders import DecoderState, TransformerDecoder, TransformerState
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.models.hooks import is_watched
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.memory import Memory, lengths_seen, padding_mask
from transduce.models.trainable import TrainableNetwork, modules_of
from transduce.runtime.c import library
from transduce.runtime.c.product import Kernel
from transduce.runtime.c.slots import Slots
from transduce.runtime.c.stack import Sources, Step
from transduce.runtime.c_recurrent import CRecurrentSteps, has_c_recurrent_steps
from transduce.runtime.c_structures import Compiled, is_native, is_packed, product_of
from transduce.runtime.flat import ROOM, FlatSteps, has_flat_steps

Searched = EncoderDecoder | LanguageModelNetwork


def has_steps(network: TrainableNetwork) -> bool:
    """Whether search uses a faster implementation than the network's own modules: for a Transformer
    with a source on a CPU, or anything that the C library supports.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    if (
        not on_cpu
        or not isinstance(network, EncoderDecoder | LanguageModelNetwork)
        or not network.as_built
    ):
        return False
    return has_flat_steps(network) or library() is not None


def steps_of(
    network: EncoderDecoder,
) -> CTransformerSteps | CRecurrentSteps | FlatSteps | EncoderDecoder:
    """The decoding steps of a network on a CPU: in C where possible, else with torch."""
    return _native(network) or (FlatSteps(network) if has_flat_steps(network) else network)


def reader_of(
    network: LanguageModelNetwork,
) -> CTransformerSteps | CRecurrentSteps | LanguageModelNetwork:
    """The same for a language model."""
    return _native(network) or network


def _native(network: Searched) -> CTransformerSteps | CRecurrentSteps | None:
    if has_native_steps(network):
        return CTransformerSteps(network)
    return CRecurrentSteps(network) if has_c_recurrent_steps(network) else None


def has_native_steps(network: Searched) -> bool:
    """Whether all matrix products of the decoder are packed for the C library."""
    if not isinstance(network.decoder, TransformerDecoder):
        return False
    plain = isinstance(network.head.narrow, nn.Identity)
    return plain and is_native(network.head.weight) and all(map(is_packed, network.decoder.stack))


class CTransformerSteps:
    """Decoding steps in C, used by search in place of the network.

    With a lens, forward hooks or a context that asks for attention, the network itself is used.
    """

    def __init__(self, network: Searched, kernel: Kernel = Kernel.BEST) -> None:
        assert isinstance(network.decoder, TransformerDecoder)
        made = library()
        assert made is not None
        self.network, self._library = network, made
        self.decoder = network.decoder
        self._modules = modules_of(network)
        self._stack = Compiled(
            self.decoder.embedding, self.decoder.stack, self.decoder.norm, kernel
        )
        head = product_of(network.head.weight)
        assert head is not None
        self._head = head
        self._encoder = self._compiled_encoder(kernel)

    def _compiled_encoder(self, kernel: Kernel) -> Compiled | None:
        """The encoder in C; None for audio, which has more layers before its encoder."""
        network = self.network
        if type(network) is not EncoderDecoder or not isinstance(
            network.encoder, TransformerEncoder
        ):
            return None
        if not all(map(is_packed, network.encoder.stack)):
            return None
        return Compiled(network.front, network.encoder.stack, network.encoder.norm, kernel)

    def start(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> DecoderState:
        return self.begin(self.encode(source_BS, lengths_B, context), context)

    def encode(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> Memory:
        """The same as network.encode, with zeros in padding. C encodes whole sources of text."""
        if self._encoder is None or context.chunk is not None or self._is_watched():
            assert isinstance(self.network, EncoderDecoder)
            return self.network.encode(source_BS, lengths_B, context)
        return self.encode_in_c(source_BS, lengths_B)

    def encode_in_c(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """The same, where it is known that C can do it and that nobody watches."""
        encoder = self._encoder
        assert encoder is not None
        B, S = source_BS.shape
        assert isinstance(self.network, EncoderDecoder)
        lengths_B = self.network.lengths_read(lengths_B)
        source_BS, lengths_B = source_BS.long().contiguous(), lengths_B.long().contiguous()
        states_BSD = source_BS.new_empty(B, S, encoder.width, dtype=torch.float32)
        embedded_BSD = None if encoder.embeds else encoder.embedding(source_BS)
        rows = int(lengths_B.clamp(0, S).sum())
        bytes_wanted = self._library.stack_room(encoder.address, rows, S)
        room = source_BS.new_empty(bytes_wanted, dtype=torch.uint8)
        call = Sources(
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
        self._library.encode(encoder.address, ctypes.addressof(call))
        if call.refused:
            raise ValueError(
                f"Source {call.refused} has a token that is not among the {encoder.tokens} of this "
                f"network, or a length above {S}."
            )
        return Memory(states_BSD, lengths_B, padding_mask(lengths_B, S, source_BS.device))

    def begin(self, memory: Memory, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        lengths_B = lengths_seen(memory)
        if lengths_B is None or context.attention or self._is_watched():
            assert isinstance(self.network, EncoderDecoder)
            return self.network.begin(memory, context)
        if memory.projected is None or memory.projected[0] is not self:
            memory.projected = (self, self.projected(memory))
        return CTransformerState(self.shape, lengths_B, memory.projected[1])

    def projected(self, memory: Memory) -> list[Tensor]:
        """Keys and values_BSE of the sources, for each layer."""
        return [block.project_memory(memory.states_BSD) for block in self.decoder.stack]

    def read(self, tokens_BT: Tensor) -> DecoderState:
        """The state of a language model that has read these tokens (prefill), in one pass."""
        assert isinstance(self.network, LanguageModelNetwork)
        state = self.network.read(tokens_BT)
        if self._is_watched():
            return state
        assert isinstance(state, TransformerState)
        found = CTransformerState(self.shape, tokens_BT.new_zeros(len(tokens_BT)))
        if state.caches[0].length:
            found.prefill([cache.stored() for cache in state.caches])
            self._set_addresses(found)
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """The number of layers, and the size of keys and values of one position."""
        return len(self.decoder.stack), 2 * self._stack.width

    @property
    def vocabulary(self) -> int:
        """The number of tokens that it gives log-probabilities of."""
        return int(self._head.weight.outputs)

    @property
    def has_slots(self) -> bool:
        """Whether rows may be at steps of their own: C embeds their tokens, and there is a source
        that C can read."""
        return self._stack.embeds and self._encoder is not None and not self._is_watched()

    def room(self, rows: int, places: int) -> int:
        """The bytes that a step needs beside the KV cache, for so many rows and positions."""
        wanted: int = self._library.stack_room(self._stack.address, rows, places)
        return wanted

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the token after tokens_R, in float32."""
        if not isinstance(state, CTransformerState):
            return self.network.step(tokens_R, state)
        rows, t, call = len(tokens_R), state.length, state.call
        if state.has_to_grow(rows):
            state.grow(rows)
            self._set_addresses(state)
        tokens_R = tokens_R.long().contiguous()
        log_probs_RV = state.room_for(rows, self.vocabulary)
        call.rows, call.step = rows, t
        call.tokens, call.log_probs = tokens_R.data_ptr(), log_probs_RV.data_ptr()
        call.origins = state.origins_RT.data_ptr()
        call.position, call.turns = self._stack.added.at(t), self._stack.turns.at(t)
        if not self._stack.embeds:
            embedded_RD = self._stack.embedding(tokens_R[:, None], start=t)
            call.embedded = embedded_RD.data_ptr()
        self._library.decoder_step(self._stack.address, ctypes.addressof(call))
        if call.refused:
            raise ValueError(
                f"Token {int(tokens_R[call.refused - 1])} is not among the {self._stack.tokens} of "
                f"this network."
            )
        state.length += 1
        return log_probs_RV, state

    def advance(
        self, call: Step, search: Slots, positions: int, steps: int, seconds: float
    ) -> None:
        """Steps of a search over slots, so many at least and for about that long."""
        added, turns = self._stack.added, self._stack.turns
        call.position, call.turns = added.at(0, positions), turns.at(0, positions)
        call.head = self._head.weight
        addresses = (ctypes.addressof(one) for one in (call, search))
        self._library.advance_slots(self._stack.address, *addresses, steps, seconds)
        assert not call.refused  # search has chosen the tokens itself

    def _set_addresses(self, state: CTransformerState) -> None:
        """Set the fields of the C structure that stay the same until the KV cache grows again."""
        T, _, most_rows, _ = state.past_TLRE.shape
        places = max(T, state.memory_length)
        state.room = state.past_TLRE.new_empty(self.room(most_rows, places), dtype=torch.uint8)
        call = state.call
        call.past, call.most_rows, call.most_steps = state.past_TLRE.data_ptr(), most_rows, T
        call.memory, call.memory_length = ctypes.addressof(state.memory), state.memory_length
        call.lengths, call.room = state.lengths_B.data_ptr(), state.room.data_ptr()
        call.head = self._head.weight

    def _is_watched(self) -> bool:
        return is_watched(self._modules)


class CTransformerState:
    """The KV cache of each row; E is the size of keys and values of one position."""

    finite_or_never = True  # the log-probabilities of its steps: NaN becomes -inf

    def __init__(
        self, shape: tuple[int, int], lengths_B: Tensor, memory: Sequence[Tensor] = ()
    ) -> None:
        """shape: layers and E. memory: for each layer the projected keys and values_BSE of the
        sources; a language model has none."""
        self._kept = [layer_BSE.float().contiguous() for layer_BSE in memory]
        self.memory = (ctypes.c_void_p * len(memory))(*(kept.data_ptr() for kept in self._kept))
        self.memory_length = memory[0].shape[1] if memory else 0
        self.lengths_B = lengths_B
        self.length = 0
        # The first column is the row of the memory, the others where each past step was written.
        source_B = torch.arange(len(lengths_B), dtype=torch.int32, device=lengths_B.device)
        self.origins_RT = source_B[:, None]
        layers, E = shape
        self.past_TLRE = lengths_B.new_empty(0, layers, 0, E, dtype=torch.float32)
        self.room = self.past_TLRE
        self._log_probs_RV = self.past_TLRE.new_empty(0, 0)
        self.call = Step()

    def prefill(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill the cache with keys and values_BHTK that were computed elsewhere (prefill)."""
        for number, (keys_BHTK, values_BHTK) in enumerate(layers):
            B, _, T, _ = keys_BHTK.shape
            while len(self.past_TLRE) < T or self.past_TLRE.shape[2] < B:
                self.length = len(self.past_TLRE)
                self.grow(B)
            both = [x_BHTK.permute(2, 0, 1, 3).flatten(2) for x_BHTK in (keys_BHTK, values_BHTK)]
            place_TBE = torch.cat(both, dim=-1)  # of a layer that was pruned, not the whole place
            self.past_TLRE[:T, number, :B, : place_TBE.shape[-1]] = place_TBE
            self.origins_RT[:, 1 : 1 + T] = self.origins_RT[:, :1]
            self.length = T

    def has_to_grow(self, rows: int) -> bool:
        T, _, most_rows, _ = self.past_TLRE.shape
        return self.length == T or rows > most_rows

    def grow(self, rows: int) -> None:
        """Make room for one more step, and for `rows` rows."""
        T, L, R, E = self.past_TLRE.shape
        steps = max(2 * T, ROOM) if self.length == T else T
        grown_TLRE = self.past_TLRE.new_empty(steps, L, max(rows, R), E)
        grown_TLRE[: self.length, :, :R] = self.past_TLRE[: self.length]
        self.past_TLRE = grown_TLRE
        origins_RT = self.origins_RT.new_empty(len(self.origins_RT), 1 + steps)
        origins_RT[:, : 1 + self.length] = self.origins_RT[:, : 1 + self.length]
        self.origins_RT = origins_RT

    def room_for(self, rows: int, vocabulary: int) -> Tensor:
        """A buffer for log-probabilities_RV, reused at every step: fresh memory is slow at
        first.
        """
        if rows > len(self._log_probs_RV):
            self._log_probs_RV = self.past_TLRE.new_empty(rows, vocabulary)
        return self._log_probs_RV[:rows]

    def reorder(self, index_R: Tensor) -> None:
        self.origins_RT = self.origins_RT.index_select(0, index_R)
