"""Parts of a corpus, found by the bytes of its lines: the same rows as one by one."""

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text import files, pairs
from transduce.data.text.pairs import Pair, ReadingCounts, read_pairs
from transduce.data.text.split import LinesOfPart, finds_lines, in_part
from transduce.errors import DataError
from transduce.recipe import Columns, ParallelFiles

pytestmark = pytest.mark.skipif(not finds_lines(), reason="there is no C library")

HALVES = ("0-50%", "50-100%")
TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]), max_size=300),
    min_size=1,
    max_size=8,
)


def found(part: str, lines: list[str], column: int = -1, columns: int = 1) -> set[int]:
    count, numbers, texts = LinesOfPart(part, column, columns)(
        "".join(f"{line}\n" for line in lines).encode("utf-8")
    )
    assert count == len(lines)
    assert texts == [lines[number].removesuffix("\r") for number in numbers]
    return set(numbers)


def undecided(texts: list[str]) -> list[str]:
    """Those that are found in both halves."""
    first, second = (found(half, texts) for half in HALVES)
    assert first | second == set(range(len(texts)))
    return [texts[number] for number in sorted(first & second)]


@given(TEXTS, st.integers(0, 2))
def test_every_line_of_the_part_is_found(texts: list[str], column: int) -> None:
    inside = in_part("30-45%")
    right = {number for number, text in enumerate(texts) if inside(text)}
    assert right <= found("30-45%", texts)
    rows = ["\t".join([*("x" * column), text, "y", "z"]) for text in texts]
    assert right <= found("30-45%", rows, column, column + 2)
    if not undecided(texts):
        assert right == found("30-45%", texts)


def test_what_is_common_is_decided() -> None:
    texts = [
        "",
        " two  spaces ",
        "Zürich, Łódź",
        "Привет, мир",
        "Καλημέρα",
        "こんにちは世界",
        "안녕하세요",
    ]
    texts += ["x" * size for size in (127, 128, 129, 1000)]
    assert undecided(texts) == []


def test_spaces_around_a_source_do_not_count() -> None:
    texts = [f"{space}{n}{space}" for n in range(9) for space in " \v\f\r\x1c\x1d\x1e\x1f"]
    for half in HALVES:
        inside = in_part(half)
        assert found(half, texts) == {number for number, text in enumerate(texts) if inside(text)}
        assert found(half, [f"x\t{text}\ty" for text in texts], 1, 3) == found(half, texts)


def test_no_character_that_can_change_is_taken_as_it_is() -> None:
    everything = [chr(code) for code in range(0x80, 0x30000) if not 0xD800 <= code < 0xE000]
    # Second characters of those that are composed of two.
    composed = map(unicodedata.decomposition, everything)
    seconds = {
        chr(int(one.split()[1], 16)) for one in composed if one.count(" ") == 1 and "<" not in one
    }
    changing = [
        one
        for one in everything
        if one.isspace()
        or unicodedata.combining(one)
        or unicodedata.normalize("NFC", one) != one
        or one in seconds
    ]
    assert len(changing) > 1000
    assert undecided([f"a{one}" for one in changing]) == [f"a{one}" for one in changing]


def test_a_line_with_too_few_columns_is_found_for_its_reader() -> None:
    texts = ["one", "one\ttwo", "one\ttwo\tthree"]
    for half in HALVES:
        assert {0, 1} <= found(half, texts, 1, 3)
        assert found(half, texts, 0, 1) == found(half, ["one"] * 3)


ROWS = 4000  # several blocks of a file


def rows(number: int) -> list[str]:
    source = ("Wort", "Übung", "слово", "e\u0301te\u0301", "नमस्ते")[number % 5]
    return [f"{source} {number} {'x' * 60}", f"word {number}", f"T{number % 3}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = ["\t".join(["source", "target", "tag"]), *("\t".join(rows(n)) for n in range(ROWS))]
    table.insert(3000, table[0])  # files were joined
    (tmp_path / "mine.tsv").write_bytes("\r\n".join(["\ufeff" + table[0], *table[1:], ""]).encode())
    (tmp_path / "bare.tsv").write_text("".join(f"{line}\n" for line in table[1:2999]), "utf-8")
    for column, name in enumerate(("mine.src", "mine.tgt")):
        text = "\n".join(rows(n)[column] for n in range(ROWS))  # the last line without its end
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def read(corpus: Any, folder: Path) -> tuple[list[Pair], ReadingCounts]:
    counts = ReadingCounts()
    return list(read_pairs(corpus, str(folder), counts)), counts


CORPORA = [
    Columns(file="mine.tsv", source="source", target="target"),
    Columns(file="mine.tsv", source="target", target="source", tags="tag"),
    Columns.model_validate({"file": "mine.tsv", "where": {"column": "tag", "value": ["T1", "T2"]}}),
    Columns(file="bare.tsv", source=1, target=0),
    Columns(file=["mine.tsv", "bare.tsv"]),
    ParallelFiles(source="mine.src", target="mine.tgt"),
]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "finds_lines", lambda: False)
        yield patch


@pytest.mark.parametrize("corpus", CORPORA)
def test_files_are_read_as_row_by_row(
    folder: Path, one_by_one: pytest.MonkeyPatch, corpus: Any
) -> None:
    assert (folder / "mine.src").stat().st_size > 2 * files.BLOCK
    parts = [corpus.model_copy(update={"split": part}) for part in ("0-3%", "3-98%", "98-100%")]
    parts.append(parts[1].model_copy(update={"limit": 7}))
    expected = [read(part, folder) for part in parts]
    one_by_one.undo()
    quickly = [read(part, folder) for part in parts]
    assert [some for some, _ in quickly] == [some for some, _ in expected]
    assert all(some for some, _ in quickly)
    assert [counts for _, counts in quickly] == [counts for _, counts in expected]


def test_few_lines_are_looked_at_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def inside(part: str) -> Any:
        right = in_part(part)
        return lambda text: looked.append(text) or right(text)

    monkeypatch.setattr(pairs, "in_part", inside)
    read(Columns(file="bare.tsv", source=1, target=0, split="99-100%"), folder)
    first = files.BLOCK // len("\t".join(rows(0)))  # those of the first block
    assert len(looked) < first + 0.02 * ROWS


BROKEN = {
    "a column is missing": ("bare.tsv", lambda lines: [*lines[:-5], b"alone", *lines[-5:]]),
    "not UTF-8": ("bare.tsv", lambda lines: [*lines[:-5], b"caf\xe9\tcoffee", *lines[-5:]]),
    "more targets": ("mine.tgt", lambda lines: [*lines, b"one more"]),
    "fewer targets": ("mine.tgt", lambda lines: lines[:-900]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_said_alike(
    folder: Path, one_by_one: pytest.MonkeyPatch, kind: str
) -> None:
    name, broken = BROKEN[kind]
    path = folder / name
    path.write_bytes(b"\n".join(broken(path.read_bytes().rstrip(b"\n").split(b"\n"))) + b"\n")
    corpus = next(one for one in CORPORA[::-1] if name in str(one))
    sentences = []
    for _ in range(2):
        with pytest.raises(DataError) as raised:
            read(corpus.model_copy(update={"split": "99-100%"}), folder)
        sentences.append(str(raised.value))
        one_by_one.undo()
    assert sentences[0] == sentences[1]
