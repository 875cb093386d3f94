"""Vocabularies of the cache: learned once, and again when anything they depend on has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transduce import recipe
from transduce.data.cache import learned_tokens as cache

TEXTS = "".join(f"abc{n % 7} cab\tX{n % 5} Y\n" for n in range(40))


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[recipe.Data]:
    """Each call of `train_tokens`."""
    calls: list[recipe.Data] = []
    real = cache.train_tokens

    def counted(data: recipe.Data, *given: Any) -> Any:
        calls.append(data)
        return real(data, *given)

    monkeypatch.setattr(cache, "train_tokens", counted)
    return calls


def data_of(folder: Path, tokens: dict[str, Any]) -> recipe.Data:
    corpus = recipe.Columns(file="a.tsv")
    sides = recipe.TokensOfSides.model_validate(tokens)
    return recipe.Data(folder=str(folder), train=corpus, valid=corpus, tokens=sides)


@pytest.mark.parametrize(
    "tokens", [{"both": {"size": 30}}, {"source": {"size": 20}, "target": {"level": "symbol"}}]
)
def test_the_same_tokens_are_learned_once(
    tmp_path: Path, learned: list[recipe.Data], tokens: dict[str, Any]
) -> None:
    (tmp_path / "a.tsv").write_text(TEXTS)
    data = data_of(tmp_path, tokens)
    found = [cache.learned_tokens(data, print, tmp_path / "cache") for _ in range(2)]
    assert len(learned) == 1
    for one, again in zip(*found, strict=True):
        assert one.to_json() == again.to_json()
    assert (found[1][0] is found[1][1]) == ("both" in tokens)


def test_other_texts_or_settings_are_learned_anew(
    tmp_path: Path, learned: list[recipe.Data]
) -> None:
    (tmp_path / "a.tsv").write_text(TEXTS)
    kept = tmp_path / "cache"
    first = cache.learned_tokens(data_of(tmp_path, {"both": {"size": 30}}), print, kept)[0]
    smaller = cache.learned_tokens(data_of(tmp_path, {"both": {"size": 25}}), print, kept)[0]
    assert len(smaller) < len(first)
    (tmp_path / "a.tsv").write_text(TEXTS + "zzz\tZ\n")
    other = cache.learned_tokens(data_of(tmp_path, {"both": {"size": 30}}), print, kept)[0]
    assert other.unknowns(["z"]) == {}
    assert first.unknowns(["z"]) != {}
    assert len(learned) == 3


def test_a_tag_for_unknown_ones_is_learned_anew(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ab\tabs\tN;PL\n" * 5)
    both = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    corpus = recipe.Columns(file="a.tsv", tags=2)
    for share, tags in ((0.0, {"N", "PL"}), (0.1, {"N", "PL", "?"}), (0.2, {"N", "PL", "?"})):
        data = recipe.Data(
            folder=str(tmp_path), train=corpus, valid=corpus, tokens=both, unknown_tags=share
        )
        source, _ = cache.learned_tokens(data, print, tmp_path / "cache")
        assert set(source.tags) == tags


def test_tags_with_their_parts_are_learned_anew(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ab\tabs\tN;IN+ESS\n" * 5)
    both = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    corpus = recipe.Columns(file="a.tsv", tags=2)
    for split, tags in ((False, ["N", "IN+ESS"]), (True, ["N", "IN", "ESS"])):
        data = recipe.Data(
            folder=str(tmp_path), train=corpus, valid=corpus, tokens=both, split_tags=split
        )
        source, _ = cache.learned_tokens(data, print, tmp_path / "cache")
        assert set(source.tags) == set(tags)
        assert source.encode("<N> <IN+ESS> ab")[:-2] == [source.tags[tag] for tag in tags]


def test_a_damaged_cache_is_made_again_and_a_message_repeated(
    tmp_path: Path, learned: list[recipe.Data]
) -> None:
    (tmp_path / "a.tsv").write_text(TEXTS)
    data, kept = data_of(tmp_path, {"both": {"size": 30, "sample": 20}}), tmp_path / "cache"
    said: list[list[str]] = []
    for damage in ("", "{", '{"tokens": ["{}"], "said": []}', ""):
        if damage:
            (file,) = kept.glob("*.tokens.json")
            file.write_text(damage)
        said.append([])
        cache.learned_tokens(data, said[-1].append, kept)
    assert len(learned) == 3
    assert all("a sample of about 20 of the 40" in one for (one,) in said)


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, learned: list[recipe.Data]) -> None:
    (tmp_path / "a.tsv").write_text(TEXTS)
    (tmp_path / "file").write_text("")
    data = data_of(tmp_path, {"both": {"size": 30}})
    for _ in range(2):
        assert len(cache.learned_tokens(data, print, tmp_path / "file" / "cache")[0]) == 30
    assert len(learned) == 2
