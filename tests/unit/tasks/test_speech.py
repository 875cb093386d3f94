"""Models that hear: files of any length, and files that are none."""

from __future__ import annotations

import math
import re
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from language import language_model
from tiny_sounds import audio_model, audio_recipe, noise
from tones import RATE, tones
from transduce import load
from transduce.cli.printing import print_metrics, print_recordings
from transduce.data.audio.corpus import audio_corpus, read_waves
from transduce.data.doctor.check import examine
from transduce.data.text.pairs import audio_of
from transduce.errors import DataError, ModelError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.interop.export import export_folder
from transduce.tasks import SpeechModel
from transduce.tasks import audio_input as listening


@pytest.fixture
def model() -> SpeechModel:
    return audio_model()


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    for name, text in (("one", "abc"), ("two", "de a b")):
        soundfile.write(tmp_path / f"{name}.wav", tones(text), RATE)
    return tmp_path


def test_a_file_and_its_parts(model: SpeechModel, sounds: Path) -> None:
    whole = str(sounds / "two.wav")
    seconds = len(tones("de a b")) / RATE
    first, part, again = model.run([whole, f"{whole}#t=0.1,0.5", f"{whole}#t=0"])
    assert first.text == again.text
    assert [(s.start, s.end) for s in first.segments] == [(0.0, pytest.approx(seconds))]
    assert [(s.start, s.end) for s in part.segments] == [(0.1, 0.5)]
    assert model(whole) == first.text


def test_samples_at_hand_need_no_file(model: SpeechModel, sounds: Path) -> None:
    names = [str(sounds / "one.wav"), str(sounds / "two.wav")]
    read = [heeded.wave for heeded in read_waves(names, RATE)]
    from_files = model.run(names, times=True)
    for name in names:
        Path(name).unlink()
    pieces = [listening.AudioSegment.of(name, wave) for name, wave in zip(names, read, strict=True)]
    assert model.run(pieces, times=True) == from_files


def test_times_that_are_not_by_ctc_are_reported_once(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(sounds / "one.wav"), str(sounds / "two.wav")]
    for ctc, times in ((0.3, 0), (0.0, 1)):
        model = audio_model(f"model.ctc_weight={ctc}")
        print_recordings(model, [names], "json", None, {}, scores=False, numbered=False)
        assert capsys.readouterr().err.count("word timestamps come from attention") == times
    apart = "data.tokens={source: {level: character}, target: {level: character}}"
    print_recordings(audio_model(apart), [names], "json", None, {}, scores=False, numbered=False)
    assert "timestamps for segments, not for words" in capsys.readouterr().err


