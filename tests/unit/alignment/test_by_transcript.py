"""Lines found in what a model without CTC has heard."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from transduce.alignment.align import Aligned, Utterance
from transduce.alignment.by_transcript import best_matches, match_lines, similarity, without_text
from transduce.decoding.output import TimedWord

LINES = ["Please hold the line.", "Agent logged off.", "Please hold the line.", "Goodbye!"]


def heard(text: str, sure: float = 0.9) -> list[TimedWord]:
    """A word each half second."""
    return [TimedWord(w, n / 2, n / 2 + 0.4, sure) for n, w in enumerate(text.split()) if w != "-"]


def brute_force(written: list[str], spoken: list[str]) -> float:
    """The greatest sum of similarities, by trying every choice."""
    if not written or not spoken:
        return 0.0
    found = max(brute_force(written[1:], spoken), brute_force(written, spoken[1:]))
    alike = similarity(written[0], spoken[0])
    return max(found, alike + brute_force(written[1:], spoken[1:])) if alike else found


def test_matches_are_the_best_there_are() -> None:
    draw = np.random.default_rng(4)
    words = ["please", "pleas", "hold", "held", "line", "lines", "off"]
    for n, m in product(range(5), range(5)):
        written, spoken = (draw.choice(words, size).tolist() for size in (n, m))
        found = best_matches(written, spoken)
        pairs = list(found.items())
        assert pairs == sorted(pairs)
        assert len(set(found.values())) == len(found)
        total = sum(similarity(written[a], spoken[b]) for a, b in pairs)
        assert total == pytest.approx(brute_force(written, spoken))


def test_lines_their_words_and_what_is_missing() -> None:
    said = heard("please hold the lime - - agent logged off and more of it - goodbye")
    found = list(match_lines(LINES, said))
    assert [one.read for one in found] == [True, True, False, True]
    first = found[0]
    assert (first.start, first.end) == (0.0, 1.9)
    assert [word.text for word in first.words] == ["Please", "hold", "the", "line."]
    assert found[1].confidence == pytest.approx(0.9)
    assert first.confidence < 0.9  # one of its words was heard otherwise
    assert (found[3].start, found[3].end) == (7.0, 7.4)


def test_a_line_of_which_little_was_heard_is_not_read() -> None:
    found = list(match_lines(["one two three four five", "six"], heard("one nothing nobody six")))
    assert [one.read for one in found] == [False, True]
    assert not any(one.read for one in match_lines(LINES, []))
    (half,) = match_lines(["one two three four"], heard("one two nothing nobody"))
    assert half.read


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("twenty one", "21."),
        ("m i s d n", "M-I-S-D-N."),
        ("press 1, or 2", "Press one or two."),
        ("third folder", "3rd folder"),
        ("don’t", "don't"),
        ("我们走", "我 们 走"),
    ],
)
def test_a_line_may_be_spelt_otherwise(line: str, said: str) -> None:
    """Numbers, what a hyphen joins, scripts without blanks."""
    (found,) = match_lines([line], heard(said))
    assert found.read
    assert found.confidence == pytest.approx(0.9)
    assert (found.start, found.end) == (heard(said)[0].start, heard(said)[-1].end)


def test_words_of_one_that_was_heard_share_its_time() -> None:
    (found,) = match_lines(["twenty one"], [TimedWord("21.", 4.0, 5.8, 0.9)])
    assert [(word.start, word.end) for word in found.words] == [(4.0, 5.2), (5.2, 5.8)]
    assert [word.text for word in found.words] == ["twenty", "one"]
    (found,) = match_lines(
        ["21."], [TimedWord("twenty", 4.0, 5.2, 0.9), TimedWord("one", 5.3, 6, 0.9)]
    )
    assert [(word.start, word.end, word.text) for word in found.words] == [(4.0, 6.0, "21.")]


def test_speech_without_text() -> None:
    read = (Utterance(1, "a", 1.0, 2.0, 0.9), Utterance(2, "b", 5.0, 6.0, 0.9))
    speech = [(1.0, 2.1), (3.0, 4.5), (4.6, 7.0), (8.0, 8.1), (9.0, 9.3)]
    assert list(without_text(speech, read)) == [(3.0, 4.5), (6.3, 7.0), (9.0, 9.3)]
    assert list(without_text([(0.0, 3.0)], read[:1])) == [(0.0, 0.7), (2.3, 3.0)]


def test_uncertain_is_not_absent() -> None:
    """A line that was not found may be read where there is speech that is of no line."""
    lines = (
        Utterance(1, "ten signs.", 1.0, 2.0, 0.9),
        Utterance(2, "ten signs."),
        Utterance(3, "ten signs.", 5.0, 6.0, 0.9),
        Utterance(4, "ten signs."),
        Utterance(5, " "),
    )
    aligned = Aligned(Path("a.wav"), 20.0, lines, ((3.0, 4.0), (8.0, 8.4)))
    assert aligned.uncertain == {2: (3.0, 4.0)}  # 0.4 s are too short for line 4
    assert Aligned(Path("a.wav"), 20.0, lines[1:2], ((3.0, 4.0),)).uncertain == {}
    several = Aligned(Path("a.wav"), 20.0, lines[:3], ((2.2, 3.2), (4.0, 4.5), (7.0, 9.0)))
    assert several.uncertain == {2: (2.2, 3.2)}  # the longest of those between lines 1 and 3
