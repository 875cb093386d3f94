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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.alignment.align import MIN_CONFIDENCE, Aligned, Utterance
from transduce.data.audio.intervals import Interval
from transduce.data.audio.read import read_audio
from transduce.data.audio.speech_activity import RATE, speech_spans
from transduce.data.text.numbers import numbers_in_words
from transduce.decoding.constraints.glossary import WORD
from transduce.decoding.output import TimedWord
from transduce.errors import DataError
from transduce.tasks.speech import SpeechModel

ALIKE = 0.6  # similarity of two spellings that may be of one word
HALF = 0.5  # of the words of a line must be heard where it is read
MARGIN = 0.3  # seconds around a line that are its own
UNTOLD = 0.2  # seconds of speech without text that are worth telling: a letter has no more


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
    lines = [[Written(word, _keys(word)) for word in text.split()] for text in texts]
    places = [
        (number, at)
        for number, words in enumerate(lines)
        for at, word in enumerate(words)
        for _ in word.keys
    ]
    written = [key for words in lines for word in words for key in word.keys]
    spoken = [part for word in heard for part in _parts(word)]
    found: list[dict[int, list[Match]]] = [{} for _ in lines]
    for place, part in best_matches(written, [part.text for part in spoken]).items():
        number, at = places[place]
        match = Match(spoken[part], similarity(written[place], spoken[part].text))
        found[number].setdefault(at, []).append(match)
    for number, (text, words) in enumerate(zip(texts, lines, strict=True)):
        own = [match for of_word in found[number].values() for match in of_word]
        keys = sum(len(word.keys) for word in words)
        if not own or len(own) < HALF * keys:
            yield Utterance(number + 1, text)
            continue
        sure = sum(match.alike * match.part.confidence for match in own) / keys
        yield Utterance(
            number + 1,
            text,
            own[0].part.start,
            own[-1].part.end,
            max(sure, MIN_CONFIDENCE),  # half of its words were heard in their order
            tuple(
                Interval(of_word[0].part.start, of_word[-1].part.end, words[at].text)
                for at, of_word in found[number].items()
            ),
        )


class Written(NamedTuple):
    """A word of a line, and what it is compared by."""

    text: str
    keys: list[str]


class Match(NamedTuple):
    part: TimedWord
    alike: float


def _keys(word: str) -> list[str]:
    """A word as it is compared: in small letters, digits as English words, what a hyphen joins
    apart; of scripts without blanks each character; nothing of punctuation."""
    return [key for key in WORD.findall(numbers_in_words(word).casefold()) if key[0].isalnum()]


def _parts(word: TimedWord) -> Iterator[TimedWord]:
    """Each key of a word that was heard, with a share of its time by its length."""
    keys = _keys(word.text)
    letters = max(1, sum(map(len, keys)))
    before = 0
    for key in keys:
        start, end = (
            round(word.start + (word.end - word.start) * done / letters, 6)
            for done in (before, before + len(key))
        )
        before += len(key)
        yield TimedWord(key, start, end, word.confidence)


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
    """Which heard word each written word is, in order: the greatest sum of similarities."""
    known = {word: number for number, word in enumerate(dict.fromkeys(heard))}
    number_H = np.array([known[word] for word in heard], np.int64)
    best = np.zeros(len(heard) + 1)
    moves = np.zeros((len(written), len(heard) + 1), np.uint8)
    alike: dict[str, NDArray[np.float64]] = {}
    for row, word in enumerate(written):
        if word not in alike:
            values = [similarity(word, other) for other in known]
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
