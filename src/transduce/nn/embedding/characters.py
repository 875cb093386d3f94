"""Character-level word embeddings: one vector for each word, from its characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.nn.recurrent.stack import Recurrent

SPAN = 3  # width of the convolution kernel, in characters


class RecurrentLetters(nn.Module):
    """Bidirectional character LSTM: the last states of a forward and a backward LSTM.

    Lample et al. 2016, https://arxiv.org/abs/1603.01360.
    """

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(letters, width)
        self.recurrent = Recurrent("lstm", width, width // 2, 1, bidirectional=True)

    def forward(self, letters_NC: Tensor) -> Tensor:
        """Characters [N, C], padded with 0, to features [N, D]; zeros for an empty word."""
        lengths_N = (letters_NC != 0).sum(dim=1)
        _, final = self.recurrent(self.table(letters_NC), None, lengths_N)
        return torch.cat([h_ND for h_ND, _ in final], dim=-1)


class ConvolvedLetters(nn.Module):
    """Character CNN with max pooling over the positions of a word.

    Dos Santos and Zadrozny 2014; Ma and Hovy 2016, https://arxiv.org/abs/1603.01354.
    """

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(letters, width)
        self.convolution = nn.Conv1d(width, width, SPAN, padding=SPAN // 2)

    def forward(self, letters_NC: Tensor) -> Tensor:
        """Characters [N, C], padded with 0, to features [N, D]; zeros for an empty word."""
        real_N1C = (letters_NC != 0).unsqueeze(1)
        # Zero padding on both sides, so that the amount of padding does not change the result.
        x_NDC = self.table(letters_NC).mT * real_N1C
        features_NDC: Tensor = self.convolution(x_NDC).relu() * real_N1C
        return features_NDC.amax(dim=-1)


LETTERS: dict[str, type[RecurrentLetters] | type[ConvolvedLetters]] = {
    "lstm": RecurrentLetters,
    "cnn": ConvolvedLetters,
}
