"""Concatenation of recordings in training: some rows are several recordings, one after the other,
with a pause between them, and their texts together.

A model of single words then reads sequences of them. Which recordings follow one another is drawn
anew in each epoch, from the random generator of that epoch, so that a resumed run goes on exactly.

    N recordings   P parts of a row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.corpus import AudioCorpus, Wave
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.subword_regularization import Vary
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import DataError
from transduce.recipe import Audio, Data
from transduce.recipe.data import Concatenate

NONE = -1  # where a row has no further part


@dataclass(frozen=True, kw_only=True)
class ConcatenatedCorpus(AudioCorpus):
    """Rows of recordings of another corpus, one after the other."""

    recordings: AudioCorpus
    parts_NP: NDArray[np.int64]
    """The recordings of each row, in their order; NONE where there are no more."""
    pauses_NP: NDArray[np.int64]
    """Samples of pause before each of them."""
    seeds_N: NDArray[np.int64]
    """From which the pauses of a row are drawn."""

    def source(self, row: int) -> NDArray[Any]:
        parts = [int(part) for part in self.parts_NP[row] if part != NONE]
        waves = [self.recordings.wave(part) for part in parts]
        if len(waves) == 1:
            return waves[0]
        random = np.random.Generator(np.random.PCG64(int(self.seeds_N[row])))
        made = [waves[0]]
        for before, wave, pause in zip(waves, waves[1:], self.pauses_NP[row, 1:], strict=False):
            made += [_pause(before, int(pause), self.hop, random), wave]
        return np.concatenate(made)


def _pause(before: Wave, samples: int, hop: int, random: np.random.Generator) -> Wave:
    """Noise as quiet as the quietest frame of the recording before it: a microphone is never
    without any, and features of digital silence are unlike all others."""
    frames = before[: len(before) // hop * hop].reshape(-1, hop).astype(np.float32)
    level = float(np.sqrt(np.square(frames).mean(axis=1).min())) if len(frames) else 0.0
    return np.rint(level * random.standard_normal(samples)).astype(np.int16)


def concatenating(
    data: Data, audio: Audio, source_tokens: Tokens, target_tokens: Tokens, capacity: float
) -> Vary | None:
    """The function that concatenates recordings of a corpus in each epoch; None if the recipe does
    not ask for it.

    capacity: tokens that the decoder has positions for. Raises DataError where texts of this
    vocabulary cannot be concatenated.
    """
    settings = data.concatenate
    if settings is None:
        return None
    separators = {
        "target": _separator(target_tokens, settings.separator),
        "transcript": _separator(source_tokens, settings.separator),
    }
    frames = data.max_length
    if audio.pad_to is not None:
        frames = min(frames, int(audio.pad_to * audio.frames_a_second))

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        assert isinstance(encoded, AudioCorpus)
        limits = (frames, min(data.max_length, capacity - 1))
        return concatenated(encoded, settings, separators, limits, random)

    return vary


def _separator(tokens: Tokens, text: str) -> list[int]:
    """The tokens between two texts. Subwords, words and symbols have none: the space belongs to
    them."""
    ids = tokens.encode(text) if tokens.level in ("character", "byte") else []
    every = tokens.encode(tokens.decode(range(len(tokens))))  # a text, whatever it says
    alone, together = tokens.decode(every), tokens.decode([*every, *ids, *every])
    if UNKNOWN in ids or together != f"{alone}{text}{alone}":
        raise DataError(
            f"data.concatenate.separator is {text!r}, which cannot stand between two texts of this "
            f"vocabulary (level: {tokens.level}): subwords, words and symbols need a space, and "
            f"characters need those of the separator in the vocabulary (train.start.tokens: extend "
            f"adds them)"
        )
    return ids


def concatenated(
    corpus: AudioCorpus,
    settings: Concatenate,
    separators: dict[str, list[int]],
    limits: tuple[float, float],
    random: np.random.Generator,
) -> ConcatenatedCorpus:
    """A corpus of as many rows: a share of them goes on with other recordings.

    These have the same group (speaker) and the same tags. separators: of target and transcript.
    limits: the most frames and tokens of a row; what would exceed them is left out, and so is all
    that would follow.
    """
    n, most = len(corpus), settings.recordings
    counts_N = np.where(random.random(n) < settings.share, random.integers(2, most + 1, n), 1)
    parts_NP = _drawn(_kinds(corpus), most, random)
    low, high = (round(seconds * corpus.rate) for seconds in settings.pause)
    pauses_NP = random.integers(low, high + 1, (n, most))
    pauses_NP[:, 0] = 0
    seeds_N = random.integers(1 << 62, size=n)
    there_NP = np.arange(most) < counts_N[:, None]
    samples_N = np.diff(corpus.source_offsets)
    there_NP &= np.cumsum(samples_N[parts_NP] + pauses_NP, axis=1) <= limits[0] * corpus.hop
    sides = {
        "target": (corpus.target_ids, corpus.target_offsets),
        "transcript": (corpus.transcript_ids, corpus.transcript_offsets),
    }
    for side, (_, offsets) in sides.items():
        lengths_NP = np.diff(offsets)[parts_NP] + len(separators[side])
        there_NP &= np.cumsum(lengths_NP, axis=1) - len(separators[side]) <= limits[1]
    there_NP[:, 0] = True  # a recording itself stays
    sizes_N = ((samples_N[parts_NP] + pauses_NP) * there_NP).sum(axis=1)
    parts_NP = np.where(there_NP, parts_NP, NONE)
    texts: dict[str, NDArray[Any]] = {}
    for side, (ids, offsets) in sides.items():
        found = _joined(ids, offsets, parts_NP, separators[side])
        texts[f"{side}_ids"], texts[f"{side}_offsets"] = found
    return ConcatenatedCorpus(
        **{**vars(corpus), **texts, "source_offsets": np.concatenate([[0], np.cumsum(sizes_N)])},
        recordings=corpus,
        parts_NP=parts_NP,
        pauses_NP=pauses_NP,
        seeds_N=seeds_N,
    )


def _kinds(corpus: AudioCorpus) -> NDArray[np.int64]:
    """A number for each recording, the same for those of one group with the same tags."""
    columns = [np.zeros((len(corpus), 1), np.int64)]
    columns += [] if corpus.groups is None else [corpus.groups[:, None]]
    columns += [] if corpus.tags is None else [corpus.tags.astype(np.int64)]
    kinds: NDArray[np.int64]
    _, kinds = np.unique(np.concatenate(columns, axis=1), axis=0, return_inverse=True)
    return kinds.reshape(-1)


def _drawn(kind_N: NDArray[np.int64], most: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Each row and others of its kind after it: [N, most]."""
    by_kind = np.argsort(kind_N, kind="stable")
    sizes = np.bincount(kind_N)
    starts = np.cumsum(sizes) - sizes
    draws = random.random((len(kind_N), most))
    places = starts[kind_N, None] + (draws * sizes[kind_N, None]).astype(np.int64)
    parts_NP: NDArray[np.int64] = by_kind[places]
    parts_NP[:, 0] = np.arange(len(kind_N))
    return parts_NP


def _joined(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    parts_NP: NDArray[np.int64],
    separator: Sequence[int],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The ids of each row's parts one after the other, with the separator between, and offsets."""
    row, place = np.nonzero(parts_NP != NONE)
    part = parts_NP[row, place]
    before = np.where(place > 0, len(separator), 0)
    lengths = before + np.diff(offsets)[part]
    ends = np.cumsum(lengths)
    # The place of each id in its part, from the first of the separator on.
    within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    from_ids = within - np.repeat(before, lengths)
    source = np.repeat(offsets[part], lengths) + from_ids
    found = np.empty(len(within), np.int32)
    inside = from_ids >= 0
    found[inside] = ids[source[inside]]
    found[~inside] = np.asarray([*separator, 0], np.int32)[within[~inside]]
    sizes = np.bincount(row, lengths, len(parts_NP)).astype(np.int64)
    return found, np.concatenate([[0], np.cumsum(sizes)])
