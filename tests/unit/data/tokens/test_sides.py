"""Tokens of the two sides: each its own, or one for both, learnt or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transduce import recipe
from transduce.data.tokens import sides as of_sides
from transduce.data.tokens.sides import most_pairs, train_tokens


def test_the_recipe_says_whose_tokens_are_whose(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("abc\tX Y\ncab\tY Z\n")
    corpus = recipe.Columns(file="a.tsv")
    sides = recipe.TokensOfSides(
        source=recipe.Tokens(level="character"), target=recipe.Tokens(level="symbol")
    )
    data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus, tokens=sides)
    source, target = train_tokens(data)
    assert (source.level, len(source), target.level, len(target)) == ("character", 7, "symbol", 7)
    shared = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    one, same = train_tokens(data.model_copy(update={"tokens": shared}))
    assert one is same
    assert one.unknowns(["abcXYZ "]) == {}
    one.save(tmp_path / "mine.json")
    loaded = recipe.TokensOfSides(both=recipe.Tokens(file="mine.json"))
    assert train_tokens(data.model_copy(update={"tokens": loaded}))[0].to_json() == one.to_json()


@pytest.mark.parametrize("sides", ["both", "apart"])
def test_subwords_of_a_large_corpus_are_learnt_from_a_sample(tmp_path: Path, sides: str) -> None:
    """Drawn evenly from all files, told once; the same each time."""
    for part in "ab":
        lines = "".join(f"{part}{n:03d}\t{part.upper()}{n:03d}\n" for n in range(400))
        (tmp_path / f"{part}.tsv").write_text(lines)
    corpus = recipe.Mixture(of=[recipe.Columns(file="a.tsv"), recipe.Columns(file="b.tsv")])

    def learnt(sample: int) -> tuple[list[str], list[str]]:
        tokens = recipe.Tokens(size=2000, sample=sample)
        both = {"both": tokens} if sides == "both" else {"source": tokens, "target": tokens}
        data = recipe.Data(
            folder=str(tmp_path), train=corpus, valid=corpus, tokens=recipe.TokensOfSides(**both)
        )
        reported: list[str] = []
        found = train_tokens(data, reported.append)
        again = train_tokens(data)
        assert [one.to_json() for one in found] == [one.to_json() for one in again]
        return [name for one in found for name in one.names()], reported

    names, reported = learnt(800)
    assert reported == []
    # Where all is seen, every word becomes a token of its own.
    whole = {f"▁{part}{n:03d}" for part in "abAB" for n in range(400)}
    assert whole <= set(names)
    names, reported = learnt(200)
    assert reported == [
        "Subwords are learned from a sample of about 200 of the 800 training pairs; "
        "the key sample of data.tokens sets it."
    ]
    for part in "abAB":
        seen = [int(name[2:]) for name in set(names) & whole if name[1] == part]
        assert 70 < len(seen) < 130
        assert 70 < sum(number < 200 for number in seen) * 2 < 130


def test_letters_and_labels_are_learnt_from_all(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{chr(0x4E00 + n)}\tL{n}\n" for n in range(300)))
    corpus = recipe.Columns(file="a.tsv")
    kinds = {"source": "character", "target": "label"}
    sides = {side: recipe.Tokens(level=level, sample=10) for side, level in kinds.items()}
    tokens = recipe.TokensOfSides(**sides)
    data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus, tokens=tokens)
    assert [len(one) for one in train_tokens(data, lambda reported: pytest.fail(reported))] == [
        304,
        304,
    ]


def test_where_lines_are_few_no_pair_is_read_to_count_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tsv").write_text("abc\tX Y\nbca\tX\ncab\tY Z")
    corpus = recipe.Mixture(of=[recipe.Columns(file="a.tsv")] * 2)
    assert most_pairs(corpus, str(tmp_path)) == 6
    assert most_pairs(recipe.Text(text="a.tsv"), str(tmp_path)) == float("inf")
    (tmp_path / "damaged.tsv.gz").write_text("not compressed")
    assert most_pairs(recipe.Columns(file="damaged.tsv.gz"), str(tmp_path)) == float("inf")
    reads, real = [0], of_sides.read_pairs

    def counted(*given: Any) -> Any:
        reads[0] += 1
        return real(*given)

    monkeypatch.setattr(of_sides, "read_pairs", counted)
    found = []
    for sample in (6, 5):
        reads[0] = 0
        tokens = recipe.TokensOfSides(both=recipe.Tokens(size=20, sample=sample))
        data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus, tokens=tokens)
        train_tokens(data)
        found.append(reads[0])
    assert found[1] == found[0] + 1


def test_a_sample_does_not_depend_on_the_order_of_the_corpus(tmp_path: Path) -> None:
    lines = [f"word{n:03d} x\tWORD{n:03d}\n" for n in range(300)]
    tokens = recipe.TokensOfSides(both=recipe.Tokens(size=400, sample=60))
    learnt = []
    for name, some in (("forward", lines), ("backward", lines[::-1])):
        (tmp_path / f"{name}.tsv").write_text("".join(some))
        corpus = recipe.Columns(file=f"{name}.tsv")
        data = recipe.Data(folder=str(tmp_path), train=corpus, valid=corpus, tokens=tokens)
        learnt.append(train_tokens(data)[0].to_json())
    assert learnt[0] == learnt[1]


def test_a_sample_of_a_part_of_a_text_is_drawn_from_that_part(tmp_path: Path) -> None:
    """The hash that draws it is another than the one that cuts a corpus into parts."""
    (tmp_path / "a.txt").write_text("".join(f"word{n:04d}\n" for n in range(2000)))
    train, valid = (
        recipe.Text(text="a.txt", lines="apart", split=part) for part in ("20-100%", "0-20%")
    )
    tokens = recipe.TokensOfSides(both=recipe.Tokens(size=300, sample=160))
    data = recipe.Data(folder=str(tmp_path), tokens=tokens, train=train, valid=valid)
    drawn = of_sides.hashed(of_sides.read_all(data), 0.1, is_audio=False)
    assert 120 < sum(1 for _ in drawn) < 200
    assert len(train_tokens(data)[1]) > 20


def test_lines_do_not_tell_how_many_rows_parquet_has(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
    table = pyarrow.table({"source": ["a"] * 5000, "target": ["b"] * 5000})
    parquet.write_table(table, tmp_path / "a.parquet")
    corpus = recipe.Columns(file="a.parquet")
    data = recipe.Data(
        folder=str(tmp_path),
        train=corpus,
        valid=corpus,
        tokens=recipe.TokensOfSides(both=recipe.Tokens(size=20, sample=4999)),
    )
    assert most_pairs(corpus, str(tmp_path)) >= 5000
    said: list[str] = []
    train_tokens(data, said.append)
    assert [sentence for sentence in said if "about 4,999 of the 5,000" in sentence]
