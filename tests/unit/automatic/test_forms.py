"""Files of translators, subtitles, SGML and OpenDocument."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.automatic import Found, inspect
from transduce.automatic.forms import Cue, paired_cues, read_subtitles
from transduce.cli.input import read_lines_of
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.evaluation.items import given_files
from transduce.recipe import ParallelFiles

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in ("ana", "eri", "ilo") for c in "mnprst"]
PAIRS = [(f"the {word} runs", f"der {word[::-1]} läuft") for word in WORDS]


def found(*paths: Path) -> Found:
    return inspect(paths)


def table(it: Found, part: str = "train") -> list[tuple[str, ...]]:
    lines = (it.folder / it.corpora[part]["file"]).read_text("utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


PO = r'''# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: a.c:1
#, c-format
msgctxt "menu"
msgid ""
"Say \"%s\"\n"
"twice"
msgstr "Sage „%s“ zweimal"
#, fuzzy
msgid "unsure"
msgstr "unsicher"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
#, fuzzy
#~ msgid "old"
#~ msgstr "alt"

msgid "empty"
msgstr ""
msgid "near"
msgstr "nah"
'''  # fmt: skip


def test_messages_of_gettext(tmp_path: Path) -> None:
    more = "".join(f'\nmsgid "{en}"\nmsgstr "{de}"\n' for en, de in PAIRS)
    (tmp_path / "my.train.po").write_text(PO + more, "utf-8")
    (tmp_path / "my.dev.po").write_text(PO, "utf-8")
    it = found(tmp_path / "my.train.po")
    assert (it.task, it.name) == ("text to text", "my")
    first = [
        ("source", "target"),
        ('Say "%s" twice', "Sage „%s“ zweimal"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("near", "nah"),
    ]
    assert table(it) == [*first, *PAIRS]
    assert table(it, "valid") == first
    said = " ".join(it.seen)
    assert "gettext's messages, 76 translated" in said
    assert "1 are not translated" in said
    assert "1 are marked as fuzzy" in said
    (tmp_path / "one.po").write_text('msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n' + more, "utf-8")
    assert table(found(tmp_path / "one.po"))[1] == ("b", "c")  # one form: that of many
    (tmp_path / "bad.po").write_text('msgid "a"\nmsgstr b\n', "utf-8")
    with pytest.raises(DataError, match=r"bad\.po:2: this is no line of a \.po file"):
        found(tmp_path / "bad.po")
    (tmp_path / "none.po").write_text('msgid "a"\nmsgstr ""\n', "utf-8")
    with pytest.raises(DataError, match=r"no translated messages \(1 are empty, 0 fuzzy\)"):
        found(tmp_path / "none.po")


def test_a_flag_is_of_the_message_below_it(tmp_path: Path) -> None:
    """Also where no empty line separates messages, as some programs write them."""
    fuzzy = '#, fuzzy\n#, c-format\n#| msgid "old"\nmsgid "unsure"\nmsgstr "unsicher"\n'
    kept = "".join(f'#: a.c\nmsgid "{en}"\nmsgstr "{de}"\n' for en, de in PAIRS)
    (tmp_path / "close.po").write_text(fuzzy + kept + fuzzy + "#, c-format\n" + kept, "utf-8")
    it = found(tmp_path / "close.po")
    assert table(it)[1:] == [*PAIRS, *PAIRS]
    assert "2 are marked as fuzzy" in " ".join(it.seen)


def time(milliseconds: int, sign: str = ",") -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{sign}{rest:03}"


def srt(texts: list[str], shift: int = 0) -> str:
    return "".join(
        f"{n + 1}\r\n{time(3000 * n + shift)} --> {time(3000 * n + 2000 + shift)}\r\n{text}\r\n\r\n"
        for n, text in enumerate(texts)
    )


def test_subtitles_in_two_languages(tmp_path: Path) -> None:
    sources, targets = ([pair[side] for pair in PAIRS] for side in (0, 1))
    (tmp_path / "film.en.srt").write_text(srt([f"<i>{one}</i>" for one in sources]), "utf-8")
    cues = "\n\n".join(
        f"{time(3000 * n + 400, '.')[3:]} --> {time(3000 * n + 2200, '.')} align:start\n"
        f"<v Ann>{text} &amp; geht</v>"
        for n, text in enumerate(targets)
        if n != 5  # one is not translated: the others are still paired
    )
    text = f"WEBVTT - A film\n\nNOTE nothing\n\n{cues}\n"
    (tmp_path / "film.de.vtt").write_bytes(text.encode("utf-16"))
    it = found(tmp_path / "film.en.srt", tmp_path / "film.de.vtt")
    assert (it.task, it.name) == ("text to text", "film-en-de")
    assert it.corpora["train"]["file"] == "transduce-film-en-de.tsv"
    expected = [(en, f"{de} & geht") for n, (en, de) in enumerate(PAIRS) if n != 5]
    assert table(it)[1:] == expected
    assert "71 pairs shown at the same time" in it.seen[0]
    assert it.seen[1].startswith("1 have none in the other language")


def test_subtitles_and_segments_are_evaluated_in_the_pairs_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their lines do not belong together: one has more of them than the other."""
    (tmp_path / "film.en.srt").write_text(srt(["one", "two", "three", "four"]), "utf-8")
    split = "".join(srt(["eins", "ZWEI", "drei"], 100)).replace("ZWEI", "zwei\r\nZwei")
    (tmp_path / "film.de.srt").write_text(split, "utf-8")
    (tmp_path / "test.en.sgm").write_text(sgml(["one", "two", "three"], "src"), "utf-8")
    (tmp_path / "test.de.sgm").write_text(sgml(["eins", "zwei Zwei", "drei"], "ref", 2), "utf-8")
    train = ParallelFiles(source="train.en", target="train.de")
    data = SimpleNamespace(train=train, valid=None, test=None)
    model: Any = SimpleNamespace(recipe=SimpleNamespace(data=data, audio=None))
    pairs = [("one", "eins"), ("two", "zwei Zwei"), ("three", "drei")]
    for name, expected in (
        ("film.{}.srt", pairs),
        ("test.{}.sgm", [("first", "first"), *pairs[:2]]),
    ):
        files = [tmp_path / name.format(language) for language in ("en", "de")]
        corpus, named = given_files(model, files[0], files[1])
        assert named == files[1]  # the results are of that name
        assert [pair[:2] for pair in read_pairs(corpus, None)] == expected
        groups = read_lines_of(files[0], files[1])
        assert [pair for group in groups for pair in zip(*group, strict=True)] == expected
    said = capsys.readouterr().err
    assert "film.en.srt and film.de.srt: subtitles, 4 and 3 in all, 3 pairs" in said
    # One of subtitles and one of lines belong together line by line, as any other.
    (tmp_path / "film.txt").write_text("one\ntwo\nthree\nfour\n", "utf-8")
    corpus, _ = given_files(model, tmp_path / "film.en.srt", tmp_path / "film.txt")
    texts = ("one", "two", "three", "four")
    assert [pair[:2] for pair in read_pairs(corpus, None)] == [(one, one) for one in texts]


