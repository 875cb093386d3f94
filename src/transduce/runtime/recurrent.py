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
from transduce.models.encoder_output import EncoderOutput, TagsOfSource, visible_lengths
from transduce.models.language_model import LanguageModelNetwork
from transduce.nn.attention import attention
from transduce.runtime.c_steps import CSteps
from transduce.runtime.copying import Copied, CopyingHead
from transduce.runtime.recurrent_stack import CompiledRecurrent, Weights
from transduce.runtime.structures import (
    ADDITIVE,
    DOT,
    LOCATION,
    NO_ATTENTION,
    Kernel,
    RecurrentStart,
    RecurrentStep,
    Weight,
)
from transduce.runtime.structures import Attention as CompiledAttention
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
    parts = (decoder.attention, None if decoder.tags is None else decoder.tags.attention)
    known = all(one is None or type(one.score) in SCORES for one in parts)
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
        head = product_of(network.head.weight)
        assert head is not None
        self._head = head
        self._copying = CopyingHead.of(self._library, network, head)
        tags = decoder.tags
        self._net = CompiledDecoder(
            ctypes.pointer(stack.structure),
            decoder.context_in_input,
            decoder.context_in_output,
            self._attention(decoder.attention),
            self._attention(None if tags is None else tags.attention),
            weights.linear(None if tags is None else tags.values),
            weights.linear(None if tags is None else tags.sum),
            weights.linear(decoder.readout),
            weights.linear(decoder.bridge),
            weights.keep(decoder.embedding.table.weight),
            decoder.embedding.table.num_embeddings,
            decoder.embedding.scale,
            Kernel.BEST,
        )
        self._address = ctypes.addressof(self._net)

    def _attention(self, by: attention.Attention | None) -> CompiledAttention:
        score, weights = None if by is None else by.score, self._weights
        keys: nn.Linear | None = None
        asked: nn.Linear | None = None
        if isinstance(score, attention.Additive | attention.General):
            keys = score.key_projection
        if isinstance(score, attention.Additive):
            asked = score.query_projection
        elif isinstance(score, attention.Location):
            asked = score.position_projection
        energy: Tensor | None = (
            score.energy.weight if isinstance(score, attention.Additive) else None
        )
        return CompiledAttention(
            NO_ATTENTION if score is None else SCORES[type(score)],
            isinstance(score, attention.Cosine),
            self.width**-0.5 if isinstance(score, attention.ScaledDot) else 1.0,
            weights.linear(keys),
            weights.linear(asked),
            None if energy is None else weights.keep(energy),
        )

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        assert isinstance(self.network, EncoderDecoder)
        lengths_B = visible_lengths(memory)
        if lengths_B is None or context.attention or self._is_watched():
            return self.network.begin(memory, context)
        tags = None if memory.tags is None else CTags(memory.tags)
        begun = self._begin(memory, lengths_B, tags)
        return CRecurrentState(begun, lengths_B, tags, memory.copies_BS)

    def _begin(
        self, memory: EncoderOutput, lengths_B: Tensor, tags: CTags | None
    ) -> RecurrentState:
        """As RecurrentDecoder.start; what is read of tags goes to these."""
        states_BSD, net = memory.states_BSD.float().contiguous(), self._net
        B, S, width = states_BSD.shape
        assert width == self.width  # C reads so many
        prepares = net.source.keys.outputs or net.source.normalised
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
        if tags is not None:
            tags.give_to(call)
            call.embedded_tags = tags.embedded_BSD.data_ptr()
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
        """Log-probabilities_RV of the token after tokens_R, in float32; over the extended
        vocabulary, where the network copies."""
        if not isinstance(state, CRecurrentState):
            return self.network.step(tokens_R, state)
        if self._copying is None or state.copied is None:
            return self._advance(tokens_R, state, self._head.weight), state
        attention_RS = state.query_RD.new_empty(len(tokens_R), state.longest)
        known_R = self._copying.known(tokens_R)
        features_RD = self._advance(known_R, state, Weight(), attention_RS)
        log_probs_RX = self._copying.log_probs(
            features_RD, attention_RS[:, None], state.copied, state.source_R
        )
        return log_probs_RX, state

    def _advance(
        self,
        tokens_R: Tensor,
        state: CRecurrentState,
        head: Weight,
        attention_RS: Tensor | None = None,
    ) -> Tensor:
        """What the head makes of one more token; without one, the features_RD. attention_RS: for
        the weights of the source."""
        rows = len(tokens_R)
        tokens_R = tokens_R.long().contiguous()
        found_RV = state.query_RD.new_empty(rows, head.outputs or self.width)
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
            head=head,
            log_probs=found_RV.data_ptr(),
            attention=None if attention_RS is None else attention_RS.data_ptr(),
            workspace=workspace.data_ptr(),
        )
        if state.tags is not None:
            state.tags.give_to(call)
        if self._library.recurrent_step(self._address, ctypes.addressof(call)):
            raise ValueError("A token is not in the model's vocabulary.")
        return found_RV


class CTags:
    """The tags of sources, and what a decoder reads of them, which the start writes."""

    def __init__(self, tags: TagsOfSource) -> None:
        self._counts_B = tags.counts_B.contiguous()
        most = int(self._counts_B.max())
        self.embedded_BSD = tags.embeddings_BSD[:, :most].float().contiguous()
        self._keys_BSD = torch.empty_like(self.embedded_BSD)
        self._values_BSD = torch.empty_like(self.embedded_BSD)
        self._input_BD = self.embedded_BSD.new_empty(len(tags.are_BS), tags.embeddings_BSD.shape[2])

    def give_to(self, call: RecurrentStart | RecurrentStep) -> None:
        call.tags, call.most_tags = self._counts_B.data_ptr(), self.embedded_BSD.shape[1]
        call.tag_keys, call.tag_values = self._keys_BSD.data_ptr(), self._values_BSD.data_ptr()
        call.tag_input = self._input_BD.data_ptr()


class CRecurrentState:
    """The recurrent state of each row, and the row of the memory (encoder outputs) that it
    reads.
    """

    finite_or_neg_inf = True  # the log-probabilities of its steps: NaN becomes -inf

    def __init__(
        self,
        state: RecurrentState,
        lengths_B: Tensor,
        tags: CTags | None = None,
        copies_BS: Tensor | None = None,
    ) -> None:
        """tags: those that a decoder reads apart; copies_BS: what can be copied, by a network that
        does so."""
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
        self.tags = tags
        copies = None if copies_BS is None else copies_BS.long().contiguous()
        self.copied = None if copies is None else Copied(copies, self.lengths_B)

    def reorder(self, index_R: Tensor) -> None:
        self.h_LRD = self.h_LRD.index_select(1, index_R)
        if self.c_LRD is not None:
            self.c_LRD = self.c_LRD.index_select(1, index_R)
        self.query_RD = self.query_RD.index_select(0, index_R)
        self.source_R = self.source_R.index_select(0, index_R)
