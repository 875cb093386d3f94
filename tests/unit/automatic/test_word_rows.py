"""Tables with a word and its tag in each row become tables of sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transduce.automatic import Machine, choose, inspect
from transduce.automatic.given import given_file, read_as_trained
from transduce.automatic.rewrite import PREFIX, SENTENCES, rewritten
from transduce.automatic.word_rows import LOOKED_AT, word_rows
from transduce.recipe import Columns

TAGS = {"the": "DET", "a": "DET", "runs": "VERB", "sees": "VERB", ".": "PUNCT"}
NOUNS = [f"{a}{b}" for a in ("dog", "cat", "bird", "fish") for b in ("", "let", "like", "ish", "o")]
Sentence = list[tuple[str, str, str]]


def sentence(number: int) -> Sentence:
    """Words, their parts of speech and whether they are names."""
    one, other = NOUNS[number % 20], NOUNS[7 * number % 20]
    words = ["the", one, "sees", "a", other, "."] if number % 3 else ["the", one, "runs", "."]
    return [(w, TAGS.get(w, "NOUN"), "B-ANIMAL" if w in NOUNS else "O") for w in words]


SAID = [sentence(number) for number in range(60)]


def numbered(sentences: list[Sentence], every: bool = True) -> str:
    rows = ["Sentence #,Word,POS,Tag"]
    for number, words in enumerate(sentences, start=1):
        for place, cells in enumerate(words):
            name = f"Sentence: {number}" if every or not place else ""
            rows.append(",".join([name, *cells]))
    return "\n".join([*rows, ""])


def joined(sentences: list[Sentence], column: int) -> list[str]:
    return [" ".join(cells[column] for cells in words) for words in sentences]


def read(folder: Path, name: str) -> list[list[str]]:
    lines = (folder / f"{PREFIX}{name}{SENTENCES}").read_text("utf-8").splitlines()
    return [list(column) for column in zip(*(line.split("\t") for line in lines), strict=True)]


def written(tmp_path: Path, name: str, text: str, **hints: Any) -> Any:
    (tmp_path / name).write_text(text, "utf-8")
    return inspect([tmp_path / name], hints)


@pytest.mark.parametrize("every", [True, False])
def test_a_column_tells_sentences_apart(tmp_path: Path, every: bool) -> None:
    it = written(tmp_path, "ner.csv", numbered(SAID, every))
    assert (it.task, it.name, it.rows) == ("words to tags", "ner", 60)
    # The last column is what such a table is there for; others may be asked for.
    corpus = it.corpora["train"]
    assert (corpus["source"], corpus["target"]) == ("Word", "Tag")
    assert read(tmp_path, "ner") == [
        ["Word", *joined(SAID, 0)], ["Tag", *joined(SAID, 2)], ["POS", *joined(SAID, 1)]
    ]  # fmt: skip
    assert "Sentence # tells sentences apart" in it.seen[0]
    # Most words are outside of an entity: whole entities are counted.
    metrics = choose(it, Machine("cpu")).get("metrics")
    assert metrics == ["entity_f1", "accuracy", "known", "unknown"]
    assert choose(it, Machine("cpu")).get("validation.metric") == "entity_f1"
    asked = written(tmp_path, "ner.csv", numbered(SAID, every), target="POS")
    assert choose(asked, Machine("cpu")).get("metrics")[0] == "accuracy"
    assert asked.corpora["train"]["target"] == "POS"
    assert asked.task == "words to tags"


def test_empty_lines_end_sentences(tmp_path: Path) -> None:
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag, _ in words) for words in SAID]
    it = written(tmp_path, "mine.tsv", "\n".join(blocks))
    assert it.task == "words to tags"
    words, tags = read(tmp_path, "mine")
    assert (words[1:], tags[1:]) == (joined(SAID, 0), joined(SAID, 1))
    assert "ends with an empty line" in it.seen[0]


def test_punctuation_ends_sentences_where_nothing_else_does(tmp_path: Path) -> None:
    rows = "".join(f"{word},{tag}\n" for words in SAID for word, tag, _ in words)
    it = written(tmp_path, "mine.csv", f"word,tag\n{rows}the,DET\n")
    assert it.task == "words to tags"
    assert read(tmp_path, "mine")[0] == ["word", *joined(SAID, 0), "the"]  # cut off
    assert "ends with . ! or ?" in it.seen[0]


def test_rows_with_gaps(tmp_path: Path) -> None:
    gap: Sentence = [("New York", "NOUN", "B-CITY"), ("", "X", "O"), ("runs", "", "O"), SAID[0][-1]]
    written(tmp_path, "ner.csv", numbered([*SAID, gap]))
    words, _, tags = read(tmp_path, "ner")
    assert (words[-1], tags[-1]) == ("New_York runs .", "NOUN _ PUNCT")
    assert len(words) == 62


def test_only_the_beginning_of_a_large_table_is_looked_at(tmp_path: Path) -> None:
    many = [sentence(number) for number in range(LOOKED_AT // 3)]
    it = written(tmp_path, "ner.csv", numbered(many))
    assert it.rows == len(many)
    assert read(tmp_path, "ner")[0][1:] == joined(many, 0)


LIST = "".join(f"w{n // 20}{'abcdefgh'[n % 8]}{n}\t{('DET', 'NOUN')[n % 2]}\n" for n in range(200))
MARKED = "".join(f"{'.' if n % 40 == 0 else f'w{n}a'}\t{('DE', 'NO')[n % 2]}\n" for n in range(400))
GROUPS = "".join(f"word{n}\tlanguage{n // 20}\n" for n in range(400))
TEXTS = "".join(
    f"{n // 5},the {NOUNS[n % 20]} runs .,{('good', 'bad')[n % 2]}\n" for n in range(99)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lexicon.tsv", LIST),  # each word once, no sentences
        ("marked.tsv", MARKED),  # punctuation, but each word once
        ("groups.tsv", GROUPS),  # words in groups with a number: labels, not sentences
        ("texts.csv", f"document,text,label\n{TEXTS}"),  # several words in a row
    ],
)
def test_other_tables_stay_as_they_are(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert rewritten(tmp_path / name, {}) is None


Row = list[str]


def spoiled(change: Callable[[int, Row], Row], count: int = 400) -> str:
    """A table of numbered sentences, with a comma for each end, in which rows are changed."""
    rows = [
        [f"{number}", word.replace(".", ","), tag]
        for number in range(count)
        for word, tag, _ in sentence(number)
    ][:count]
    return "".join("\t".join(change(n, row)) + "\n" for n, row in enumerate(rows))


@pytest.mark.parametrize(
    "change",
    [
        lambda n, row: [f"{n // 5 % 7}", *row[1:]],  # numbers that come again
        lambda n, row: [f"{n // 2}", *row[1:]],  # of two rows each
        lambda n, row: [chr(97 + n // 50) * 3, *row[1:]],  # no numbers, but groups with a name
        lambda n, row: [*row[:1], "New York" if n % 20 == 0 else row[1], row[2]],
        lambda n, row: [*row[:1], f"{n}" if n % 3 else row[1], row[2]],  # mostly numbers
        lambda n, row: [*row[:1], row[1].replace(",", "and"), row[2]],  # no punctuation
        lambda n, row: [*row[:2], f"tag-{row[1]}"],  # as many tags as words
        lambda n, row: [*row[:2], f"the {row[2]}"],  # tags with spaces
        lambda n, row: [*row[:2], "X"],  # one tag
        lambda n, row: [*row[:2], row[2] if n % 10 else ""],  # too many have none
        lambda n, row: [*row[:1], f"{row[1]}{n}" if n % 6 else ",", f"t{n % 350}x"],  # tags: 350
    ],
)
def test_what_speaks_against_it(tmp_path: Path, change: Callable[[int, Row], Row]) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text(spoiled(lambda n, row: row), "utf-8")
    assert word_rows(path, "tsv") is not None
    path.write_text(spoiled(change, 1200), "utf-8")
    assert word_rows(path, "tsv") is None


def test_few_rows_are_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "mine.tsv"
    for count, is_one in ((60, False), (61, True)):
        path.write_text(spoiled(lambda n, row: row, count), "utf-8")
        assert (word_rows(path, "tsv") is not None) == is_one


def test_a_person_may_say_that_each_row_is_an_example(tmp_path: Path) -> None:
    assert written(tmp_path, "ner.csv", numbered(SAID), task="tag").task == "words to tags"
    for task in ("classify", "transduce"):
        assert rewritten(tmp_path / "ner.csv", {"task": task}) is None


def test_parts_beside_it_may_be_short(tmp_path: Path) -> None:
    (tmp_path / "dev.csv").write_text(numbered(SAID[:3]), "utf-8")
    it = written(tmp_path, "train.csv", numbered(SAID))
    assert it.corpora["valid"]["file"] == f"{PREFIX}dev{SENTENCES}"
    assert read(tmp_path, "dev")[0][1:] == joined(SAID[:3], 0)


FILES = {
    "tags.csv": ("n,word,tag\n1,the,DET\n1,dog,NOUN\n1,runs,VERB\n2,a,DET\n2,cat,NOUN\n2,.,X\n", 2),
    "untagged.csv": ("n,word\n1,the\n1,dog\n1,runs\n2,a\n2,cat\n2,.\n", 2),
    "words.csv": ("word\nthe\ndog\nruns\n.\na\ncat\n", 2),
    "one.csv": ("word\nthe\ndog\nruns\n", 1),
    "lines.tsv": ("word\tnote\nthe dog runs\tx\na cat .\ty\n", 2),  # whole sentences in a column
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_model_of_such_a_table_is_given(tmp_path: Path, name: str) -> None:
    """It may be short, without tags, and one sentence."""
    trained = Columns(file=f"{PREFIX}train{SENTENCES}", source="word", target="tag")
    text, count = FILES[name]
    (tmp_path / name).write_text(text, "utf-8")
    given = given_file(tmp_path / name, trained)
    sources = [source for source, *_ in read_as_trained(given, trained)]
    assert len(sources) == count
    assert sources[0].split() == ["the", "dog", "runs", "."][: len(sources[0].split())]
    assert given.name == name


def test_the_header_of_a_model_is_known(tmp_path: Path) -> None:
    trained = Columns(file=f"{PREFIX}train{SENTENCES}", source="Wortform", target="tag")
    path = tmp_path / "new.csv"
    path.write_text("Wortform\nder\nHund\n", "utf-8")
    assert [*read_as_trained(given_file(path, trained), trained)] == [["der Hund"]]


def test_another_model_is_given_the_rows_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "ner.csv").write_text(numbered(SAID), "utf-8")
    trained = Columns(file="lexicon.csv", source="Word", target="POS")
    assert given_file(tmp_path / "ner.csv", trained).path.name == "ner.csv"