def test_what_cannot_be_heard_does_not_stop_the_others(model: SpeechModel, sounds: Path) -> None:
    (sounds / "text.wav").write_text("no audio")
    (sounds / "empty.wav").write_bytes(b"")
    good = (sounds / "one.wav").read_bytes()
    (sounds / "cut.wav").write_bytes(good[: len(good) // 2])
    (sounds / "rate.wav").write_bytes(good[:24] + (3).to_bytes(4, "little") + good[28:])
    soundfile.write(sounds / "short.wav", np.full(40, 0.1), RATE)
    names = ["one", "gone", "text", "empty", "cut", "rate", "short", "two"]
    outputs = model.run([str(sounds / f"{name}.wav") for name in names])
    assert [output.failed for output in outputs] == [False, *[True] * 6, False]
    said = [output.warning for output in outputs]
    for words, warning in zip(
        ("no audio file", "not audio", "is empty", "truncated", "sampling rate of 3 Hz", "10 ms"),
        said[1:7],
        strict=True,
    ):
        assert words in warning
        assert "\n" not in warning
    assert said[0] == said[7] == ""
    assert outputs[0].text == model(str(sounds / "one.wav"))


def test_past_the_end_there_is_nothing(model: SpeechModel, sounds: Path) -> None:
    (output,) = model.run([f"{sounds / 'one.wav'}#t=60,70"])
    assert output.failed
    assert "has nothing at 60 s" in output.warning


def test_silence_is_empty_and_no_failure(model: SpeechModel, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "long.wav", np.zeros(20 * RATE), RATE)
    short, long = model.run([str(tmp_path / "silent.wav"), str(tmp_path / "long.wav")])
    assert (short.text, short.failed) == (long.text, long.failed) == ("", False)
    assert "is silent" in short.warning
    assert "only silence or noise" in long.warning
    found = short.to_json()
    assert found["segments"] == []
    assert "words" not in found
    (timed,) = model.run([str(tmp_path / "silent.wav")], times=True)
    assert (timed.to_json()["segments"], timed.to_json()["words"]) == ([], [])
    (missing,) = model.run([str(tmp_path / "missing.wav")], times=True)
    assert "segments" not in missing.to_json()


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Three utterances, a second of near silence between them; longer than any in training."""
    quiet = 0.0005 * np.random.default_rng(1).standard_normal(RATE)
    parts = [quiet, tones("abc de"), quiet, tones("ed cba"), quiet, tones("aa bb"), quiet]
    soundfile.write(tmp_path / "long.wav", np.concatenate(parts), RATE)
    return tmp_path / "long.wav"


def test_long_recordings_are_cut_at_their_pauses(model: SpeechModel, long: Path) -> None:
    assert model.recordings.longest == pytest.approx(3.0)
    (output,) = model.run([str(long)], times=True)
    assert len(output.segments) == 3
    ends = [0.0, *(end for s in output.segments for end in (s.start, s.end))]
    assert ends == sorted(ends)
    assert all(s.end - s.start <= model.recordings.longest for s in output.segments)
    assert output.text == " ".join(s.text for s in output.segments if s.text)
    pieces = [f"{long}#t={s.start:.6f},{s.end:.6f}" for s in output.segments]
    assert [one.text for one in model.run(pieces)] == [s.text for s in output.segments]


def test_segments_may_be_shorter_than_recordings_of_training_not_longer(
    model: SpeechModel, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = model.recipe
    assert recipe.audio is not None
    for seconds, longest in ((1.0, 1.0), (60.0, 3.0)):
        audio = recipe.audio.model_copy(update={"segment": seconds})
        monkeypatch.setattr(model, "recipe", recipe.model_copy(update={"audio": audio}))
        (output,) = model.run([str(long)], times=True)
        assert model.recordings.longest == longest
        assert max(s.end - s.start for s in output.segments) <= longest
        assert len(output.segments) > 3 or longest == 3.0


def test_little_is_in_memory_at_a_time(
    model: SpeechModel, long: Path, sounds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [str(sounds / "one.wav"), str(long), str(sounds / "gone.wav"), str(long)]
    at_once = model.run(sources)
    held: list[float] = []
    read = listening.read_waves

    def note(names: list[str], rate: int) -> object:
        waves = read(names, rate)
        held.append(sum(len(one.wave) for one in waves if one.wave is not None) / rate)
        return waves

    monkeypatch.setattr(listening, "SECONDS_AT_ONCE", 3.0)
    monkeypatch.setattr(listening, "read_waves", note)
    bit_by_bit = model.run(sources)
    assert len(held) > 2
    assert max(held) <= 3.1
    assert [one.text for one in bit_by_bit] == [one.text for one in at_once]
    assert [one.failed for one in bit_by_bit] == [False, False, True, False]


def test_more_is_read_while_the_first_is_decoded(
    model: SpeechModel, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, times, twice = listening.read_waves, [0], Event()

    def note(names: list[str], rate: int) -> object:
        times[0] += 1
        if times[0] == 2:
            twice.set()
        return read(names, rate)

    monkeypatch.setattr(listening, "SECONDS_AT_ONCE", 3.0)
    monkeypatch.setattr(listening, "read_waves", note)
    groups = model.recordings.read(model.recordings.split([str(long)], None, ()))
    next(groups)
    assert twice.wait(20)  # nobody has asked for it yet
    assert [len(readable) for _, readable in groups] == [1] * (times[0] - 1)


def test_of_hours_with_one_word_in_them_only_that_is_read(
    model: SpeechModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = 0.0005 * np.random.default_rng(1).standard_normal(9 * RATE)
    soundfile.write(tmp_path / "x.wav", np.concatenate([quiet, tones("abc"), quiet]), RATE)
    held: list[int] = []
    read = listening.read_waves

    def note(names: list[str], rate: int) -> object:
        waves = read(names, rate)
        held.extend(len(one.wave) for one in waves if one.wave is not None)
        return waves

    monkeypatch.setattr(listening, "read_waves", note)
    (output,) = model.run([str(tmp_path / "x.wav")])
    assert len(held) == len(output.segments) == 1
    assert held[0] < 2 * RATE
    assert 8.5 < output.segments[0].start < output.segments[0].end < 10.5
    assert 0 < output.segments[0].confidence < 1


def test_what_was_found_is_accounted_for(model: SpeechModel, sounds: Path) -> None:
    for ctc in (0.0, 0.4, 1.0):
        (output,) = model.run(
            [str(sounds / "two.wav")], times=True, ctc_weight=ctc, length_penalty=0.7
        )
        parts = output.parts
        joint = (1 - ctc) * parts["attention"] + ctc * parts["ctc"]
        assert output.score == pytest.approx(joint / parts["length_penalty"], abs=1e-3)
    assert model.run([str(sounds / "two.wav")])[0].parts == {}


@pytest.mark.parametrize("beam", [1, 4])
def test_ctc_alone_does_not_ask_the_decoder(beam: int, sounds: Path) -> None:
    model = audio_model()
    sources = [str(sounds / "one.wav"), str(sounds / "two.wav")]
    before = model.run(sources, ctc_weight=1.0, beam=beam)
    joint = model.run(sources, ctc_weight=0.9, beam=beam)
    for parameter in model.network.decoder.parameters():
        torch.nn.init.normal_(parameter)
    after = model.run(sources, ctc_weight=1.0, beam=beam)
    assert [(o.text, o.score) for o in after] == [(o.text, o.score) for o in before]
    assert [o.score for o in model.run(sources, ctc_weight=0.9, beam=beam)] != [
        o.score for o in joint
    ]


def test_ctcs_probabilities_are_counted_as_memory(model: SpeechModel) -> None:
    vocabulary = len(model.source_tokens)
    for ctc, expected in ((0.0, 0), (0.3, 8 * vocabulary), (1.0, 8 * vocabulary)):
        assert model.decoder.task(model.settings(ctc_weight=ctc), ()).state_bytes == expected


def test_words_have_times_within_the_recording(model: SpeechModel, long: Path) -> None:
    (output,) = model.run([str(long)], times=True, ctc_weight=0.4)
    assert " ".join(word.text for word in output.words) == " ".join(output.text.split())
    for word in output.words:
        assert any(s.start <= word.start <= word.end <= s.end for s in output.segments)
        assert 0 <= word.confidence <= 1
    values = output.to_json()
    assert set(values["words"][0]) == {"text", "start", "end", "confidence"}


def test_a_loop_is_reported(sounds: Path) -> None:
    model = audio_model("decode.max_extra=40")
    head = model.network.head
    head.bias.data[4] = 50.0  # it says the same letter for ever
    (output,) = model.run([str(sounds / "one.wav")], beam=1)
    assert len(output.ids) > 20
    assert "times in a row; try no_repeat_ngram (--no-repeat-ngram)" in output.warning


def test_sound_that_was_leapt_over_is_reported(tmp_path: Path) -> None:
    model = audio_model("data.max_length=2000")
    model.network.head.bias.data[3] = 50.0  # it ends at once
    model.network.head.bias.data[4] = 49.0
    quiet = 0.0005 * np.random.default_rng(1).standard_normal(RATE)
    samples = np.concatenate([quiet, tones("abcdeabcde" * 3), quiet])
    soundfile.write(tmp_path / "x.wav", samples, RATE)
    (output,) = model.run([str(tmp_path / "x.wav")], times=True, min_length=1, max_length=1)
    assert "x.wav: speech without a transcript at" in output.warning
    (output,) = model.run([f"{tmp_path / 'x.wav'}#t=0.5"], times=True)
    assert output.text == ""
    found = re.search(r"x\.wav: speech without a transcript at (.*) to (.*) s", output.warning)
    assert found
    assert float(found[1]) == pytest.approx(0.5, abs=0.1)
    assert float(found[2]) == pytest.approx(len(samples) / RATE, abs=0.2)


def test_attention_that_does_not_move_along_is_reported(sounds: Path) -> None:
    """Untrained attention is flat; a translation need not follow the audio."""
    both, apart = (
        "both: {level: character}",
        "source: {level: character}, target: {level: character}",
    )
    for tokens, reported in ((both, True), (apart, False)):
        model = audio_model(f"data.tokens={{{tokens}}}", "decode.ctc_weight=0")
        model.network.head.bias.data[4:9] = torch.tensor([50.0, 50.0, 50.0, 50.0, 50.0])
        name = str(sounds / "two.wav")
        (output,) = model.run([name], times=True, beam=1, min_length=10, no_repeat_ngram=3)
        assert ("two.wav: attention did not move along the audio (" in output.warning) == reported


def test_how_far_attention_moves_along_a_corpus(sounds: Path) -> None:
    waves = [heeded.wave for heeded in read_waves([str(sounds / "two.wav")], RATE)]
    corpus = audio_corpus(waves, [[4, 5, 6, 7, 8, 9]])
    model = audio_model()
    found = model.diagonal(corpus)
    assert found is not None
    assert abs(found) < 0.2
    assert not model.network.training
    attention = model.network.decoder.blocks[0].cross_attention  # type: ignore[union-attr]
    steps = model.network.states_of(len(waves[0])) / 7

    def moving(*_: object, **__: object) -> torch.Tensor:
        place_TS = torch.arange(int(7 * steps)) - steps * torch.arange(7)[:, None]
        attention.watch((-place_TS.square()).softmax(dim=1).expand(1, 2, -1, -1))
        return torch.zeros(1, 7, 16)

    attention.attend = moving  # type: ignore[method-assign]
    found = model.diagonal(corpus)
    assert found is not None
    assert found > 0.9
    assert (
        audio_model("data.tokens={source: {level: character}, target: {level: word}}").diagonal(
            corpus
        )
        is None
    )


# ------------------------------------------------------------------------------------- settings


def test_ctc_of_other_tokens_cannot_judge_what_is_written() -> None:
    apart = "data.tokens={source: {level: character}, target: {level: character}}"
    model = audio_model(apart)
    assert not model.has_same_ctc
    with pytest.raises(ModelError, match="ctc_weight needs a model trained with CTC"):
        model._stepper(model.settings(ctc_weight=0.3))


def test_a_language_model_must_speak_the_same_tokens(model: SpeechModel, sounds: Path) -> None:
    other = language_model()
    with pytest.raises(ModelError, match="has another vocabulary than the model"):
        model.run([str(sounds / "one.wav")], language_model=other)
    with pytest.raises(ModelError, match="cannot serve as a language model"):
        model.run([str(sounds / "one.wav")], language_model=model)
    with pytest.raises(ModelError, match="use language_model for text models"):
        model.run([str(sounds / "one.wav")], rerank=other)


@pytest.mark.parametrize("encoder", ["conformer", "recurrent"])
def test_coverage_counts_encoder_states(encoder: str) -> None:
    """Not samples: a recording has the same score alone and beside a longer one."""
    model, waves = audio_model(encoder=encoder), [noise(0.7), noise(2.1, 2)]
    asked: dict[str, Any] = {"rate": RATE, "coverage_penalty": 0.5, "max_length": 6}
    together = model.run(waves, **asked)
    for wave, output in zip(waves, together, strict=True):
        (alone,) = model.run([wave], **asked)
        assert (alone.text, alone.score) == (output.text, pytest.approx(output.score, abs=1e-3))
        (plain,) = model.run([wave], rate=RATE, max_length=6)
        states = model.network.states_of(len(wave))
        assert plain.score - 0.5 * states * math.log(1e6) < alone.score < plain.score
    with pytest.raises(ModelError, match="with ctc_weight 1 the decoder is not used"):
        model.run(waves, ctc_weight=1, **asked)


def test_what_is_scored_must_be_there(model: SpeechModel, sounds: Path) -> None:
    (score,) = model.score([str(sounds / "one.wav")], ["abc"])
    assert len(score.tokens) == 4
    with pytest.raises(DataError, match="no audio file"):
        model.score(["gone.wav"], ["abc"])


def test_attention_has_a_column_for_each_state(model: SpeechModel, sounds: Path) -> None:
    one, two = model.run([str(sounds / "one.wav"), str(sounds / "two.wav")], attention=True)
    assert one.attention is not None
    assert two.attention is not None
    for output, text in ((one, "abc"), (two, "de a b")):
        states = model.network.states_of(len(tones(text)))
        assert output.attention is not None
        assert output.attention.shape == (1, 2, len(output.ids) + 1, states)
        np.testing.assert_allclose(output.attention.sum(axis=-1), 1.0, rtol=1e-5)


def test_what_is_heard_streams(model: SpeechModel, sounds: Path) -> None:
    source = str(sounds / "two.wav")
    assert "".join(model.stream(source)) == model.run([source], beam=1)[0].text


def test_what_hears_is_not_exported(model: SpeechModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    with pytest.raises(ModelError, match="is a speech model; only models with text sources"):
        export_folder(tmp_path / "model", "onnx")


def test_a_model_folder_comes_back(model: SpeechModel, sounds: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, SpeechModel)
    source = [str(sounds / "two.wav")]
    assert again.run(source)[0].score == pytest.approx(model.run(source)[0].score, abs=1e-5)


def test_a_recording_that_is_gone_counts_as_nothing_written(
    model: SpeechModel, sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sounds / "list.tsv").write_text("path\ttext\none.wav\tabc\ngone.wav\tde\n")
    model.save(sounds / "model")
    result = evaluate_folder(model, sounds / "model", files=(sounds / "list.tsv", None))
    assert [output.failed for output in result.outputs] == [False, True]
    assert result.metrics["cer"].details["reference_length"] == 5
    limited = audio_of(model.recipe.data.train)
    assert limited is not None
    limited = limited.model_copy(update={"limit": 1, "group": "text"})
    data = model.recipe.data.model_copy(update={"train": limited})
    model.recipe = model.recipe.model_copy(update={"data": data})
    result = evaluate_folder(model, sounds / "model", files=(sounds / "list.tsv", None))
    assert len(result.items) == 2  # the limit is of the training set
    assert result.groups == {}
    print_metrics(result)
    assert "1 recording could not be used and counted as empty" in capsys.readouterr().err
    with pytest.raises(DataError, match="as a table, with --source alone"):
        evaluate_folder(model, sounds / "model", files=(sounds / "list.tsv", sounds / "list.tsv"))


def test_the_doctor_looks_at_headers(sounds: Path) -> None:
    (sounds / "list.tsv").write_text("path\ttext\none.wav\tabc\ngone.wav\tde\ntwo.wav\tde a b\n")
    corpora = [f"data.{split}={{file: list.tsv, audio: path}}" for split in ("train", "valid")]
    shape = ["data.max_length=80", f"data.folder={sounds}"]
    diagnosis = examine(audio_recipe(*corpora, *shape))
    (frames,) = (row for row in diagnosis.lengths if row.split == "train" and row.side == "source")
    assert (frames.unit, frames.greatest) == ("frames", int(len(tones("de a b")) / RATE * 100))
    reported = " ".join(finding.what for finding in diagnosis.findings)
    assert "train: 1 recording that cannot be read" in reported
    assert "train: 1 pair longer than data.max_length = 80" in reported
    parts = "path\ttext\tfrom\tto\none.wav\tabc\t0.1\t0.3\ntwo.wav\ta\t0.2\t99\n"
    (sounds / "parts.tsv").write_text(parts)
    manifest = "{file: parts.tsv, audio: path, start: from, end: to}"
    corpora = [f"data.{split}={manifest}" for split in ("train", "valid")]
    diagnosis = examine(audio_recipe(*corpora, *shape))
    (frames,) = (row for row in diagnosis.lengths if row.split == "train" and row.side == "source")
    assert frames.least == 20
    assert frames.greatest == pytest.approx(100 * (len(tones("de a b")) / RATE - 0.2), abs=1)


def test_samples_do_not_depend_on_the_folder_of_a_file(tmp_path: Path) -> None:
    """As where a server writes the same upload into another folder each time."""
    model, texts = audio_model(), []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "talk.wav"
        soundfile.write(path, noise(1.5), 4000)
        drawn = [model.run([path], sample=True, seed=seed)[0].text for seed in range(4)]
        streamed = "".join(model.stream(path, sample=True, seed=2))
        texts.append([*drawn, streamed])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 2
