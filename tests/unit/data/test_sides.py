"""Tokens of the two sides: each its own, or one for both, learnt or loaded."""

from __future__ import annotations

from pathlib import Path

from transduce import recipe
from transduce.data.sides import train_tokens


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
