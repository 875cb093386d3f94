"""Whisper-shaped models in use: windows, prompts, languages, times, scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tiny_whisper
from transduce.data.audio.speech_activity import Span
from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.models.call_context import Call
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.observer import RunObserver, TokenStep, Watch
from transduce.tasks.transduce import load
from transduce.whisper import WhisperModel, clock, windows
from transduce.whisper.steps import DetectedLanguage

RATE = tiny_whisper.RATE
WAVES = tiny_whisper.noises(4)
LONG = np.concatenate(tiny_whisper.noises(7, seed=11))


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    made = tiny_whisper.our_model()
    assert isinstance(made, WhisperModel)
    return made.freeze()


def run(model: WhisperModel, waves: list[Any], **asked: Any) -> list[Any]:
    """Without fallback, if it is not asked for: outputs of random weights are all unlikely."""
    return model.run(waves, rate=RATE, **{"beam": 2, "fallback": False, **asked})


def test_outputs_do_not_depend_on_neighbours(model: WhisperModel) -> None:
    together = run(model, [*WAVES, LONG], times=True)
    for wave, output in zip([*WAVES, LONG], together, strict=True):
        (alone,) = run(model, [wave], times=True)
        assert (alone.text, alone.language) == (output.text, output.language)
        for one, other in ((alone.segments, output.segments), (alone.words, output.words)):
            assert [(w.text, w.start, w.end) for w in one] == [
                (w.text, w.start, w.end) for w in other
            ]


def test_a_long_recording_is_transcribed_window_by_window(model: WhisperModel) -> None:
    """The next window begins where the last closed segment ends."""
    assert len(LONG) > 3 * tiny_whisper.SECONDS * RATE
    (output,) = run(model, [LONG], language="de")
    tokens, size = model.prompt_tokens, round(tiny_whisper.SECONDS * RATE)
    place, wanted = 0, []
    while len(LONG) - place > 0.1 * RATE:
        window = AudioSegment.of("window", LONG[place : place + size])
        (found,) = model.decode_windows([window], Call(language="de", timestamps=True), beam=2)
        ids = found.ids
        is_time = [tokens.is_time(number) for number in ids]
        pairs = [n for n in range(1, len(ids)) if is_time[n - 1] and is_time[n]]
        closed = bool(pairs) and not (is_time[-1] and not is_time[-2])
        kept = ids[: pairs[-1]] if closed else ids
        wanted.append(model.target_tokens.decode(tokens.text(kept)).strip())
        done = tokens.seconds(ids[pairs[-1] - 1]) if closed else len(window.wave) / RATE
        place += round(max(min(done, len(window.wave) / RATE), 0.1) * RATE)
    assert len(wanted) > 3
    assert output.text == " ".join(text for text in wanted if text)
    starts = [segment.start for segment in output.segments]
    assert starts == sorted(starts)
    assert output.segments[-1].end <= len(LONG) / RATE + 1e-6


def test_without_timestamps_all_windows_of_a_recording_are_decoded_together(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = round(tiny_whisper.SECONDS * RATE)
    pieces = [LONG[start : start + size] for start in range(0, len(LONG), size)]
    alone = [run(model, [piece], language="de", timestamps=False)[0] for piece in pieces]
    together: list[int] = []
    decode = model.decode_windows

    def counted(segments: Any, *more: Any, **asked: Any) -> Any:
        together.append(len(segments))
        return decode(segments, *more, **asked)

    monkeypatch.setattr(model, "decode_windows", counted)
    (output,) = run(model, [LONG], language="de", timestamps=False)
    assert together == [len(pieces)]
    assert output.text == " ".join(one.text for one in alone if one.text)
    starts = [segment.start for segment in output.segments]
    assert starts == pytest.approx([n * size / RATE for n, one in enumerate(alone) if one.text])
    run(model, [LONG], timestamps=False)  # the first window tells the language
    assert together[1:] == [1, len(pieces) - 1]


def test_words_have_times(model: WhisperModel) -> None:
    for wave, output in zip(WAVES, run(model, WAVES, times=True), strict=True):
        assert " ".join(word.text for word in output.words).split() == output.text.split()
        times = [moment for word in output.words for moment in (word.start, word.end)]
        assert times == sorted(times)
        assert times[-1] <= len(wave) / RATE + 0.02
        assert len(output.probabilities) == len(output.tokens)


def test_language_is_detected_or_given(model: WhisperModel) -> None:
    (found,) = model.detect_language([WAVES[0]], rate=RATE)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    (detected,) = run(model, [WAVES[0]])
    assert detected.language == next(iter(found))
    assert detected.language_probability == pytest.approx(found[detected.language])
    assert detected.to_json()["language"] == detected.language
    texts = {code: run(model, [WAVES[0]], language=code)[0].text for code in found}
    assert texts[detected.language] == detected.text
    assert len(set(texts.values())) > 1
    assert run(model, [WAVES[0]], language="de")[0].language_probability is None
    preset = tiny_whisper.our_model(language="fr")
    assert run(preset, [WAVES[0]])[0].text == texts["fr"]


def test_translation_is_another_prompt(model: WhisperModel) -> None:
    said = run(model, WAVES, language="en")
    translated = run(model, WAVES, language="en", task="translate")
    assert [one.text for one in said] != [one.text for one in translated]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"language": "xx"}, "does not know the language xx; it knows en, de, fr"),
        ({"task": "sing"}, "task is sing; it must be transcribe or translate"),
        ({"tags": ["fre"]}, "give language and task instead"),
        ({"langauge": "en"}, "unknown setting langauge"),
    ],
)
def test_mistakes_are_reported(model: WhisperModel, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        run(model, [WAVES[0]], **asked)


def test_suppressed_tokens_never_come(model: WhisperModel) -> None:
    settings, tokens = model.prompt_settings, model.prompt_tokens
    for timestamps in (False, True):
        segments = [AudioSegment.of(f"{n}", wave) for n, wave in enumerate(WAVES)]
        call = Call(language="en", timestamps=timestamps)
        outputs = model.decode_windows(segments, call, sample=True, seed=3)
        for output in outputs:
            assert not set(output.ids) & {*settings.suppress, tokens.no_timestamps}
            if timestamps:
                assert tokens.is_time(output.ids[0])
                times = [number for number in output.ids if tokens.is_time(number)]
                assert times == sorted(times)
            else:
                assert output.ids[0] not in settings.suppress_first


def test_previous_text_and_a_prompt_are_seen(model: WhisperModel) -> None:
    plain = run(model, [LONG], language="en")[0].text
    assert run(model, [LONG], language="en", previous_text=True)[0].text != plain
    assert run(model, [LONG], language="en", prompt="the tea of uncle")[0].text != plain


def test_fallback_samples_again_by_default(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same seed the same output; none that the caller samples himself."""
    monkeypatch.setattr(windows, "REPEATING", 0.0)  # whatever is found
    asked: dict[str, Any] = {"language": "en", "max_length": 8, "beam": 1, "timestamps": False}
    asked["rate"] = RATE
    calls: list[float | None] = []
    decode = model.decode_windows

    def counted(*given: Any, **more: Any) -> list[Output]:
        calls.append(more.get("temperature"))
        return decode(*given, **more)

    monkeypatch.setattr(model, "decode_windows", counted)
    texts = [model.run(WAVES[:1], seed=7, **asked)[0].text for _ in range(2)]
    assert calls == [None, 0.2, 0.4, 0.6, 0.8, 1.0] * 2
    assert texts[0] == texts[1]
    del calls[:]
    model.run(WAVES[:1], fallback=False, **asked)
    model.run(WAVES[:1], sample=True, temperature=0.7, **asked)
    assert calls == [None, 0.7]


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        # text, mean log-probability
        ([("tea " * 30, -0.1), ("the tea", -1.5), ("for uncle", -1.2), ("a", -3.0)], "for uncle"),
        ([("tea " * 30, -0.4), ("uncle " * 30, -0.1)], "uncle " * 30),
    ],
)
def test_if_no_temperature_helps_the_best_is_kept(
    model: WhisperModel,
    monkeypatch: pytest.MonkeyPatch,
    outputs: list[tuple[str, float]],
    chosen: str,
) -> None:
    """What does not repeat itself, and of that the likeliest."""
    found = []
    for text, mean in outputs:
        ids = model.target_tokens.encode(text)
        found.append(Output(text, mean, ids=ids, log_probability=mean * (len(ids) + 1)))
    given = iter([*found, *found[-1:] * 6])
    monkeypatch.setattr(model, "decode_windows", lambda *_, **__: [next(given)])
    (output,) = model.run(WAVES[:1], rate=RATE, language="en", timestamps=False)
    assert output.text == chosen.strip()


