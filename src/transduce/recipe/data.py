"""The `data` section of a recipe: corpora, tokenization, maximum lengths, streaming."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from transduce.recipe.corpus import (
    Corpus,
    File,
    FilesWithParts,
    Mixture,
    Named,
    Recordings,
    Text,
    files_of,
    have_other_rows,
    is_tagged,
    percentages,
)
from transduce.recipe.section import Fraction, InvalidValue, Section

CODE = "^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$"


class Tokens(Section):
    """Tokenization: how text is cut into tokens, and the size of the vocabulary."""

    level: Literal["character", "subword", "word", "symbol", "byte", "label"] = Field(
        "subword",
        description="what a token is; symbol: anything separated by white space (phones, tags); "
        "label: the whole text is one token",
    )
    algorithm: Literal["bpe", "unigram"] = Field("bpe", description="subword algorithm")
    punctuation: Literal["joined", "apart"] = Field(
        "joined",
        description="of subwords: apart makes each punctuation mark a token, so that small "
        "vocabularies have no is. and is, beside is; joined: as SentencePiece, and as all recipes "
        "were measured",
    )
    size: PositiveInt = Field(8000, description="maximum vocabulary size")
    min_count: PositiveInt = Field(
        1, description="tokens that occur less often in the training data become unknown"
    )
    sample: PositiveInt = Field(
        5_000_000,
        description="train subwords on a sample of about this many pairs, chosen by hashes, so "
        "whatever their order; other levels use the whole corpus. When streaming, all levels but "
        "labels are trained on a sample, of blocks from all over the corpus; min_count counts "
        "there",
    )
    lowercase: bool = Field(False, description="lower-case the text before tokenization")
    normalize: Literal["none", "nfc", "nfkc", "nfd", "nfkd"] = Field(
        "none",
        description="Unicode normalization; nfd decomposes é into e and ´, 한 into ㅎㅏㄴ; "
        "outputs are converted back to the normal form of the training targets",
    )
    bpe_dropout: Fraction = Field(
        0.0,
        description="BPE-dropout, subword regularization (after Provilkov et al. 2020): share of "
        "subwords that are split at random, anew in each epoch",
    )
    file: File | None = Field(
        None,
        description="load this vocabulary file instead of training one: that of a model folder, a "
        "SentencePiece model (.model), or a tokenizer.json of Hugging Face",
    )

    @model_validator(mode="after")
    def _check_bpe_dropout(self) -> Self:
        if self.punctuation == "apart" and self.level != "subword":
            raise InvalidValue(
                "punctuation", f"is apart, but level: {self.level} has no subwords; leave it out"
            )
        if self.bpe_dropout and (self.level != "subword" or self.algorithm != "bpe"):
            raise InvalidValue(
                "bpe_dropout",
                f"is {self.bpe_dropout}, but it needs level: subword and algorithm: bpe; leave it "
                f"out",
            )
        return self


class TokensOfSides(Section):
    """Vocabularies: `both` for one that source and target share, or one for each side."""

    both: Tokens | None = Field(None, description="one shared vocabulary, trained on both sides")
    source: Tokens | None = Field(None, description="vocabulary of the source")
    target: Tokens | None = Field(None, description="vocabulary of the target")

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        apart = self.source is not None and self.target is not None
        either = self.source is not None or self.target is not None
        if (self.both is not None) == apart or (self.both is not None and either):
            raise InvalidValue("", "needs either both, or source and target")
        return self


class Hallucination(Section):
    """Hallucinated pairs, for words that share a stem with their source, as in inflection."""

    share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5,
        description="share of the pairs whose stem, the longest common substring of source and "
        "target, is replaced by an invented one on both sides, anew in each epoch; pairs without a "
        "common substring of three letters stay as they are",
    )
    letters: Literal["substrings", "any"] = Field(
        "substrings",
        description="invented stems: substrings of two to four letters of training sources (Liu & "
        "Hulden 2021), or any letters (Anastasopoulos & Neubig 2019)",
    )
    kept: Annotated[int, Field(ge=0, le=20)] = Field(
        0,
        description="letters of a stem that stay beside an ending or a prefix, which often depend "
        "on them: with 3, an invented stem keeps its last vowel in most languages (vowel harmony)",
    )
    copies: Fraction = Field(
        0.0,
        description="share of the pairs that become copies in an epoch: the source without its "
        "tags is the target too (Liu & Hulden 2021); with unknown_tags, the tag <?> stands in "
        "place of all tags or of all but the first",
    )


class Filters(Section):
    """Training pairs that are left out, by what `transduce check` lists."""

    min_length: PositiveInt = Field(
        1, description="leave out pairs with a side of fewer characters; 1: none"
    )
    length_ratio: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="leave out pairs with a side more than so many times as long as the other, in "
        "characters, such as 4; default: none",
    )
    copies: bool = Field(
        False, description="leave out pairs whose source and target are the same text"
    )
    language: Annotated[float, Field(gt=0.5, lt=1)] | None = Field(
        None,
        description="leave out pairs with a side that is in another language than data.languages "
        "says, with at least this probability, such as 0.95; default: none",
    )
    duplicates: bool = Field(
        False, description="leave out pairs that occur earlier in the training set, exactly"
    )


Seconds = Annotated[float, Field(ge=0, le=60)]


class Concatenate(Section):
    """Concatenation of recordings: training appends others to some of them, with a pause between,
    so that a model of single words reads sequences of them."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="share of the recordings that others are appended to, anew in each epoch"
    )
    recordings: Annotated[int, Field(ge=2, le=100)] = Field(
        4,
        description="the most recordings in a row, drawn from two on; they have the same group, "
        "such as the speaker, and the same tags, and fit into max_length together",
    )
    pause: Annotated[list[Seconds], Field(min_length=2, max_length=2)] = Field(
        [0.1, 0.5], description="shortest and longest pause between two, in seconds"
    )
    separator: str = Field(
        " ", description="what stands between their texts, of characters; subwords need a space"
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.pause[0] > self.pause[1]:
            raise InvalidValue("pause", f"is {self.pause}; give the shortest first")
        return self


LanguageCode = Annotated[str, Field(pattern=CODE), "a language code, such as en"]


class Languages(Section):
    """The languages of source and target."""

    source: LanguageCode = Field(description="language of the source, such as en or pt-BR")
    target: LanguageCode = Field(description="language of the target")


class Data(Section):
    folder: Annotated[str, "a folder"] | None = Field(
        None, description="folder that relative paths start from; default: the recipe's folder"
    )
    train: Corpus = Field(description="training set: a corpus, or a list of corpora")
    valid: Corpus = Field(
        description="validation set, for early stopping and the choice of the best checkpoint"
    )
    test: Corpus | None = Field(None, description="test set, used only for the final scores")
    tokens: TokensOfSides = Field(
        TokensOfSides(both=Tokens()),
        description="tokenization; default: subwords, one vocabulary for both sides",
    )
    languages: Languages | None = Field(
        None,
        description="language codes of source and target, by which `transduce serve` chooses a "
        "model; default: as the training set shows them (pair: en-de, train.en and train.de)",
    )
    shuffle_tags: bool = Field(
        False,
        description="put the tags of each training source into a random order, anew in each epoch: "
        "they are learnt as a set, and combinations that training does not have are read alike",
    )
    split_tags: bool = Field(
        False,
        description="read tags that join several with + (IN+ESS) as so many tags (IN, ESS): a part "
        "is learnt from all tags that have it, and new combinations of them are read",
    )
    unknown_tags: Fraction = Field(
        0.0,
        description="share of the tags of training sources that become the tag <?>, anew in each "
        "epoch; tags that training does not have are then read as <?>; 0: they are read as text",
    )
    hallucination: Hallucination | None = Field(
        None,
        description="hallucinated pairs, a data augmentation for inflection: invented stems in "
        "training pairs; default: none",
    )
    concatenate: Concatenate | None = Field(
        None,
        description="of audio, concatenate some recordings in training; {}: with the defaults; "
        "null: off",
    )
    bidirectional: bool = Field(
        False,
        description="learn targets from left to right and from right to left, half of them in "
        "either direction in an epoch; outputs are searched in both, and scored by both (after "
        "Canby & Hockenmaier 2023)",
    )
    multiple_references: bool = Field(
        False,
        description="multiple references: pairs with the same source are alternatives, "
        "and a prediction counts as correct if it equals any of them",
    )
    max_length: PositiveInt = Field(
        256,
        description="maximum length of either side of a pair, in tokens (of audio, in frames); of "
        "running text, the block length",
    )
    overlong: Literal["skip", "truncate"] = Field(
        "skip", description="pairs longer than max_length: leave out, or cut (truncation)"
    )
    filters: Filters | None = Field(
        None,
        description="training pairs that are left out, with a message how many and why; default: "
        "none but overlong pairs and those with an empty side",
    )
    streaming: bool = Field(
        False,
        description="stream the training set from disk, for corpora larger than memory: it is "
        "indexed once, and each epoch reads its blocks in another order",
    )
    temperature: PositiveFloat = Field(
        1.0,
        description="temperature T of sampling from a list of training corpora: a corpus of n "
        "pairs has a share ∝ weight · n^(1/T); 1: as the sizes are, 5: usual for many languages",
    )
    shuffle_buffer: PositiveInt = Field(
        65_536,
        description="when streaming, number of pairs that are shuffled and bucketed at once; they "
        "come from 256 places of the corpus",
    )
    workers: NonNegativeInt = Field(
        0,
        description="when streaming, number of processes that read and tokenize beside the one "
        "that trains; 0: a thread of it; the batches are the same",
    )

    @property
    def mixes(self) -> bool:
        """Whether some training corpora are drawn more often than others."""
        weights = [one.weight for one in self.train.of] if isinstance(self.train, Mixture) else []
        return self.temperature != 1.0 or any(weight != 1.0 for weight in weights)

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        """No pair may be in two parts of one file."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        parts = [
            (name, part)
            for name, corpus in given.items()
            for part in (corpus.of if isinstance(corpus, Mixture) else [corpus])
            if isinstance(part, FilesWithParts)
        ]
        for (name, one), (other, two) in combinations(parts, 2):
            if name == other or files_of(one) != files_of(two) or one.split == two.split is None:
                continue
            if have_other_rows(one, two):
                continue
            (begin, end), (start, stop) = (percentages(of.split or "0-100%") for of in (one, two))
            if begin < stop and start < end:
                raise InvalidValue(
                    f"{other}.split",
                    f"is {two.split or 'missing'}, which overlaps data.{name} ({one.split or 'all'}"
                    f" of the same file); give each another part, such as "
                    f"0-80% and 80-100%",
                )
        return self

    @model_validator(mode="after")
    def _check_filters(self) -> Self:
        if self.filters is not None and self.filters.language and self.languages is None:
            raise InvalidValue(
                "filters.language",
                f"is {self.filters.language:g}, but it must know the languages of the pairs: give "
                f"data.languages, as in languages: {{source: en, target: de}}",
            )
        if self.filters is not None and isinstance(self.train, Text | Recordings):
            raise InvalidValue(
                "filters", "are for pairs of texts, and data.train has none; leave them out"
            )
        return self

    @model_validator(mode="after")
    def _check_tags(self) -> Self:
        for key, said in (
            ("shuffle_tags", "true"),
            ("split_tags", "true"),
            ("unknown_tags", f"{self.unknown_tags:g}"),
        ):
            if getattr(self, key) and not (is_tagged(self.train) or isinstance(self.train, Named)):
                raise InvalidValue(
                    key, f"is {said}, but the sources of data.train have no tags; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _check_hallucination(self) -> Self:
        if self.hallucination is None:
            return self
        for side in ("both", "source", "target"):
            tokens = getattr(self.tokens, side)
            if tokens is not None and tokens.level != "character":
                raise InvalidValue(
                    "hallucination",
                    f"is given, but it replaces letters, and data.tokens.{side}.level is "
                    f"{tokens.level}; set that to character, or leave hallucination out",
                )
        if not self.hallucination.share and not self.hallucination.copies:
            raise InvalidValue(
                "hallucination", "has share 0 and copies 0, which changes nothing; leave it out"
            )
        # A corpus by name may have tags in its files.
        if self.hallucination.copies and not (
            is_tagged(self.train) or isinstance(self.train, Named)
        ):
            raise InvalidValue(
                "hallucination.copies",
                f"is {self.hallucination.copies:g}, but without tags in data.train nothing would "
                f"tell copies from other pairs; leave it out",
            )
        return self

    @model_validator(mode="after")
    def _check_mixing(self) -> Self:
        for split, corpus in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            inside = corpus.of if isinstance(corpus, Mixture) and split != "train" else [corpus]
            for one in inside:
                if getattr(one, "weight", 1.0) != 1.0:
                    raise InvalidValue(
                        f"{split}.weight",
                        f"is {getattr(one, 'weight', 1.0):g}, but weights are for a list of "
                        f"training corpora; leave it out",
                    )
        if self.temperature != 1.0 and not isinstance(self.train, Mixture | Named):
            raise InvalidValue(
                "temperature",
                f"is {self.temperature:g}, but data.train is one corpus; give a list of corpora, "
                f"or leave it out",
            )
        return self
