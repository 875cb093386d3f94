"""What all decoding steps in C have in common: the encoder before them, in C where it can be."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.decoders import DecoderState
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoder_output import EncoderOutput, padding_mask
from transduce.models.encoders import TransformerEncoder
from transduce.models.hooks import is_watched
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.trainable import modules_of
from transduce.runtime.c_library import library
from transduce.runtime.structures import Kernel, Sources
from transduce.runtime.transformer_stack import Compiled, is_packed


class CSteps:
    """Decoding steps in C, used by search in place of the network.

    With a lens, forward hooks or a context that asks for attention, the network itself is used.
    """

    def __init__(
        self, network: EncoderDecoder | LanguageModelNetwork, kernel: Kernel = Kernel.BEST
    ) -> None:
        made = library()
        assert made is not None
        self.network, self._library = network, made
        self._modules = modules_of(network)
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
    ) -> EncoderOutput:
        """The same as network.encode, with zeros in padding. C encodes whole sources of text."""
        if self._encoder is None or context.chunk is not None or self._is_watched():
            assert isinstance(self.network, EncoderDecoder)
            return self.network.encode(source_BS, lengths_B, context)
        return self.encode_in_c(source_BS, lengths_B)

    def encode_in_c(self, source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput:
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
        bytes_wanted = self._library.stack_workspace(encoder.address, rows, S)
        workspace = source_BS.new_empty(bytes_wanted, dtype=torch.uint8)
        call = Sources(
            sources=B,
            longest=S,
            tokens=source_BS.data_ptr(),
            lengths=lengths_B.data_ptr(),
            embedded=None if embedded_BSD is None else embedded_BSD.data_ptr(),
            positions=encoder.added.at(0, S),
            rotary=encoder.rotary.at(0, S),
            states=states_BSD.data_ptr(),
            workspace=workspace.data_ptr(),
        )
        self._library.encode(encoder.address, ctypes.addressof(call))
        if call.refused:
            raise ValueError(
                f"Source {call.refused} has a token that is not among the {encoder.tokens} of this "
                f"network, or a length above {S}."
            )
        return EncoderOutput(states_BSD, lengths_B, padding_mask(lengths_B, S, source_BS.device))

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        raise NotImplementedError

    def _is_watched(self) -> bool:
        return is_watched(self._modules)
