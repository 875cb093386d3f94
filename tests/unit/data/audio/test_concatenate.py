"""Recordings one after the other: sound and text belong together, nothing exceeds the limits, and
an epoch is the same whenever it is asked for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import soundfile

from transduce.data.audio.concatenate import ConcatenatedCorpus, concatenating
from transduce.data.audio.corpus import AudioCorpus, encode_recordings
from transduce.data.batches.batch import batch_of_rows
from transduce.data.batches.bucketing import Batches
from transduce.data.tokens.augmentation import augmenting
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.recipe import Recipe, parse_recipe

RATE = 4000
WORDS = ("one", "two", "six", "ten")
RECIPE = """
data:
  train: {file: train.tsv, audio: path, target: text, group: speaker}
  valid: {file: train.tsv, audio: path, target: text}
  tokens: {both: {level: character}}
  max_length: 100
  concatenate: {share: 0.5, recordings: 3, pause: [0.05, 0.1]}
audio: {sample_rate: 4000, mel_bands: 16}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two speakers; every sample of a recording is its line number × 100."""
    lines = ["path\ttext\tspeaker"]
    for number in range(40):
        wave = np.full(RATE // 10 + 40 * (number % 3), 100 * (number + 1), np.int16)
        wave[::2] += 1  # not silent
        soundfile.write(tmp_path / f"{number}.wav", wave, RATE, subtype="PCM_16")
        lines.append(f"{number}.wav\t{WORDS[number % 4]}\t{'ab'[number % 2]}")
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def read(folder: Path, *overrides: str) -> tuple[Recipe, Tokens, AudioCorpus]:
    recipe = parse_recipe(RECIPE, "recipe", folder, overrides)
    assert recipe.audio is not None
    tokens = train_tokens(recipe.data)
    parts = (recipe.data.train, recipe.data, recipe.audio, *tokens, folder / "cache")
    return recipe, tokens[1], encode_recordings(*parts)[0]


def vary(
    recipe: Recipe, tokens: Tokens, corpus: AudioCorpus, seed: int = 1, capacity: float = math.inf
) -> ConcatenatedCorpus:
    assert recipe.audio is not None
    change = concatenating(recipe.data, recipe.audio, tokens, tokens, capacity)
    assert change is not None
    made = change(corpus, np.random.default_rng(seed))
    assert isinstance(made, ConcatenatedCorpus)
    return made


@pytest.mark.parametrize("level", ["character", "word", "{level: subword, size: 40}"])
def test_sound_and_text_of_each_row_are_those_of_its_recordings(folder: Path, level: str) -> None:
    tokens_key = level if level.startswith("{") else f"{{level: {level}}}"
    recipe, tokens, corpus = read(folder, f"data.tokens.both={tokens_key}")
    made = vary(recipe, tokens, corpus)
    assert len(made) == 40
    long = 0
    for row in range(40):
        parts = [int(part) for part in made.parts_NP[row] if part >= 0]
        assert parts[0] == row
        assert len({part % 2 for part in parts}) == 1  # of one speaker
        assert tokens.decode(made.target(row)) == " ".join(WORDS[part % 4] for part in parts)
        wave = made.wave(row)
        assert len(wave) == np.diff(made.source_offsets)[row]
        # The recordings in their order; a pause is as quiet as they are, and short.
        heard = [corpus.wave(part) for part in parts]
        assert np.array_equal(wave[: len(heard[0])], heard[0])
        assert np.array_equal(wave[len(wave) - len(heard[-1]) :], heard[-1])
        pauses = len(wave) - sum(map(len, heard))
        assert 0.05 * RATE * (len(parts) - 1) <= pauses <= 0.1 * RATE * (len(parts) - 1)
        long += len(parts) > 1
    assert 10 <= long <= 30
    rows = np.array([3, 4, 5])
    batch = batch_of_rows(made, rows, ends=True)
    for place, row in enumerate(rows):
        size = int(batch.source_lengths_B[place])
        assert np.array_equal(batch.source_BS[place, :size].numpy(), made.wave(row))
        assert batch.transcript_lengths_B is not None
        assert int(batch.transcript_lengths_B[place]) == len(made.target(row))


def test_no_row_is_longer_than_the_recipe_allows(folder: Path) -> None:
    recipe, tokens, corpus = read(folder, "data.concatenate={share: 1.0, recordings: 20}")
    made = vary(recipe, tokens, corpus)
    frames = made.lengths[0]
    assert frames.max() <= 100
    assert frames.mean() > 60  # it is what ends the rows
    # And a decoder may have positions for few tokens.
    assert vary(recipe, tokens, corpus, capacity=12).lengths[1].max() == 11


def test_an_epoch_is_the_same_when_it_is_resumed(folder: Path) -> None:
    recipe, tokens, corpus = read(folder)

    def batches() -> Batches:
        made = Batches(corpus, 300, seed=7)
        assert recipe.audio is not None
        made.vary = concatenating(recipe.data, recipe.audio, tokens, tokens, math.inf)
        return made

    updates = batches().updates(1)
    whole = [next(updates) for _ in range(30)]
    assert whole[29].position.epoch > 0
    again = next(batches().updates(1, start=whole[14].position))
    assert np.array_equal(again.batches[0].source_BS, whole[15].batches[0].source_BS)
    assert again.batches[0].rows == whole[15].batches[0].rows
    epochs = [vary(recipe, tokens, corpus, seed).parts_NP for seed in (1, 2)]
    assert not np.array_equal(*epochs)


def test_subwords_are_split_in_texts_and_not_in_samples(folder: Path) -> None:
    """Before recordings are concatenated: BPE-dropout of audio."""
    recipe, tokens, corpus = read(
        folder, "data.tokens.both={level: subword, size: 40, bpe_dropout: 0.9}"
    )
    assert recipe.audio is not None
    last = concatenating(recipe.data, recipe.audio, tokens, tokens, math.inf)
    change = augmenting(recipe.data, tokens, tokens, last)
    assert change is not None
    made = change(corpus, np.random.default_rng(1))
    assert isinstance(made, ConcatenatedCorpus)
    for row in range(40):
        parts = [int(part) for part in made.parts_NP[row] if part >= 0]
        said = " ".join(WORDS[part % 4] for part in parts)
        assert tokens.decode(made.target(row)) == said
        assert np.array_equal(made.wave(row)[:400], corpus.wave(row)[:400])
    assert len(made.recordings.transcript_ids) > 1.5 * len(corpus.transcript_ids)


def test_a_separator_that_the_vocabulary_cannot_have_is_said(folder: Path) -> None:
    recipe, tokens, corpus = read(folder, "data.tokens.both.level=word")
    recipe = parse_recipe(RECIPE, "recipe", folder, ['data.concatenate.separator="-"'])
    with pytest.raises(DataError, match=r"separator is '-', which cannot stand between two texts"):
        vary(recipe, tokens, corpus)
    recipe, tokens, corpus = read(folder, 'data.concatenate.separator="-"')
    assert "-" in tokens.decode(vary(recipe, tokens, corpus).target_ids)
