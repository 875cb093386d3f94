"""Datasets from the Hugging Face hub, through the optional package `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from transduce.errors import DataError
from transduce.recipe import Hub

AT_ONCE = 1000  # rows


def hub_name(corpus: Hub) -> str:
    return " ".join(filter(None, [corpus.hub, corpus.config, f"({corpus.split})"]))


def check_hub(corpus: Hub) -> None:
    """Raise DataError unless the package is installed; nothing is downloaded."""
    if find_spec("datasets") is None:
        raise DataError(
            f"the dataset {corpus.hub} is read by a package that is not installed: "
            f"pip install '.[hub]'"
        )


def hub_rows(corpus: Hub) -> Iterator[tuple[str, str]]:
    """Source and target of each row; the package downloads what is not on this machine yet.

    Raises DataError if there is no such dataset, split or column, or a value is not text.
    """
    dataset = _load(corpus)
    columns = [_column(corpus, dataset, name) for name in (corpus.source, corpus.target)]
    needed = list(dict.fromkeys(column for column, _ in columns))
    row = 0
    for batch in dataset.select_columns(needed).iter(batch_size=AT_ONCE):
        sides = [[inner(value) for value in batch[column]] for column, inner in columns]
        for pair in zip(*sides, strict=True):
            row += 1
            if isinstance(pair[1], int) and not isinstance(pair[1], bool):
                pair = (pair[0], str(pair[1]))  # a label
            for name, text in zip((corpus.source, corpus.target), pair, strict=True):
                if not isinstance(text, str):
                    raise DataError(
                        f"{hub_name(corpus)}: row {row}: {name} is {str(text)[:40]}, not text"
                    )
            yield pair[0], pair[1]


def hub_version(corpus: Hub) -> str:
    """What tells that a dataset on this machine is still the same; it is downloaded if need be."""
    return str(getattr(_load(corpus), "_fingerprint", ""))


def _load(corpus: Hub) -> Any:
    check_hub(corpus)
    import datasets

    try:
        return datasets.load_dataset(corpus.hub, corpus.config, split=corpus.split)
    except Exception as error:  # many libraries below raise errors of many kinds
        reason = " ".join((str(error) or type(error).__name__).split())
        raise DataError(f"{hub_name(corpus)} cannot be loaded from the hub: {reason}") from None


def _column(corpus: Hub, dataset: Any, name: str) -> tuple[str, Callable[[Any], Any]]:
    """The column to read, and the function that extracts the text from its values."""
    there = list(dataset.column_names)
    outer, _, key = (name, "", "") if name in there else name.partition(".")
    if outer not in there:
        raise DataError(f"{hub_name(corpus)} has no column {outer}; there are: {', '.join(there)}")
    if key:
        return outer, lambda value: value.get(key) if isinstance(value, dict) else None
    labels = getattr(dataset.features[outer], "names", None)
    if labels:  # class labels are stored as integers
        return outer, lambda value: labels[value] if 0 <= value < len(labels) else ""
    return outer, lambda value: "" if value is None else value
