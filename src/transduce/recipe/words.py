"""Keys of the `model` section about words: their characters and n-grams."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from transduce.recipe.section import Section


class Characters(Section):
    """Character features of words, concatenated to word embeddings; they cover unknown words."""

    kind: Literal["lstm", "cnn"] = Field(
        "lstm",
        description="lstm: final states of a bidirectional character LSTM (Lample et al. 2016); "
        "cnn: character trigram convolution with max pooling (Ma and Hovy 2016)",
    )
    width: PositiveInt = Field(64, description="dimensions of model.width that they take; even")
    words: PositiveInt | None = Field(
        None,
        description="only this many of the most frequent words have an embedding of their own; "
        "rarer words are represented by their characters alone, as unknown words are; null: all",
    )


class NGrams(Section):
    """Word n-gram embeddings, added to the word embeddings (fastText, Joulin et al. 2017)."""

    max_n: Annotated[int, Field(ge=2, le=5)] = Field(
        2, description="longest n-gram: 2 for bigrams, 3 for bigrams and trigrams"
    )
    size: PositiveInt = Field(
        500_000, description="rows of the embedding table; n-grams are hashed, rows may collide"
    )
