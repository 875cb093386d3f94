"""Recurrent decoder in C: one library call for the start, one for each step; see c/recurrent.c."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.decoders import (
    AttentionState,
    DecoderState,
    RecurrentDecoder,
    RecurrentState,
)
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoder_output import EncoderOutput, visible_lengths
from transduce.models.language_model import LanguageModelNetwork
from transduce.nn.attention import attention
from transduce.runtime.c_steps import CSteps
from transduce.runtime.recurrent_stack import CompiledRecurrent, Weights
from transduce.runtime.structures import (
    ADDITIVE,
    DOT,
    LOCATION,
    NO_ATTENTION,
    Kernel,
    RecurrentStart,
    RecurrentStep,
)
from transduce.runtime.structures import RecurrentDecoder as CompiledDecoder
from transduce.runtime.transformer_stack import is_native, product_of

# The score function, whether the query is normalised to length 1, and the scale of dot products.
SCORES = {
    attention.Dot: DOT,
    attention.General: DOT,
    attention.ScaledDot: DOT,
    attention.Cosine: DOT,
    attention.Additive: ADDITIVE,
    attention.AdditiveFree: ADDITIVE,
    attention.Location: LOCATION,
}


def has_c_recurrent_steps(network: EncoderDecoder | LanguageModelNetwork) -> bool:
    """Whether the C library supports the whole decoder of this network."""
    decoder = network.decoder
    if not isinstance(decoder, RecurrentDecoder):
        return False
    if not isinstance(decoder.recurrent.compiled, CompiledRecurrent):
        return False
    by = decoder.attention
    known = by is None or type(by.score) in SCORES
    plain = isinstance(network.head.narrow, nn.Identity)
    native = is_native(network.head.weight)
    return known and native and plain and decoder.embedding.positions is None


class CRecurrentSteps(CSteps):
    """Steps of a recurrent decoder: see CSteps."""

    def __init__(self, network: EncoderDecoder | LanguageModelNetwork) -> None:
        super().__init__(network)
        decoder = network.decoder
        assert isinstance(decoder, RecurrentDecoder)
        self.decoder = decoder
        stack = decoder.recurrent.compiled
        assert isinstance(stack, CompiledRecurrent)
        self._weights = weights = Weights(self._library)
        self.width = stack.structure.width
        by = None if decoder.attention is None else decoder.attention.score
        energy: Tensor | None = by.energy.weight if isinstance(by, attention.Additive) else None
        keys: nn.Linear | None = None
        asked: nn.Linear | None = None
        if isinstance(by, attention.Additive | attention.General):
            keys = by.key_projection
        if isinstance(by, attention.Additive):
            asked = by.query_projection
        elif isinstance(by, attention.Location):
            asked = by.position_projection
        head = product_of(network.head.weight)
        assert head is not None
        self._head = head
        self._net = CompiledDecoder(
            ctypes.pointer(stack.structure),
            NO_ATTENTION if by is None else SCORES[type(by)],
            isinstance(by, attention.Cosine),
            self.width**-0.5 if isinstance(by, attention.ScaledDot) else 1.0,
            decoder.context_in_input,
            decoder.context_in_output,
            weights.linear(keys),
            weights.linear(asked),
            None if energy is None else weights.keep(energy),
            weights.linear(decoder.readout),
            weights.linear(decoder.bridge),
            weights.keep(decoder.embedding.table.weight),
            decoder.embedding.table.num_embeddings,
            decoder.embedding.scale,
            Kernel.BEST,
        )
        self._address = ctypes.addressof(self._net)

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        assert isinstance(self.network, EncoderDecoder)
        lengths_B = visible_lengths(memory)
        if lengths_B is None or context.attention or self._is_watched():
            return self.network.begin(memory, context)
        return CRecurrentState(self._begin(memory, lengths_B), lengths_B)

    def _begin(self, memory: EncoderOutput, lengths_B: Tensor) -> RecurrentState:
        """As RecurrentDecoder.start."""
        states_BSD, net = memory.states_BSD.float().contiguous(), self._net
        B, S, width = states_BSD.shape
        assert width == self.width  # C reads so many
        prepares = net.keys.outputs or net.normalised
        keys_BSD = torch.empty_like(states_BSD) if prepares else states_BSD
        start_BE = states_BSD.new_empty(B, net.bridge.outputs)
        workspace = states_BSD.new_empty(
            self._library.start_workspace(self._address, B, S), dtype=torch.uint8
        )
        call = RecurrentStart(
            sources=B,
            longest=S,
            states=states_BSD.data_ptr(),
            lengths=lengths_B.data_ptr(),
            keys=keys_BSD.data_ptr(),
            start=start_BE.data_ptr(),
            workspace=workspace.data_ptr(),
        )
        self._library.start_decoder(self._address, ctypes.addressof(call))
        layers = memory.final if self.decoder.bridge is None else self.decoder.divided(start_BE)
        assert layers is not None
        attended = AttentionState(layers[-1][0], keys_BSD, states_BSD, memory.mask)
        return RecurrentState(layers, attended)

    def read(self, tokens_BT: Tensor) -> DecoderState:
        """The state of a language model that has read these tokens (prefill), in one pass."""
        assert isinstance(self.network, LanguageModelNetwork)
        state = self.network.read(tokens_BT)
        if self._is_watched():
            return state
        assert isinstance(state, RecurrentState)
        if not state.layers:
            zero = self.decoder.embedding.table.weight
            state.layers = self.decoder.recurrent.zeros(len(tokens_BT), zero)
        return CRecurrentState(state, tokens_BT.new_zeros(len(tokens_BT)))

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the token after tokens_R, in float32."""
        if not isinstance(state, CRecurrentState):
            return self.network.step(tokens_R, state)
        rows = len(tokens_R)
        tokens_R = tokens_R.long().contiguous()
        log_probs_RV = state.query_RD.new_empty(rows, self._head.weight.outputs)
        workspace = tokens_R.new_empty(
            self._library.recurrent_workspace(self._address, rows, state.longest), dtype=torch.uint8
        )
        call = RecurrentStep(
            rows=rows,
            tokens=tokens_R.data_ptr(),
            h=state.h_LRD.data_ptr(),
            c=None if state.c_LRD is None else state.c_LRD.data_ptr(),
            query=state.query_RD.data_ptr(),
            source=state.source_R.data_ptr(),
            keys=None if state.keys_BSD is None else state.keys_BSD.data_ptr(),
            values=None if state.values_BSD is None else state.values_BSD.data_ptr(),
            longest=state.longest,
            lengths=state.lengths_B.data_ptr(),
            head=self._head.weight,
            log_probs=log_probs_RV.data_ptr(),
            workspace=workspace.data_ptr(),
        )
        if self._library.recurrent_step(self._address, ctypes.addressof(call)):
            raise ValueError("A token is not in the model's vocabulary.")
        return log_probs_RV, state


