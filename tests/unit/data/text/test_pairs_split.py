"""One file as train, valid and test; formats that the name does not say; CoNLL with few columns."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from transduce.data.text import pairs
from transduce.data.text.pairs import Pair, check_files, read_pairs
from transduce.errors import DataError, RecipeError
from transduce.recipe import Columns, Corpus, ParallelFiles, Recordings, Text, parse_recipe
from transduce.recipe.corpus import Where

PARTS = ("0-80%", "80-90%", "90-100%")


def some_pairs(folder: Path) -> None:
    lines = [f"source {n % 700}\ttarget {n}\tT{n % 3}\n" for n in range(1000)]
    (folder / "mine.tsv").write_text("".join(lines), encoding="utf-8")
    columns = [line.rstrip("\n").split("\t") for line in lines]
    for place, ending in enumerate(("src", "tgt")):
        text = "".join(f"{cells[place]}\n" for cells in columns)
        (folder / f"mine.{ending}").write_text(text, encoding="utf-8")


def pairs_of(corpus: Corpus, folder: Path) -> list[Pair]:
    return list(read_pairs(corpus, str(folder)))


def test_parts_are_disjoint_and_complete_and_no_source_is_in_two(tmp_path: Path) -> None:
    some_pairs(tmp_path)
    parts = [pairs_of(Columns(file="mine.tsv", split=part), tmp_path) for part in PARTS]
    lines = sorted(pair.line for part in parts for pair in part)
    assert lines == list(range(1, 1001))
    sources = [{pair.source for pair in part} for part in parts]
    assert sum(map(len, sources)) == len(sources[0] | sources[1] | sources[2])
    assert [round(len(part) / 100) for part in parts] == [8, 1, 1]
    for part in parts:  # in the order of the file
        assert [pair.line for pair in part] == sorted(pair.line for pair in part)


def test_parts_do_not_depend_on_machine_format_tags_or_limit(tmp_path: Path) -> None:
    some_pairs(tmp_path)
    plain = pairs_of(Columns(file="mine.tsv", split="90-100%"), tmp_path)
    # blake2b of the source, in 64 bits: the same everywhere, for ever.
    assert [pair.line for pair in plain[:5]] == FIRST_LINES
    tagged = pairs_of(Columns(file="mine.tsv", tags=2, split="90-100%"), tmp_path)
    files = ParallelFiles(source="mine.src", target="mine.tgt", split="90-100%")
    assert [pair.line for pair in tagged] == [pair.line for pair in plain]
    assert [pair.line for pair in pairs_of(files, tmp_path)] == [pair.line for pair in plain]
    few = Columns(file="mine.tsv", split="90-100%", limit=3)
    assert pairs_of(few, tmp_path) == plain[:3]


def test_blanks_and_forms_of_a_letter_do_not_matter(tmp_path: Path) -> None:
    """The same source in two parts would be trained on and tested."""
    forms = ("caf\u00e9 {}", "cafe\u0301 {}", "  caf\u00e9 {} ")
    lines = [f"{form.format(n)}\tt\n" for n in range(100) for form in forms]
    (tmp_path / "mine.tsv").write_text("".join(lines), encoding="utf-8")
    for part in PARTS:
        found = pairs_of(Columns(file="mine.tsv", header=False, split=part), tmp_path)
        numbers = [pair.line - 1 for pair in found]
        assert numbers == [
            3 * n + k for n in sorted({one // 3 for one in numbers}) for k in range(3)
        ]


FIRST_LINES = [13, 19, 22, 26, 38]


@pytest.mark.parametrize(
    "part", ["0.8", "80", "50-20%", "0-120%", "20-20%", "-5-10%", "a-b%", "0-80"]
)
def test_a_part_that_is_none_is_refused(part: str) -> None:
    corpus = f"{{file: a.tsv, split: '{part}'}}"
    with pytest.raises(RecipeError, match=r"split.*write a part as in 0-80%"):
        parse_recipe(f"data: {{train: {corpus}, valid: {{file: b.tsv}}}}", "my.yaml", Path())


def test_ends_may_have_decimals(tmp_path: Path) -> None:
    some_pairs(tmp_path)
    halves = [
        pairs_of(Columns(file="mine.tsv", split=part), tmp_path)
        for part in ("0-99.5%", "99.5-100%")
    ]
    assert len(halves[0]) + len(halves[1]) == 1000
    assert 0 < len(halves[1]) < 20


def test_parts_of_the_same_file_must_not_overlap() -> None:
    text = "data: {{train: {{file: a.tsv, split: 0-80%}}, valid: {{file: a.tsv{}}}}}"
    for other in ("", ", split: 70-90%", ", split: 0-80%"):
        with pytest.raises(RecipeError, match=r"overlaps data.train.*such as 0-80% and 80-100%"):
            parse_recipe(text.format(other), "my.yaml", Path())
    parse_recipe(text.format(", split: 80-100%"), "my.yaml", Path())
    alike = "data: {train: {file: a.tsv}, valid: {file: a.tsv}}"  # as it always was
    parse_recipe(alike, "my.yaml", Path())


@pytest.mark.parametrize(
    ("name", "kind"), [("mine.trn", "tsv"), ("mine.dev", "csv"), ("mine.txt", "jsonl")]
)
def test_the_format_may_be_said(name: str, kind: str, tmp_path: Path) -> None:
    content = {"tsv": "a\tb\n", "csv": "a,b\n", "jsonl": '{"source": "a", "target": "b"}\n'}[kind]
    (tmp_path / name).write_text(content, encoding="utf-8")
    corpus = Columns.model_validate({"file": name, "format": kind})
    check_files(corpus, str(tmp_path))
    assert [(pair.source, pair.target) for pair in pairs_of(corpus, tmp_path)] == [("a", "b")]
    with pytest.raises(DataError, match="say it, as in format: tsv"):
        check_files(Columns(file=name), str(tmp_path))


CONLL = """-DOCSTART- -X- O O

