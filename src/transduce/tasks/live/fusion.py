"""Shallow fusion of live hypotheses with a language model."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.tasks.compatibility import check_language_model
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model


class Fusion:
    """log p of the next token by a language model, times a weight; it reads every new hypothesis
    from its beginning, or the last of it where that is longer than the context window."""

    def __init__(self, model: Model, language: LanguageModel, weight: float) -> None:
        check_language_model(model, language)
        self.network, self.window, self.weight = language.network, language.window, weight
        self.endless = language.endless

    def scores(self, tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        """Of each token [R, V] after prefixes tokens_RU, of which lengths_R tokens count."""
        first_R = (lengths_R - self.window + 1).clamp(min=0)
        kept_R = lengths_R - first_R
        place_U = torch.arange(int(kept_R.max()), device=tokens_RU.device)
        at_RU = (first_R[:, None] + place_U).clamp(max=max(tokens_RU.shape[1] - 1, 0))
        read_RU = tokens_RU.long().gather(1, at_RU)
        begin_R1 = torch.full_like(lengths_R[:, None], BEGIN)
        features_RTD = self.network(torch.cat((begin_R1, read_RU), dim=1))
        row_R = torch.arange(len(lengths_R), device=tokens_RU.device)
        logits_RV = self.network.head(features_RTD[row_R, kept_R])
        return self.weight * torch.log_softmax(logits_RV.float(), dim=-1)

    def end(self, next_NV: Tensor) -> Tensor:
        """The score of the end of each hypothesis, of the scores of its next token."""
        return torch.zeros_like(next_NV[..., 0]) if self.endless else next_NV[..., END]
