"""From a recipe to what a run needs: what is told, whose tokens are whose, what is refused."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tones import RATE, tones
from transduce.data.batches.bucketing import Position
from transduce.data.text import pairs
from transduce.data.tokens.sides import train_tokens
from transduce.errors import DataError
from transduce.recipe import Recipe, parse_recipe
from transduce.training.distributed.processes import Processes
from transduce.training.prepare import Prepared, prepare


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recipe_in(folder: Path, text: str, rows: str) -> Recipe:
    (folder / "pairs.tsv").write_text(rows, "utf-8")
    return parse_recipe(text, "recipe", folder)


def prepared(recipe: Recipe, folder: Path | None = None) -> tuple[Prepared, list[str]]:
    reported: list[str] = []
    return prepare(recipe, folder, reported.append, Processes()), reported


PAIRS = """
data:
  train: {file: pairs.tsv}
  valid: {file: pairs.tsv}
  tokens: {source: {level: character}, target: {level: symbol}}
  max_length: 5
"""


def test_what_is_told_of_pairs(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, PAIRS, "abc\tX Y\n\tX\nabcabc\tY\nb\tZ\n")
    found, reported = prepared(recipe)
    counts = "2 pairs, 4 source and 3 target tokens."
    skipped = [
        "  warning: 1 pair with an empty source skipped (pairs.tsv:2)",
        "  warning: 1 pair longer than 5 tokens skipped (pairs.tsv:3)",
    ]
    assert reported == [
        "Vocabulary: 7 source tokens, 7 target tokens.",
        f"Training: {counts}",
        *skipped,
        f"Validation: {counts}",
        *skipped,
    ]
    assert [item.source for item in found.items] == ["abc", "abcabc", "b"]


def test_a_resumed_run_has_the_tokens_of_its_folder(tmp_path: Path) -> None:
    old = recipe_in(tmp_path, PAIRS, "abcde\tX\n")
    for side, tokens in zip(("source", "target"), train_tokens(old.data), strict=True):
        tokens.save(tmp_path / f"{side}.tokens.json")
    new = recipe_in(tmp_path, PAIRS, "ab\tX Y Z\n")
    learnt, _ = prepared(new)
    assert (len(learnt.source_tokens), len(learnt.target_tokens)) == (6, 7)
    resumed, _ = prepared(new, tmp_path)
    assert (len(resumed.source_tokens), len(resumed.target_tokens)) == (9, 5)
    shutil.copy(tmp_path / "source.tokens.json", tmp_path / "target.tokens.json")
    both = PAIRS.replace("{source: {level: character}, target: {level: symbol}}", "{both: {}}")
    shared, _ = prepared(recipe_in(tmp_path, both, "ab\tX Y Z\n"), tmp_path)
    assert shared.source_tokens is shared.target_tokens


LABELS = """
task: classify
data:
  train: {file: pairs.tsv}
  valid: {file: pairs.tsv}
  tokens: {source: {level: character}, target: {level: label}}
model: {encoder: {kind: pooled}}
validation: {metric: accuracy}
metrics: [accuracy]
"""


def test_two_labels_can_be_told_apart_and_one_cannot(tmp_path: Path) -> None:
    found, _ = prepared(recipe_in(tmp_path, LABELS, "a\tgood\nb\tbad\n"))
    assert len(found.target_tokens) == 6
    with pytest.raises(DataError, match=r"pairs\.tsv has only one label"):
        prepared(recipe_in(tmp_path, LABELS, "a\tgood\nb\tgood\n"))


def test_labels_that_training_has_not_are_named(tmp_path: Path) -> None:
    recipe = recipe_in(
        tmp_path,
        LABELS.replace("valid: {file: pairs.tsv}", "valid: {file: v.tsv}"),
        "a\tgood\nb\tbad\n",
    )
    new = [f"new{n}" for n in range(11)]
    (tmp_path / "v.tsv").write_text("a\tgood\n" + "".join(f"b\t{label}\n" for label in new[:10]))
    assert prepared(recipe)[1][-1].endswith(f"count as wrong: {', '.join(new[:10])}")
    (tmp_path / "v.tsv").write_text("a\tgood\n" + "".join(f"b\t{label}\n" for label in new))
    assert prepared(recipe)[1][-1].endswith(f"count as wrong: {', '.join(new[:10])}, …")


def test_what_is_told_of_text(tmp_path: Path) -> None:
    text = "task: language_modeling\ndata:\n  train: {text: t.txt, lines: apart}\n"
    text += "  valid: {text: t.txt, lines: apart}\n  tokens: {both: {level: character}}\n"
    text += "metrics: [perplexity]\n"
    (tmp_path / "t.txt").write_text("abc\nba\n")
    found, reported = prepared(parse_recipe(text, "recipe", tmp_path))
    assert reported == [
        "Vocabulary: 7 tokens.",
        "Training: 2 lines, 5 tokens.",
        "Validation: 2 lines, 5 tokens.",
    ]
    assert found.given is not None


SOUND = """
data:
  train: {file: pairs.tsv, audio: path}
  valid: {file: pairs.tsv, audio: path}
  tokens: {both: {level: character}}
  max_length: 3000
