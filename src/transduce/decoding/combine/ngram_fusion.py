"""Shallow fusion with an n-gram language model: of tokens, or of words that tokens are put together
to.

A model of words knows a word when it is over: with the token that begins the next one, or at the
end.

    R rows: hypotheses of all sources
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, SPACE, SPECIALS, Tokens
from transduce.decoding.combine.ngram import END_WORD, Context, NgramModel
from transduce.models.decoders import DecoderState

MOSTLY = 0.9  # of the words of an n-gram model are tokens of the vocabulary: it is one of tokens
KNOWN_PLACES = 100_000  # of which scores are remembered
KNOWN_SCORES = 1 << 24


class PlaceScorer(Protocol):
    """Scores next tokens by where a hypothesis is: in a tree of hotwords, or among n-grams."""

    @property
    def start(self) -> Any: ...

    def after(self, place: Any, token: int) -> Any:
        """The place of a hypothesis with one more token."""

    def added(self, places: Sequence[Any]) -> Tensor:
        """[R, V], for the place of each hypothesis."""


class NgramTokens:
    """A model whose words are the tokens of a vocabulary, as `Tokens.pieces` shows them."""

    def __init__(self, model: NgramModel, tokens: Tokens, device: torch.device | str) -> None:
        self.model, self.device = model, device
        self.start: Context = model.begin
        self.endless = END_WORD not in model.words
        """Whether the model never predicts an end."""
        names = {END: END_WORD}
        numbers = [
            model.words.get(names.get(n, p))
            for n, p in enumerate(tokens.pieces(range(len(tokens))))
        ]
        self._number_of = [model.unknown if one is None else one for one in numbers]
        self._numbers_V = np.array([-1 if one is None else one for one in self._number_of])
        self._floor = model.floor

    def after(self, place: Context, token: int) -> Context:
        return self.model.after(place, self._number_of[token])

    def added(self, places: Sequence[Context]) -> Tensor:
        rows = []
        for place in places:
            log_probs = self.model.distribution(place)
            rows.append(np.where(self._numbers_V < 0, self._floor, log_probs[self._numbers_V]))
        return torch.from_numpy(np.stack(rows).astype(np.float32)).to(self.device)


class WordPlace(NamedTuple):
    """The words before, and the beginning of the word that is being written."""

    context: Context
    part: str = ""


class NgramWords:
    """A model of words between spaces.

    A word counts when it is over. While it is written, its beginning already costs what the
    likeliest word that begins so costs in its best context (look-ahead), or an unknown word: else
    hypotheses that never end a word would cost nothing. The sum over a word is its log-probability,
    and no step adds anything above zero.
    """

    endless = False

    def __init__(self, model: NgramModel, tokens: Tokens, device: torch.device | str) -> None:
        self.model, self.device = model, device
        self.start = WordPlace(model.begin)
        self._words = model.bounds
        silent = {*range(len(SPECIALS)), *tokens.tags.values(), *tokens.added}
        pieces = tokens.pieces(range(len(tokens)))
        self._pieces = ["" if number in silent else piece for number, piece in enumerate(pieces)]
        self._spaced_V = torch.tensor([p.startswith(SPACE) for p in self._pieces], device=device)
        first = [self._words.of(p.replace(SPACE, "")) for p in self._pieces]
        self._first_V = torch.tensor(first, device=device)
        self._inner: dict[str, list[int]] = {}
        """The tokens that go on with a word, by their text in lower case."""
        for number, piece in enumerate(self._pieces):
            if piece and not piece.startswith(SPACE):
                self._inner.setdefault(piece.lower(), []).append(number)
        self._longest = max(map(len, self._inner), default=0)
        letters = [any(map(str.isalnum, p)) and not p.startswith(SPACE) for p in self._pieces]
        self._letters_V = torch.tensor(letters, device=device)
        self._end = model.words.get(END_WORD)
        self._over_known: dict[WordPlace, tuple[float, float]] = {}
        self._inside_known: dict[str, Tensor] = {}

    def after(self, place: WordPlace, token: int) -> WordPlace:
        piece = self._pieces[token]
        if not piece.startswith(SPACE):
            return place._replace(part=place.part + piece)
        return WordPlace(self._over(place), piece.replace(SPACE, ""))

    def added(self, places: Sequence[WordPlace]) -> Tensor:
        over_R2 = torch.tensor([self._scores(place) for place in places], device=self.device)
        inside_RV = torch.stack([self._inside(place.part) for place in places])
        added_RV = torch.where(self._spaced_V, over_R2[:, :1] + self._first_V, inside_RV)
        added_RV[:, END] = over_R2[:, 1]
        return added_RV

    def _over(self, place: WordPlace) -> Context:
        """The context after the word that is being written."""
        if not place.part:
            return place.context
        return self.model.after(place.context, self.model.number(place.part))

    def _scores(self, place: WordPlace) -> tuple[float, float]:
        """What is left to pay for the word that is being written, if it is over; and with the
        end."""
        if place not in self._over_known:
            word = end = 0.0
            if place.part:
                number = self.model.number(place.part)
                word = self.model.log_probability(place.context, number)
                word -= self._words.of(place.part)
            if self._end is not None:
                end = self.model.log_probability(self._over(place), self._end)
            if len(self._over_known) >= KNOWN_PLACES:
                self._over_known.clear()
            self._over_known[place] = word, word + end
        return self._over_known[place]

    def _inside(self, part: str) -> Tensor:
        """[V]: what each token costs that goes on with a word."""
        if part not in self._inside_known:
            before = self._words.of(part)
            added_V = torch.where(self._letters_V, self._words.unknown - before, 0.0)
            for text in self._words.following(part, self._inner, self._longest):
                added_V[self._inner[text]] = self._words.of(part + text) - before
            if len(self._inside_known) * len(added_V) >= KNOWN_SCORES:
                self._inside_known.clear()
            self._inside_known[part] = added_V
        return self._inside_known[part]


def scorer_of(
    model: NgramModel, tokens: Tokens, device: torch.device | str
) -> NgramTokens | NgramWords:
    """The scores of an n-gram model for the tokens of a vocabulary: it is one of tokens where most
    of its words are tokens, and of words otherwise."""
    names = set(tokens.pieces(range(len(SPECIALS), len(tokens))))
    words = [word for word in model.words if not (word.startswith("<") and word.endswith(">"))]
    known = sum(word in names for word in words)
    of_tokens = tokens.level in ("word", "symbol", "label") or known >= MOSTLY * len(words)
    return (NgramTokens if of_tokens else NgramWords)(model, tokens, device)


def log_probability(scorer: NgramTokens | NgramWords, ids: Sequence[int]) -> float:
    """log p of a whole output."""
    place: Any = scorer.start
    total = 0.0
    for token in (*ids, END):
        if token != END or not scorer.endless:
            total += float(scorer.added([place])[0, token])
        place = scorer.after(place, token)
    return total


@dataclass
class PlacesState:
    places: list[Hashable]

    def reorder(self, index_R: Tensor) -> None:
        self.places = [self.places[index] for index in index_R.tolist()]


class PlaceSteps:
    """A scorer as the language model of shallow fusion: with the interface that search needs."""

    def __init__(self, scorer: PlaceScorer) -> None:
        self.scorer = scorer

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> PlacesState:
        return PlacesState([self.scorer.start] * len(source_BS))

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, PlacesState]:
        assert isinstance(state, PlacesState)
        pairs = zip(state.places, tokens_R.tolist(), strict=True)
        places = [p if token == BEGIN else self.scorer.after(p, token) for p, token in pairs]
        return self.scorer.added(places), PlacesState(places)
