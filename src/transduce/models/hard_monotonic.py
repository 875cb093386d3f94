"""Recurrent encoder-decoders with exact hard monotonic attention (nn/attention/hard_monotonic.py).

The recurrent decoder reads the tokens alone. Each source position says what would be written there,
h̃ = tanh(W [h_t; x_s]) as in soft attention, and their distributions are mixed by the probability
that attention stands there. With copying, a position also says that its own token is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import PAD
from transduce.models.call_context import NO_CONTEXT, CallContext, KeptAttention
from transduce.models.check_input import check_ids, check_lengths, check_pairs
from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.decoders import AttentionState, DecoderState, RecurrentDecoder, RecurrentState
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.encoder_output import EncoderOutput
from transduce.nn.attention.hard_monotonic import (
    NEVER,
    align,
    first_alignment,
    marginal,
    move,
    observe,
)
from transduce.nn.copying import mixture_loss
from transduce.nn.loss import Loss


@dataclass
class HardMonotonicState(KeptAttention):
    """The decoder's state, where attention stands, and what each position would write there."""

    decoder: RecurrentState
    copies_BS: Tensor | None
    prior_BS: Tensor | None = None
    """log p(a_t | y_{<t}) of the last step; None before the first."""
    emission_BSX: Tensor | None = None

    def reorder(self, index_B: Tensor) -> None:
        self.decoder.reorder(index_B)
        for name in ("copies_BS", "prior_BS", "emission_BSX"):
            if (rows := getattr(self, name)) is not None:
                setattr(self, name, rows[index_B])


