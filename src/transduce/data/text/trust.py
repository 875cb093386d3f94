"""Security: which data the recipe of a model folder may name.

A model folder may come from anywhere, and its recipe names files: one that says its test set is in
/etc must not make `transduce evaluate` read that. So the data that a stored recipe names are read
only if one of these holds:

- this user has trained with them. Training records each corpus, with its folder, in the user's
  own state folder, outside of every model folder: the maker of a model folder cannot forge it,
  and a model that is moved or copied on the same machine can still be evaluated.
- they are text files inside the model folder itself. Links are followed before that is decided.
- it is a corpus that transduce knows by name: its content is not up to the recipe.

Data named on the command line are always read. With another data.folder given there, the files that
the recipe names must be inside of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from transduce.data.text.files import locate, locate_here
from transduce.data.text.pairs import corpus_files, corpus_name
from transduce.errors import CheckpointError, DataError
from transduce.recipe import (
    Columns,
    Corpus,
    Data,
    Hub,
    Mixture,
    Named,
    ParallelFiles,
    Recipe,
    Recordings,
    Text,
)
from transduce.storage import default_state_folder, make_folder, write_json
from transduce.storage.remote import RemotePath, is_remote


def record_training_data(recipe: Recipe, print_line: Callable[[str], object]) -> None:
    """Record that this user trains with the corpora of a recipe."""
    for corpus in _corpora(recipe.data):
        note = _note(corpus, recipe.data.folder)
        if isinstance(corpus, Named) or note.is_file():
            continue
        try:
            make_folder(note.parent)
            write_json(note, _description(corpus, recipe.data.folder))
        except CheckpointError as error:
            print_line(
                f"warning: `transduce evaluate` will ask for the location of the data, as {error}."
            )
            return


def check_reads(model_folder: Path, stored: Data, data: Data, corpus: Corpus) -> None:
    """Raise DataError for a corpus that the recipe of a model folder may not make us read.

    `stored` is the data section of that recipe, `data` the same with options of the command line.
    """
    theirs = {name for one in _corpora(stored) for name in _names(one)}
    for part in _parts(corpus):
        if isinstance(part, Named) or not theirs & set(_names(part)):
            continue  # known by name, or named on the command line
        given = None if data.folder == stored.folder else data.folder
        known = _note(part, stored.folder).is_file() if given is None else False
        if not known and not _is_inside(part, data, model_folder, given):
            raise DataError(
                f"the recipe of {model_folder} names {corpus_name(part)} as its data, outside of "
                f"the model folder, and you have not trained with it here: give your copy with "
                f"data.folder=FOLDER, or name other data with --source and --target"
            )


def _is_inside(corpus: Corpus, data: Data, model_folder: Path, given: str | None) -> bool:
    """Whether all files are in the folder that was given, or else in the model folder."""
    if isinstance(corpus, Hub):
        return False
    if given is None and isinstance(corpus, Recordings):
        return False  # its lines name more files
    root = Path(given or model_folder).resolve()
    named = [locate(name, data.folder) for name in _names(corpus)]
    if remote := [place for place in named if isinstance(place, RemotePath)]:
        # Decided by their addresses alone: no server is asked for a stranger's recipe.
        within = f"{(given or '').rstrip('/')}/"
        inside = all(is_remote(within) and str(one).startswith(within) for one in remote)
        return len(remote) == len(named) and inside and not any(".." in str(one) for one in remote)
    try:
        names = corpus_files(corpus, data.folder)
    except DataError:
        if given is not None or Path(data.folder or "").resolve().is_relative_to(root):
            raise  # it says which file is missing
        return False
    return all(locate_here(name, data.folder).resolve().is_relative_to(root) for name in names)


def _corpora(data: Data) -> Iterator[Corpus]:
    for corpus in (data.train, data.valid, data.test):
        if corpus is not None:
            yield from _parts(corpus)


def _parts(corpus: Corpus) -> Iterator[Corpus]:
    if isinstance(corpus, Mixture):
        yield from corpus.of
    else:
        yield corpus


def _names(corpus: Corpus) -> list[str]:
    """The part of a corpus that says where it is, without limit, columns and tags."""
    if isinstance(corpus, Hub):
        return [corpus.hub]
    if isinstance(corpus, ParallelFiles):
        return [*_list(corpus.source), *_list(corpus.target)]
    if isinstance(corpus, Text):
        return _list(corpus.text)
    return _list(corpus.file) if isinstance(corpus, Columns | Recordings) else []


def _list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _description(corpus: Corpus, folder: str | None) -> dict[str, object]:
    return {"folder": folder, "files": _names(corpus)}


def _note(corpus: Corpus, folder: str | None) -> Path:
    described = json.dumps(_description(corpus, folder), sort_keys=True)
    name = sha256(described.encode("utf-8", "surrogatepass")).hexdigest()
    return default_state_folder() / "trained" / f"{name}.json"
