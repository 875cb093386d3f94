"""Alignment by a model without CTC, such as Whisper: the recording is transcribed with word
timestamps, and the words that were heard are matched with those of the text.

The matching is the alignment of least cost between two sequences of words, where words that are
spelt alike may match: a line that is not read costs its words, and so does speech without text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.alignment.align import MIN_CONFIDENCE, UNTOLD, Aligned, Utterance
from transduce.data.audio.intervals import Interval
from transduce.data.audio.read import read_audio
from transduce.data.audio.speech_activity import RATE, speech_spans
from transduce.decoding.output import TimedWord
from transduce.errors import DataError
from transduce.tasks.speech import SpeechModel

ALIKE = 0.6  # similarity of two spellings that may be of one word
HALF = 0.5  # of the words of a line must be heard where it is read
MARGIN = 0.3  # seconds around a line that are its own


def align_by_transcript(
    model: SpeechModel,
    audio: Path,
    texts: Sequence[str],
    tags: Sequence[str] = (),
    language: str | None = None,
) -> Aligned:
    """Align lines with a recording. Raises DataError if the recording cannot be used."""
    asked: dict[str, Any] = {} if language is None else {"language": language}
    (output,) = model.run([audio], times=True, tags=tags, **asked)
    if output.failed:
        raise DataError(output.warning)
    utterances = tuple(match_lines(texts, output.words))
    samples = read_audio(str(audio), RATE).samples
    untold = tuple(without_text(speech_spans(samples), utterances))
    return Aligned(audio, len(samples) / RATE, utterances, untold)


def match_lines(texts: Sequence[str], heard: Sequence[TimedWord]) -> Iterator[Utterance]:
    """Each line with the times of its words that were heard."""
    lines = [text.split() for text in texts]
    written = [(number, word) for number, words in enumerate(lines) for word in words]
    found = best_matches([_key(word) for _, word in written], [_key(one.text) for one in heard])
    mine: list[list[tuple[str, TimedWord, float]]] = [[] for _ in lines]
    for place, at in found.items():
        number, word = written[place]
        mine[number].append((word, heard[at], similarity(_key(word), _key(heard[at].text))))
    for number, (text, words) in enumerate(zip(texts, lines, strict=True)):
        own = mine[number]
        spoken = [word for word in words if _key(word)]
        if len(own) < HALF * len(spoken) or not own:
            yield Utterance(number + 1, text)
            continue
        sure = sum(alike * one.confidence for _, one, alike in own) / len(spoken)
        yield Utterance(
            number + 1,
            text,
            own[0][1].start,
            own[-1][1].end,
            max(sure, MIN_CONFIDENCE),  # half of its words were heard in their order
            tuple(Interval(one.start, one.end, word) for word, one, _ in own),
        )


def without_text(
    speech: Sequence[tuple[float, float]], utterances: Sequence[Utterance]
) -> Iterator[tuple[float, float]]:
    """Speech in which no line is read."""
    read = sorted((one.start - MARGIN, one.end + MARGIN) for one in utterances if one.read)
    for start, end in speech:
        for first, last in read:
            if last <= start or first >= end:
                continue
            if first - start >= UNTOLD:
                yield round(start, 2), round(first, 2)
            start = max(start, last)
        if end - start >= UNTOLD:
            yield round(start, 2), round(end, 2)


def _key(word: str) -> str:
    return "".join(sign for sign in word.casefold() if sign.isalnum())


@cache
def similarity(one: str, other: str) -> float:
    """1: the same; 0: too different to be the same word."""
    if one == other:
        return 1.0
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < ALIKE:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= ALIKE else 0.0


def best_matches(written: Sequence[str], heard: Sequence[str]) -> dict[int, int]:
    """Which heard word each written word is, in order: the greatest sum of similarities. Words
    without a letter match nothing."""
    known = {word: number for number, word in enumerate(dict.fromkeys(heard))}
    number_H = np.array([known[word] for word in heard], np.int64)
    best = np.zeros(len(heard) + 1)
    moves = np.zeros((len(written), len(heard) + 1), np.uint8)
    alike: dict[str, NDArray[np.float64]] = {}
    for row, word in enumerate(written):
        if word not in alike:
            values = [similarity(word, other) if word and other else 0.0 for other in known]
            alike[word] = np.array(values)[number_H] if len(heard) else np.empty(0)
        score_H = alike[word]
        together = np.concatenate(([-np.inf], np.where(score_H > 0, best[:-1] + score_H, -np.inf)))
        better = together > best
        new = np.where(better, together, best)
        # Of the words heard so far some are of no line: the best up to each of them.
        reached = np.maximum.accumulate(new)
        moves[row] = np.where(reached > new, 2, np.where(better, 1, 0))
        best = reached
    found: dict[int, int] = {}
    row, column = len(written) - 1, len(heard)
    while row >= 0 and column >= 0:
        move = moves[row, column]
        if move == 2:
            column -= 1
        elif move == 1:
            found[row] = column - 1
            row, column = row - 1, column - 1
        else:
            row -= 1
    return dict(sorted(found.items()))