class CRecurrentState:
    """The recurrent state of each row, and the row of the memory (encoder outputs) that it
    reads.
    """

    finite_or_neg_inf = True  # the log-probabilities of its steps: NaN becomes -inf

    def __init__(self, state: RecurrentState, lengths_B: Tensor) -> None:
        parts = [torch.stack(of_layers).float() for of_layers in zip(*state.layers, strict=True)]
        self.h_LRD = parts[0]
        self.c_LRD = parts[1] if len(parts) > 1 else None
        seen = state.attention_state
        self.query_RD = (self.h_LRD[-1] if seen is None else seen.query_BD).float().clone()
        self.keys_BSD = None if seen is None else seen.keys_BSD.float().contiguous()
        self.values_BSD = None if seen is None else seen.values_BSD.float().contiguous()
        self.longest = 0 if self.keys_BSD is None else self.keys_BSD.shape[1]
        self.lengths_B = lengths_B.long().contiguous()
        self.source_R = torch.arange(len(lengths_B))

    def reorder(self, index_R: Tensor) -> None:
        self.h_LRD = self.h_LRD.index_select(1, index_R)
        if self.c_LRD is not None:
            self.c_LRD = self.c_LRD.index_select(1, index_R)
        self.query_RD = self.query_RD.index_select(0, index_R)
        self.source_R = self.source_R.index_select(0, index_R)