# id 7
EU NNP I-NP B-ORG
rejects VBZ I-VP O
# : I-NP O

Peter NNP I-NP B-PER
"""


def test_conll_has_a_word_and_its_tag_in_each_line(tmp_path: Path) -> None:
    for separator in (" ", "\t", "   "):
        text = f"\n\nAnna{separator}B-PER\nlaughs{separator}O\n\n\nOslo{separator}B-LOC"
        (tmp_path / "names.conll").write_text(text, encoding="utf-8")
        found = pairs_of(Columns(file="names.conll"), tmp_path)
        assert [(pair.line, pair.source, pair.target) for pair in found] == [
            (3, "Anna laughs", "B-PER O"),
            (7, "Oslo", "B-LOC"),
        ]


def test_conll_with_more_columns_comments_and_documents(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(CONLL, encoding="utf-8")
    corpus = Columns(file="names.txt", format="conll", target=3)
    found = pairs_of(corpus, tmp_path)
    assert [(pair.source, pair.target) for pair in found] == [
        ("EU rejects #", "B-ORG O O"),
        ("Peter", "B-PER"),
    ]
    with pytest.raises(DataError, match="CoNLL have no names, so there is no ner"):
        pairs_of(corpus.model_copy(update={"target": "ner"}), tmp_path)
    with pytest.raises(DataError, match=r"names.txt:4: the line has 4 columns.*column 4"):
        pairs_of(corpus.model_copy(update={"target": 4}), tmp_path)


def test_a_word_without_a_tag_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Anna B-PER\nlaughs\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.conll:2: the line has 1 column, but the first has 2"):
        pairs_of(Columns(file="a.conll"), tmp_path)
    (tmp_path / "b.conll").write_text("two words\tB-X\nof\tO\n", encoding="utf-8")
    assert pairs_of(Columns(file="b.conll"), tmp_path)[0].source == "two_words of"


def test_running_text_is_split_by_position_without_loss(tmp_path: Path) -> None:
    lines = [f"line {n} of the play\n" for n in range(500)]
    (tmp_path / "play.txt").write_text("".join(lines), encoding="utf-8")
    long = "".join(f"{n} words without an end " for n in range(2000))
    (tmp_path / "one.txt").write_text(long, encoding="utf-8")
    for name, whole in (("play.txt", "".join(lines)), ("one.txt", long)):
        parts = [
            "".join(pair.target for pair in pairs_of(Text(text=name, split=part), tmp_path))
            for part in PARTS
        ]
        assert "".join(parts) == whole
        assert [round(10 * len(part) / len(whole)) for part in parts] == [8, 1, 1]
    apart = [
        {
            pair.target
            for pair in pairs_of(Text(text="play.txt", lines="apart", split=part), tmp_path)
        }
        for part in PARTS
    ]
    assert sum(map(len, apart)) == len(apart[0] | apart[1] | apart[2]) == 500
    assert 30 < len(apart[2]) < 80


def test_recordings_are_split_by_their_path_in_the_table(tmp_path: Path) -> None:
    places = []
    for folder in ("here", "there"):  # the same on another machine
        (tmp_path / folder).mkdir()
        rows = "".join(f"clips/{n // 2}.wav\ttext {n}\n" for n in range(400))
        (tmp_path / folder / "list.tsv").write_text(rows, encoding="utf-8")
        parts = [
            pairs_of(Recordings(file="list.tsv", audio=0, target=1, split=part), tmp_path / folder)
            for part in PARTS
        ]
        assert sorted(pair.line for part in parts for pair in part) == list(range(1, 401))
        places.append([[pair.line for pair in part] for part in parts])
        assert all(line + 1 in places[-1][2] for line in places[-1][2] if line % 2)
    assert places[0] == places[1]
    assert places[0][2][:4] == [7, 8, 23, 24]


@pytest.mark.parametrize("corpus", ["text: a.txt", "file: a.tsv, audio: 0"])
def test_parts_of_texts_and_recordings_must_not_overlap(corpus: str) -> None:
    task = "task: continue\n" if "text" in corpus else ""
    text = f"{task}data: {{train: {{{corpus}, split: 0-80%}}, valid: {{{corpus}, split: 70-100%}}}}"
    with pytest.raises(RecipeError, match=r"overlaps data.train"):
        parse_recipe(text, "my.yaml", Path())


def test_rows_with_a_value_in_a_column(tmp_path: Path) -> None:
    """One table holds all parts; the column itself is not read as a side."""
    rows = [("a", "A", "train"), ("b", "B", " dev "), ("c", "C", "test"), ("d", "D", "train")]
    (tmp_path / "all.tsv").write_text(
        "word\tform\tpart\n" + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8"
    )
    (tmp_path / "all.jsonl").write_text(
        "".join(f'{{"word": "{a}", "form": "{b}", "part": "{c}"}}\n' for a, b, c in rows),
        encoding="utf-8",
    )
    for file in ("all.tsv", "all.jsonl"):
        for value, lines in (("train", "ad"), ("dev", "b"), (["dev", "test"], "bc")):
            corpus = Columns.model_validate(
                {
                    "file": file,
                    "source": "word",
                    "target": "form",
                    "where": {"column": "part", "value": value},
                }
            )
            assert "".join(pair.source for pair in pairs_of(corpus, tmp_path)) == lines
    numbered = {"file": "all.tsv", "header": True, "where": {"column": 2, "value": "test"}}
    assert [p.target for p in pairs_of(Columns.model_validate(numbered), tmp_path)] == ["C"]
    recordings = {
        "file": "all.tsv",
        "audio": "word",
        "target": "form",
        "where": {"column": "part", "value": "dev"},
    }
    assert [p.target for p in pairs_of(Recordings.model_validate(recordings), tmp_path)] == ["B"]
    both = [{"column": 2, "value": "train"}, {"column": 0, "value": ["c", "d"]}]
    found = pairs_of(Columns.model_validate({**numbered, "where": both}), tmp_path)
    assert [pair.target for pair in found] == ["D"]
    missing = {**numbered, "where": {"column": "nothing", "value": "x"}}
    with pytest.raises(DataError, match="there is no column nothing; there are: word, form, part"):
        pairs_of(Columns.model_validate(missing), tmp_path)


def test_parts_of_other_rows_do_not_overlap() -> None:
    text = """
