"""Transformer decoder in C: one library call for a step; see c/stack.c.

For networks packed in float32 or int8. The KV cache is never copied: each row of a search has a
table of where its steps were written, and only that table is reordered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.decoders import DecoderState, TransformerDecoder, TransformerState
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoder_output import EncoderOutput, visible_lengths
from transduce.models.language_model import LanguageModelNetwork
from transduce.runtime.c_steps import CSteps
from transduce.runtime.copying import Copied, CopyingHead
from transduce.runtime.structures import Kernel, Slots, Step, Weight
from transduce.runtime.transformer_stack import Compiled, is_native, is_packed, product_of

ROOM = 32  # initial capacity of the KV cache in steps; it grows by doubling


def has_c_transformer_steps(network: EncoderDecoder | LanguageModelNetwork) -> bool:
    """Whether all matrix products of the decoder are packed for the C library."""
    if not isinstance(network.decoder, TransformerDecoder):
        return False
    last = network.decoder.stack[-1].cross_attention
    if isinstance(network, CopyingEncoderDecoder) and last is not None and last.inner < last.width:
        return False  # copied is by the mean over all heads
    plain = isinstance(network.head.narrow, nn.Identity)
    return plain and is_native(network.head.weight) and all(map(is_packed, network.decoder.stack))


class CTransformerSteps(CSteps):
    """Steps of a Transformer decoder: see CSteps."""

    def __init__(
        self, network: EncoderDecoder | LanguageModelNetwork, kernel: Kernel = Kernel.BEST
    ) -> None:
        super().__init__(network, kernel)
        assert isinstance(network.decoder, TransformerDecoder)
        self.decoder = network.decoder
        self._stack = Compiled(
            self.decoder.embedding, self.decoder.stack, self.decoder.norm, kernel
        )
        head = product_of(network.head.weight)
        assert head is not None
        self._head = head
        self._copying = CopyingHead.of(self._library, network, head)

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        lengths_B = visible_lengths(memory)
        if lengths_B is None or context.attention or self._is_watched():
            assert isinstance(self.network, EncoderDecoder)
            return self.network.begin(memory, context)
        if memory.projected is None or memory.projected[0] is not self:
            memory.projected = (self, list(self.projected(memory)))
        copies_BS = memory.copies_BS
        copied = None if copies_BS is None else Copied(copies_BS.long().contiguous(), lengths_B)
        return CTransformerState(self.shape, lengths_B, memory.projected[1], copied)

    def projected(self, memory: EncoderOutput) -> Iterator[Tensor]:
        """Keys and values_BSE of the sources, for each layer."""
        return (block.project_memory(memory.states_BSD) for block in self.decoder.stack)

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

    def workspace(self, rows: int, places: int) -> int:
        """The bytes that a step needs beside the KV cache, for so many rows and positions."""
        wanted: int = self._library.stack_workspace(self._stack.address, rows, places)
        return wanted

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the token after tokens_R, in float32; over the extended
        vocabulary, where the network copies."""
        if not isinstance(state, CTransformerState):
            return self.network.step(tokens_R, state)
        if self._copying is None or state.copied is None:
            return self._advance(tokens_R, state, self._head.weight), state
        layers, rows, heads = len(self.decoder.stack), len(tokens_R), self._stack.heads
        attention_LRHS = state.past_TLRE.new_empty(layers, rows, heads, state.memory_length)
        state.call.attention = attention_LRHS.data_ptr()
        features_RD = self._advance(self._copying.known(tokens_R), state, Weight())
        source_R = state.origins_RT[:, 0].long()
        log_probs_RX = self._copying.log_probs(
            features_RD, attention_LRHS[-1], state.copied, source_R
        )
        return log_probs_RX, state

    def _advance(self, tokens_R: Tensor, state: CTransformerState, head: Weight) -> Tensor:
        """What the head makes of one more token; without one, the features_RD."""
        rows, t, call = len(tokens_R), state.length, state.call
        if state.has_to_grow(rows):
            state.grow(rows)
            self._set_addresses(state)
        tokens_R = tokens_R.long().contiguous()
        found_RV = state.found_buffer(rows, head.outputs or self._stack.width)
        call.rows, call.step, call.head = rows, t, head
        call.tokens, call.log_probs = tokens_R.data_ptr(), found_RV.data_ptr()
        call.origins = state.origins_RT.data_ptr()
        call.position, call.rotary = self._stack.added.at(t), self._stack.rotary.at(t)
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
        return found_RV

    def advance(
        self, call: Step, search: Slots, positions: int, steps: int, seconds: float
    ) -> None:
        """Steps of a search over slots, so many at least and for about that long."""
        added, rotary = self._stack.added, self._stack.rotary
        call.position, call.rotary = added.at(0, positions), rotary.at(0, positions)
        call.head = self._head.weight
        addresses = (ctypes.addressof(one) for one in (call, search))
        self._library.advance_slots(self._stack.address, *addresses, steps, seconds)
        assert not call.refused  # search has chosen the tokens itself

    def _set_addresses(self, state: CTransformerState) -> None:
        """Set the fields of the C structure that stay the same until the KV cache grows again."""
        T, _, max_rows, _ = state.past_TLRE.shape
        places = max(T, state.memory_length)
        state.workspace = state.past_TLRE.new_empty(
            self.workspace(max_rows, places), dtype=torch.uint8
        )
        call = state.call
        call.past, call.max_rows, call.max_steps = state.past_TLRE.data_ptr(), max_rows, T
        call.memory, call.memory_length = ctypes.addressof(state.memory), state.memory_length
        call.lengths, call.workspace = state.lengths_B.data_ptr(), state.workspace.data_ptr()


