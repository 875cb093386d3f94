"""Multi30k: image captions in three languages, translated by people (Elliott et al. 2016, 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import ParallelFiles

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
LANGUAGES = ("en", "de", "fr")
THEIR_NAMES = {
    "train": "train",
    "valid": "val",
    "test": "test_2016_flickr",
    "test-2017": "test_2017_flickr",
    "test-coco": "test_2017_mscoco",
}


def _make(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in THEIR_NAMES.items():
        for language in LANGUAGES:
            text = read_bytes(files[f"{theirs}.{language}"])
            (folder / f"{split}.{language}").write_bytes(text)


def _read(split: str, pair: str) -> ParallelFiles:
    source, target = (f"multi30k/{split}.{language}" for language in pair.split("-"))
    return ParallelFiles(source=source, target=target)


MULTI30K = Listing(
    name="multi30k",
    about="image captions in English, German and French, to translate",
    licence="research use",
    terms="no licence is given; provided for non-commercial research and education",
    home="https://github.com/multi30k/dataset",
    size=6_710_956,
    splits={"train": 29_000, "valid": 1_014, "test": 1_000, "test-2017": 1_000, "test-coco": 461},
    forms=(
        Form(
            tuple(
                File(f"{theirs}.{language}", f"{ADDRESS}/{theirs}.{language}.gz")
                for theirs in THEIR_NAMES.values()
                for language in LANGUAGES
            ),
            _make,
        ),
    ),
    read=_read,
    key="pair",
    example="en-de",
    languages=lambda folder: LANGUAGES,
)
