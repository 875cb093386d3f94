"""Tiny Shakespeare: 40,000 lines to learn a language model from (Karpathy 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import Text

COMMIT = "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
ADDRESS = (
    f"https://raw.githubusercontent.com/karpathy/char-rnn/{COMMIT}/data/tinyshakespeare/input.txt"
)
SHARE = 0.9  # of its characters, all of them ASCII, for training: the usual split


def _make(files: Mapping[str, Path], folder: Path) -> None:
    text = read_bytes(files["input.txt"])
    end = int(SHARE * len(text))
    (folder / "train.txt").write_bytes(text[:end])
    (folder / "valid.txt").write_bytes(text[end:])


TINY_SHAKESPEARE = Listing(
    name="tiny-shakespeare",
    about="a million letters of Shakespeare, running text",
    licence="public domain",
    terms="the text is in the public domain, its collection MIT",
    home="https://github.com/karpathy/char-rnn",
    size=1_115_394,
    splits={"train": 35_526, "valid": 4_475},
    forms=(Form((File("input.txt", ADDRESS),), _make),),
    read=lambda split, _: Text(text=f"tiny-shakespeare/{split}.txt"),
    unit="lines",
)
