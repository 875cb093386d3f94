"""Live recognition with a streaming encoder: what is given does not depend on how audio comes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fixtures.make_models import MODELS, in_noise
from tiny_sounds import audio_model, audio_recipe, noise, tagged_model
from transduce.data.audio.corpus import to_int16
from transduce.errors import ModelError
from transduce.tasks import SpeechModel
from transduce.tasks.live import LiveSession, Transcript
from transduce.tasks.live.streaming import StreamingRecogniser, StreamingSession
from transduce.tasks.transduce import load

TEXTS = ["ab cd", "dda b", "c", "abcd dcba"]
RATE = 4000


@cache
def model() -> SpeechModel:
    loaded = load(MODELS / "live")
    assert isinstance(loaded, SpeechModel)
    return loaded


@cache
def untrained(positions: str = "rotary") -> SpeechModel:
    """One whose text changes all the time."""
    return audio_model(*streaming_recipe(positions))


def streaming_recipe(positions: str = "rotary") -> tuple[str, str]:
    chunk = "chunk: {ms: 160, trained: [40, 320]}"
    kind = f"{{kind: transformer, layers: 1, heads: 2, feed_forward: 32, positions: {positions}, "
    more = "max_positions: 90, " if positions == "learned" else ""
    return "audio.normalize=global", f"model.encoder={kind}{more}{chunk}}}"


@cache
def spoken() -> NDArray[np.int16]:
    draw = random.Random(5)
    return to_int16(np.concatenate([in_noise(text, draw) for text in TEXTS]))


def fed(session: LiveSession, samples: NDArray[Any], step: int) -> list[Transcript]:
    with session:
        found = []
        for start in range(0, len(samples), step):
            found += session.feed(samples[start : start + step])
        return found + session.finish()


def finals(transcripts: Sequence[Transcript]) -> list[str]:
    return [one.text for one in transcripts if one.final]


def test_what_was_said_is_found_with_its_times() -> None:
    found = fed(model().live(RATE), spoken(), 1000)
    assert finals(found) == TEXTS
    assert [one.utterance for one in found] == sorted(one.utterance for one in found)
    whole = [one for one in found if one.final]
    (offline,) = model().run([spoken().astype(np.float32) / 2**15], rate=RATE, times=True)
    assert offline.text == " ".join(TEXTS)
    live = [word for one in whole for word in one.words]
    assert [word.text for word in live] == [word.text for word in offline.words]
    for ours, theirs in zip(live, offline.words, strict=True):
        assert ours.start == pytest.approx(theirs.start, abs=0.2)
        assert ours.end == pytest.approx(theirs.end, abs=0.2)
    for one in found:
        assert one.start == one.words[0].start
        assert one.end == one.words[-1].end
        assert one.confidence is not None
        assert 0.3 < one.confidence <= 1


def test_a_partial_comes_whenever_the_text_has_changed_and_says_what_is_stable() -> None:
    found = fed(untrained().live(RATE, longest=3.0), noise(8.0), 500)
    assert sum(one.final for one in found) >= 2
    for before, after in pairwise(found):
        if before.utterance == after.utterance:
            assert after.final or before.text != after.text
            assert after.text[: before.stable] == before.text[: before.stable]
            assert after.stable >= before.stable
    assert any(one.stable for one in found if not one.final)


@pytest.mark.parametrize("step", [1, 148, 33_101])
def test_transcripts_do_not_depend_on_how_the_samples_are_cut(step: int) -> None:
    samples = spoken() if step > 1 else spoken()[:8000]
    expected = fed(model().live(RATE), samples, 997)
    assert fed(model().live(RATE), samples, step) == expected
    assert expected


def test_transcripts_do_not_depend_on_who_shares_the_batch() -> None:
    recogniser = model().live_recogniser()
    recordings = [spoken()[:17_000], spoken()[9000:18_000], noise(1.5, rate=RATE)]
    alone = [fed(recogniser.session(), one, 5000) for one in recordings]
    sessions = [recogniser.session() for _ in recordings]
    found: list[list[Transcript]] = [[] for _ in recordings]
    for turn in range(15):
        for number, (session, samples) in enumerate(zip(sessions, recordings, strict=True)):
            since = turn - 2 * number
            here = samples[2000 * since :][:2000] if since >= 0 else samples[:0]
            if len(here):
                session.push(here)
            elif since > 0 and not session.ended:
                session.end()
        for number, new in enumerate(recogniser.advance(sessions)):
            found[number] += new
    assert all(session.done for session in sessions)
    for ours, theirs in zip(found, alone, strict=True):
        assert [(one.text, one.final, one.stable) for one in ours] == [
            (one.text, one.final, one.stable) for one in theirs
        ]
        for one, other in zip(ours, theirs, strict=True):
            assert [word.start for word in one.words] == [word.start for word in other.words]
            assert one.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_a_step_takes_one_chunk_of_each() -> None:
    recogniser = model().live_recogniser()
    much, little = recogniser.session(), recogniser.session()
    much.push(spoken())
    little.push(spoken()[:2000])
    recogniser.step([much, little])
    assert much.ready
    assert not little.ready
    assert much.buffered_seconds == pytest.approx(len(spoken()) / RATE - 0.32)


def test_an_hour_of_silence_needs_no_more_memory_than_a_second() -> None:
    recogniser = model().live_recogniser(chunk_ms=640)
    assert isinstance(recogniser, StreamingRecogniser)
    session = recogniser.session()
    assert isinstance(session, StreamingSession)
    quiet = to_int16(0.003 * np.random.default_rng(1).standard_normal(9 * RATE))
    sizes = []
    for _ in range(3):
        assert session.feed(quiet) == []
        assert recogniser._beams is not None
        capacity = recogniser._beams.marks_BNU2.numel()
        sizes.append((recogniser.streams.bytes, capacity))
        assert len(session.samples) < 2**17
        assert len(session.utterance.chunks) <= 8  # of five seconds
    assert len(set(sizes)) == 1
    session.close()
    assert recogniser.streams.bytes == 0
    assert recogniser._beams is None


def test_a_session_that_ends_does_not_leak_into_the_next() -> None:
    recogniser = model().live_recogniser()
    expected = fed(recogniser.session(), spoken()[:16_000], 1000)
    keeper = recogniser.session()
    with recogniser.session() as broken_off:
        broken_off.feed(spoken()[3000:9000])
    assert fed(recogniser.session(), spoken()[:16_000], 1000) == expected
    keeper.close()


def test_utterances_end_where_the_rules_say() -> None:
    cut = fed(model().live(RATE, longest=1.0, silence=0.5), spoken(), 1000)
    assert len(finals(cut)) > len(TEXTS)
    for one in cut:
        assert one.end - one.start <= 1.1
    joined = fed(model().live(RATE, silence=3.0, longest=20.0), spoken(), 1000)
    # In so long a pause the model writes no space: it never learned one.
    assert [text.replace(" ", "") for text in finals(joined)] == ["".join(TEXTS).replace(" ", "")]


def test_learned_positions_end_an_utterance_before_there_are_none() -> None:
    found = fed(untrained("learned").live(RATE, longest=20.0), noise(9.0), 4000)
    # 90 states of 40 ms.
    assert all(one.end - one.start <= 3.6 for one in found)
    assert len(finals(found)) >= 2


def test_the_decoder_can_be_left_out_and_chunks_chosen() -> None:
    for settings in ({"ctc_weight": 1.0, "chunk_ms": 640}, {"chunk_ms": 160, "skip_blank": 1.0}):
        found = fed(model().live(RATE, **settings), spoken()[:16_000], 4000)
        assert finals(found) == TEXTS[:2]


def test_several_tags_in_one() -> None:
    model = tagged_model("x", "y", overrides=streaming_recipe())
    apart, joined = (
        fed(model.live(RATE, tags=tags), spoken()[:8000], 4000) for tags in (["x", "y"], ["x;y"])
    )
    assert joined == apart
    assert model.live(RATE, tags=["x;y"]).tags == ("x", "y")
    with pytest.raises(ModelError, match="has no tag z; its tags are x, y"):
        model.live(RATE, tags=["x;z"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"chunk_ms": 100}, "multiple of the 40 ms"),
        ({"chunk_ms": float("nan")}, "chunk_ms"),
        ({"beam": 0}, "beam"),
        ({"skip_blank": 2}, "skip_blank"),
        ({"beams": 3}, "no setting beams"),
        ({"silence": -1}, "silence"),
        ({"tags": ["<x>"]}, "trained without tags"),
        ({"language_model": "lm"}, "task: language_modeling"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        model().live(RATE, **settings)


def test_files_can_be_read_in_chunks_too() -> None:
    samples = spoken()[:9000].astype(np.float32) / 2**15
    (whole,) = model().run([samples], rate=RATE)
    (chunks,) = model().run([samples], rate=RATE, chunk_ms=80)
    assert chunks.text == whole.text == TEXTS[0]
    assert chunks.score != whole.score
    assert model().run([samples], rate=RATE)[0].score == whole.score
    with pytest.raises(ModelError, match="multiple"):
        model().run([samples], rate=RATE, chunk_ms=50)
    with pytest.raises(ModelError, match=r"model\.encoder\.chunk"):
        audio_model().run([samples], rate=RATE, chunk_ms=80)


def test_all_models_of_a_call_read_in_its_chunks() -> None:
    """An ensemble of a model with itself is the model; a reranker scores what it hears so."""
    samples = spoken()[:9000].astype(np.float32) / 2**15
    asked: dict[str, Any] = {"rate": RATE, "chunk_ms": 80, "length_penalty": 0.0}
    (alone,) = model().run([samples], **asked)
    (together,) = model().run([samples], ensemble=[model()], **asked)
    assert together.score == pytest.approx(alone.score, abs=1e-5)
    (rescored,) = model().run([samples], rerank=model(), ctc_weight=0.0, **asked)
    assert rescored.score == pytest.approx(2 * rescored.log_probability, abs=1e-4)
    tokens = model().source_tokens
    other = type(model()).create(audio_recipe(), tokens, tokens)
    with pytest.raises(ModelError, match="model 2 of the ensemble was not"):
        model().run([samples], ensemble=[other], **asked)
    model().run([samples], rerank=other, **asked)  # a second pass over the whole


def test_hotwords_are_heard_rather_than_what_sounds_alike() -> None:
    without = fed(model().live(RATE, beam=8), spoken(), 1000)
    assert finals(without) == TEXTS
    found = fed(
        model().live(RATE, beam=8, hotwords=["cc", "abcc"], hotword_bonus=8.0), spoken(), 1000
    )
    assert finals(found) != TEXTS
    assert "abcc" in " ".join(finals(found))
    # A phrase that is not finished has no bonus.
    unfinished = model().live(RATE, beam=8, hotwords=["abcd dcbaabcdabcd"], hotword_bonus=2.0)
    assert finals(fed(unfinished, spoken(), 1000)) == TEXTS
