"""The output of a decoder that copies (pointer-generator), in C; see c/copying.c."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.language_model import LanguageModelNetwork
from transduce.runtime.c_library import Library
from transduce.runtime.product import Product
from transduce.runtime.recurrent_stack import Weights
from transduce.runtime.structures import Copying, Kernel


@dataclass
class Copied:
    """What can be copied: of each source the numbers of its places, and how many these are."""

    copies_BS: Tensor
    lengths_B: Tensor


class CopyingHead:
    """From features and attention to log-probabilities over the extended vocabulary."""

    def __init__(self, library: Library, network: CopyingEncoderDecoder, head: Product) -> None:
        self._library, self._network, self._head = library, network, head
        self._weights = Weights(library)
        self._gate = self._weights.linear(network.pointer.gate)

    @classmethod
    def of(
        cls, library: Library, network: EncoderDecoder | LanguageModelNetwork, head: Product
    ) -> CopyingHead | None:
        """None where a network does not copy."""
        if not isinstance(network, CopyingEncoderDecoder):
            return None
        return cls(library, network, head)

    def known(self, tokens_R: Tensor) -> Tensor:
        """Target tokens as the decoder reads them."""
        return self._network.known(tokens_R)

    def log_probs(
        self, features_RD: Tensor, attention_RHS: Tensor, copied: Copied, source_R: Tensor
    ) -> Tensor:
        """Log-probabilities_RX, in float32. source_R: the source of each row."""
        rows, heads, longest = attention_RHS.shape
        extended = self._head.weight.outputs + longest
        log_probs_RX = features_RD.new_empty(rows, extended)
        scratch = features_RD.new_empty(rows + extended)
        workspace = features_RD.new_empty(
            self._library.product_workspace(rows, features_RD.shape[1]), dtype=torch.uint8
        )
        call = Copying(
            rows=rows,
            heads=heads,
            longest=longest,
            head=self._head.weight,
            gate=self._gate,
            features=features_RD.data_ptr(),
            projected=features_RD.data_ptr(),
            attention=attention_RHS.data_ptr(),
            source=source_R.data_ptr(),
            lengths=copied.lengths_B.data_ptr(),
            copies=copied.copies_BS.data_ptr(),
            log_probs=log_probs_RX.data_ptr(),
            gates=scratch.data_ptr(),
            copied=scratch[rows:].data_ptr(),
            workspace=workspace.data_ptr(),
            kernel=Kernel.BEST,
        )
        if self._library.find_copied(ctypes.addressof(call)):
            raise ValueError(f"A source has a token that is not among {extended}.")
        return log_probs_RX
