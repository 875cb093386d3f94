"""Corpora of text: where their files are, how they are split, and how recipes read them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import members, read_bytes, read_rows, write_rows
from transduce.errors import DataError
from transduce.recipe import Columns, Mixture, ParallelFiles, Text

GITHUB = "https://raw.githubusercontent.com"

# ------------------------------------------------------------------------------------- CMUdict
# CMUdict 0.7b in the split of the literature on spelling to phones. The test words are those of
# Chen (2003), taken again from this version of the dictionary. The corpus `cmudict` is another:
# today's dictionary, split by a hash (see generated.py).

CMUDICT_FILES = {
    "train": "cmudict-0.7b.train-dev-20-21",
    "valid": "cmudict-0.7b.train-dev-1-21",
    "test": "cmudict-0.7b.test",
}


def _make_cmudict(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in CMUDICT_FILES.items():
        lines = read_bytes(files[theirs]).decode("ascii").splitlines()
        pairs = (line.split("  ") for line in lines)
        write_rows(folder / f"{split}.tsv", ([word.lower(), phones] for word, phones in pairs))


_CMUDICT_DATA = f"{GITHUB}/microsoft/CNTK/master/Examples/SequenceToSequence/CMUDict/Data"
CMUDICT = Listing(
    name="cmudict-0.7b",
    about="English spelling to phones, in the split of the literature",
    licence="BSD",
    terms="BSD 2-clause, copyright 1993-2015 Carnegie Mellon University",
    home="https://github.com/microsoft/CNTK/tree/master/Examples/SequenceToSequence/CMUDict",
    size=3_045_047,
    splits={"train": 108_952, "valid": 5_447, "test": 12_855},
    forms=(
        Form(
            tuple(File(name, f"{_CMUDICT_DATA}/{name}") for name in CMUDICT_FILES.values()),
            _make_cmudict,
        ),
    ),
    read=lambda split, _: Columns(file=f"cmudict-0.7b/{split}.tsv"),
    unit="pronunciations",
)

# ----------------------------------------------------------------------------------------- EWT
# UD English EWT 2.16: words of web texts and their parts of speech (Silveira et al. 2014). One
# sentence a line, words and tags separated by spaces; the CoNLL-U files lie beside.

EWT_FILES = {
    split: f"en_ewt-ud-{split.replace('valid', 'dev')}.conllu"
    for split in ("train", "valid", "test")
}
WORD, TAG = 1, 3  # columns: FORM and UPOS


def _make_ewt(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in EWT_FILES.items():
        contents = read_bytes(files[theirs])
        (folder / f"{split}.conllu").write_bytes(contents)
        sentences = contents.decode("utf-8").strip().split("\n\n")
        write_rows(folder / f"{split}.tsv", map(_words_and_tags, sentences))


def _words_and_tags(sentence: str) -> list[str]:
    rows = [line.split("\t") for line in sentence.split("\n") if not line.startswith("#")]
    # 3-4 is a multiword token, repeated as words 3 and 4; 5.1 is an empty node.
    words = [row for row in rows if row[0].isdigit()]
    return [" ".join(row[column] for row in words) for column in (WORD, TAG)]


_EWT_DATA = f"{GITHUB}/UniversalDependencies/UD_English-EWT/r2.16"
EWT = Listing(
    name="ewt",
    about="English sentences and the part of speech of each word",
    licence="CC BY-SA 4.0",
    terms="CC BY-SA 4.0",
    home="https://github.com/UniversalDependencies/UD_English-EWT",
    size=20_344_462,
    splits={"train": 12_544, "valid": 2_001, "test": 2_077},
    forms=(
        Form(tuple(File(name, f"{_EWT_DATA}/{name}") for name in EWT_FILES.values()), _make_ewt),
    ),
    read=lambda split, _: Columns(file=f"ewt/{split}.tsv"),
    unit="sentences",
)

# ---------------------------------------------------------------------------------------- IMDB
# Film reviews and whether they are good or bad (Maas et al. 2011). The authors' test set, and
# their training set without every tenth review, which are for validation: the last tenth in the
# order of a hash of the text, so that equal reviews are on the same side. All three are in that
# order, so that the first lines are a fair sample of both labels.

REVIEW_FILE = re.compile(
    r"aclImdb/(?P<split>train|test)/(?P<label>neg|pos)/(?P<number>\d+)_(?P<rating>\d+)\.txt"
)
REVIEWS_OF_EACH = 12_500
REVIEW_SPLITS = {"train": 22_500, "valid": 2_500, "test": 25_000}


class Review(NamedTuple):
    text: str
    label: str
    rating: str
    number: str


Reviews = dict[str, list[Review]]


def _make_imdb_from_archive(files: Mapping[str, Path], folder: Path) -> None:
    """From the archive, or from the folder that it unpacks to."""
    (path,) = files.values()
    reviews: Reviews = {"train": [], "test": []}
    for found, contents in members(path, REVIEW_FILE):
        try:
            # 27 of them have tabs; a line is to hold one review.
            text = " ".join(contents.decode("utf-8").split())
        except UnicodeDecodeError:
            raise DataError(f"{found[0]} in {path} is not UTF-8; get the archive again") from None
        reviews[found["split"]].append(
            Review(text, found["label"], found["rating"], found["number"])
        )
    _write_reviews(reviews, path, folder)


def _make_imdb_from_tables(files: Mapping[str, Path], folder: Path) -> None:
    """From tables of label, number, rating and review."""
    reviews: Reviews = {}
    for split in ("train", "test"):
        rows = read_rows(files[f"{split}.tsv"])
        reviews[split] = [Review(row[3], row[0], row[2], row[1]) for row in rows]
    _write_reviews(reviews, files["train.tsv"].parent, folder)


def _write_reviews(reviews: Reviews, origin: Path, folder: Path) -> None:
    for split, some in reviews.items():
        counts = Counter(review.label for review in some)
        for label in ("neg", "pos"):
            if counts[label] != REVIEWS_OF_EACH:
                raise DataError(
                    f"{origin} has {counts[label]:,} reviews in {split}/{label} instead of "
                    f"{REVIEWS_OF_EACH:,}; get it again"
                )
        some.sort(key=lambda review: (sha256(review.text.encode()).digest(), review.number))
    train, kept = reviews["train"], REVIEW_SPLITS["train"]
    parts = {"train": train[:kept], "valid": train[kept:], "test": reviews["test"]}
    for split, some in parts.items():
        write_rows(folder / f"{split}.tsv", some)


IMDB = Listing(
    name="imdb",
    about="film reviews in English, to tell the good from the bad",
    licence="research use",
    terms="no licence is given; released for research, to be cited as Maas et al. 2011",
    home="https://ai.stanford.edu/~amaas/data/sentiment/",
    size=66_090_440,
    splits=REVIEW_SPLITS,
    forms=(
        Form(
            (
                File(
                    "aclImdb_v1.tar.gz",
                    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                ),
            ),
            _make_imdb_from_archive,
        ),
        Form((File("aclImdb"),), _make_imdb_from_archive),
        Form((File("train.tsv"), File("test.tsv")), _make_imdb_from_tables),
    ),
    read=lambda split, _: Columns(file=f"imdb/{split}.tsv"),
    unit="reviews",
)

# ---------------------------------------------- Multi30k and SIGMORPHON 2020, copied as they are


def _copied(files: Iterable[tuple[str, str, str]]) -> Form:
    """Files that are kept byte for byte: name there, address, and name here of each."""
    rows = list(files)

    def make(found: Mapping[str, Path], folder: Path) -> None:
        for name, _, ours in rows:
            (folder / ours).write_bytes(read_bytes(found[name]))

    return Form(tuple(File(name, address) for name, address, _ in rows), make)


MULTI30K_LANGUAGES = ("en", "de", "fr")
MULTI30K_FILES = {
    "train": "train",
    "valid": "val",
    "test": "test_2016_flickr",
    "test-2017": "test_2017_flickr",
    "test-coco": "test_2017_mscoco",
}
_MULTI30K_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
_MULTI30K_DATA = f"{GITHUB}/multi30k/dataset/{_MULTI30K_COMMIT}/data/task1/raw"


def _read_multi30k(split: str, pair: str) -> ParallelFiles:
    source, target = (f"multi30k/{split}.{language}" for language in pair.split("-"))
    return ParallelFiles(source=source, target=target)


# Image captions in three languages, translated by people (Elliott et al. 2016, 2017).
MULTI30K = Listing(
    name="multi30k",
    about="image captions in English, German and French, to translate",
    licence="research use",
    terms="no licence is given; provided for non-commercial research and education",
    home="https://github.com/multi30k/dataset",
    size=6_710_956,
    splits={"train": 29_000, "valid": 1_014, "test": 1_000, "test-2017": 1_000, "test-coco": 461},
    forms=(
        _copied(
            (f"{name}.{one}", f"{_MULTI30K_DATA}/{name}.{one}.gz", f"{split}.{one}")
            for split, name in MULTI30K_FILES.items()
            for one in MULTI30K_LANGUAGES
        ),
    ),
    read=_read_multi30k,
    key="pair",
    example="en-de",
    languages=lambda folder: MULTI30K_LANGUAGES,
)

_CODES = "ady arm bul dut fre geo gre hin hun ice jpn kor lit rum vie"
SIGMORPHON_LANGUAGES = _CODES.split()
ALL = "all"
_SIGMORPHON_DATA = f"{GITHUB}/sigmorphon/2020/master/task1/data"


def _read_sigmorphon(split: str, language: str) -> Columns | Mixture:
    """One language; or all, which take turns, each word with its language as a tag."""
    if language != ALL:
        return Columns(file=f"sigmorphon2020/{split}.{language}.tsv")
    every = SIGMORPHON_LANGUAGES
    return Mixture(of=[Columns(file=f"sigmorphon2020/{split}.{one}.tsv", tag=one) for one in every])


# Task 1: spelling to phones in fifteen languages (Gorman et al. 2020).
SIGMORPHON2020 = Listing(
    name="sigmorphon2020",
    about="spelling to phones in 15 languages, 3,600 words each",
    licence="CC BY-SA",
    terms="from Wiktionary, whose text is CC BY-SA 3.0; the task itself states no licence",
    home="https://github.com/sigmorphon/2020",
    size=2_196_783,
    splits={"train": 3_600, "valid": 450, "test": 450},
    forms=(
        _copied(
            (
                f"{one}_{name}.tsv",
                f"{_SIGMORPHON_DATA}/{name}/{one}_{name}.tsv",
                f"{split}.{one}.tsv",
            )
            for split, name in {"train": "train", "valid": "dev", "test": "test"}.items()
            for one in SIGMORPHON_LANGUAGES
        ),
    ),
    read=_read_sigmorphon,
    key="language",
    example="fre",
    unit="words of each language",
    languages=lambda folder: [*SIGMORPHON_LANGUAGES, ALL],
)

# ---------------------------------------------------------------------------- Tiny Shakespeare
# 40,000 lines to learn a language model from (Karpathy 2015).

_SHAKESPEARE_COMMIT = "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
_SHAKESPEARE_DATA = f"{GITHUB}/karpathy/char-rnn/{_SHAKESPEARE_COMMIT}/data/tinyshakespeare"


def _make_shakespeare(files: Mapping[str, Path], folder: Path) -> None:
    text = read_bytes(files["input.txt"])
    end = int(0.9 * len(text))  # of its characters, all of them ASCII: the usual split
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
    forms=(Form((File("input.txt", f"{_SHAKESPEARE_DATA}/input.txt"),), _make_shakespeare),),
    read=lambda split, _: Text(text=f"tiny-shakespeare/{split}.txt"),
    unit="lines",
)