audio: {sample_rate: 4000, mel_bands: 16}
"""


def test_what_is_told_of_sound(tmp_path: Path) -> None:
    for name, repeats in (("a", 6), ("b", 12), ("long", 300)):
        soundfile.write(tmp_path / f"{name}.wav", np.tile(tones("a"), repeats), RATE)
    rows = "path\ttext\na.wav\tabc\nb.wav\tde\nlong.wav\ta\n"
    seconds = 18 * len(tones("a")) / RATE
    found, reported = prepared(recipe_in(tmp_path, SOUND, rows))
    minutes = f"{seconds / 60:,.1f}"
    assert reported[:2] == [
        "Vocabulary: 9 tokens.",
        f"Training: 2 recordings, {minutes} minutes and 5 target tokens.",
    ]
    assert "1 pair longer than 3000 frames skipped, and with them 17% of the text" in reported[2]
    assert [item.references for item in found.items] == [["abc"], ["de"]]
    assert found.valid_sources == [item.source for item in found.items]
    apart = SOUND.replace(
        "both: {level: character}", "source: {level: character}, target: {level: character}"
    )
    reported = prepared(recipe_in(tmp_path, apart, rows))[1]
    assert reported[0] == "Vocabulary: 9 transcript tokens, 9 target tokens."


def test_a_limit_of_validation_takes_a_sample_of_all(tmp_path: Path) -> None:
    """The first of a sorted file are all alike. Runs of any seed are measured on the same items."""
    rows = "".join(f"{letter}\tX Y\n" for letter in "abcdefghijklmnopqrstuvwxyz")
    chosen = []
    for more in ("validation: {limit: 8}", "seed: 5\nvalidation: {limit: 8}"):
        found, _ = prepared(recipe_in(tmp_path, f"{PAIRS}{more}\n", rows))
        chosen.append([item.source for item in found.items])
    assert chosen[0] == chosen[1] == sorted(chosen[0])
    assert len(set(chosen[0])) == 8
    assert chosen[0][-1] > "m"
    for limit in (26, 27, "null"):
        more = f"validation: {{limit: {limit}}}"
        found, _ = prepared(recipe_in(tmp_path, f"{PAIRS}{more}\n", rows))
        assert len(found.items) == 26


def test_labels_are_counted_as_labels(tmp_path: Path) -> None:
    _, reported = prepared(recipe_in(tmp_path, LABELS, "a\tgood\nb\tbad\nc\tso so\n"))
    assert reported[0] == "Vocabulary: 7 source tokens, 3 labels."


INFLECTION = """
data:
  train: {file: pairs.tsv, tags: 2}
  valid: {file: pairs.tsv, tags: 2}
  tokens: {both: {level: character}}
  hallucination: {share: 1.0}
  shuffle_tags: true
train: {batch_tokens: 16}
"""


def test_hallucinated_pairs_are_for_training_alone(tmp_path: Path) -> None:
    """And a run that goes on reads the same ones."""
    rows = "walk\twalked\tV;PST\ntalk\ttalked\tV;PST\njumping\tjumped\tV;PST\n"
    found, reported = prepared(recipe_in(tmp_path, INFLECTION, rows))
    assert "  100% of the pairs have a stem; 100% of these get another in an epoch." in reported
    tokens = found.target_tokens

    def targets(count: int, start: Position | None = None) -> tuple[list[str], Position]:
        texts, position = [], Position()
        for update in islice(found.train.updates(1, start), count):
            for batch in update.batches:
                assert batch.target_BT is not None
                texts += [tokens.decode(row) for row in batch.target_BT]
            position = update.position
        return texts, position

    (first, position), (whole, _) = targets(2), targets(12)
    assert len(set(whole)) > 8
    assert all(text.endswith("ed") for text in whole)
    assert first + targets(10, position)[0] == whole
    kept = [tokens.decode(found.valid.target(row)) for row in range(3)]
    assert kept == ["walked", "talked", "jumped"]


def test_a_validation_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large file of which it is a small part, each reading takes as long as the first."""
    text = PAIRS.replace("valid: {file: pairs.tsv}", "valid: {file: v.tsv}")
    recipe = recipe_in(tmp_path, text, "abc\tX Y\nb\tZ\n")
    (tmp_path / "v.tsv").write_text("a\tX\nabcabc\tY\nbc\tZ\n\tX\n", "utf-8")
    opened: list[str] = []
    whole = pairs.read_columns

    def read(name: str, *rest: Any) -> Any:
        opened.append(name)
        return whole(name, *rest)

    monkeypatch.setattr(pairs, "read_columns", read)
    for times in (1, 2):  # the second time its tokens are in the cache
        found, reported = prepared(recipe)
        assert opened.count("v.tsv") == times
        assert found.valid_sources == ["a", "bc"]
        assert [item.references for item in found.items] == [["X"], ["Y"], ["Z"]]
        assert reported[-2:] == [
            "  warning: 1 pair with an empty source skipped (v.tsv:4)",
            "  warning: 1 pair longer than 5 tokens skipped (v.tsv:2)",
        ]