def test_silence_is_not_decoded_again(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = model.target_tokens.encode(" tea")
    first = Output(" tea", -2.0, ids=ids, log_probability=-2.0 * (len(ids) + 1))
    calls = poor_at_first(model, monkeypatch, first)

    def silent(waves: Any, encoder: Any, *, languages: bool) -> list[DetectedLanguage]:
        return [DetectedLanguage({"de": 1.0}, no_speech=0.9) for _ in waves]

    monkeypatch.setattr(model, "listen", silent)
    (output,) = model.run(WAVES[:1], rate=RATE, language="en", timestamps=False)
    assert (output.text, len(calls)) == ("", 1)


def test_an_observer_never_sees_what_is_taken_back(model: WhisperModel) -> None:
    """Without fallback each token as it is chosen; with it the text that is certain."""
    seen: list[str] = []

    class Observer(RunObserver):
        watched: ClassVar[dict[int, Watch]] = {0: Watch()}

        def token(self, source: int, step: TokenStep) -> None:
            seen.append(step.text)

    asked: dict[str, Any] = {"language": "en", "timestamps": False, "beam": 1, "max_length": 8}
    asked |= {"only": [" tea for uncle"], "min_length": 4}
    (plain,) = run(model, WAVES[:1], observer=Observer(), **asked)
    assert "".join(seen).strip() == plain.text
    assert len(seen) > 3
    del seen[:]
    (again,) = run(model, WAVES[:1], observer=Observer(), fallback=True, **asked)
    assert seen == [again.text]


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ({"include": ["tea"]}, lambda one: "tea" in one.text),
        ({"include": [["tea"], ["uncle"]]}, lambda one: "tea" in one.text or "uncle" in one.text),
        ({"prefix": [" tea", " for"]}, lambda one: one.text.startswith(("tea", "for"))),
        ({"exclude": [["e"], []]}, lambda one: True),
        ({"only": [" tea for uncle"], "beam": 3}, lambda one: set(one.text) <= set(" teaforuncl")),
        ({"no_repeat_ngram": 1}, lambda one: len(one.ids) == len(set(one.ids))),
        ({"groups": 2, "nbest": 2}, lambda one: len(one.alternatives) == 2),
        ({"mbr": "chrf", "samples": 3}, lambda one: True),
    ],
)
def test_what_is_asked_for_holds_with_fallback_too(
    model: WhisperModel, asked: dict[str, Any], holds: Callable[[Output], bool]
) -> None:
    common: dict[str, Any] = {"language": "en", "timestamps": False, "max_length": 8, **asked}
    plain = run(model, WAVES[:2], **common)
    again = run(model, WAVES[:2], fallback=True, **common)
    assert all(map(holds, plain))
    assert all(map(holds, again))


