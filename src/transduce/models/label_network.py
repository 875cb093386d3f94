"""Classifiers and taggers: source embedding → encoder → (pooling) → output head; no decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.data.batches.packing import Packed
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.check_input import check_lengths
from transduce.models.encoder_decoder import Head, packs_all
from transduce.models.encoder_output import EncoderOutput, padding_mask
from transduce.models.encoders import Encoder
from transduce.models.trainable import TrainableNetwork
from transduce.models.word_embedding import WordEmbedding
from transduce.nn.attention.attention import Attention, Dot
from transduce.nn.loss import Loss
from transduce.nn.masks import Mask, Segments


class MeanPool(nn.Module):
    """The average of the states; padding is none of them."""

    wider = 1
    """How many times as wide as a state the result is."""

    def forward(self, memory: EncoderOutput) -> Tensor:
        """A memory of B sources to pooled_BD; of sources in one row, a row for each segment."""
        segments = _segments(memory)
        if segments is None:
            return memory.mean_BD()
        states_SD = memory.states_BSD[0].float()
        counts_B1 = segments.key_offsets.diff().clamp(min=1)[:, None]
        sums_BD = states_SD.new_zeros(len(counts_B1), states_SD.shape[1])
        return sums_BD.index_add(0, segments.of_keys(len(states_SD)), states_SD) / counts_B1


class AttentionPool(nn.Module):
    """The states attended to by each of them, by dot products, and averaged; beside it, their
    own average (2·dim numbers).

    Averaged over the queries, the weights say how much of the result each word is.
    """

    wider = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(Dot(width, width))

    def forward(self, memory: EncoderOutput) -> Tensor:
        x_BSD = memory.states_BSD
        context_BSD = self.attention(x_BSD, x_BSD, x_BSD, memory.mask)
        averages = (
            EncoderOutput(s, memory.lengths_B, None).mean_BD() for s in (context_BSD, x_BSD)
        )
        return torch.cat(list(averages), dim=-1)


class LastPool(nn.Module):
    """What is left at the end: a recurrent encoder's final state, else the last token's."""

    wider = 1

    def forward(self, memory: EncoderOutput) -> Tensor:
        if memory.final is not None:
            return memory.final[-1][0]
        segments = _segments(memory)
        if segments is not None:
            return memory.states_BSD[0, (segments.key_offsets[1:] - 1).clamp(min=0)]
        last_B = (memory.lengths_B - 1).clamp(min=0).to(memory.states_BSD.device)
        return memory.states_BSD[torch.arange(len(last_B), device=last_B.device), last_B]


def _segments(memory: EncoderOutput) -> Segments | None:
    return None if memory.mask is None else memory.mask.segments


def build_pool(kind: str, width: int) -> MeanPool | AttentionPool | LastPool:
    """Pooling by name; ValueError for another than "mean", "attention" and "last"."""
    if kind == "attention":
        return AttentionPool(width)
    if kind not in ("mean", "last"):
        raise ValueError(f'pooling must be "mean", "attention" or "last", not "{kind}".')
    return MeanPool() if kind == "mean" else LastPool()


# ------------------------------------------------------------------------------------- the network


NO_LABEL = -1


class LabelNetwork(TrainableNetwork):
    """An encoder alone: a label for each token, or with a pool one for the whole source.

    The labels are the target's tokens without the specials: label n is token n + 4.
    """

    def __init__(
        self,
        front: WordEmbedding,
        encoder: Encoder,
        pool: MeanPool | AttentionPool | LastPool | None,
        head: Head,
    ) -> None:
        super().__init__()
        self.front = front
        self.encoder = encoder
        self.pool = pool
        self.head = head

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> Tensor:
        """Features that tell the labels: [B, S, D] of each token, or [B, 1, D] of the source."""
        memory = self.encode(source_BS, lengths_B, context)
        return memory.states_BSD if self.pool is None else self.pool(memory)[:, None]

    def encode(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> EncoderOutput:
        """The states of each token; lengths_B is on the CPU, the mask follows from it."""
        mask = padding_mask(lengths_B, source_BS.shape[1], source_BS.device)
        words = {"words": context.words} if context.words else {}
        x_BSD = self.front(source_BS, **words)
        memory: EncoderOutput = self.encoder(x_BSD, lengths_B, mask, **context.of_encoder)
        return memory

    def logits(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> Tensor:
        """Of every label: [B, S, V] of each token, or with pooling [B, 1, V] of the source.

        Raises ModelError for lengths that do not fit.
        """
        check_lengths(source_BS, lengths_B)
        logits_BSV: Tensor = self.head(self(source_BS, lengths_B, **context.keywords))
        return logits_BSV

    def log_probabilities(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> Tensor:
        """Of every label, [B, S, V] or [B, 1, V], in float32."""
        logits_BSV = self.logits(source_BS, lengths_B, **context.keywords)
        return torch.log_softmax(logits_BSV.float(), dim=-1)

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of the labels in target_BT (BEGIN, labels, padded), summed over them."""
        return self.loss_of(self(source_BS, lengths_B), target_BT, smoothing, r_drop)

    def loss_of(
        self, features_BTD: Tensor, target_BT: Tensor, smoothing: float, r_drop: float
    ) -> Loss:
        """The loss of what `forward` gives."""
        labels_BT = _labels(target_BT[:, 1 : 1 + features_BTD.shape[1]])
        return self.head.loss(features_BTD, labels_BT, smoothing, r_drop, ignore=NO_LABEL)

    def states_of(self, length: int) -> int:
        """How many states a source of so many tokens has."""
        return length

    def packs(self, longest: int) -> bool:
        reads_letters = self.front.letters is not None  # how many, only the device knows
        if reads_letters or isinstance(self.pool, AttentionPool):
            return False
        return packs_all(self, longest)

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        offsets, longest = packed.source_offsets, packed.shape.longest
        segments = Segments(offsets, offsets, longest)
        x_1SD = self.front(packed.source_1S, segments.positions(packed.shape.source))
        memory: EncoderOutput = self.encoder(x_1SD, offsets, Mask(segments=segments))
        labels_1T = _labels(packed.labels_1T)
        if self.pool is None:
            return self.head.loss(memory.states_BSD, labels_1T, smoothing, r_drop, ignore=NO_LABEL)
        # Sequence n has label n; of both there are more than that, to fill each copy up.
        copies = 2 if r_drop else 1
        labels_CT = labels_1T.view(copies, -1)
        features_CBD = self.pool(memory).unflatten(0, (copies, -1))
        count = min(labels_CT.shape[1], features_CBD.shape[1])
        features_CBD, labels_CB = features_CBD[:, :count], labels_CT[:, :count]
        return self.head.loss(features_CBD, labels_CB, smoothing, r_drop, ignore=NO_LABEL)


def _labels(target_BT: Tensor) -> Tensor:
    """Labels from 0; NO_LABEL for padding and for what the vocabulary has not."""
    return (target_BT - len(SPECIALS)).clamp(min=NO_LABEL)


def assemble_label_network(
    front: WordEmbedding, encoder: Encoder, width: int, labels: int, pooling: str | None
) -> LabelNetwork:
    """A network that labels every token, or with pooling ("mean", …) the whole source."""
    pool = build_pool(pooling, width) if pooling is not None else None
    wider = pool.wider if pool is not None else 1
    return LabelNetwork(front, encoder, pool, Head(wider * width, labels, None)).built()
