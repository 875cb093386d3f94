"""Corpora by name: generated ones, downloads of public ones, and where they are stored."""

from transduce.corpora.catalogue import FETCHED, check_named, files_of, listing_of, splits_of
from transduce.corpora.fetch import get
from transduce.corpora.generated import MADE
from transduce.corpora.location import corpora_folder

__all__ = [
    "FETCHED",
    "MADE",
    "check_named",
    "corpora_folder",
    "files_of",
    "get",
    "listing_of",
    "splits_of",
]