def poor_at_first(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, first: Output
) -> list[dict[str, Any]]:
    """Windows are decoded to this output first, and then to a good one; what was asked of each."""
    calls: list[dict[str, Any]] = []

    def decode(segments: list[Any], call: Any, encoder: Any, **asked: Any) -> list[Output]:
        calls.append(asked)
        good = Output(" tea", -0.1, ids=model.target_tokens.encode(" tea"), log_probability=-0.1)
        return [first if len(calls) == 1 else good for _ in segments]

    monkeypatch.setattr(model, "decode_windows", decode)
    return calls


@pytest.mark.parametrize(
    ("text", "mean", "again"),
    [
        (" tea for uncle" * 12, -0.1, True),  # repeats itself, however likely
        (" tea for uncle", -1.1, True),  # is unlikely
        (" tea for uncle", -0.9, False),
        (" the tea of uncle Iroh for the uncle", -0.1, False),
    ],
)
def test_what_falls_back(
    model: WhisperModel,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    mean: float,
    again: bool,
) -> None:
    ids = model.target_tokens.encode(text)
    first = Output(text, mean, ids=ids, log_probability=mean * (len(ids) + 1))
    calls = poor_at_first(model, monkeypatch, first)
    run(model, WAVES[:1], language="en", timestamps=False, fallback=True)
    assert [call.get("temperature") for call in calls] == [None, *([0.2] if again else [])]


