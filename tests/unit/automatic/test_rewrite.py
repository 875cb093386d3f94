"""Files in forms of which a table is written beside them."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from transduce.automatic import Found, inspect
from transduce.automatic.rewrite import PREFIX, named_as
from transduce.errors import DataError
from transduce.recipe import Columns

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in ("ana", "eri", "ilo") for c in "mnprst"]
PHONES = [" ".join(["B", "AE", "T", "D", "IY"][n % 5 :] + ["K"] * (1 + n % 3)) for n in range(72)]
PAIRS = [(f"the {word} runs", f"der {word[::-1]} läuft") for word in WORDS]


def found(path: Path, **hints: Any) -> Found:
    return inspect([path], hints)


def table(it: Found, part: str = "train") -> list[list[str]]:
    """The rows of the table that was written, with its header."""
    lines = (it.folder / it.corpora[part]["file"]).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines]


def tmx(pairs: list[tuple[str, str]], source: str = "en-US") -> str:
    units = "".join(
        f'<tu><prop>x</prop><tuv xml:lang="de-DE"><seg>{de}</seg></tuv><tuv xml:lang="en-US"><seg>'
        f'<bpt i="1">&lt;b></bpt>{en}<ept i="1">&lt;/b></ept></seg></tuv></tu>'
        for en, de in pairs
    )
    return (
        '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
        f'<tmx version="1.4"><header srclang="{source}"/><body>{units}</body></tmx>'
    )


@pytest.mark.parametrize(
    ("coding", "packed"), [("utf-8", False), ("utf-16", False), ("utf-8", True)]
)
def test_a_translation_memory(tmp_path: Path, coding: str, packed: bool) -> None:
    raw = tmx(PAIRS).encode(coding)
    path = tmp_path / ("my.train.tmx.gz" if packed else "my.train.tmx")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    dev = tmp_path / path.name.replace("train", "dev")
    dev.write_bytes(gzip.compress(raw) if packed else raw)
    it = found(path)
    assert (it.task, it.name, it.rows) == ("text to text", "my", 72)
    assert it.corpora["train"] == {
        "file": f"{PREFIX}my.train.tsv", "source": "en-us", "target": "de-de"
    }  # fmt: skip
    # The language of the header is the source; codes of inline markup are left out.
    assert table(it) == [["en-us", "de-de"], *map(list, PAIRS)]
    assert table(it, "valid") == table(it)
    assert it.seen[0].endswith("TMX with 72 units in en-us and de-de; written as "
                               f"{PREFIX}my.train.tsv.")  # fmt: skip


def test_the_source_language_of_a_translation_memory_is_first(tmp_path: Path) -> None:
    (tmp_path / "my.tmx").write_text(tmx(PAIRS, "de"), "utf-8")
    assert found(tmp_path / "my.tmx").corpora["train"]["source"] == "de-de"


@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_xliff(tmp_path: Path, version: str) -> None:
    unit, begin, end = {
        "1.2": (
            "trans-unit",
            '<file source-language="en" target-language="de"><body>',
            "</body></file>",
        ),
        "2.0": ("segment", "<file><unit>", "</unit></file>"),
    }[version]
    units = "".join(
        f'<{unit}><source>{en}<ph id="1"/></source><target>{de}</target></{unit}>'
        for en, de in PAIRS
    )
    names = ' srcLang="en" trgLang="de"' if version == "2.0" else ""
    text = f'<xliff version="{version}" xmlns="urn:x"{names}>{begin}{units}<{unit}><source>new'
    text += f"</source></{unit}>{end}</xliff>"
    (tmp_path / "my.xlf").write_text(text, "utf-8")
    it = found(tmp_path / "my.xlf")
    assert table(it) == [["en", "de"], *map(list, PAIRS), ["new", ""]]
    assert it.rows == 72  # what is not translated is left out


def test_a_workbook_of_excel(tmp_path: Path) -> None:
    pytest.importorskip("zipfile")
    cells = [("English", "Label"), *((en, "ab"[n % 2]) for n, (en, _) in enumerate(PAIRS))]
    shared = sorted({cell for row in cells for cell in row})
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    rows = "".join(
        f'<row r="{n}"><c r="A{n}" t="s"><v>{shared.index(a)}</v></c><c r="C{n}" t="inlineStr">'
        f'<is><r><t>{b}</t></r></is></c><c r="D{n}"/><c r="XFD{n}" s="1"/></row>'
        for n, (a, b) in enumerate(cells, start=1)
    )
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as archive:
        strings = "".join(f"<si><t>{text}</t><rPh><t>no</t></rPh></si>" for text in shared)
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{space}">{strings}</sst>')
        for number in (2, 10, 1):
            sheet = rows if number == 1 else "<row/>"
            archive.writestr(
                f"xl/worksheets/sheet{number}.xml",
                f'<worksheet xmlns="{space}"><sheetData>{sheet}</sheetData></worksheet>',
            )
    it = found(tmp_path / "book.xlsx")
    # Column B is empty; those after C have a format and nothing else.
    assert table(it) == [[a, "", b] for a, b in cells]
    assert it.task == "text to label"
    assert it.seen[1] == "Of its 3 sheets, the first is read."


def test_an_array_of_json(tmp_path: Path) -> None:
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    (tmp_path / "x.json").write_text("\ufeff" + json.dumps(rows, indent=1), "utf-8")
    it = found(tmp_path / "x.json")
    assert (it.rows, it.corpora["train"]["source"], it.corpora["train"]["target"]) == (
        72,
        "en",
        "de",
    )
    assert it.corpora["train"]["file"] == f"{PREFIX}x.jsonl"


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_in_an_object_of_json(tmp_path: Path, indent: int | None) -> None:
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    whole = {"version": 1, "tags": ["a"], "data": rows}
    (tmp_path / "my.json").write_text(json.dumps(whole, indent=indent), "utf-8")
    it = found(tmp_path / "my.json")
    assert it.seen[0].startswith(f"my.json: a JSON object, in its data an array of {len(rows)} obj")
    assert (it.rows, it.corpora["train"]["source"]) == (len(rows), "en")
    lines = "".join(f"{json.dumps(row)}\n\n" for row in rows)  # objects in lines are no such one
    (tmp_path / "lines.json").write_text(lines, "utf-8")
    assert found(tmp_path / "lines.json").corpora["train"]["file"] == "lines.json"


def test_what_is_wrong_is_said_of_the_file_that_was_given(tmp_path: Path) -> None:
    """Not of the table that is written beside it, unless a line of it is named."""
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    (tmp_path / "x.json").write_text(json.dumps(rows), "utf-8")
    with pytest.raises(DataError, match=r"^x\.json: there is no column fr; there are: en"):
        found(tmp_path / "x.json", source="fr")
    (tmp_path / "one.json").write_text(json.dumps([{"en": en} for en, _ in PAIRS]), "utf-8")
    with pytest.raises(DataError, match=r"^one\.json has one column; give a table with"):
        found(tmp_path / "one.json")
    table = tmp_path / "transduce-x.jsonl"
    said = "transduce-x.jsonl has no text; see transduce-x.jsonl:12"
    with pytest.raises(DataError) as raised, named_as(r"a\1.json", table):  # any name
        raise DataError(said)
    assert str(raised.value) == r"a\1.json has no text; see transduce-x.jsonl:12"


def test_labels_of_fasttext(tmp_path: Path) -> None:
    lines = [f"__label__{'ab'[n % 2]} {en}" for n, (en, _) in enumerate(PAIRS)]
    (tmp_path / "x.txt").write_text("\n".join(lines), "utf-8")
    it = found(tmp_path / "x.txt")
    assert (it.task, it.labels) == ("text to label", 2)
    assert table(it)[:2] == [["text", "label"], [PAIRS[0][0], "a"]]


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".txt"])
@pytest.mark.parametrize("form", ["utf-16", "old lines"])
def test_other_encodings_of_lines(tmp_path: Path, ending: str, form: str) -> None:
    separator = "," if ending == ".csv" else "\t"
    lines = [separator.join(row) for row in [("en", "de"), *PAIRS]]
    old = form == "old lines"
    raw = ("\r" if old else "\r\n").join(lines).encode("utf-8" if old else "utf-16")
    (tmp_path / f"x{ending}").write_bytes(raw)
    it = found(tmp_path / f"x{ending}")
    assert it.rows == 72
    written = (tmp_path / f"{PREFIX}x{ending}").read_text("utf-8").splitlines()
    assert written == lines


def test_columns_between_bars(tmp_path: Path) -> None:
    lines = [" ||| ".join(row) for row in PAIRS]
    (tmp_path / "x.txt").write_text("\n".join(lines), "utf-8")
    assert table(found(tmp_path / "x.txt")) == list(map(list, PAIRS))
    (tmp_path / "x.txt").write_text("\n".join([*lines, "no bars"] * 60), "utf-8")
    assert found(tmp_path / "x.txt").task == "language model"


CMU = ";;; # CMUdict\n" + "".join(
    f"{a.upper()}  {p}\n" + (f"{a.upper()}(2)  {p} S\n" if n % 9 == 0 else "")
    for n, (a, p) in enumerate(zip(WORDS, PHONES, strict=True))
)
LEXICONS = {
    "cmu": CMU,
    "cmu with tabs": CMU.replace("  ", "\t"),
    "cmu with remarks": "".join(f"{line} # place\n" for line in CMU.splitlines()[1:]),
    "kaldi": "!SIL SIL\n<UNK> SPN\n"
    + "".join(f"{a.upper()} {p}\n" for a, p in zip(WORDS, PHONES, strict=True)),
    "kaldi with probabilities": "<UNK> 1.0 SPN\n"
    + "".join(f"{a.upper()}\t0.7 {p}\n" for a, p in zip(WORDS, PHONES, strict=True)),
    "tabs": "".join(f"{a.upper()}\t\t{p}\n" for a, p in zip(WORDS, PHONES, strict=True)),
}


@pytest.mark.parametrize("name", LEXICONS)
@pytest.mark.parametrize("ending", [".txt", ".dict", ""])
def test_a_lexicon(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / f"lexicon{ending}"
    path.write_text(LEXICONS[name], "utf-8")
    it = found(path)
    assert it.task == "text to text"
    assert it.seen[0].startswith(f"{path.name}: a lexicon, a word and its phones in each line; ")
    header, *rows = table(it)
    assert header == ["word", "phones"]
    expected = {(word.upper(), phones) for word, phones in zip(WORDS, PHONES, strict=True)}
    if name.startswith("cmu"):
        expected |= {(WORDS[n].upper(), f"{PHONES[n]} S") for n in range(0, 72, 9)}
        assert it.alternatives == pytest.approx(8 / 72)
        assert f"{WORDS[0].upper()}(2) is another pronunciation of" in it.seen[1]
    assert {(word, phones) for word, phones in rows} == expected
    assert any("data.train.format=text" in sentence for sentence in it.seen)
    if "<UNK>" in LEXICONS[name]:
        assert "<UNK>" in next(one for one in it.seen if one.startswith("Left out"))


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{a}\t{b}\n" for a, b in PAIRS),  # a plain table
        "".join(f"{a}\t{p}\n" for a, p in zip(WORDS, PHONES, strict=True)),
        "".join(f"{a}\t{p}\tV;PST\n" for a, p in zip(WORDS, PHONES, strict=True)),
        "\n".join(f"{a}, {b} and more text of this kind" for a, b in PAIRS),  # running text
        "\n".join("a b c d"[n % 3 :] * 9 for n in range(99)),  # letters of a small alphabet
    ],
)
def test_what_is_no_lexicon(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_text(text, "utf-8")
    it = found(tmp_path / "x.txt")
    assert not any("lexicon" in sentence for sentence in it.seen)
    assert list(tmp_path.iterdir()) == [tmp_path / "x.txt"]


def test_what_one_entry_alone_has_stays(tmp_path: Path) -> None:
    """A number that is no probability, and a bracket that is no alternative."""
    odd = ["ODD(2) K AE", "HALF 0.5 K"]
    (tmp_path / "x.txt").write_text(LEXICONS["kaldi"] + "\n".join(odd), "utf-8")
    rows = table(found(tmp_path / "x.txt"))
    assert rows[-2:] == [["ODD(2)", "K AE"], ["HALF", "0.5 K"]]


def test_a_person_may_say_that_a_lexicon_is_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(LEXICONS["kaldi"] * 9, "utf-8")
    assert found(tmp_path / "x.txt", format="text").task == "language model"
    assert list(tmp_path.iterdir()) == [tmp_path / "x.txt"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "my.tmx").write_text(tmx(PAIRS), "utf-8")
    (tmp_path / f"{PREFIX}my.tsv").mkdir()
    with pytest.raises(
        DataError, match=r"my.tmx is TMX with 72 units .* of which a table is written"
    ):
        found(tmp_path / "my.tmx")


def test_what_was_written_is_not_taken_for_data_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.tmx").write_text(tmx(PAIRS), "utf-8")
    for _ in range(2):
        it = found(tmp_path)
        assert it.corpora["train"]["file"] == f"{PREFIX}train.tsv"
        assert Columns.model_validate(it.corpora["train"]).source == "en-us"
