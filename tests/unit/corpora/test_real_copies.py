"""The corpora themselves, made from copies of their files; those not on this machine are skipped.

See recordings.py for where the copies lie.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from loopback import Loopback
from recordings import corpus as copy_of
from transduce.corpora import FETCHED, get
from transduce.corpora.entry import File, Form, checksum
from transduce.corpora.unpack import read_bytes
from transduce.data.text.pairs import ReadingCounts, read_pairs
from transduce.recipe import Named

FOLDERS = {
    "asterisk": "asterisk_prompts",
    "cmudict-0.7b": "cmudict_g2p",
    "ewt": "ud_english_ewt",
    "imdb": "imdb",
    "mboshi": "mboshi_french",
    "multi30k": "multi30k",
    "sigmorphon2020": "sigmorphon2020_g2p",
    "tiny-shakespeare": "tinyshakespeare",
    "udhr": "udhr_text",
}
# Of all that is made, so that a corpus of one name is the same for all and for ever.
SUMS = {
    "asterisk": "349fd256aa1c6065",
    "cmudict-0.7b": "8b16838e9743a0f3",
    "ewt": "6c7323e583477d28",
    "imdb": "0dd7b20c8294def5",
    "mboshi": "9f8f6740f4bc2baa",
    "multi30k": "70ba901938da1f71",
    "sigmorphon2020": "b6dae696768a7948",
    "tiny-shakespeare": "7eae05ec5aff9f2b",
    "udhr": "61ea58ebd5f93d9a",
}
SPLITS = ("train", "valid")
LARGE = ("imdb", "mboshi")  # to unpack and make them takes half a minute and more


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(autouse=True)
def _kept_there(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_DATA", str(shelf))


def copies(name: str) -> Path:
    """The folder with the files of a corpus; skips the test where some are not there."""
    folder = copy_of(FOLDERS[name])
    lacking = [
        [file.name for file in form.files if not any(folder.rglob(f"{file.name}*"))]
        for form in FETCHED[name].forms
    ]
    if all(lacking):
        pytest.skip(f"needs {', '.join(min(lacking, key=len))} of {name} in {folder}")
    return folder


def made(name: str, shelf: Path) -> Path:
    get(FETCHED[name], shelf, copies(name), lambda file, there: None)
    return shelf / name


def pairs(name: str, split: str, **keys: str) -> list[tuple[str, str]]:
    counts = ReadingCounts()
    corpus = Named.model_validate({"name": name, "split": split, **keys})
    found = [(pair.source, pair.target) for pair in read_pairs(corpus, None, counts)]
    assert counts.odd_breaks == 0
    return found


def digest_of(folder: Path) -> str:
    sums = json.loads((folder / "corpus.json").read_text())["files"]
    return sha256("".join(f"{k} {v}\n" for k, v in sums.items()).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in FOLDERS],
)
def test_all_that_is_listed_is_so(name: str, shelf: Path) -> None:
    listing, folder = FETCHED[name], made(name, shelf)
    metadata = json.loads((folder / "corpus.json").read_text())
    assert sum((folder / file).stat().st_size for file in metadata["files"]) == listing.size
    assert digest_of(folder) == SUMS[name]
    for split, count in listing.splits.items():
        choice = {listing.key: listing.example} if listing.key else {}
        assert len(pairs(name, split, **choice)) == count


@pytest.mark.parametrize("name", sorted(set(FOLDERS) - {"imdb", "udhr", "asterisk", "mboshi"}))
def test_what_is_fetched_is_what_is_known(name: str, server: Loopback, tmp_path: Path) -> None:
    """From a server that has the files under the names, and packed, as their public homes do."""
    listing, folder, files = FETCHED[name], copies(name), []
    for file in listing.forms[0].files:
        (copy,) = folder.glob(f"{file.name}*")
        there = file.address.rpartition("/")[2]
        contents = copy.read_bytes() if copy.name == there else read_bytes(copy)
        server.files[there] = contents
        assert len(contents) == checksum(name, file.name).download
        files.append(File(file.name, server.address(there)))
    form = Form(tuple(files), listing.forms[0].make)
    get(replace(listing, forms=(form,)), tmp_path, None, lambda file, there: None)
    assert digest_of(tmp_path / name) == SUMS[name]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_multi30k(shelf: Path) -> None:
    made("multi30k", shelf)
    assert pairs("multi30k", "test", pair="en-de")[0] == (
        "A man in an orange hat starring at something.",
        "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    )
    assert len(pairs("multi30k", "test-coco", pair="fr-en")) == 461


def test_sigmorphon(shelf: Path) -> None:
    made("sigmorphon2020", shelf)
    everything = pairs("sigmorphon2020", "test", language="all")
    assert [source[:5] for source, _ in everything[:2]] == ["<ady>", "<arm>"]
    counts = Counter(source.split(" ")[0] for source, _ in everything)
    assert len(counts) == 15
    assert set(counts.values()) == {450}
    french = pairs("sigmorphon2020", "test", language="fre")
    assert [(s[6:], t) for s, t in everything if s.startswith("<fre> ")] == french


def test_cmudict(shelf: Path) -> None:
    made("cmudict-0.7b", shelf)
    words = {split: {s for s, _ in pairs("cmudict-0.7b", split)} for split in ("train", "valid")}
    test = pairs("cmudict-0.7b", "test")
    assert len({source for source, _ in test}) == 11_994
    assert not {source for source, _ in test} & (words["train"] | words["valid"])
    assert len(words["train"] & words["valid"]) == 721
    assert ("abadi", "AH B AE D IY") in test


@pytest.mark.slow
def test_imdb(shelf: Path) -> None:
    made("imdb", shelf)
    splits = {split: pairs("imdb", split) for split in ("train", "valid", "test")}
    labels = {split: Counter(label for _, label in some) for split, some in splits.items()}
    assert labels["test"] == {"neg": 12_500, "pos": 12_500}
    assert labels["train"] + labels["valid"] == {"neg": 12_500, "pos": 12_500}
    assert 1_150 < labels["valid"]["pos"] < 1_350
    first = Counter(label for _, label in splits["train"][:500])
    assert 200 < first["pos"] < 300
    assert not {text for text, _ in splits["train"]} & {text for text, _ in splits["valid"]}


def test_ewt(shelf: Path) -> None:
    folder = made("ewt", shelf)
    train = pairs("ewt", "train")
    assert all(len(words.split()) == len(tags.split()) for words, tags in train)
    assert sum(len(tags.split()) for _, tags in train) == 204_577
    assert len({tag for _, tags in train for tag in tags.split()}) == 17
    assert pairs("ewt", "test")[0][0].startswith("What if Google Morphed Into")
    assert (folder / "test.conllu").read_text("utf-8").count("# sent_id") == 2_077


def test_tiny_shakespeare(shelf: Path) -> None:
    folder = made("tiny-shakespeare", shelf)
    train, valid = ((folder / f"{split}.txt").read_text() for split in ("train", "valid"))
    assert len(train) == 1_003_854
    assert len(train + valid) == 1_115_394
    assert len(set(train + valid)) == 65


def test_udhr(shelf: Path) -> None:
    folder = made("udhr", shelf)
    rows = (folder / "languages.tsv").read_text("utf-8").splitlines()
    assert len(rows) == 533
    assert sum(int(row.split("\t")[5]) for row in rows[1:]) == 27_153
    train = pairs("udhr", "train", pair="eng-deu_1996")
    assert (
        "Everyone has the right to life, liberty and security of person.",
        "Jeder hat das Recht auf Leben, Freiheit und Sicherheit der Person.",
    ) not in train
    valid = dict(pairs("udhr", "valid", pair="eng-deu_1996"))
    assert valid["Everyone has the right to life, liberty and the security of person."] == (
        "Jeder hat das Recht auf Leben, Freiheit und Sicherheit der Person."
    )


def test_asterisk(shelf: Path) -> None:
    folder = made("asterisk", shelf)
    splits = {split: pairs("asterisk", split) for split in ("train", "valid", "test")}
    texts = {split: {text for _, text in some} for split, some in splits.items()}
    assert not texts["train"] & (texts["valid"] | texts["test"])
    assert not texts["valid"] & texts["test"]
    letters = {letter for some in texts.values() for text in some for letter in text}
    assert "".join(sorted(letters)) == " 'abcdefghijklmnopqrstuvwxyz"
    everything = {Path(source).name: text for some in splits.values() for source, text in some}
    assert everything["vm-delete.flac"] == "press seven to delete this message"
    assert all((folder / "sounds" / name).is_file() for name in everything)


@pytest.mark.slow
def test_mboshi(shelf: Path) -> None:
    made("mboshi", shelf)
    said = dict(pairs("mboshi", "test", language="mb"))
    french = dict(pairs("mboshi", "test", language="fr"))
    assert said.keys() == french.keys()
    assert set(said.values()).isdisjoint(french.values())
    corpus = Named.model_validate({"name": "mboshi", "split": "test", "language": "fr"})
    assert [pair.transcript for pair in read_pairs(corpus, None)] == list(said.values())
    texts = {split: {t for _, t in pairs("mboshi", split, language="mb")} for split in SPLITS}
    assert not texts["train"] & texts["valid"]