def test_files_of_other_parts_are_written_for_training_alone(tmp_path: Path) -> None:
    files = [tmp_path / f"{part}.{one}.srt" for part in ("train", "dev") for one in ("en", "de")]
    for number, file in enumerate(files):
        file.write_text(srt([pair[number % 2] for pair in PAIRS]), "utf-8")
    next(read_lines_of(*files[:2]))
    tables = ["transduce-train-en-de.tsv"]
    assert [one.name for one in tmp_path.glob("transduce-*")] == tables
    assert found(*files[:2]).corpora.keys() == {"train", "valid"}
    written = sorted(one.name for one in tmp_path.glob("transduce-*"))
    assert written == ["transduce-dev-en-de.tsv", *tables]


def test_subtitles_alone_are_running_text(tmp_path: Path) -> None:
    texts = [en for en, _ in PAIRS] * 3
    (tmp_path / "film.srt.gz").write_bytes(gzip.compress(srt(texts).encode()))
    it = found(tmp_path / "film.srt.gz")
    assert it.task == "language model"
    assert (tmp_path / it.corpora["train"]["text"]).read_text().splitlines() == texts
    (tmp_path / "none.srt").write_text("Hello\n", "utf-8")
    with pytest.raises(DataError, match=r"none\.srt has no subtitles, with times such as"):
        found(tmp_path / "none.srt")


