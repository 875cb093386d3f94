"""A transducer over waveforms (RNN-T): encoder, prediction network, joint network, and CTC.

Graves 2012, https://arxiv.org/abs/1211.3711. The prediction network is a decoder alone, as a
language model's: it reads the labels so far and hears nothing. The joint network joins its
features with one encoder state, and gives the next label, or a blank: go on to the next state.
So the network writes while it hears, and what it has written stays.

    P places in the labels: before the first, and after each   R rows
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transduce.data.batches.batch import Batch
from transduce.data.tokens.tokenizer import BEGIN, PAD
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalState
from transduce.models.decoders import RecurrentDecoder, RecurrentState
from transduce.models.encoder_decoder import Head
from transduce.models.encoder_output import EncoderOutput
from transduce.models.encoders import Encoder
from transduce.models.speech import SpeechFrontend, SpeechNetwork
from transduce.models.trainable import NO_SPEECH_LOSSES, SpeechLosses
from transduce.nn.ctc.loss import ctc_loss
from transduce.nn.loss import Loss
from transduce.nn.transducer.joint import Joint
from transduce.nn.transducer.lattice import Lattice
from transduce.nn.transducer.loss import transducer_loss

PredictionNetwork = RecurrentDecoder | ConvolutionalDecoder
MAX_LOGITS = {"cpu": 2**24, "cuda": 2**28}  # of the lattices of a batch in memory at a time


class SpeechTransducer(SpeechNetwork):
    """A transducer; the loss is (1 − w) of the transducer's and w of CTC's. PAD is the blank of
    both."""

    def __init__(
        self,
        front: SpeechFrontend,
        encoder: Encoder,
        decoder: PredictionNetwork,
        joint: Joint,
        head: Head,
        ctc: nn.Linear | None,
        ctc_weight: float,
    ) -> None:
        super().__init__()
        self.front = front
        self.encoder = encoder
        self.decoder = decoder
        """The prediction network."""
        self.joint = joint
        self.head = head
        self.ctc = ctc
        self.ctc_weight = ctc_weight

    # --------------------------------------------------------------------- the prediction network

    def first_features(self, rows: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """The prediction network's features_RD before the first label, and its state: tensors with
        a row for each row."""
        begin_R = torch.full((rows,), BEGIN, device=device)
        return self._step(begin_R, self.decoder.start())

    def next_features(self, labels_R: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The same after one more label a row."""
        if isinstance(self.decoder, ConvolutionalDecoder):
            return self._step(labels_R, ConvolutionalState(None, None, list(state)))
        parts = self.decoder.parts
        layers = [tuple(state[at : at + parts]) for at in range(0, len(state), parts)]
        return self._step(labels_R, RecurrentState(layers, None))

    def _step(
        self, labels_R: Tensor, before: RecurrentState | ConvolutionalState
    ) -> tuple[Tensor, list[Tensor]]:
        features_RD, after = self.decoder.step(labels_R, before)  # type: ignore[arg-type]
        if isinstance(after, ConvolutionalState):
            return features_RD, after.past
        return features_RD, [part for layer in after.layers for part in layer]

    def log_probs(self, states: Tensor, features: Tensor) -> Tensor:
        """ln p of each token, the blank among them, of states and features of shapes that can be
        added."""
        logits: Tensor = self.head(self.joint(states, features))
        return torch.log_softmax(logits.float(), dim=-1)

    # ------------------------------------------------------------------------------- whole texts

    def lattice(
        self, memory: EncoderOutput, target_BT: Tensor, rows: slice = slice(None)
    ) -> Lattice:
        """The lattice of some rows of targets (BEGIN … END, padded)."""
        features_BPD = self.decoder(target_BT[rows, :-1])
        log_probs_BSPV = self.log_probs(memory.states_BSD[rows, :, None], features_BPD[:, None])
        wanted_BU, labels_B = _labels(target_BT[rows])
        return Lattice.of(log_probs_BSPV, memory.lengths_B[rows], wanted_BU, labels_B, PAD)

    def rows_at_once(self, memory: EncoderOutput, target_BT: Tensor) -> int:
        """How many rows of a batch have their lattices in memory at a time."""
        states_BSD = memory.states_BSD
        each = states_BSD.shape[1] * (target_BT.shape[1] - 1) * len(self.head.bias)
        return max(1, MAX_LOGITS.get(states_BSD.device.type, MAX_LOGITS["cpu"]) // each)

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        *,
        transcript_BT: Tensor | None = None,
        transcript_lengths_B: Tensor | None = None,
        tags_BG: Tensor | None = None,
    ) -> Loss:
        """(1 − w) of −ln p of target_BT (BEGIN … END, padded), over all alignments, and w of CTC's.

        Its probabilities are those of whole texts: it has no use for label smoothing, which is of
        single tokens, and not for R-Drop. transcript_BT, for CTC, has neither BEGIN nor END;
        without one it is the target.
        """
        memory = self.encode(source_BS, lengths_B, tags_BG=tags_BG)
        features_BPD = self.decoder(target_BT[:, :-1])
        wanted_BU, labels_B = _labels(target_BT)
        states_B = memory.lengths_B.to(source_BS.device, non_blocking=True)
        every = memory.states_BSD, features_BPD, states_B, wanted_BU, labels_B
        at_once = self.rows_at_once(memory, target_BT)
        if at_once >= len(target_BT):
            nll_B, correct_B = self._lattice_loss(*every)
        else:
            # Lattices that do not fit into memory together are computed again for their gradients.
            parts = [
                checkpoint(
                    self._lattice_loss,
                    *(x_B[start : start + at_once] for x_B in every),
                    use_reentrant=False,
                    preserve_rng_state=False,  # nothing is drawn there
                )
                for start in range(0, len(target_BT), at_once)
            ]
            nll_B, correct_B = (torch.cat(part) for part in zip(*parts, strict=True))
        # Rows without samples fill up a batch: nothing is learned from them.
        there_B = lengths_B.to(nll_B.device, non_blocking=True) > 0
        nll_B = nll_B.where(there_B, 0.0)
        total, nll = nll_B.sum(), nll_B.detach().sum()
        tokens, correct = (x_B.where(there_B, 0).sum() for x_B in (labels_B + 1, correct_B))
        if self.ctc is not None:
            if transcript_BT is None or transcript_lengths_B is None:
                transcript_BT, transcript_lengths_B = wanted_BU, labels_B.cpu()
            said_B = memory.lengths_B.where(lengths_B > 0, 0)
            ctc = ctc_loss(
                self.ctc_logits(memory), said_B, transcript_BT, transcript_lengths_B, PAD
            )
            total = (1 - self.ctc_weight) * total + self.ctc_weight * ctc.total
        return Loss(total, nll, correct, tokens)

    def _lattice_loss(
        self,
        states_BSD: Tensor,
        features_BPD: Tensor,
        lengths_B: Tensor,
        wanted_BU: Tensor,
        labels_B: Tensor,
    ) -> tuple[Tensor, Tensor]:
        hidden_BSPJ = self.joint(states_BSD[:, :, None], features_BPD[:, None])
        return transducer_loss(self.head(hidden_BSPJ), lengths_B, wanted_BU, labels_B, PAD)

    def batch_loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        assert batch.target_BT is not None
        return self.loss(
            batch.source_BS,
            batch.source_lengths_B,
            batch.target_BT,
            smoothing,
            r_drop,
            transcript_BT=batch.transcript_BT,
            transcript_lengths_B=batch.transcript_lengths_B,
            tags_BG=batch.tags_BG,
        )


def _labels(target_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of targets (BEGIN … END, padded), and how many there are."""
    return target_BT[:, 1:-1], ((target_BT != PAD).sum(dim=1) - 2).clamp(min=0)