class HardMonotonicEncoderDecoder(EncoderDecoder):
    """An encoder-decoder with exact hard monotonic attention (Wu and Cotterell 2019)."""

    decoder: RecurrentDecoder
    plain_steps = False

    def logits(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        context: CallContext = NO_CONTEXT,
    ) -> Tensor:
        """Teacher forcing: log-probabilities_BTV of the token after each of target_BT's."""
        check_ids("source_BS", source_BS, self.front.table.num_embeddings)
        check_lengths(source_BS, lengths_B)
        check_pairs(source_BS, target_BT)
        check_ids("target_BT", target_BT, len(self.head.bias))
        return self._aligned(self.encode(source_BS, lengths_B, **context.keywords), target_BT)[0]

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        memory = self.encode(source_BS, lengths_B)
        log_probs_BTV, _ = self._aligned(memory, target_BT[:, :-1])
        vocabulary = len(self.head.bias)
        return mixture_loss(
            log_probs_BTV.__getitem__,
            target_BT[:, 1:],
            vocabulary,
            0,
            smoothing,
            r_drop,
            ignore=PAD,
        )

    def _emit(self, features_BTSD: Tensor, copies_BS: Tensor | None) -> Tensor:
        """log p(y_t | a_t, y_{<t})_BTSX: what would be written at each source position."""
        logits_BTSV: Tensor = self.head(features_BTSD)
        return logits_BTSV.float().log_softmax(dim=-1)

    def _known(self, target_BT: Tensor) -> Tensor:
        """Target tokens as the decoder reads them."""
        return target_BT

    def _scores(self, outputs_BTD: Tensor, source: AttentionState) -> Tensor:
        """Scores_BTS of the source positions; NEVER in the padding."""
        attention = self.decoder.attention
        assert attention is not None
        scores_BTS: Tensor = attention.score(outputs_BTD, source.keys_BSD).float()
        T, S = scores_BTS.shape[1:]
        visible = None if source.mask is None else source.mask.dense(T, S, scores_BTS.device)
        return scores_BTS if visible is None else scores_BTS.masked_fill(~visible, NEVER)

    def _features(self, outputs_BTD: Tensor, source: AttentionState) -> Tensor:
        """The features_BTSD of each step at each source position."""
        B, T, D = outputs_BTD.shape
        values_BSD = source.values_BSD
        assert self.decoder.attention is not None
        if (gate := self.decoder.attention.gate) is not None:
            values_B1SD = gate.on_heads(gate.on_values(values_BSD).unsqueeze(1))
            values_BSD = gate.on_output(values_B1SD.squeeze(1))
        S = values_BSD.shape[1]
        states_BTSD = outputs_BTD[:, :, None].expand(B, T, S, D)
        return self.decoder.predicted(states_BTSD, values_BSD[:, None].expand(B, T, S, D))

    def _aligned(self, memory: EncoderOutput, target_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher forcing: log-probabilities_BTX, and the weights_BTS of the positions."""
        state = self.decoder.start(memory)
        source = state.attention_state
        assert source is not None
        outputs_BTD, _ = self.decoder.recurrent(
            self.decoder.embedding(self._known(target_BT)), state.layers
        )
        emission_BTSX = self._emit(self._features(outputs_BTD, source), memory.copies_BS)
        # The token after each of target_BT's; after the last it is not known, nor needed.
        written_BT = torch.cat([target_BT[:, 1:], target_BT[:, -1:]], dim=1)
        index_BTS1 = written_BT[:, :, None, None].expand(*emission_BTSX.shape[:3], 1)
        emitted_BTS = emission_BTSX.gather(3, index_BTS1.long()).squeeze(3)
        prior_BTS = align(self._scores(outputs_BTD, source), emitted_BTS)
        weights_BTS = prior_BTS.exp()
        assert self.decoder.attention is not None
        self.decoder.attention.show(weights_BTS.unsqueeze(1))
        return marginal(prior_BTS, emission_BTSX), weights_BTS

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        state = HardMonotonicState(self.decoder.start(memory), memory.copies_BS)
        state.keeps_attention = context.attention
        return state

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BX of the token after tokens_B."""
        assert isinstance(state, HardMonotonicState)
        source = state.decoder.attention_state
        assert source is not None
        x_BD = self.decoder.embedding(self._known(tokens_B)[:, None]).squeeze(1)
        output_BD, state.decoder.layers = self.decoder.recurrent.step(x_BD, state.decoder.layers)
        scores_BS = self._scores(output_BD[:, None], source).squeeze(1)
        if state.prior_BS is None or state.emission_BSX is None:
            at_BS = first_alignment(scores_BS)
        else:
            index_BS1 = tokens_B[:, None, None].expand(*state.emission_BSX.shape[:2], 1)
            emitted_BS = state.emission_BSX.gather(2, index_BS1.long()).squeeze(2)
            at_BS = observe(state.prior_BS, emitted_BS)
        prior_BS = move(at_BS, scores_BS)
        features_B1SD = self._features(output_BD[:, None], source)
        emission_B1SX = self._emit(features_B1SD, state.copies_BS)
        weights_B11S = prior_BS.exp()[:, None, None]
        assert self.decoder.attention is not None
        self.decoder.attention.show(weights_B11S)
        after = replace(state, prior_BS=prior_BS, emission_BSX=emission_B1SX.squeeze(1))
        if after.keeps_attention:
            after.keep(weights_B11S)
        return marginal(prior_BS[:, None], emission_B1SX).squeeze(1), after


class HardMonotonicCopyingEncoderDecoder(HardMonotonicEncoderDecoder, CopyingEncoderDecoder):
    """The same where a position may also write its own token: it copies, or generates."""

    decoder: RecurrentDecoder
    logits = CopyingEncoderDecoder.logits
    loss = CopyingEncoderDecoder.loss

    def _known(self, target_BT: Tensor) -> Tensor:
        return self.known(target_BT)

    def _emit(self, features_BTSD: Tensor, copies_BS: Tensor | None) -> Tensor:
        assert copies_BS is not None
        T, S = features_BTSD.shape[1:3]
        features_BND = features_BTSD.flatten(1, 2)
        # Each of the T · S queries points at its own position.
        here_NS = torch.eye(S, device=features_BTSD.device).repeat(T, 1)
        here_BNS = here_NS.expand(len(features_BTSD), -1, -1)
        emission_BNX: Tensor = self.pointer(
            self.head(features_BND), features_BND, here_BNS, copies_BS
        )
        return emission_BNX.reshape(len(features_BTSD), T, S, -1)

    def _read(self, memory: EncoderOutput, target_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self._aligned(memory, target_BT)

    def _log_probs(
        self,
        features_BTD: Tensor,
        weights_BTS: Tensor,
        memory: EncoderOutput,
        rows: slice = slice(None),
    ) -> Tensor:
        """What `_read` gives are log-probabilities already."""
        return features_BTD[rows]