def test_cues_that_are_shown_together(tmp_path: Path) -> None:
    one = [Cue(0, 1000, "a"), Cue(1000, 2000, "b"), Cue(3000, 4000, "c"), Cue(9000, 9500, "d")]
    other = [Cue(100, 2100, "AB"), Cue(2900, 3400, "C"), Cue(3500, 4100, "c"), Cue(7000, 8000, "X")]
    assert paired_cues(one, other) == ([("a b", "AB"), ("c", "C c")], 2)
    late = [Cue(cue.start + 600, cue.end + 600, cue.text) for cue in one]
    assert paired_cues(one[2:], late[2:]) == ([], 4)
    # Each belongs to the last of the other language, not to the first.
    one = [Cue(0, 2000, "a"), Cue(2000, 3000, "b")]
    other = [Cue(100, 900, "A"), Cue(900, 2900, "B")]
    assert paired_cues(one, other) == ([("a b", "A B")], 0)
    # A cue without an empty line before it, and one without a text.
    text = "1\n00:00:01,000 --> 00:00:02,000\none\n2\n00:00:03,000 --> 00:00:04,000\n{\\an8}two\n"
    (tmp_path / "x.srt").write_text(f"{text}\n3\n00:00:05,000 --> 00:00:06,000\n\n", "utf-8")
    cues = [Cue(1000, 2000, "one"), Cue(3000, 4000, "two")]
    assert read_subtitles(tmp_path / "x.srt") == cues
    first, second = (f"{time(at)} --> {time(at + 1000)}\n" for at in (1000, 3000))
    (tmp_path / "x.srt").write_text(f"{second}two\n\n{first}one\n", "utf-8")
    assert read_subtitles(tmp_path / "x.srt") == cues  # in the order of their times


def sgml(texts: list[str], kind: str, skipped: int | None = None) -> str:
    segments = "\n".join(
        f'<seg id="{n}"> {text.replace("&", "&amp;")} </seg>'
        for n, text in enumerate(texts)
        if n != skipped
    )
    first = '<seg id="0">first</seg>'
    return (
        f'<{kind} setid="x" srclang="any"><DOC sysid="ref" docid="a">{first}</DOC>'
        f'<doc docid="b" genre="news">\n<p>\n{segments}\n</p></doc></{kind}>'
    )


def test_sgml_of_wmt(tmp_path: Path) -> None:
    sources, targets = [f"{en} & on" for en, _ in PAIRS], [de for _, de in PAIRS]
    (tmp_path / "news-src.en.sgm").write_text(sgml(sources, "srcset"), "utf-8")
    (tmp_path / "news-ref.de.sgm").write_text(sgml(targets, "refset", skipped=3), "utf-8")
    it = found(tmp_path / "news-src.en.sgm", tmp_path / "news-ref.de.sgm")
    expected = [pair for n, pair in enumerate(zip(sources, targets, strict=True)) if n != 3]
    assert table(it)[1:] == [("first", "first"), *expected]
    assert it.seen[1] == "1 are in one file alone, and are left out."
    (tmp_path / "news-ref.de.sgm").write_text(sgml([*targets, "more", "more"], "refset"), "utf-8")
    it = found(tmp_path / "news-src.en.sgm", tmp_path / "news-ref.de.sgm")
    assert it.seen[1] == "2 are in one file alone, and are left out."
    (tmp_path / "empty.sgm").write_text("<srcset></srcset>", "utf-8")
    with pytest.raises(DataError, match=r"empty\.sgm has no segments, as in <seg id"):
        found(tmp_path / "empty.sgm")


def ods(path: Path, rows: list[str]) -> Path:
    spaces = "".join(
        f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    sheets = f"<table:table>{''.join(rows)}</table:table><table:table/>"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("content.xml", f"<office:document-content{spaces}>{sheets}"
                         "</office:document-content>")  # fmt: skip
    return path


def test_a_sheet_of_open_document(tmp_path: Path) -> None:
    rows = [
        f"<table:table-row><table:table-cell><text:p>{en}</text:p></table:table-cell>"
        f"<table:table-cell><office:annotation><text:p>a note</text:p></office:annotation>"
        f"<text:p><office:annotation>another</office:annotation>"
        f"{de}<text:s/>und<text:span> so</text:span></text:p></table:table-cell>"
        '<table:table-cell table:number-columns-repeated="16382"/></table:table-row>'
        for en, de in [("English", "German"), *PAIRS]
    ]
    rows.append(
        '<table:table-row table:number-rows-repeated="1000000">'
        '<table:table-cell table:number-columns-repeated="16384"/></table:table-row>'
    )
    rows.append(
        '<table:table-row table:number-rows-repeated="2">'
        '<table:table-cell table:number-columns-repeated="2"><text:p>same</text:p>'
        "</table:table-cell></table:table-row>"
    )
    it = found(ods(tmp_path / "my.ods", rows))
    own = [(en, f"{de} und so") for en, de in [("English", "German"), *PAIRS]]
    assert table(it) == [*own, ("same", "same"), ("same", "same")]  # without the blank cells
    assert it.seen[0].startswith("my.ods: a sheet of OpenDocument with 75 rows; written as")
    assert it.seen[1] == "Of its 2 sheets, the first is read."
    (tmp_path / "bad.ods").write_text("x", "utf-8")
    with pytest.raises(DataError, match=r"bad\.ods is not a sheet that can be read"):
        found(tmp_path / "bad.ods")
