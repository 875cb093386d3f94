"""A corpus in a recipe: text files, tables, audio manifests, a known name, or a list of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
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
    """The tag in Unicode NFC; raises InvalidValue where it cannot be one token."""
    tag = normalize("NFC", tag)
    # It becomes the token <tag>, which must differ from the four special tokens.
    if not tag or any(sign.isspace() or sign in "<>" for sign in tag):
        raise InvalidValue("", f"is {tag!r}; it must be one word without < and >")
    if tag in ("pad", "unk", "s", "/s"):
        raise InvalidValue("", f"is {tag}, the name of a special token; choose another word")
    return tag


TagName = Annotated[str, AfterValidator(plain_tag), "a word"]
TAG = "a token put before each source, such as its language; in use: --tag"
LIMIT = "read only the first N pairs"
SPLIT = (
    "read only this part of the pairs, such as 0-80%, 80-90% or 90-100%; a hash of the source "
    "decides, so that equal sources are in the same part, on every machine"
)
HEADER = (
    "whether TSV and CSV begin with a line of column names; default: yes where a column is named, "
    "else decided by the first lines, with a message"
)
SPLIT_TEXT = (
    "read only this part of each file, such as 0-90% or 90-100%, by position, so that it stays "
    "running text; of lines that are apart, a hash of the line decides"
)
SPLIT_AUDIO = (
    "read only this part of the recordings, such as 0-80%, 80-90% or 90-100%; a hash of the audio "
    "path as the table has it decides, so that utterances of one file are in the same part"
)
FORMAT = "format of the file; default: by the end of its name"
WHERE = (
    "read only the rows with this value in a column, as in {column: split, value: train}; where "
    "one table holds all parts; several in a list: the rows for which all hold"
)
WEIGHT = "in a list of training corpora: how often its pairs are drawn, compared with the others'"


PERCENT = r"\d{1,3}(?:\.\d{1,6})?"


def percentages(text: str) -> tuple[float, float]:
    """The two ends of a part such as 80-90%. Raises InvalidValue."""
    found = re.fullmatch(rf"\s*({PERCENT})\s*%?\s*-\s*({PERCENT})\s*%\s*", text)
    if found is None or not 0 <= float(found[1]) < float(found[2]) <= 100:
        raise InvalidValue("", f"is {text!r}; write a part as in 0-80%, with ends from 0 to 100")
    return float(found[1]), float(found[2])


def _part(text: str) -> str:
    percentages(text)
    return text


Part = Annotated[str, AfterValidator(_part), "a part, such as 0-80%"]
TableFormat = Literal["tsv", "csv", "jsonl", "parquet"]


class Where(Section):
    """The rows of a table that are read."""

    column: Column = Field(description="a column, as for the source")
    value: Annotated[str | list[str], "a text, or a list of them"] = Field(
        description="what it has in the rows that are read; several: any of them"
    )

    @property
    def values(self) -> frozenset[str]:
        return frozenset([self.value] if isinstance(self.value, str) else self.value)


Conditions = Annotated[
    Annotated[Where, Tag("one")] | Annotated[list[Where], Field(min_length=1), Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, list) else "one"),
    "a condition, or a list of them",
]


def conditions(where: Where | list[Where] | None) -> list[Where]:
    """The conditions that the rows of a table must all meet."""
    return [] if where is None else where if isinstance(where, list) else [where]


class ParallelFiles(Section):
    """Parallel text: two files with the same number of lines; plain, .gz or .xz."""

    source: Files = Field(description="file of sources, one per line")
    target: Files = Field(
        description="file of targets, one per line; as many files as for the source"
    )
    tag: TagName | None = Field(None, description=TAG)
    weight: PositiveFloat = Field(1.0, description=WEIGHT)
    split: Part | None = Field(None, description=SPLIT)
    limit: PositiveInt | None = Field(None, description=LIMIT)


class Columns(Section):
    """TSV, CSV, JSONL, Parquet, CoNLL-U or CoNLL files with a column per side; plain, .gz or
    .xz.
    """

    file: Files = Field(
        description="a file whose name ends in .tsv, .csv, .jsonl, .parquet, .conllu or .conll "
        "(else with format); Parquet needs pip install '.[parquet]'"
    )
    format: TableFormat | Literal["conllu", "conll"] | None = Field(
        None, description=f"{FORMAT}; conll: a word and its tag in each line"
    )
    source: Column = Field(
        0,
        description="column of the source: a name, which the header of a TSV or CSV file has, or "
        "for these two and CoNLL a number, from 0; in JSONL and Parquet also a field of an object, "
        "such as translation.en, or a list of words; in CoNLL-U: form",
    )
    target: Column = Field(
        1,
        description="column of the target, as for the source; labels may be numbers or true and "
        "false; in CoNLL-U: upos, xpos",
    )
    tags: Column | None = Field(
        None,
        description="column of tags, such as V;PST; each becomes one token before the source",
    )
    where: Conditions | None = Field(None, description=WHERE)
    header: bool | None = Field(None, description=HEADER)
    tag: TagName | None = Field(None, description=TAG)
    weight: PositiveFloat = Field(1.0, description=WEIGHT)
    split: Part | None = Field(None, description=SPLIT)
    limit: PositiveInt | None = Field(None, description=LIMIT)


class Named(Section):
    """A corpus that transduce knows by name: `transduce corpus list` lists them."""

    name: Annotated[str, "a name"] = Field(description="such as cmudict or multi30k")
    split: Literal[
        "train", "valid", "test", "test-2017", "test-coco", "test-articles", "test-voices"
    ] = Field(
        description="split of the corpus; multi30k also has test-2017 and test-coco, udhr-spoken "
        "test-articles and test-voices"
    )
    pair: Annotated[str, "two languages, such as en-de"] | None = Field(
        None, description="source and target language; required for multi30k and udhr"
    )
    language: Annotated[str, "a language"] | None = Field(
        None,
        description="language; required for sigmorphon2020 (all: every language, each source "
        "tagged with its own), mboshi (mb: transcripts, fr: translations) and udhr-spoken (all: "
        "every language that was synthesized)",
    )
    tag: TagName | None = Field(None, description=TAG)
    weight: PositiveFloat = Field(1.0, description=WEIGHT)
    limit: PositiveInt | None = Field(None, description=LIMIT)


class Hub(Section):
    """A dataset of the Hugging Face hub, or a local dataset folder; needs pip install '.[hub]'."""

    hub: Annotated[str, "the name of a dataset"] = Field(description="dataset, such as wmt14")
    config: Annotated[str, "a name"] | None = Field(
        None, description="configuration of the dataset, such as de-en"
    )
    split: Annotated[str, "the name of a split"] = Field(
        description="split, such as train or validation"
    )
    source: Annotated[str, "the name of a column"] = Field(
        description="column of the source; translation.de is the field de of the column translation"
    )
    target: Annotated[str, "the name of a column"] = Field(description="column of the target")
    tag: TagName | None = Field(None, description=TAG)
    weight: PositiveFloat = Field(1.0, description=WEIGHT)
    limit: PositiveInt | None = Field(None, description=LIMIT)


class Text(Section):
    """Text files for a language model; plain, .gz or .xz."""

    text: Files = Field(description="files of text, concatenated in this order")
    lines: Literal["joined", "apart"] = Field(
        "joined",
        description="joined: one running text, cut into blocks; apart: each line is a document of "
        "its own that ends with the end token",
    )
    split: Part | None = Field(None, description=SPLIT_TEXT)
    limit: PositiveInt | None = Field(None, description="read only the first N lines")

    @property
    def running(self) -> bool:
        return self.lines == "joined"


MANIFEST_FORMATS = ("kaldi", "lhotse", "shar", "webdataset")
MANIFEST_COLUMNS = {"audio": "audio", "start": "start", "end": "end", "group": "speaker"}
"""The columns of these formats, which a recipe need not name."""
WHOLE = ("shar", "webdataset")  # formats of audio that is cut already


class Recordings(Section):
    """Audio manifest: TSV, CSV, JSONL or Parquet, a list of audio files and their targets; or a
    Kaldi data folder, a Lhotse manifest, or tar archives of WebDataset or Lhotse Shar.
    """

    file: Files = Field(
        description="a file whose name ends in .tsv, .csv, .jsonl or .parquet, optionally .gz "
        "(else with format); with format: kaldi a data folder, with format: lhotse a manifest of "
        "cuts, or of supervisions with that of recordings beside it; with format: shar the cuts of "
        "Lhotse Shar (cuts.*.jsonl.gz), with format: webdataset tar archives"
    )
    format: TableFormat | Literal["kaldi", "lhotse", "shar", "webdataset"] | None = Field(
        None,
        description=f"{FORMAT}; with kaldi, lhotse, shar and webdataset, the columns need not be "
        "named",
    )
    header: bool | None = Field(None, description=HEADER)
    audio: Column = Field(
        description="column of audio file paths, relative to the file that lists them"
    )
    target: Column = Field("text", description="column of the target, usually the transcript")
    transcript: Column | None = Field(
        None,
        description="column of the transcript, where the target is something else, such as a "
        "translation; it is the target of CTC",
    )
    start: Column | None = Field(
        None, description="column of the start time of an utterance in its file, in seconds"
    )
    end: Column | None = Field(None, description="column of its end time, in seconds")
    group: Column | None = Field(
        None, description="column to report scores by, such as a language or speaker"
    )
    tags: Column | None = Field(
        None,
        description="column of tags, such as a language; each tag's embedding is added to the "
        "audio features",
    )
    where: Conditions | None = Field(None, description=WHERE)
    tag: TagName | None = Field(
        None, description="a tag for every recording, such as its language; in use: --tag"
    )
    weight: PositiveFloat = Field(1.0, description=WEIGHT)
    split: Part | None = Field(None, description=SPLIT_AUDIO)
    limit: PositiveInt | None = Field(None, description=LIMIT)

    @property
    def is_manifest(self) -> bool:
        """Whether another toolkit has written it."""
        return self.format in MANIFEST_FORMATS

    @model_validator(mode="before")
    @classmethod
    def _with_columns(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("format") in MANIFEST_FORMATS:
            given = {**MANIFEST_COLUMNS, **values}
            unless = ("start", "end") if values["format"] in WHOLE else ()
            return {key: given[key] for key in given if key in values or key not in unless}
        return values


FilesWithParts = ParallelFiles | Columns | Text | Recordings
"""Corpora of files, of which a part may be read."""


def files_of(corpus: FilesWithParts) -> list[object]:
    """The files that a corpus names, to compare them with those of another."""
    if isinstance(corpus, ParallelFiles):
        named = [corpus.source, corpus.target]
    else:
        named = [corpus.text if isinstance(corpus, Text) else corpus.file]
    return [[one] if isinstance(one, str) else one for one in named]


def have_other_rows(one: FilesWithParts, two: FilesWithParts) -> bool:
    """Whether two corpora of a table are of different rows, by what `where` asks for."""
    first, second = (conditions(getattr(part, "where", None)) for part in (one, two))
    return any(
        ours.column == theirs.column and not ours.values & theirs.values
        for ours in first
        for theirs in second
    )


def corpus_form(value: Any) -> str:
    """Which kind of corpus a value of a recipe is, decided by its keys."""
    if isinstance(value, list):
        return "mixture"
    keys = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    if keys.get("format") in MANIFEST_FORMATS:
        return "audio"
    form_of = {"audio": "audio", "text": "text", "file": "columns", "name": "named", "hub": "hub"}
    form_of |= {"of": "mixture"}
    return next((form for key, form in form_of.items() if key in keys), "parallel")


def _form_within(value: Any) -> str:
    """The form of a corpus in a list; one that may not be in a list is validated as files."""
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
    """Several corpora, interleaved pair by pair; a plain list of corpora is short for this."""

    of: Annotated[list[OneCorpus], Field(min_length=1)] = Field(
        description="the corpora; give each a tag so that the model can tell them apart"
    )
    limit: PositiveInt | None = Field(None, description=LIMIT)

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, values: Any) -> Any:
        listed = {"of": values} if isinstance(values, list) else values
        within = listed.get("of") if isinstance(listed, Mapping) else None
        if isinstance(within, list) and any(corpus_form(one) == "mixture" for one in within):
            raise InvalidValue("", "has a list of corpora inside another; put all into one list")
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
