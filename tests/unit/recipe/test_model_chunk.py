"""What model.encoder.chunk needs, said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_sounds import audio_recipe
from transduce.errors import RecipeError
from transduce.recipe import Chunk, parse_recipe

CHUNK = "model.encoder.chunk={ms: 320}"
GLOBAL = "audio.normalize=global"


def test_a_chunk_has_defaults() -> None:
    recipe = audio_recipe(CHUNK, GLOBAL)
    assert getattr(recipe.model.encoder, "chunk", None) == Chunk(ms=320)
    assert recipe.audio is not None
    assert recipe.audio.state_ms == 40


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ([CHUNK], "set audio.normalize to global"),
        ([CHUNK, GLOBAL, "model.ctc_weight=0"], "set model.ctc_weight"),
        ([GLOBAL, "model.encoder.chunk={ms: 100}"], "chunk.ms has 100 ms.*multiple of the 40 ms"),
        ([GLOBAL, "model.encoder.chunk={trained: [80, 100]}"], "chunk.trained has 100 ms"),
        ([GLOBAL, "model.encoder.chunk={trained: [80, 40]}"], "shortest first"),
        ([GLOBAL, "model.encoder.chunk={left_chunks: 0}"], "left_chunks"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        audio_recipe(*overrides)


def test_text_has_no_chunks() -> None:
    text = "data: {train: {file: a.tsv}, valid: {file: b.tsv}}\nmodel: {encoder: {chunk: {}}}"
    with pytest.raises(RecipeError, match="only speech"):
        parse_recipe(text, "recipe", Path())
