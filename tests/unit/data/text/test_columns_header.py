"""Headers of TSV and CSV files where no column is named, and columns of row numbers or ids."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.batch_inference.inputs import read_table
from transduce.cli.input import read_lines_of, read_requests
from transduce.data.text.columns import IdWatch, first_line, read_columns
from transduce.data.text.files import Span
from transduce.data.text.pairs import ReadingCounts, read_pairs
from transduce.errors import DataError, TransduceWarning
from transduce.recipe import Columns, Recordings
from transduce.storage.positions import version_of

PAIRS = [["one", "un"], ["two", "deux"], ["three", "trois"]]
MAIL = [["ham" if n % 4 else "spam", f"the text of mail {n}"] for n in range(20)]


@pytest.mark.parametrize(
    ("first", "following", "header", "unsure"),
    [
        (["id", "french", "english"], [["1", "un", "one"], ["2", "deux", "two"]], True, False),
        (["source", "target"], PAIRS, True, False),
        (["Source Text", "target_text"], PAIRS, True, False),
        (["SentenceText", "Label1"], PAIRS, True, False),
        (["english", "french"], PAIRS, True, False),
        (["source", "target"], [], True, False),
        # A column of numbers begins with a word, whatever that is.
        (["Satz", "Stimmung"], [["gut", "1"], ["schlecht", "0"]], True, False),
        (["good", "1"], [["bad", "0"], ["worse", "0"]], False, False),
        (["Satz", "Stimmung"], [["gut", "1"]], False, False),  # one row tells nothing
        (["Satz", "Stimmung"], [["gut", "1"], ["schlecht", "mies"]], False, False),
        (["word", "Wort"], PAIRS, False, True),
        (["word", "split", "zzz"], [["a", "train", "c"], ["d", "test", "f"]], True, False),
        (["word", "zzz", "yyy"], [["a", "b", "c"], ["d", "e", "f"]], False, True),
        (["en", "de"], PAIRS, True, False),
        (["it", "was"], PAIRS, False, False),  # a code that is a word, alone
        (["name", "names", "N;PL"], [["dog", "dogs", "N;PL"]], False, True),  # an inflected form
        (["a dog runs", "un chien court"], PAIRS, False, False),
        (["text", "text"], PAIRS, False, True),  # two columns have two names
        (["so", "so"], PAIRS, False, False),
        # Row numbers have no name where pandas and R write them.
        (["", "text", "label"], [["0", "a", "x"], ["1", "b", "y"]], True, False),
        (["", "Satz", "Wort"], [["0", "a", "x"], ["1", "b", "y"]], True, False),
        (["", "3", "label"], [["0", "4", "x"], ["1", "5", "y"]], False, False),
        (["", "text", ""], [["0", "a", "x"], ["1", "b", "y"]], False, False),
        (["", "text", "label"], [["a", "a", "x"], ["b", "b", "y"]], False, False),
        (["", "text", "label"], [["0", "a", "x"]], False, False),
        (["text", ""], PAIRS, False, False),
        (["source", "2"], PAIRS, False, False),
        (["the words of the text and its source", "target"], PAIRS, False, True),
        (["source " * 6, "target"], PAIRS, False, False),  # too long for a name
        # Below is a label again and again, and none of them is v1.
        (["v1", "v2"], MAIL, True, False),
        (["v1", "v2"], MAIL[:16], False, True),  # spam four times
        (["spam", "v2"], MAIL, False, True),
        (["rare", "the text of another"], MAIL, False, False),
        (
            ["v1", "v2"],
            [[f"{label}{n}", text] for n, (label, text) in enumerate(MAIL)],
            False,
            True,
        ),
        (["v1", "v2"], [["ham", text] for _, text in MAIL], False, True),  # one label
        # Columns without a name at the end, as spreadsheets write them.
        (["v1", "v2", "", ""], [[*row, "", ""] for row in MAIL], True, False),
        (
            ["v1", "v2", "", ""],
            [[*row, "", "x" * (n < 2)] for n, row in enumerate(MAIL)],
            True,
            False,
        ),
        (["v1", "v2", ""], [[*row, "x" * (n < 3)] for n, row in enumerate(MAIL)], False, False),
        (["text", "label", ""], [["a", "x", ""], ["b", "y", ""]], True, False),
    ],
)
def test_what_the_first_line_is_taken_for(
    first: list[str], following: list[list[str]], header: bool, unsure: bool
) -> None:
    found = first_line(first, following)
    assert (found.is_header, found.unsure) == (header, unsure)


def read(
    folder: Path, content: str, **keys: object
) -> tuple[list[tuple[int, str, str]], list[str]]:
    name = str(keys.pop("name", "mine.csv"))
    (folder / name).write_text(content, encoding="utf-8")
    counts = ReadingCounts()
    corpus = Columns.model_validate({"file": name, **keys})
    pairs = read_pairs(corpus, str(folder), counts)
    return [(pair.line, pair.source, pair.target) for pair in pairs], counts.sentences()


CONTENT = "french,english\nun,one\ndeux,two\ntrois,three\n"
ROWS = [(2, "un", "one"), (3, "deux", "two"), (4, "trois", "three")]


def test_a_header_is_not_a_pair_and_that_is_said(tmp_path: Path) -> None:
    pairs, sentences = read(tmp_path, CONTENT)
    assert pairs == ROWS
    assert sentences == [
        "mine.csv:1: the first line (french, english) is read as a header; if it is data, write "
        "header: false"
    ]
    assert read(tmp_path, CONTENT.replace(",", "\t"), name="mine.tsv")[0] == ROWS


def test_what_the_user_says_of_the_header_counts(tmp_path: Path) -> None:
    assert read(tmp_path, CONTENT, header=False) == ([(1, "french", "english"), *ROWS], [])
    assert read(tmp_path, CONTENT, header=True) == (ROWS, [])
    assert read(tmp_path, CONTENT, source="french", target="english") == (ROWS, [])
    odd = CONTENT.replace("french,english", "Q,R")
    assert read(tmp_path, odd)[0][0] == (1, "Q", "R")
    assert read(tmp_path, odd, header=True) == (ROWS, [])
    with pytest.raises(
        DataError, match=r"header: false says .* but french is one; give its number"
    ):
        read(tmp_path, CONTENT, source="french", target=1, header=False)


def test_an_unclear_first_line_is_data_and_that_is_said(tmp_path: Path) -> None:
    pairs, (sentence,) = read(tmp_path, CONTENT.replace("english", "Engels"))
    assert len(pairs) == 4
    assert "(french, Engels) is read as data; if it is a header, write header: true" in sentence


def test_an_error_after_the_limit_is_not_met_by_looking_ahead(tmp_path: Path) -> None:
    broken = CONTENT + "only one column\n"
    assert read(tmp_path, broken, limit=3)[0] == ROWS
    with pytest.raises(DataError, match=r"mine\.csv:5: the line has 1 column"):
        read(tmp_path, broken)


def test_a_header_of_recordings_by_number(tmp_path: Path) -> None:
    (tmp_path / "list.tsv").write_text("path\ttext\na.wav\tone\nb.wav\ttwo\n", encoding="utf-8")
    corpus = Recordings(file="list.tsv", audio=0, target=1)
    assert [pair.target for pair in read_pairs(corpus, str(tmp_path))] == ["one", "two"]
    named = corpus.model_copy(update={"header": False})
    assert len(list(read_pairs(named, str(tmp_path)))) == 3


def test_row_numbers_as_sources_are_warned_of(tmp_path: Path) -> None:
    content = "id,french,english\n" + "".join(f"{n},mot {n % 3},word\n" for n in range(1, 9))
    pairs, sentences = read(tmp_path, content)
    assert pairs[0] == (2, "1", "mot 1")
    assert len(sentences) == 2
    assert "mine.csv: the source (column 0) is row numbers or ids, not text" in sentences[1]
    assert len(read(tmp_path, content, limit=5)[1]) == 2  # also where a limit ends it
    assert not read(tmp_path, content, source="french", target="english")[1]
    swapped = "".join(f"mot,{n}\n" for n in range(1, 9))
    assert "the target (column 1)" in read(tmp_path, swapped)[1][0]


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        ([str(n) for n in range(20)], True),
        ([f"utt-{n:03}" for n in range(7, 20)], True),
        (["123e4567-e89b-12d3-a456-426614174000"] * 4, True),
        ([str(n) for n in range(3)], False),  # too few to tell
        (["1", "0", "1", "1", "0", "1"], False),  # labels
        (["4 1 2", "3 3", "9", "1 2", "5"], False),
        ([str(n * n) for n in range(20)], False),
        ([str(n) for n in range(10)] * 2, True),  # two files joined
        ([str(n) for n in range(8)] + ["x", "y"], False),
        (["one", "two", "three", "four"], False),
    ],
)
def test_ids_count_upwards_or_are_uuids(texts: list[str], ids: bool) -> None:
    watch = IdWatch()
    for text in texts:
        watch.add(text)
    assert watch.found is ids


@given(st.lists(st.lists(st.text("ab12 ", max_size=4), min_size=2, max_size=2), max_size=5))
def test_no_line_is_lost_or_made(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    kept = [row for row in rows if row[0].strip() and row[1].strip()]
    content = "source\ttarget\n" + "".join("\t".join(row) + "\n" for row in rows)
    pairs, _ = read(folder, content, name="mine.tsv")
    assert [[source, target] for _, source, target in pairs] == kept


def test_run_score_and_batch_decide_as_training_does(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(CONTENT, encoding="utf-8")
    with pytest.warns(TransduceWarning, match=r"\(french, english\) is read as a header"):
        (request,) = read_requests(None, file, "", [], [])
    assert request["sources"] == ["un", "deux", "trois"]
    with pytest.warns(TransduceWarning, match="is read as a header"):
        assert list(read_lines_of(file, None)) == [
            (["un", "deux", "trois"], ["one", "two", "three"])
        ]
    with pytest.warns(
        TransduceWarning, match="is read as a header; if it is data, give --column 0"
    ):
        table = read_table([str(file)], None)
    assert (table.header, table.names, table.place) == ("french,english", ("french", "english"), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not read_table([str(file)], "0").header
        assert read_table([str(file)], "english").place == 1
        file.write_text("un,one\ndeux,two\n", encoding="utf-8")
        assert not read_table([str(file)], None).header
        assert next(read_requests(None, file, "", [], []))["sources"] == ["un", "deux"]


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_a_header_that_is_repeated_is_left_out_and_said(tmp_path: Path, kind: str) -> None:
    """As where files with headers were joined by cat; the second begins with a byte order mark."""
    separator = {"tsv": "\t", "csv": ","}[kind]
    part = [separator.join(row) for row in [["word", "phones"], ["cat", "k æ t"], ["dog", "d ɒ ɡ"]]]
    again = [f"\ufeff{part[0]}", *part[1:]]
    content = "\n".join([*part, *again, *part[:1], *part])
    path = tmp_path / f"joined.{kind}"
    path.write_text(content, "utf-8")
    for columns in ({"source": 0, "target": 1}, {"source": "word", "target": "phones"}):
        counts = ReadingCounts()
        pairs = list(read_pairs(Columns(file=path.name, **columns), str(tmp_path), counts))
        assert [(pair.source, pair.line) for pair in pairs] == [
            ("cat", 2), ("dog", 3), ("cat", 5), ("dog", 6), ("cat", 9), ("dog", 10)
        ]  # fmt: skip
        said = [note for note in counts.sentences() if "repeats the header (line 1)" in note]
        assert [note.split(" ")[0] for note in said] == [f"joined.{kind}:{n}:" for n in (4, 7, 8)]
    # A person who says that there is none means it.
    pairs = list(read_pairs(Columns(file=path.name, header=False), str(tmp_path)))
    assert len(pairs) == 10


def test_many_repeated_headers_are_said_in_few_sentences(tmp_path: Path) -> None:
    (tmp_path / "joined.tsv").write_text("word\tphones\ncat\tk æ t\n" * 10, "utf-8")
    counts = ReadingCounts()
    assert len(list(read_pairs(Columns(file="joined.tsv"), str(tmp_path), counts))) == 10
    said = counts.sentences()
    assert [note.split(" ")[0] for note in said[-4:-1]] == [f"joined.tsv:{n}:" for n in (3, 5, 7)]
    assert said[-1] == "joined.tsv: further lines repeat the header, and are left out"


def test_a_repeated_header_is_left_out_of_a_block(tmp_path: Path) -> None:
    """As streamed corpora are read, by position."""
    lines = ["word\tphones", *(f"w{n}\tp" for n in range(5)), "word\tphones", "last\tp"]
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    start = sum(len(line) + 1 for line in lines[:3])
    span = Span(start, path.stat().st_size, 4, len(lines) - 3, version_of(path))
    said: list[str] = []
    corpus = Columns(file="a.tsv", source="word", target="phones")
    rows = list(read_columns("a.tsv", str(tmp_path), corpus, said.append, span))
    assert rows == [(4, ["w2", "p"]), (5, ["w3", "p"]), (6, ["w4", "p"]), (8, ["last", "p"])]
    assert said == ["a.tsv:7: the line repeats the header (line 1), and is left out"]
