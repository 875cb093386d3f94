"""Transducers in use: search, scores, times, what they refuse, and live transcripts that grow."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from fixtures.make_models import MODELS, in_noise
from tiny_sounds import audio_model, audio_recipe, noise
from tones import RATE, tones
from transduce.data.audio.corpus import Wave, to_int16
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.batch.decode import CANCELLED
from transduce.decoding.constraints.hotwords import HOTWORD_BEAM
from transduce.decoding.settings import Settings
from transduce.decoding.speech.warnings import Loop
from transduce.errors import ModelError, RecipeError
from transduce.inspection.analysis.subject import subject_of
from transduce.inspection.speech_figure import draw_speech_attention
from transduce.models import transducer as network_of
from transduce.models.transducer import SpeechTransducer
from transduce.nn.transducer.search import TransducerSearch
from transduce.tasks.live import Transcript
from transduce.tasks.observer import RunObserver
from transduce.tasks.speech_transducer import SpeechTransducerModel
from transduce.tasks.transduce import load

RECURRENT = "model.decoder={kind: recurrent, cell: lstm, layers: 2, attention: none}"
STATELESS = "model.decoder={kind: convolutional, layers: 1, kernel: 2, positions: none}"
STREAMING = (
    "audio.normalize=global",
    "model.encoder={kind: conformer, layers: 1, heads: 2, feed_forward: 32, kernel: 5, "
    "chunk: {ms: 160, trained: [40, 320]}}",
)
WAVES = [noise(0.8, 1), noise(0.45, 2), noise(0.3, 3)]


def transducer(*overrides: str, decoder: str = RECURRENT) -> SpeechTransducerModel:
    """One that is not trained, and writes something for any noise."""
    model = audio_model("model.transducer={joint_width: 24}", decoder, *overrides)
    assert isinstance(model, SpeechTransducerModel)
    assert isinstance(model.network, SpeechTransducer)
    with torch.no_grad():  # more blanks: a text shorter than its limit
        model.network.head.bias[PAD] += 1.5
        model.network.head.weight.mul_(3.0)
    return model


@pytest.mark.parametrize("decoder", [RECURRENT, STATELESS])
@pytest.mark.parametrize("beam", [1, 3])
def test_an_output_has_the_score_of_its_text_and_neighbours_do_not_matter(
    decoder: str, beam: int
) -> None:
    model = transducer(decoder=decoder)
    # The unknown token has no text that could be scored.
    given: dict[str, Any] = {"beam": beam, "nbest": beam, "times": True, "unknown": False}
    outputs = model.run(WAVES, rate=RATE, **given)
    assert any(output.text for output in outputs)
    assert len({tuple(output.ids) for output in outputs}) > 1
    scores = model.score(WAVES, [output.text for output in outputs], rate=RATE)
    for wave, output, score in zip(WAVES, outputs, scores, strict=True):
        # Over all alignments, and so the sum over the tokens, END included.
        assert output.log_probability == pytest.approx(score.log_probability, abs=1e-3)
        assert output.parts["transducer"] == pytest.approx(score.log_probability, abs=1e-3)
        assert len(score.tokens) == len(output.ids) + 1
        (alone,) = model.run([wave], rate=RATE, **given)
        assert alone.text == output.text
        for word, same in zip(alone.words, output.words, strict=True):
            assert (word.start, word.end) == (same.start, same.end)
            assert word.confidence == pytest.approx(same.confidence, abs=1e-4)
        assert [one.text for one in alone.alternatives] == [one.text for one in output.alternatives]
        ordered = [one.score for one in output.alternatives]
        assert ordered == sorted(ordered, reverse=True)
        starts = [word.start for word in output.words]
        assert starts == sorted(starts)
        assert all(0 <= word.start < word.end <= len(wave) / RATE + 0.1 for word in output.words)
        assert all(0 <= word.confidence <= 1 for word in output.words)


@pytest.mark.parametrize("decoder", [RECURRENT, STATELESS])
def test_the_prediction_network_reads_step_by_step_what_it_reads_at_once(decoder: str) -> None:
    network = transducer(decoder=decoder).network.double()
    labels_BT = torch.tensor([[BEGIN, 5, 6, 5], [BEGIN, 7, 7, 4]])
    with torch.no_grad():
        whole_BPD = network.decoder(labels_BT)
        features_BD, state = network.first_features(2, torch.device("cpu"))
        for place in range(4):
            torch.testing.assert_close(features_BD, whole_BPD[:, place])
            if place < 3:
                features_BD, state = network.next_features(labels_BT[:, place + 1], state)


def test_lattices_that_do_not_fit_into_memory_have_the_same_loss_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for limit in (2**24, 1):
        monkeypatch.setitem(network_of.MAX_LOGITS, "cpu", limit)
        network = transducer("model.ctc_weight=0").network
        batch = collate(WAVES, [[4, 5, 5], [7], []])
        assert batch.target_BT is not None
        loss = network.loss(batch.source_BS, batch.source_lengths_B, batch.target_BT)
        loss.total.backward()
        gradients = [p.grad.norm().item() for p in network.parameters() if p.grad is not None]
        found.append([loss.total.item(), loss.nll.item(), loss.correct.item(), *gradients])
        assert loss.tokens.item() == 4 + 2 + 1  # an END each
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_the_loss_is_that_of_scores_and_ctc_has_its_share() -> None:
    alone, joint = transducer("model.ctc_weight=0"), transducer("model.ctc_weight=0.4")
    texts = ["ab", "c", ""]
    batch = collate(WAVES, alone.target_tokens.encode_batch(texts))
    assert batch.target_BT is not None
    given = batch.source_BS, batch.source_lengths_B, batch.target_BT
    expected = sum(one.log_probability for one in alone.score(WAVES, texts, rate=RATE))
    assert alone.network.loss(*given).total.item() == pytest.approx(-expected, abs=1e-3)
    network = joint.network
    loss = network.loss(*given)
    memory = network.encode(*given[:2])
    said = torch.nn.functional.ctc_loss(
        network.ctc_log_probs(memory).transpose(0, 1),
        batch.target_BT[:, 1:],
        memory.lengths_B,
        torch.tensor([2, 1, 0]),
        PAD,
        "sum",
    )
    mixed = 0.6 * loss.nll + 0.4 * said
    assert loss.total.item() == pytest.approx(mixed.item(), abs=1e-3)


def test_it_learns_what_it_hears() -> None:
    encoder = "model.encoder={kind: conformer, layers: 1, heads: 2, feed_forward: 32, kernel: 5}"
    model = transducer("model.ctc_weight=0", "audio.spec_augment=null", encoder)
    texts = ["ab", "ba c"]
    waves = [to_int16(tones(text)) for text in texts]
    batch = collate(waves, model.target_tokens.encode_batch(texts))
    optimizer = torch.optim.Adam(model.network.parameters(), lr=2e-2)
    losses = []
    for _ in range(70):
        loss = model.network.batch_loss(batch)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
        losses.append(loss.nll.item())
    assert losses[-1] < 0.05 * losses[0]
    assert loss.correct.item() > 0.9 * loss.tokens.item()
    for beam in (1, 3):
        assert [output.text for output in model.run(waves, rate=RATE, beam=beam)] == texts


def test_a_stream_gives_the_text_of_greedy_search() -> None:
    model = transducer()
    assert "".join(model.stream(WAVES[0], rate=RATE)) == model(WAVES[0], rate=RATE, beam=1) != ""


def test_lengths_and_tokens_may_be_limited() -> None:
    model = transducer()
    for beam in (1, 3):
        (short,) = model.run(WAVES[:1], rate=RATE, beam=beam, max_length=2)
        assert len(short.ids) <= 2
        (only,) = model.run(WAVES[:1], rate=RATE, beam=beam, only=["a"])
        assert set(only.text) <= {"a"}
    assert short.reached_max_length


def test_an_int8_copy_writes_nearly_the_same(tmp_path: Path) -> None:
    model = transducer()
    exact = model.run(WAVES, rate=RATE, beam=1)
    rough = model.compute_in("int8").run(WAVES, rate=RATE, beam=1)
    for one, other in zip(exact, rough, strict=True):
        assert other.log_probability / (len(other.ids) + 1) == pytest.approx(
            one.log_probability / (len(one.ids) + 1), rel=0.1
        )


def test_a_saved_model_is_loaded_as_it_was(tmp_path: Path) -> None:
    model = transducer(*STREAMING)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, SpeechTransducerModel)
    assert again.run(WAVES, rate=RATE) == model.run(WAVES, rate=RATE)


def test_when_tokens_are_emitted_is_drawn(tmp_path: Path) -> None:
    model, source = transducer(), str(tmp_path / "one.wav")
    soundfile.write(source, tones("ab c"), RATE)
    text = draw_speech_attention(model, source, tmp_path / "one.png", beam=1)
    assert text == model(source, beam=1)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    ids = model.target_tokens.encode(text)
    emitted_US = model.emissions(WAVES[0], ids)
    assert emitted_US.sum(axis=1) == pytest.approx(np.ones(len(ids)), abs=1e-4)


# ------------------------------------------------------------------------------------------ live

TEXTS = ["ab cd", "dda b", "c", "abcd dcba"]


@cache
def trained() -> SpeechTransducerModel:
    model = load(MODELS / "transducer")
    assert isinstance(model, SpeechTransducerModel)
    return model


@cache
def spoken() -> Wave:
    draw = random.Random(5)
    return to_int16(np.concatenate([in_noise(text, draw) for text in TEXTS]))


def fed(samples: Wave, step: int, **given: Any) -> list[Transcript]:
    with trained().live(RATE, **given) as session:
        found = []
        for start in range(0, len(samples), step):
            found += session.feed(samples[start : start + step])
        return found + session.finish()


def test_live_transcripts_only_grow() -> None:
    """None is revised, in the utterance or at its end, however the samples are cut."""
    found = fed(spoken(), 640)
    assert [one.text for one in found if one.final] == TEXTS
    assert len(found) > 2 * len(TEXTS)
    last: dict[int, str] = {}
    for one in found:
        assert one.text.startswith(last.get(one.utterance, ""))
        last[one.utterance] = one.text
        assert one.stable == len(one.text)
        assert [word.text for word in one.words] == one.text.split()
    assert fed(spoken(), 997) == found


def starts_of_words() -> list[float]:
    """When the words of `spoken` begin: a letter takes 0.15 s, after 0.1 s."""
    draw, found, before = random.Random(5), [], 0
    for text in TEXTS:
        silence = draw.randrange(4000)
        after = draw.randrange(4000)
        draw.randrange(2**31)
        first = before + silence + 400
        found += [first + 600 * at for at in range(len(text)) if at == 0 or text[at - 1] == " "]
        before = first + 600 * len(text) + 400 + after
    return [sample / RATE for sample in found]


def test_words_are_where_they_were_said_live_and_in_a_file() -> None:
    (offline,) = trained().run([spoken()], rate=RATE, times=True, beam=1)
    assert offline.text == " ".join(TEXTS)
    live = [word for one in fed(spoken(), 640) if one.final for word in one.words]
    for ours, theirs, start in zip(live, offline.words, starts_of_words(), strict=True):
        assert ours.text == theirs.text
        assert theirs.start == pytest.approx(start, abs=0.2)
        assert ours.start == pytest.approx(start, abs=0.2)
        assert start < ours.end == pytest.approx(theirs.end, abs=0.25)


def test_what_is_no_longer_needed_is_not_searched() -> None:
    class Gone(RunObserver):
        def cancelled(self) -> list[int]:
            return [0]

    wave = in_noise("ab", random.Random(1))
    gone, kept = trained().run([wave, wave], rate=RATE, observer=Gone())
    assert (gone.text, kept.text) == ("", "ab")
    assert gone.warning is not None
    assert gone.warning.startswith(CANCELLED)


def test_hotwords_are_searched_with_a_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    beams = []

    def note(model: Any, network: Any, settings: Settings) -> TransducerSearch:
        beams.append(settings.beam)
        return search(model, network, settings)

    search = SpeechTransducerModel._search
    monkeypatch.setattr(SpeechTransducerModel, "_search", note)
    wave = in_noise("ab", random.Random(1))
    trained().run([wave, wave], rate=RATE, hotwords=[["bb"], []], beam=1)
    assert beams == [HOTWORD_BEAM, 1]
    trained().run([wave], rate=RATE, hotwords=["bb"], beam=9)
    assert beams[2:] == [9]


def test_hotwords_are_chosen_and_scores_are_without_their_bonus() -> None:
    waves = [in_noise(text, random.Random(1)) for text in ("dc a", "ab")]
    given: dict[str, Any] = {"rate": RATE, "hotword_bonus": 30.0}
    plain = trained().run(waves, rate=RATE, beam=5)
    found = trained().run(waves, hotwords=[["bb"], []], **given)
    assert "bb" in found[0].text
    assert "bb" not in plain[0].text
    assert found[1].text == plain[1].text == "ab"  # which has none
    (score,) = trained().score(waves[:1], [found[0].text], rate=RATE)
    assert found[0].log_probability == pytest.approx(score.log_probability, abs=1e-3)
    assert "bb" in "".join(trained().stream(waves[0], hotwords=["bb"], **given))


def test_live_search_may_have_a_beam_and_a_batch_of_sessions() -> None:
    recogniser = trained().live_recogniser(beam=3)
    sessions = [recogniser.session(RATE) for _ in range(2)]
    for session, samples in zip(sessions, (spoken(), spoken()[:9000]), strict=True):
        session.push(samples)
        session.end()
    whole, first = (
        [one.text for one in found if one.final] for found in recogniser.advance(sessions)
    )
    assert whole == TEXTS
    assert first[0] == TEXTS[0]
    for session in sessions:
        session.close()


def test_one_without_chunks_hears_the_utterance_again_and_again() -> None:
    samples = np.concatenate([noise(1.0, 4), np.zeros(6000, np.int16)])
    with transducer().live(RATE, beam=1) as session:
        assert (session.feed(samples) + session.finish())[-1].final


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "given",
    [
        {"prefix": "a"},
        {"include": ["a"]},
        {"sample": True},
        {"groups": 2},
        {"attention": True},
        {"ctc_weight": 0.3},
        {"min_length": 3},
    ],
)
def test_settings_that_a_transducer_has_not(given: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"{next(iter(given))} is not for a transducer"):
        transducer().run(WAVES, rate=RATE, **given)


def test_settings_of_whisper_are_said_to_be_so() -> None:
    for asked in ({"vad": True}, {"language": "en"}, {"fallback": False}):
        with pytest.raises(ModelError, match=f"^{next(iter(asked))} is for Whisper; leave it out$"):
            transducer().run(WAVES, rate=RATE, **asked)


def test_a_loop_is_reported_without_a_setting_that_a_transducer_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transduce.tasks.speech.find_loop", lambda ids: Loop(0, 1, 9))
    (output,) = transducer().run(WAVES[:1], rate=RATE)
    assert "is repeated 9 times in a row" in output.warning
    assert "no_repeat_ngram" not in output.warning


def test_other_models_and_looking_inside_are_refused() -> None:
    model = transducer()
    with pytest.raises(ModelError, match="ensemble is not for a transducer"):
        model.run(WAVES, rate=RATE, ensemble=[transducer()])
    with pytest.raises(ModelError, match="are not averaged"):
        audio_model().run(WAVES, rate=RATE, ensemble=[model])
    with pytest.raises(ModelError, match="no attention to the audio to look at"):
        model.lens("encoder.*")
    with pytest.raises(ModelError, match="nothing is attributed for a transducer"):
        subject_of(model, WAVES[0], "ab", "", {})
    with pytest.raises(ModelError, match="ctc_weight is not for a transducer"):
        transducer(*STREAMING).live(RATE, ctc_weight=0.3)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "model.decoder.kind is transformer, but the prediction network"),
        (["model.decoder={kind: recurrent}"], "model.decoder.attention is general"),
        (["model.decoder={kind: convolutional}"], "model.decoder.positions is sinusoidal"),
        ([RECURRENT, "decode.ctc_weight=0.3"], "decode.ctc_weight is 0.3, which a transducer"),
        ([RECURRENT, "train.r_drop=1.0"], "train.r_drop is 1.0, which a transducer"),
        ([RECURRENT, "train.cr_ctc={}"], "train.cr_ctc is given, which a transducer"),
        ([RECURRENT, "model.transducer.width=3"], "width"),
    ],
)
def test_recipes_that_have_no_transducer(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        audio_recipe("model.transducer={}", *overrides)


def test_chunks_need_no_ctc_where_there_is_a_transducer() -> None:
    recipe = audio_recipe("model.transducer={}", RECURRENT, *STREAMING, "model.ctc_weight=0")
    assert recipe.model.transducer is not None
    with pytest.raises(RecipeError, match="needs CTC or a transducer"):
        audio_recipe(*STREAMING, "model.ctc_weight=0")
    assert END not in (PAD, BEGIN)
