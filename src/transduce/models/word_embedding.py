"""Embeddings of words: a look-up table, beside it features of their letters, and n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, PAD, SPECIALS, UNKNOWN
from transduce.nn.embedding.characters import LETTERS, ConvolvedLetters, RecurrentLetters
from transduce.nn.embedding.ngrams import NGrams
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.masks import readable
from transduce.nn.positions import ExplicitPositions, Positioned
from transduce.nn.residual import dropped

LONGEST = 20  # of a longer word, so many letters: half at its beginning, half at its end
NO_LETTER, NEW_LETTER = 0, 1


class Spelling:
    """Words as letters; the letters there are, are those of the words it is made from."""

    def __init__(self, words: Sequence[str]) -> None:
        known = sorted(set("".join(words)))
        self.numbers = {letter: number for number, letter in enumerate(known, NEW_LETTER + 1)}

    def __len__(self) -> int:
        return len(self.numbers) + NEW_LETTER + 1

    def spell(self, words: Sequence[str]) -> Tensor:
        """Letters [words, LONGEST], filled up with NO_LETTER."""
        rows_NC = torch.full((len(words), LONGEST), NO_LETTER)
        for row, word in enumerate(words):
            half = LONGEST // 2
            letters = word if len(word) <= LONGEST else word[:half] + word[-half:]
            numbers = [self.numbers.get(letter, NEW_LETTER) for letter in letters]
            rows_NC[row, : len(numbers)] = torch.tensor(numbers)
        return rows_NC


class WordEmbedding(TokenEmbedding):
    """Words to vectors; with letters, the features of those take `letters_width` of the width.

    `letters` is "lstm" or "cnn", and `words` the vocabulary that is spelled. The `own` first words,
    which are the most frequent, have a vector of their own in the table; None: all of them.
    `ngrams` is the most words of an n-gram, 0 for none; `ngram_rows` those of their table.

    While it trains, `word_dropout` of the words have the embedding of unknown ones, and nothing but
    their letters and neighbours to be told by, as unknown words will have.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        positions: Positioned | None,
        dropout: float,
        *,
        word_dropout: float = 0.0,
        letters: str | None = None,
        letters_width: int = 0,
        words: Sequence[str] = (),
        own: int | None = None,
        ngrams: int = 0,
        ngram_rows: int = 500_000,
    ) -> None:
        own = min(own, vocabulary) if own is not None else vocabulary
        super().__init__(own, width - letters_width, positions, dropout)
        self.word_dropout = word_dropout
        self.letters: RecurrentLetters | ConvolvedLetters | None = None
        self.spelled_VC: Tensor
        if letters is not None:
            spoken = ["" if n < len(SPECIALS) else word for n, word in enumerate(words)]
            self.spelling = Spelling(spoken)
            self.letters = LETTERS[letters](len(self.spelling), letters_width)
            # Made of the tokens, not learnt: no part of the weights.
            self.register_buffer("spelled_VC", self.spelling.spell(spoken), persistent=False)
        self.ngrams = NGrams(ngrams, ngram_rows, width) if ngrams else None

    def forward(
        self, tokens_BT: Tensor, start: int | ExplicitPositions = 0, words: Sequence[str] = ()
    ) -> Tensor:
        """tokens_BT → x_BTD; ids beyond the table are words known by their letters alone.

        words: further ones that it has not, whose ids follow those that it has.
        """
        known_BT = tokens_BT
        if self.letters is not None:
            known_BT = tokens_BT.masked_fill(tokens_BT >= self.table.num_embeddings, UNKNOWN)
        if self.training and self.word_dropout:
            dropped_BT = torch.rand(known_BT.shape, device=known_BT.device) < self.word_dropout
            known_BT = known_BT.masked_fill(dropped_BT & (known_BT != PAD), UNKNOWN)
        x_BTD = self.table(known_BT) * self.scale
        if self.letters is not None:
            spelled_VC = self._with(words) if words else self.spelled_VC
            x_BTD = torch.cat((x_BTD, self._read(spelled_VC, tokens_BT)), dim=-1)
        if self.ngrams is not None:
            # Of the words as they are seen here: a hidden word is hidden in its n-grams too.
            counted_T = torch.arange(known_BT.shape[1], device=known_BT.device)
            place_BT = (
                start.of_BT
                if isinstance(start, ExplicitPositions)
                else counted_T.expand_as(known_BT)
            )
            x_BTD = x_BTD + self.ngrams(known_BT, place_BT, BEGIN) * self.scale
        if self.positions is not None:
            x_BTD = self.positions(x_BTD, start)
        return dropped(x_BTD, self.dropout, self.training)

    def _read(self, spelled_VC: Tensor, tokens_BT: Tensor) -> Tensor:
        """Features of the letters of each word."""
        assert self.letters is not None
        if not readable(tokens_BT):  # how many words differ, one would have to wait for
            features_ND: Tensor = self.letters(spelled_VC[tokens_BT.flatten()])
            return features_ND.view(*tokens_BT.shape, -1)
        # A word that comes ten times in a batch is read once.
        words_N, which_BT = torch.unique(tokens_BT, return_inverse=True)
        read_BTD: Tensor = self.letters(spelled_VC[words_N])[which_BT]
        return read_BTD

    @property
    def spelled(self) -> int:
        """How many words it knows by their letters: the vocabulary, and those added to it."""
        return len(self.spelled_VC)

    def add(self, words: Sequence[str]) -> None:
        """Give words that the vocabulary has not the next ids, to be known by their letters."""
        self.spelled_VC = self._with(words)

    def _with(self, words: Sequence[str]) -> Tensor:
        """The letters of all words that it has, and of more."""
        more_XC = self.spelling.spell(words).to(self.spelled_VC.device)
        return torch.cat((self.spelled_VC, more_XC))
