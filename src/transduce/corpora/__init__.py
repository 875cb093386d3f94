"""Corpora by name: those made here, those fetched from their public homes, and where they lie."""

from transduce.corpora.catalogue import (
    FETCHED,
    check_named,
    files_of,
    listing_of,
    megabytes,
    text_of,
)
from transduce.corpora.get import get
from transduce.corpora.made import MADE
from transduce.corpora.place import corpora_folder, is_whole, read_facts

__all__ = [
    "FETCHED",
    "MADE",
    "check_named",
    "corpora_folder",
    "files_of",
    "get",
    "is_whole",
    "listing_of",
    "megabytes",
    "read_facts",
    "text_of",
]
