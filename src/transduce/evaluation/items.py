"""What a model is evaluated on: a split of its recipe or given files, as items: sources, and the
targets that count as right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.automatic.given import (
    columns_as_trained,
    given_file,
    given_pair,
    has_columns,
    trained_on,
)
from transduce.corpora import splits_of
from transduce.corpora.location import some_of
from transduce.data.text.columns import read_rows
from transduce.data.text.conll import is_conllu
from transduce.data.text.manifests import manifest_kind
from transduce.data.text.pairs import Pair, ReadingCounts, audio_of, read_pairs
from transduce.data.text.tags import unreadable_tag
from transduce.data.tokens.tokenizer import SPECIALS, UNKNOWN, Tokens
from transduce.errors import DataError
from transduce.recipe import (
    Column,
    Columns,
    Corpus,
    Data,
    Mixture,
    Named,
    ParallelFiles,
    Recordings,
    Text,
    nearest,
)
from transduce.recipe.corpus import conditions
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel, Tagger
from transduce.tasks.transduce import Model

TABLES = (".tsv", ".csv", ".jsonl", ".parquet", ".conll")  # or another that training reads


@dataclass(frozen=True)
class Item:
    """One source and its accepted references."""

    source: str
    references: list[str]
    group: str = ""
    """The first of the source's tags, such as its language; for audio, the value of `group`."""
    tags: tuple[str, ...] = ()
    column: str = ""
    """What the corpus's column `group` has of it."""
    place: tuple[str, int] = ("", 0)
    """The file, as the corpus names it, and the line from 1."""


def items_of(pairs: list[Pair], alternatives: bool) -> list[Item]:
    """One item for each pair; or, for a dictionary, one for each source with all its targets."""
    if not alternatives:
        return [_item(pair, [pair.target]) for pair in pairs]
    found: dict[str, Item] = {}
    for pair in pairs:
        item = found.setdefault(pair.source, _item(pair, []))
        item.references.append(pair.target)
    return list(found.values())


def _item(pair: Pair, references: list[str]) -> Item:
    group = pair.tags[0] if pair.tags else pair.group
    place = (pair.file, pair.line)
    return Item(pair.source, references, group, pair.tags, pair.group, place)


def pairs_to_measure(
    model: Model, corpus: Corpus, given: bool, counts: ReadingCounts | None = None
) -> Iterator[Pair]:
    """The pairs of a corpus. Raises DataError; of files that are `given`, also for a tag that the
    model cannot read."""
    for pair in read_pairs(corpus, model.recipe.data.folder, counts):
        if given and (why := unreadable_tag(pair.tags, model.source_tokens.tags)):
            raise DataError(f"{pair.file}:{pair.line}: {why}")
        yield pair


def measurable(pairs: list[Pair], task: str, source_tokens: Tokens) -> list[Pair]:
    """The pairs that can be evaluated: for token labels, those with as many labels as tokens."""
    if TASK_RULES[task].labels != "words":
        return pairs
    sources = source_tokens.encode_batch([pair.source for pair in pairs])
    return [
        pair
        for pair, ids in zip(pairs, sources, strict=True)
        if len(ids) == len(pair.target.split())
    ]


def unknown_labels(items: Sequence[Item], model: Model) -> str:
    """What to say of labels that the model does not have, which cannot be right; empty: of none."""
    if (kind := TASK_RULES[model.recipe.task].labels) == "none":
        return ""
    labels = Counter(
        label
        for item in items
        for one in item.references
        for label in (one.split() if kind == "words" else [one])
    )
    ids = model.target_tokens.encode_batch(list(labels))
    strange = [label for label, found in zip(labels, ids, strict=True) if UNKNOWN in found]
    if not strange:
        return ""
    count = sum(labels[label] for label in strange)
    own = model.target_tokens.names()[len(SPECIALS) :]
    return (
        f"{count:,} of {labels.total():,} labels are wrong whatever the model says, as it does not "
        f"have them: {some_of(strange)}; its own are {some_of(own)}"
    )


