"""The part of a recipe that says what is learnt from: corpora, and how their text is cut."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from transduce.recipe.corpus import Corpus, File
from transduce.recipe.section import InvalidValue, Section, Share


class Tokens(Section):
    """How text is cut into tokens."""

    level: Literal["character", "subword", "word", "symbol", "byte", "label"] = Field(
        "subword",
        description="what a token is; symbol: whatever white space separates (phones, tags); "
        "label: a whole text",
    )
    algorithm: Literal["bpe", "unigram"] = Field("bpe", description="how subwords are found")
    size: PositiveInt = Field(8000, description="the most tokens in the vocabulary")
    min_count: PositiveInt = Field(1, description="what is rarer in training text is unknown")
    sample: PositiveInt = Field(
        5_000_000,
        description="about so many pairs are what subwords are learnt from, drawn from a larger "
        "corpus; other tokens are learnt from all of it",
    )
    lowercase: bool = Field(False, description="lower-case before cutting")
    normalize: Literal["none", "nfc", "nfkc", "nfd", "nfkd"] = Field(
        "none",
        description="Unicode normal form; nfd takes letters apart: é into e and ´, 한 into ㅎㅏㄴ; "
        "outputs are written in the form that the training targets have",
    )
    bpe_dropout: Share = Field(
        0.0,
        description="share of BPE subwords that training takes apart, each time anew (after "
        "Provilkov et al. 2020)",
    )
    file: File | None = Field(None, description="load this tokens file instead of training one")

    @model_validator(mode="after")
    def _made_of_others(self) -> Self:
        if self.bpe_dropout and (self.level != "subword" or self.algorithm != "bpe"):
            raise InvalidValue(
                "bpe_dropout", f"is {self.bpe_dropout}, but only subwords of BPE come apart"
            )
        return self


class TokensOfSides(Section):
    """Tokens of source and target: `both` where they share one vocabulary, or each its own."""

    both: Tokens | None = Field(None, description="one vocabulary, trained on both sides")
    source: Tokens | None = Field(None, description="the source's own")
    target: Tokens | None = Field(None, description="the target's own")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        apart = self.source is not None and self.target is not None
        either = self.source is not None or self.target is not None
        if (self.both is not None) == apart or (self.both is not None and either):
            raise InvalidValue("", "needs either both, or source and target")
        return self


class Data(Section):
    folder: Annotated[str, "a folder"] | None = Field(
        None, description="where relative paths start; without it, at the recipe's own folder"
    )
    train: Corpus = Field(description="pairs to learn from; here and below, or a list of corpora")
    valid: Corpus = Field(description="pairs to choose by: early stopping, best checkpoint")
    test: Corpus | None = Field(None, description="pairs to report on, never used for choosing")
    tokens: TokensOfSides = Field(
        TokensOfSides(both=Tokens()),
        description="how text is cut; without it, into subwords of one vocabulary",
    )
    multiple_references: bool = Field(
        False, description="pairs of the same source are alternatives, any of them right"
    )
    max_length: PositiveInt = Field(
        256,
        description="the longest side of a pair, in tokens (of audio, in frames); of running text, "
        "a block",
    )
    overlong: Literal["skip", "truncate"] = Field(
        "skip", description="what to do with longer pairs"
    )
    streaming: bool = Field(
        False,
        description="read the corpus as it is needed: for what memory does not hold; each epoch "
        "has its files in another order, and pairs from a shuffle buffer as large as a pool",
    )
    shuffle_buffer: PositiveInt = Field(
        200_000, description="when streaming, how many pairs are shuffled and bucketed at a time"
    )