class CTransformerState:
    """The KV cache of each row; E is the size of keys and values of one position."""

    finite_or_neg_inf = True  # the log-probabilities of its steps: NaN becomes -inf

    def __init__(
        self,
        shape: tuple[int, int],
        lengths_B: Tensor,
        memory: Sequence[Tensor] = (),
        copied: Copied | None = None,
    ) -> None:
        """shape: layers and E. memory: for each layer the projected keys and values_BSE of the
        sources; a language model has none. copied: of a network that copies."""
        self._kept = [layer_BSE.float().contiguous() for layer_BSE in memory]
        self.memory = (ctypes.c_void_p * len(memory))(*(kept.data_ptr() for kept in self._kept))
        self.memory_length = memory[0].shape[1] if memory else 0
        self.lengths_B, self.copied = lengths_B, copied
        self.length = 0
        # The first column is the row of the memory, the others where each past step was written.
        source_B = torch.arange(len(lengths_B), dtype=torch.int32, device=lengths_B.device)
        self.origins_RT = source_B[:, None]
        layers, E = shape
        self.past_TLRE = lengths_B.new_empty(0, layers, 0, E, dtype=torch.float32)
        self.workspace = self.past_TLRE
        self._found_RV = self.past_TLRE.new_empty(0, 0)
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
        T, _, max_rows, _ = self.past_TLRE.shape
        return self.length == T or rows > max_rows

    def grow(self, rows: int) -> None:
        """Make the buffers larger: for one more step, and for `rows` rows."""
        T, L, R, E = self.past_TLRE.shape
        steps = max(2 * T, ROOM) if self.length == T else T
        grown_TLRE = self.past_TLRE.new_empty(steps, L, max(rows, R), E)
        grown_TLRE[: self.length, :, :R] = self.past_TLRE[: self.length]
        self.past_TLRE = grown_TLRE
        origins_RT = self.origins_RT.new_empty(len(self.origins_RT), 1 + steps)
        origins_RT[:, : 1 + self.length] = self.origins_RT[:, : 1 + self.length]
        self.origins_RT = origins_RT

    def found_buffer(self, rows: int, outputs: int) -> Tensor:
        """A buffer for what a step finds, reused at every step: fresh memory is slow at first."""
        if rows > len(self._found_RV):
            self._found_RV = self.past_TLRE.new_empty(rows, outputs)
        return self._found_RV[:rows]

    def reorder(self, index_R: Tensor) -> None:
        self.origins_RT = self.origins_RT.index_select(0, index_R)
