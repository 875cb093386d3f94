"""The part of a recipe that names a corpus: files of any form, a name, a list of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    model_validator,
)

from transduce.recipe.section import InvalidValue, Section

File = Annotated[str, Field(min_length=1), "a file name"]
Files = Annotated[
    File | Annotated[list[File], Field(min_length=1)], "a file name, a glob, or a list of them"
]
Column = Annotated[NonNegativeInt | str, "a number from 0, or a name"]


def plain_tag(tag: str) -> str:
    """The tag itself, é as one character; a InvalidValue where it cannot be one."""
    tag = normalize("NFC", tag)
    # It becomes the token <tag>, and may be none of the four that every vocabulary has.
    if not tag or any(sign.isspace() or sign in "<>" for sign in tag):
        raise InvalidValue("", f"is {tag!r}; it must be one word without < and >")
    if tag in ("pad", "unk", "s", "/s"):
        raise InvalidValue("", f"is {tag}, which means something else; choose another word")
    return tag


TagName = Annotated[str, AfterValidator(plain_tag), "a word"]
TAG = "what each source begins with as one token, such as its language; in use: --tag"


class ParallelFiles(Section):
    """Two text files, line n of one belonging to line n of the other; plain, .gz or .xz."""

    source: Files = Field(description="one source a line")
    target: Files = Field(description="one target a line; as many files as of the source")
    tag: TagName | None = Field(None, description=TAG)
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Columns(Section):
    """TSV, JSONL, Parquet or CoNLL-U files that hold both sides; plain, .gz or .xz."""

    file: Files = Field(
        description="their names end in .tsv, .jsonl, .parquet or .conllu; Parquet needs an extra: "
        "pip install 'transduce[parquet]'"
    )
    source: Column = Field(
        0, description="the column of the source; numbers are for TSV only; in CoNLL-U: form"
    )
    target: Column = Field(
        1, description="the column of the target; numbers are for TSV only; in CoNLL-U: upos, xpos"
    )
    tags: Column | None = Field(
        None, description="a column of tags, such as V;PST: each one token before the source"
    )
    tag: TagName | None = Field(None, description=TAG)
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Named(Section):
    """A corpus that transduce knows by name: `transduce corpus list` lists them."""

    name: Annotated[str, "a name"] = Field(description="such as cmudict or multi30k")
    split: Literal[
        "train", "valid", "test", "test-2017", "test-coco", "test-articles", "test-voices"
    ] = Field(
        description="which part of it; the last two are of udhr-spoken, those before of multi30k"
    )
    pair: Annotated[str, "two languages, such as en-de"] | None = Field(
        None, description="from which into which; multi30k and udhr need it"
    )
    language: Annotated[str, "a language"] | None = Field(
        None,
        description="sigmorphon2020 needs it (all: each source has its language as a tag), "
        "mboshi: mb, what is said, or fr, its translation, and udhr-spoken (all: those made)",
    )
    tag: TagName | None = Field(None, description=TAG)
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Hub(Section):
    """A dataset of the Hugging Face hub, or a folder of such form: pip install transduce[hub]."""

    hub: Annotated[str, "the name of a dataset"] = Field(description="such as wmt14")
    config: Annotated[str, "a name"] | None = Field(
        None, description="which of its configurations, such as de-en"
    )
    split: Annotated[str, "the name of a split"] = Field(description="such as train or validation")
    source: Annotated[str, "the name of a column"] = Field(
        description="the column of the source; translation.de is de within translation"
    )
    target: Annotated[str, "the name of a column"] = Field(description="the column of the target")
    tag: TagName | None = Field(None, description=TAG)
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


class Text(Section):
    """Text files, plain, .gz or .xz, that a language model learns to continue."""

    text: Files = Field(description="read one after the other")
    lines: Literal["joined", "apart"] = Field(
        "joined", description="one running text, or each line a text of its own, with an end"
    )
    limit: PositiveInt | None = Field(None, description="read only the first so many lines")

    @property
    def running(self) -> bool:
        return self.lines == "joined"


class Recordings(Section):
    """A TSV, JSONL or Parquet file that names audio files, and what is said in each."""

    file: Files = Field(description="their names end in .tsv, .jsonl or .parquet, or that and .gz")
    audio: Column = Field(
        description="the column of the audio files; their names start at the file that lists them"
    )
    target: Column = Field("text", description="the column of what is to be written")
    transcript: Column | None = Field(
        None,
        description="the column of what is said, where the target is something else, such as a "
        "translation; CTC learns it",
    )
    start: Column | None = Field(
        None, description="the column of the second where an utterance begins in its file"
    )
    end: Column | None = Field(None, description="the column of the second where it ends")
    group: Column | None = Field(
        None, description="the column by which scores are told apart, such as a language or speaker"
    )
    tags: Column | None = Field(
        None, description="a column of tags, such as a language: each is added to what is heard"
    )
    tag: TagName | None = Field(
        None, description="what each recording has as a tag, such as its language; in use: --tag"
    )
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")


def corpus_form(value: Any) -> str:
    """Which form a value of a recipe has, by the keys that it has."""
    if isinstance(value, list):
        return "mixture"
    keys = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    telling = {"audio": "audio", "text": "text", "file": "columns", "name": "named", "hub": "hub"}
    telling |= {"of": "mixture"}
    return next((form for key, form in telling.items() if key in keys), "parallel")


def _form_within(value: Any) -> str:
    """The form of a corpus in a list of several: one that cannot be there is told as files."""
    form = corpus_form(value)
    return form if form in ("columns", "named", "hub", "audio") else "parallel"


OneCorpus = Annotated[
    Annotated[ParallelFiles, Tag("parallel")]
    | Annotated[Columns, Tag("columns")]
    | Annotated[Named, Tag("named")]
    | Annotated[Hub, Tag("hub")]
    | Annotated[Recordings, Tag("audio")],
    Discriminator(_form_within),
]


class Mixture(Section):
    """Several corpora that take turns, pair by pair; a plain list of them will do."""

    of: Annotated[list[OneCorpus], Field(min_length=1)] = Field(
        description="each a corpus as above; a tag tells them apart"
    )
    limit: PositiveInt | None = Field(None, description="read only the first so many pairs")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, values: Any) -> Any:
        listed = {"of": values} if isinstance(values, list) else values
        within = listed.get("of") if isinstance(listed, Mapping) else None
        if isinstance(within, list) and any(corpus_form(one) == "mixture" for one in within):
            raise InvalidValue("", "has a list of corpora within another; put them all into one")
        return listed


Corpus = Annotated[
    Annotated[ParallelFiles, Tag("parallel")]
    | Annotated[Columns, Tag("columns")]
    | Annotated[Named, Tag("named")]
    | Annotated[Hub, Tag("hub")]
    | Annotated[Mixture, Tag("mixture")]
    | Annotated[Text, Tag("text")]
    | Annotated[Recordings, Tag("audio")],
    Discriminator(corpus_form),
]


def is_tagged(corpus: Corpus | None) -> bool:
    """Whether a recipe asks for tags before the sources of a corpus."""
    if isinstance(corpus, Mixture):
        return any(is_tagged(one) for one in corpus.of)
    return bool(getattr(corpus, "tag", None)) or getattr(corpus, "tags", None) is not None