def given_files(model: Model, source: Path | None, target: Path | None) -> tuple[Corpus, Path]:
    """The given files to evaluate on, and the one that names the results."""
    if isinstance(model, LanguageModel):
        if source is None or target is not None:
            raise DataError(
                "for a language model, give the text to evaluate on with --source alone"
            )
        lines: Literal["joined", "apart"] = "joined" if model.endless else "apart"
        return Text(text=_as_text(source), lines=lines), source
    if isinstance(model, Tagger) and source is not None and target is None and is_conllu(source):
        return Columns(file=str(source.resolve()), source="form", target=model.column), source
    trained = trained_on(model.recipe)
    columns = trained if isinstance(trained, Recordings) else audio_of(model.recipe.data.train)
    if columns is None and model.recipe.audio is not None:  # imported: it names no recordings
        columns = Recordings(file="any.tsv", audio="path", target="text")
    if columns is not None:
        if source is None or target is not None:
            raise DataError("give other recordings to evaluate on as a table, with --source alone")
        columns, changed = _other_recordings(source, columns)
        if isinstance(model.recipe.data.train, Mixture):  # it would be unclear which tag to use
            changed |= {"tag": None, "tags": None}
        return columns.model_copy(update=changed), source
    for file in filter(None, (source, target)):
        if file.is_dir():
            raise DataError(f"{file} is a folder; give a file of it")
    if source is not None and target is None:
        plain = Columns(file=str(source.resolve()))
        like = trained if isinstance(trained, Columns) else plain
        if source.name.endswith(".conll"):
            if isinstance(like.source, str):
                like = plain  # columns of CoNLL-U have names, those of CoNLL numbers
            update = {"file": plain.file, "limit": None, "split": None, "format": None}
            return like.model_copy(update=update), source
        table = _table_of(source, like, like.source, like.target)
        if table["format"] is not None or like.format is not None:
            return like.model_copy(update={**table, "split": None}), source
    if source is None or target is None:
        raise DataError(
            "give other files to evaluate on with --source and --target, or with --source alone "
            f"if one table has both ({', '.join(TABLES)})"
        )
    if (paired := given_pair(source, target)) is not None:
        return paired, target
    return ParallelFiles(source=_as_text(source), target=_as_text(target)), target


def are_of_training(corpus: Corpus, data: Data) -> bool:
    """Whether given files are those that training reads, by their names."""
    files = _places(corpus, None)
    return bool(files) and files <= _places(data.train, data.folder)


def _places(corpus: Corpus, folder: str | None) -> set[str]:
    keys = {Text: ["text"], ParallelFiles: ["source", "target"]}.get(type(corpus), ["file"])
    given = [getattr(corpus, key, []) for key in keys]
    names = [name for one in given for name in ([one] if isinstance(one, str) else one)]
    return {str(Path(folder or ".", name).resolve()) for name in names}


def _as_text(file: Path) -> str:
    return str(given_file(file, None).path.resolve())


def _table_of(file: Path, like: Columns | Recordings, *wanted: Column) -> dict[str, Any]:
    """What is other in a corpus of this file than in that of training."""
    given = given_file(file, like, pairs=True)
    changed: dict[str, Any] = {"file": str(given.path.resolve()), "limit": None}
    if given.kind is None:
        return changed | {"format": None}
    columns_as_trained(given, wanted)
    if like.where is not None and not has_columns(given, conditions(like.where)):
        changed["where"] = None  # it has no column of parts: all of it is meant
    if given.made_of is not None or not like.header:
        changed["header"] = None  # that of training had none: of this one it is seen
    return changed | {"format": given.kind}


def _other_recordings(source: Path, like: Recordings) -> tuple[Recordings, dict[str, Any]]:
    """The recipe's recordings as a list of others has them, and what else is other of them: a list
    of Kaldi or Lhotse has its own columns, and a table in place of such a list those it names."""
    file, kind = str(source.resolve()), manifest_kind(source)
    changed: dict[str, Any] = {"file": file, "limit": None, "group": None}
    if kind is not None and kind != like.format:
        return Recordings(file=file, format=kind, audio="audio", tag=like.tag), changed
    if kind is not None or (like.is_manifest and not _is_table(source)):
        return like, changed
    if like.is_manifest:
        there = {name: name for name in ("audio", "start", "end") if _has_column(source, name)}
        like = Recordings(file=file, audio="path", tag=like.tag).model_copy(update=there)
    return like, changed | _table_of(source, like, like.audio, like.target)


def _is_table(source: Path) -> bool:
    return source.is_file() and ".tar" not in source.suffixes


def _has_column(source: Path, column: str) -> bool:
    try:
        next(read_rows(str(source), None, [column]), None)
    except DataError:
        return False
    return True


def split_of(model: Model, folder: Path, split: str) -> Corpus:
    """test or valid of a recipe; or, for a corpus by name, any other split that it has."""
    data = model.recipe.data
    splits = {"test": data.test, "valid": data.valid}
    corpus = splits.get(split)
    if corpus is not None:
        return corpus
    known = data.test or data.valid
    if isinstance(known, Named) and _may_have(known, split):
        return _other_split(known, split)
    if isinstance(known, Mixture):
        named = [one for one in known.of if isinstance(one, Named) and _may_have(one, split)]
        if len(named) == len(known.of):
            return Mixture(of=[_other_split(one, split) for one in named])
    if split in splits:
        others = "--source" if isinstance(model, LanguageModel) else "--source and --target"
        raise DataError(
            f"the recipe of {folder} has no {split} set; give --split valid, or {others}"
        )
    near = nearest(split, splits, "; there are test and valid")
    raise DataError(f"there is no split {split}{near}")


def _may_have(corpus: Named, split: str) -> bool:
    """Whether to ask the corpus for a split; one that is unknown here raises its own error, with
    the splits there are.
    """
    return split not in ("test", "valid") or split in splits_of(corpus.name)


def _other_split(corpus: Named, split: str) -> Named:
    return corpus.model_copy(update={"split": split, "limit": None})