data:
  train: {{file: all.tsv, where: {{column: part, value: train}}, split: 0-90%}}
  valid: {{file: all.tsv, where: {{column: part, value: train}}, split: 90-100%}}
  test: {{file: all.tsv, where: {{column: part, value: {}}}}}
"""
    assert parse_recipe(text.format("test"), "it", Path()).data.test is not None
    with pytest.raises(RecipeError, match=r"data.test.split is missing, which overlaps data.train"):
        parse_recipe(text.format("[test, train]"), "it", Path())


FORMS_OF_FILES: list[Corpus] = [
    Columns(file="mine.tsv"),
    Columns(file="mine.tsv", tags=2, where=Where(column=2, value=["T1", "T2"])),
    ParallelFiles(source="mine.src", target="mine.tgt"),
]


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are not found by their bytes, as in compressed files and without the C library."""
    monkeypatch.setattr(pairs, "finds_lines", lambda: False)


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize("corpus", FORMS_OF_FILES)
def test_the_second_part_of_a_file_is_found_without_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Corpus
) -> None:
    some_pairs(tmp_path)
    parts = [corpus.model_copy(update={"split": part}) for part in PARTS]
    fresh = []
    for part in parts:
        fresh.append(pairs_of(part, tmp_path))
        pairs._places_of_files.clear()
    assert all(fresh)
    pairs_of(parts[1].model_copy(update={"limit": 3}), tmp_path)  # these are not all
    assert pairs_of(parts[0], tmp_path) == fresh[0]
    monkeypatch.setattr(pairs, "place_in_corpus", None)
    assert [pairs_of(part, tmp_path) for part in parts] == fresh
    whole = corpus.model_copy(update={"split": "0-100%"})
    assert sorted(chain(*fresh), key=lambda pair: pair.line) == pairs_of(whole, tmp_path)


