"""The encoder-decoder: source embedding → encoder → decoder → output head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.data.batches.packing import Packed
from transduce.data.tokens.tokenizer import PAD
from transduce.errors import ModelError
from transduce.models.call_context import NO_CONTEXT, CallContext, KeptAttention
from transduce.models.check_input import check_ids, check_lengths, check_pairs
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.decoders import Decoder, DecoderState, RecurrentDecoder
from transduce.models.encoder_output import EncoderOutput, TagsOfSource, padding_mask
from transduce.models.encoders import ConformerEncoder, Encoder, RecurrentEncoder
from transduce.models.hooks import is_watched
from transduce.models.registered import RegisteredDecoder, RegisteredEncoder
from transduce.models.trainable import TrainableNetwork
from transduce.nn.attention.multihead import MultiHeadAttention, packs
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.linear import linear
from transduce.nn.loss import Loss, cross_entropy, r_drop_cross_entropy
from transduce.nn.masks import Mask, Segments
from transduce.nn.torch_private import call_hooked


class Head(nn.Module):
    """Predicted embedding to logits: E ŷ_t + b; E is the target's look-up table where tied."""

    bias: Tensor

    def __init__(
        self, width: int, vocabulary: int, table: nn.Embedding | None, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = (
            nn.Parameter(torch.empty(vocabulary, width)) if table is None else table.weight
        )
        if table is None:
            nn.init.normal_(self.weight, std=width**-0.5)
        if bias:
            self.bias = nn.Parameter(torch.zeros(vocabulary))
        else:  # zeros that are neither learned nor saved, so that all that reads a bias reads one
            self.register_buffer("bias", torch.zeros(vocabulary), persistent=False)
        # Where positions are concatenated, embeddings are narrower than the hidden states:
        # a projection. `narrow` is its name in the weights of model folders, so it stays.
        narrower = self.weight.shape[1] != width
        self.narrow = nn.Linear(width, self.weight.shape[1]) if narrower else nn.Identity()

    def forward(self, features_BTD: Tensor) -> Tensor:
        return linear(self.narrow(features_BTD), self.weight, self.bias)

    def products(self, features_RD: Tensor) -> Tensor:
        """E ŷ, the bias not added; in float32 also of bfloat16 weights, so near ties stay apart."""
        projected_RE: Tensor = self.narrow(features_RD)
        if projected_RE.is_cuda and projected_RE.dtype == torch.bfloat16:
            return torch.mm(projected_RE, self.weight.t(), out_dtype=torch.float32)
        exact = torch.promote_types(projected_RE.dtype, torch.float32)
        return (projected_RE @ self.weight.t()).to(exact)

    def loss(
        self,
        features_BTD: Tensor,
        targets_BT: Tensor,
        smoothing: float,
        r_drop: float = 0.0,
        ignore: int = PAD,
    ) -> Loss:
        """With `r_drop`, the second half of the rows is a second pass over the first."""
        projected_BTE = self.narrow(features_BTD)
        if r_drop:
            return r_drop_cross_entropy(
                projected_BTE, self.weight, self.bias, targets_BT, r_drop, smoothing, ignore
            )
        return cross_entropy(projected_BTE, self.weight, self.bias, targets_BT, smoothing, ignore)


class EncoderDecoder(TrainableNetwork):
    """An encoder-decoder, trained by `loss` and decoded by `start` and `step`."""

    is_tag_V: Tensor | None

    def __init__(
        self,
        front: TokenEmbedding,
        encoder: Encoder,
        decoder: Decoder,
        head: Head,
    ) -> None:
        super().__init__()
        self.front = front  # the frontend; weights in model folders have this name
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.source_end = True
        """Whether the encoder reads the END of a source; otherwise it is hidden, as padding is."""
        # Which source tokens are tags, where the decoder reads them and the encoder does not.
        self.register_buffer("is_tag_V", None, persistent=False)

    @property
    def plain_steps(self) -> bool:
        """Whether a step is one of the decoder and its head alone, as CUDA graphs replay it."""
        return self.is_tag_V is None

    def packs(self, longest: int) -> bool:
        return self.source_end and packs_all(self, longest)

    def lengths_read(self, lengths_B: Tensor) -> Tensor:
        """How many tokens are read of sources of these lengths, END included; at least one."""
        return lengths_B if self.source_end else (lengths_B - 1).clamp(min=1)

    def encode(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> EncoderOutput:
        """The memory of a batch of sources; lengths_B is on the CPU, the mask follows from it."""
        lengths_B = self.lengths_read(lengths_B)
        mask = padding_mask(lengths_B, source_BS.shape[1], source_BS.device)
        x_BSD = self.front(source_BS)
        if self.is_tag_V is not None:
            # Those that a source begins with: no other is one for a tokenizer.
            tags_BS = self.is_tag_V[source_BS.long()].cummin(dim=1).values
            return self._with_tags_apart(x_BSD, tags_BS, lengths_B, mask)
        memory: EncoderOutput = self.encoder(x_BSD, lengths_B, mask, **context.of_encoder)
        return memory

    def _with_tags_apart(
        self, x_BSD: Tensor, tags_BS: Tensor, lengths_B: Tensor, mask: Mask | None
    ) -> EncoderOutput:
        """The encoder reads the letters, the decoder the tags (model.decoder.tag_attention)."""
        assert isinstance(self.encoder, RecurrentEncoder)  # the recipe holds this
        memory = self.encoder.read_letters(x_BSD, lengths_B, mask, tags_BS)
        if self.training and tags_BS.device.type == "cpu":
            # Tags come first: attention need not look at all places. (A GPU would be waited for; in
            # use, attention is shown beside that to letters, place by place.)
            most = max(int(tags_BS.sum(dim=1).max()), 1)
            x_BSD, tags_BS = x_BSD[:, :most], tags_BS[:, :most]
        memory.tags = TagsOfSource(x_BSD.masked_fill(~tags_BS[:, :, None], 0), tags_BS)
        return memory

    def read_tags_apart(self, tags: Sequence[int]) -> None:
        """The source tokens of these ids are tags, which the decoder reads and the encoder does
        not."""
        self.is_tag_V = torch.zeros(self.front.table.num_embeddings, dtype=torch.bool)
        self.is_tag_V[list(tags)] = True  # follows from the vocabulary, so that it is not saved

    def forward(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        context: CallContext = NO_CONTEXT,
    ) -> Tensor:
        """Teacher forcing: features_BTD that predict, at each step, the token after target_BT's.

        These are the decoder's last states, before the output head; for logits call `logits`.
        """
        memory = self.encode(source_BS, lengths_B, **context.keywords)
        features_BTD: Tensor = self.decoder(target_BT, memory)
        return features_BTD

    def logits(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        context: CallContext = NO_CONTEXT,
    ) -> Tensor:
        """Teacher forcing: logits_BTV of the token after each of target_BT's (from BEGIN on).

        Raises ModelError for lengths, ids or numbers of rows that do not fit.
        """
        if not source_BS.is_floating_point():  # waveforms have no ids
            check_ids("source_BS", source_BS, self.front.table.num_embeddings)
        check_lengths(source_BS, lengths_B)
        check_pairs(source_BS, target_BT)
        check_ids("target_BT", target_BT, self.decoder.embedding.table.num_embeddings)
        features_BTD = self(source_BS, lengths_B, target_BT, **context.keywords)
        logits_BTV: Tensor = self.head(features_BTD)
        return logits_BTV

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN … END, padded), summed over its tokens."""
        features_BTD = self(source_BS, lengths_B, target_BT[:, :-1])
        return self.head.loss(features_BTD, target_BT[:, 1:], smoothing, r_drop)

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        """The same of sequences laid one after the other, nothing padded; Transformers only."""
        source, target, longest = packed.source_offsets, packed.target_offsets, packed.shape.longest
        mask = Segments(source, source, longest)
        x_1SD = self.front(packed.source_1S, mask.positions(packed.shape.source))
        memory: EncoderOutput = self.encoder(x_1SD, source, Mask(segments=mask))
        memory.mask = Mask(segments=Segments(target, source, longest))
        features_1TD = self.decoder(packed.target_1T, memory, Segments(target, target, longest))
        return self.head.loss(features_1TD, packed.labels_1T, smoothing, r_drop)

    def start(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> DecoderState:
        """What a decoder starts from that reads these sources."""
        return self.begin(self.encode(source_BS, lengths_B, **context.keywords), context)

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        """What a decoder starts from that has this memory."""
        state = self.decoder.start(memory)
        if context.attention:
            if not isinstance(state, KeptAttention):  # of a plugin
                raise ModelError("this decoder does not show its attention to the source")
            state.keeps_attention = True
        return state

    def states_of(self, length: int) -> int:
        """How many states the memory has of a source of so many tokens, END not counted."""
        return length + 1

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the token after tokens_B, in float32 whatever the weights."""
        features_BD, state = hooked_step(self.decoder, tokens_B, state)
        return torch.log_softmax(self.head(features_BD).float(), dim=-1), state


def tied_head(
    front: TokenEmbedding, decoder: Decoder, width: int, tie_embeddings: str, output_bias: bool
) -> Head:
    """The output head of an encoder-decoder.

    tie_embeddings (Press and Wolf 2017, https://arxiv.org/abs/1608.05859): "target": the target's
    embeddings are the output head's too; "all": and the source's; "none": each has its own.
    output_bias: whether the head has a bias. Raises ValueError where "all" cannot be.
    """
    if tie_embeddings == "all":
        source_VD, target_VD = front.table.weight, decoder.embedding.table.weight
        if source_VD.shape != target_VD.shape:
            raise ValueError(
                f"tie_embeddings: all shares one table of source and target embeddings, but these "
                f"are {_shape(source_VD)} and {_shape(target_VD)} (tokens x width): use one "
                f"vocabulary and the same combine on both sides, or tie_embeddings: target"
            )
        decoder.embedding.table = front.table
    return output_head(decoder.embedding, width, tie_embeddings, output_bias)


def output_head(
    embedding: TokenEmbedding,
    width: int,
    tie_embeddings: str = "target",
    output_bias: bool = True,
) -> Head:
    """The head above a decoder; its weights are the embeddings', unless these are tied to none."""
    if tie_embeddings not in ("all", "target", "none"):
        raise ValueError(
            f'tie_embeddings must be "all", "target" or "none", not "{tie_embeddings}".'
        )
    tied = None if tie_embeddings == "none" else embedding.table
    return Head(width, embedding.table.num_embeddings, tied, output_bias)


def _shape(weight_VD: Tensor) -> str:
    return " x ".join(map(str, weight_VD.shape))


def hooked_step(
    decoder: Decoder, tokens_B: Tensor, state: DecoderState
) -> tuple[Tensor, DecoderState]:
    """decoder.step; a forward hook on the decoder sees tokens_B and features_BD."""
    after = state

    def step(tokens_B: Tensor) -> Tensor:
        nonlocal after
        features_BD, after = decoder.step(tokens_B, state)  # type: ignore[arg-type]
        return features_BD

    features_BD: Tensor = call_hooked(decoder, step, tokens_B)
    return features_BD, after


def packs_all(network: TrainableNetwork, longest: int) -> bool:
    """Whether all parts take sequences laid one after the other.

    Recurrent networks go along each sequence, most convolutions across borders, and not every
    attention has a kernel for this. A changed network is asked nothing of the kind, and hooks would
    not be called when a recorded pass is replayed.
    """
    along = (
        RecurrentEncoder,
        RecurrentDecoder,
        RegisteredEncoder,
        RegisteredDecoder,
        ConvolutionalEncoder,
        ConvolutionalDecoder,
    )
    conformers = [part for part in network.children() if isinstance(part, ConformerEncoder)]
    if (
        not network.as_built
        or is_watched(network.modules())
        or any(isinstance(part, along) for part in network.children())
        or not all(conformer.packs for conformer in conformers)
    ):
        return False
    attentions = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    if any(attention.relative is not None for attention in attentions):
        return False
    return all(packs(attention.head_width, longest, attention.dropout) for attention in attentions)