def test_every_setting_reaches_the_samples_of_fallback(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of later versions: what is asked of them is what was asked, and sampling."""
    first = Output(" tea" * 40, -0.1, ids=model.target_tokens.encode(" tea" * 40))
    calls = poor_at_first(model, monkeypatch, first)
    asked = {
        **{"ensemble": [model], "language_model": "a language model", "rerank": "a reranker"},
        **{"length_penalty": 0.3, "lm_weight": 0.2, "top_k": 7, "seed": 5, "unheard_of": 1},
    }
    run(model, WAVES[:1], language="en", timestamps=False, fallback=True, **asked)
    assert asked.items() <= calls[1].items()
    assert calls[1]["sample"] is True


def test_score_and_stream_agree_with_run(model: WhisperModel) -> None:
    asked: dict[str, Any] = {"language": "de", "beam": 1}
    outputs = run(model, WAVES, timestamps=False, max_length=12, **asked)
    call = Call(language="de")
    for wave, output in zip(WAVES, outputs, strict=True):
        segments = [AudioSegment.of("a", wave)]
        (whole,) = model.decode_windows(segments, call, beam=1, max_length=12)
        (values,) = model._log_probabilities([wave], [whole.ids], model.context_of(call))
        assert sum(values) == pytest.approx(whole.log_probability, abs=1e-3)
        assert whole.text.strip() == output.text
        pieces = list(model.stream(wave, rate=RATE, language="de", max_length=12))
        assert "".join(pieces).strip() == output.text
    scores = model.score(WAVES[:2], ["the tea", "for uncle"], rate=RATE, language="de")
    for score in scores:
        assert len(score.tokens) == len(score.token_log_probabilities)
    assert all(score.log_probability < 0 for score in scores)
    with pytest.raises(ModelError, match="longer than 2 s"):
        model.score([LONG], ["tea"], rate=RATE)


def test_lens_sees_the_prompt_too(model: WhisperModel) -> None:
    with model.lens("decoder.*.cross_attention") as seen:
        run(model, [WAVES[0]], language="fr", timestamps=False, fallback=True)
    (one,) = seen.entries  # nothing is decoded again while a lens looks
    assert one.target_tokens[:3] == ["<|fr|>", "<|transcribe|>", "<|notimestamps|>"]
    for weights in one.weights.values():
        assert weights.shape[1] == len(one.target_tokens)
        assert np.allclose(weights.sum(axis=-1), 1, atol=1e-4)
    (shown,) = run(model, [WAVES[0]], language="fr", timestamps=False, attention=True)
    assert shown.attention is not None
    assert shown.attention.shape[2] == len(shown.tokens)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_other_precisions_run(tmp_path: Path, model: WhisperModel, precision: str) -> None:
    model.save(tmp_path)
    other = load(tmp_path, precision=precision)
    (output,) = other.run([WAVES[0]], rate=RATE, times=True)
    assert output.text
    assert output.language in ("en", "de", "fr")


def test_what_is_no_speech_and_unlikely_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether anything is said is asked of unlikely outputs alone, of all of a batch together."""
    model = tiny_whisper.our_model().freeze()
    assert isinstance(model, WhisperModel)
    asked: list[int] = []

    def silent(waves: Any, encoder: Any, *, languages: bool) -> list[DetectedLanguage]:
        asked.append(len(waves))
        return [DetectedLanguage({"de": 1.0}, no_speech=0.9) for _ in waves]

    monkeypatch.setattr(model, "listen", silent)
    monkeypatch.setattr(windows, "UNLIKELY", -100.0)
    said = run(model, WAVES, language="de", timestamps=False)
    assert all(output.text for output in said)
    assert not asked
    monkeypatch.setattr(windows, "UNLIKELY", 0.0)
    assert not any(output.text for output in run(model, WAVES, language="de", timestamps=False))
    assert asked == [len(WAVES)]
    run(model, WAVES, timestamps=False)  # the language is detected: nothing is asked twice
    assert asked == [len(WAVES)] * 2


# ------------------------------------------------------------------------ voice activity


def speaking(monkeypatch: pytest.MonkeyPatch, spans: list[tuple[float, float]]) -> None:
    """As if somebody spoke then."""
    found = [Span(*span) for span in spans]
    monkeypatch.setattr(clock, "speech_spans", lambda samples, rate: found)


def test_words_and_segments_are_where_somebody_speaks(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = np.concatenate(tiny_whisper.noises(3, seed=6))[: 2 * RATE]
    spans = [(0.1, 0.3), (1.45, 1.8)]
    speaking(monkeypatch, spans)
    asked: dict[str, Any] = {"language": "en", "timestamps": False, "times": True}
    (output,) = run(model, [wave], prefix=" the tea of uncle Iroh for the uncle", **asked)
    assert len(output.words) > 1
    for word in output.words:
        assert any(a - 0.011 <= word.start and word.end <= b + 0.011 for a, b in spans), word
    times = [moment for word in output.words for moment in (word.start, word.end)]
    assert times == sorted(times)
    # Cut where nobody speaks for more than a second, from the first word of each to its last.
    assert " ".join(one.text for one in output.segments).split() == output.text.split()
    assert [(one.start, one.end) for one in output.segments] == [
        (output.words[0].start, max(w.end for w in output.words if w.end < 1)),
        (min(w.start for w in output.words if w.start > 1), output.words[-1].end),
    ]


def test_vad_decodes_speech_alone(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are those of the recording."""
    quiet = np.zeros(3 * RATE, np.int16)
    said = [wave[: RATE // 2] for wave in tiny_whisper.noises(2, seed=9, longest=0.5)]
    lengths = [len(wave) / RATE for wave in said]
    wave = np.concatenate([quiet, said[0], quiet, said[1], quiet])
    spans = [(3.0, 3.0 + lengths[0]), (6.0 + lengths[0], 6.0 + sum(lengths))]
    speaking(monkeypatch, spans)
    heard: list[int] = []
    decode = model.decode_windows

    def counted(segments: Any, *more: Any, **asked: Any) -> list[Output]:
        heard.extend(len(segment.wave) for segment in segments)
        return decode(segments, *more, **asked)

    monkeypatch.setattr(model, "decode_windows", counted)
    asked: dict[str, Any] = {"language": "en", "times": True, "vad": True, "timestamps": False}
    (output,) = run(model, [wave], prefix=" the tea of uncle", **asked)
    kept = sum(lengths) + 4 * 0.3
    assert 2.0 < kept < 2.3
    assert heard == [2 * RATE]  # one window: nobody speaks in the rest
    assert output.words
    for word in output.words:
        assert any(a - 0.011 <= word.start and word.end <= b + 0.011 for a, b in spans), word
    del heard[:]
    run(model, [wave], language="en", timestamps=False)
    assert sum(heard) == len(wave)


def test_without_speech_vad_writes_nothing(model: WhisperModel) -> None:
    """Silence, hiss and a tone are not decoded at all."""
    t = np.arange(5 * RATE) / RATE
    draw = np.random.default_rng(3)
    sounds = [0 * t, 0.1 * draw.standard_normal(len(t)), 0.3 * np.sin(2 * np.pi * 330 * t)]
    outputs = run(model, [sound.astype(np.float32) for sound in sounds], vad=True, times=True)
    assert [output.text for output in outputs] == ["", "", ""]
    assert all("contains no speech" in output.warning for output in outputs[1:])
    assert outputs[1].to_json()["words"] == []
    assert not any(output.failed for output in outputs)
