"""Agreement of successive hypotheses: what is stable stays, and finals are the offline output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiny_sounds import audio_model
from tiny_whisper import noises, our_model
from transduce.decoding.output import Output, TimedWord
from transduce.errors import ModelError
from transduce.tasks.live.agreement import Agreement, AgreementRecogniser
from transduce.tasks.live.session import Transcript

RATE = 4000
WORDS = st.lists(st.sampled_from(["tea", "team", "the", "of", "お", "茶", ""]), max_size=6)


@given(st.lists(WORDS.map(" ".join), max_size=8))
def test_the_stable_text_never_changes(hypotheses: list[str]) -> None:
    agreement, before = Agreement(), ""
    for hypothesis in hypotheses:
        agreement.add(hypothesis)
        stable = agreement.text[: agreement.stable]
        assert agreement.text.startswith(before)
        assert stable.startswith(before)
        before = stable


@pytest.mark.parametrize(
    ("hypotheses", "text", "stable"),
    [
        (["the tea"], "the tea", ""),
        (["the tea", "the team of"], "the team of", "the"),
        (["the tea of", "the tea for uncle"], "the tea for uncle", "the tea"),
        (["the tea", "the tea"], "the tea", "the tea"),
        (["the tea", "the tea", "a tea of"], "the tea of", "the tea"),
        (["東京", "東京都"], "東京都", "東京"),
    ],
)
def test_what_two_hypotheses_agree_on(hypotheses: list[str], text: str, stable: str) -> None:
    agreement = Agreement()
    for hypothesis in hypotheses:
        agreement.add(hypothesis)
    assert agreement.text == text
    assert agreement.text[: agreement.stable] == stable


class Loudness:
    """A model that writes a word for every 0.2 s of audio: how loud it is. It notes its batches."""

    recordings = SimpleNamespace(
        settings=SimpleNamespace(sample_rate=RATE, prompt=None), longest=4.0
    )

    def __init__(self, end: str = "") -> None:
        self.end, self.batches = end, list[int]()

    def run(self, sources: Sequence[Any], **settings: Any) -> list[Output]:
        assert settings.pop("beam", 2) == 2
        self.batches.append(len(sources))
        return [self._output(source.wave, settings["times"]) for source in sources]

    def _output(self, wave: NDArray[np.int16], times: bool) -> Output:
        parts = [wave[at : at + RATE // 5] for at in range(0, len(wave), RATE // 5)]
        words = [f"{np.abs(part.astype(float)).mean():.0f}" for part in parts]
        timed = [TimedWord(w, 0.2 * n, 0.2 * n + 0.2, 0.9) for n, w in enumerate(words)]
        return Output(" ".join(words) + self.end, 0.0, words=timed if times else [], confidence=0.9)


def speech(*parts: float) -> NDArray[np.int16]:
    """Seconds of speech, and of silence where negative."""
    draw, found = np.random.default_rng(1), []
    for seconds in parts:
        drawn = draw.standard_normal(round(abs(seconds) * RATE))
        found.append((3000 if seconds > 0 else 30) * drawn)
    return np.concatenate(found).astype(np.int16)


def heard(model: Any, audio: NDArray[np.int16], step: float, **settings: Any) -> list[Transcript]:
    found = []
    with AgreementRecogniser(model, **settings).session() as session:
        for start in range(0, len(audio), round(step * RATE)):
            found += session.feed(audio[start : start + round(step * RATE)])
        return [*found, *session.finish()]


@pytest.mark.parametrize("step", [0.05, 0.3, 60.0])
def test_finals_are_what_the_model_says_of_each_segment(step: float) -> None:
    audio = speech(-1, 1.5, -1, 0.7, -0.2, 0.7, -1, 9.0, -0.5)
    model = Loudness()
    found = heard(model, audio, step)
    finals = [one for one in found if one.final]
    assert [one.utterance for one in finals] == list(range(len(finals)))
    for final in finals:
        wave = audio[round(final.start * RATE) : round(final.end * RATE)]
        (offline,) = Loudness().run([SimpleNamespace(wave=wave)], times=True)
        assert final.text == offline.text
        assert final.words[0].start == pytest.approx(final.start)
    # Two utterances, and one of nine seconds that is cut twice or more, without a gap.
    whole = [one for one in heard(Loudness(), audio, 1000.0) if one.final]
    assert finals == whole  # however it is cut into blocks
    assert finals[0].start == pytest.approx(0.85, abs=0.05)
    assert finals[0].end == pytest.approx(2.65, abs=0.05)
    assert finals[1].end - finals[1].start == pytest.approx(1.9, abs=0.1)
    long = finals[2:]
    assert all(2.0 <= one.end - one.start <= 4.0 for one in long[:-1])
    assert [one.end for one in long[:-1]] == [one.start for one in long[1:]]
    for number in range(len(finals)):
        partials = [one for one in found if one.utterance == number and not one.final]
        for before, after in pairwise(partials):
            assert after.text.startswith(before.text[: before.stable])


def test_partials_come_while_someone_speaks_and_a_pause_is_recognised_once() -> None:
    model = Loudness()
    found = heard(model, speech(-1, 2.0, -2), 0.1, every=0.5)
    partials, final = found[:-1], found[-1]
    assert len(partials) >= 3
    assert any(one.stable for one in partials)
    assert final.final
    assert len(model.batches) == 5  # every half second, and once at the pause
    assert len(model.batches) >= len(partials)


def test_a_sentence_ends_sooner() -> None:
    audio = speech(-1, 1.0, -0.6)
    session = AgreementRecogniser(Loudness(".")).session()
    assert [one.final for one in session.feed(audio)] == [True]
    session = AgreementRecogniser(Loudness()).session()
    assert [one.final for one in session.feed(audio)] == [False]


def test_an_hour_of_silence_costs_no_recognition_and_no_memory() -> None:
    model = Loudness()
    session = AgreementRecogniser(model).session()
    minute = speech(-60)
    for _ in range(60):
        assert session.feed(minute) == []
    assert model.batches == []
    assert len(session.segmenter._kept) < RATE
    assert [one.text != "" for one in session.feed(speech(1, -1))] == [True, True]


def test_noise_in_which_nothing_is_recognised_is_forgotten() -> None:
    model = Loudness()
    model._output = lambda wave, times: Output("", 0.0)  # type: ignore[method-assign]
    session = AgreementRecogniser(model, no_speech=2.0).session()
    for _ in range(100):
        assert session.feed(speech(-0.1)) + session.feed(speech(0.2)) == []
    assert len(session.segmenter._kept) < 3 * RATE
    assert session.finish() == []
    assert session.done


def test_sessions_share_a_batch() -> None:
    model = Loudness()
    recogniser = AgreementRecogniser(model, beam=2)
    sessions = [recogniser.session() for _ in range(3)]
    for session in sessions[:2]:
        session.push(speech(-1, 1.0))
    found = recogniser.advance(sessions)
    assert [len(one) for one in found] == [1, 1, 0]
    assert model.batches == [2]


def test_a_failure_loses_nothing() -> None:
    model = Loudness()
    session = AgreementRecogniser(model).session()
    original, model.run = model.run, None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        session.feed(speech(-1, 1.0, -1))
    model.run = original  # type: ignore[method-assign]
    assert [one.final for one in session.finish()] == [False, True]


def test_a_failure_for_one_speaker_loses_nothing_of_another() -> None:
    model = Loudness()
    recogniser = AgreementRecogniser(model)
    good, bad = recogniser.session(), recogniser.session()
    good.feed(speech(-1, 1.0, -0.5))  # recognised at the pause
    good.end()
    bad.push(speech(-1, 2.0))
    model.run = None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        recogniser.step([good, bad])
    assert [one.final for one in recogniser.advance([good])[0]] == [True]
    assert good.done


def test_a_real_model_and_bad_settings() -> None:
    model = audio_model()
    audio = speech(-1, 1.0, -1)
    with model.live(rate=RATE, min_length=3) as session:
        found = [*session.feed(audio), *session.finish()]
    final = found[-1]
    wave = audio[round(final.start * RATE) : round(final.end * RATE)]
    assert final.text == model(wave, rate=RATE, min_length=3).strip() != ""
    with pytest.raises(ModelError, match="every"):
        model.live(every=0)
    with pytest.raises(ModelError, match="silence is 'long'"):
        model.live(silence="long")


def test_whisper() -> None:
    model, quiet = our_model(), np.zeros(16_000, np.int16)
    audio = np.concatenate([quiet, max(noises(6), key=len), quiet])
    with model.live(rate=16_000, language="de") as session:
        found = [*session.feed(audio), *session.finish()]
    finals = [one for one in found if one.final]
    assert len(finals) == 2  # a window has two seconds
    for final in finals:
        wave = audio[round(final.start * 16_000) : round(final.end * 16_000)]
        (offline,) = model.run([wave], rate=16_000, language="de", times=True)
        assert final.text == offline.text
        assert [word.text for word in final.words] == [word.text for word in offline.words]
        assert final.words[0].start == pytest.approx(final.start + offline.words[0].start)
    with pytest.raises(ModelError, match="xx"):
        model.live(language="xx").feed(audio)


@pytest.mark.parametrize(
    ("parts", "step"), [((-1, 1.5, -0.5, 0.4), 0.1), ((-1, 0.8, -0.5, 3.5, -1), 60.0)]
)
def test_speech_after_a_pause_is_not_lost(parts: tuple[float, ...], step: float) -> None:
    """The audio ends, or the utterance is cut, before that speech was recognised once."""
    audio = speech(*parts)
    finals = [one for one in heard(Loudness(), audio, step) if one.final]
    spoken = sum(part for part in parts if part > 0) + 0.5
    assert sum(one.end - one.start for one in finals) >= spoken
    for final in finals:
        wave = audio[round(final.start * RATE) : round(final.end * RATE)]
        (offline,) = Loudness().run([SimpleNamespace(wave=wave)], times=True)
        assert final.text == offline.text