def test_parts_of_a_file_that_has_changed(tmp_path: Path) -> None:
    some_pairs(tmp_path)
    part = Columns(file="mine.tsv", header=False, split="80-90%")
    before = pairs_of(part, tmp_path)
    lines = (tmp_path / "mine.tsv").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "mine.tsv").write_text("".join(["more\tm\tT0\n", *lines]), encoding="utf-8")
    after = pairs_of(part, tmp_path)
    assert [pair.source for pair in after] == [pair.source for pair in before]
    assert [pair.line for pair in after] == [pair.line + 1 for pair in before]


@pytest.mark.usefixtures("row_by_row")
def test_of_a_few_rows_alone_the_parts_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_pairs(tmp_path)
    part = Columns(file="mine.tsv", split="80-90%")
    for most in (1500, 999):
        monkeypatch.setattr(pairs, "REMEMBERED", most)
        pairs._places_of_files.clear()
        found = [
            pairs_of(part.model_copy(update={"header": said}), tmp_path) for said in (False, None)
        ]
        assert found[0] == found[1]
        assert list(map(len, pairs._places_of_files.values())) == [1000] * (most // 1000)


def test_other_rows_of_a_file_have_places_of_their_own(tmp_path: Path) -> None:
    some_pairs(tmp_path)
    both = Columns(file="mine.tsv", split="0-50%")
    each = [Where(column=2, value=f"T{n}") for n in range(3)]
    found = [pairs_of(both.model_copy(update={"where": one}), tmp_path) for one in each]
    assert sorted(chain(*found), key=lambda pair: pair.line) == pairs_of(both, tmp_path)
