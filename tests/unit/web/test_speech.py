"""Speech as WebAssembly, in Node: features, transcripts and labels as in Python."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from node import MISSING, NODE, run_module
from slow_params import some_slow
from tiny_sounds import audio_model, noise
from transduce.data.audio.silence import sounding
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, Tokens
from transduce.errors import ModelError
from transduce.models.streaming import EncoderStreams
from transduce.nn.speech.mel import LogMel
from transduce.recipe import Tokens as TokensRecipe
from transduce.recipe import parse_recipe
from transduce.tasks import AudioClassifier, SpeechModel
from transduce.tasks.speech_transducer import SpeechTransducerModel
from transduce.tasks.transduce import create
from transduce.web.export import model_bytes

pytestmark = pytest.mark.skipif(NODE is None, reason=MISSING)
LOAD = """
import { load } from "RUNTIME/index.js";
const samplesOf = (numbers) => Float32Array.from(numbers, (value) => value / 32768);
"""
CHUNKS = ("model.encoder.chunk={trained: [160, 640]}", "audio.normalize=global")


def drawn(model: Any) -> Any:
    """With weights that are far from each other, so that outputs have tokens."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.4)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        model.network.head.bias[END if isinstance(model, SpeechModel) else 0] -= 5.0
    return model


def test_mel_features_are_those_of_python(tmp_path: Path) -> None:
    model = audio_model("audio.sample_rate=16000", "audio.mel_bands=80")
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    t = np.arange(16000) / 16000
    hiss = noise(1, rate=16000) / 32768
    voice = 0.3 * np.sin(2 * np.pi * (200 + 900 * t) * t) + 0.05 * hiss
    pair = [(one * 32767).astype(np.int16) for one in (hiss, voice)]
    script = f"""{LOAD}
const model = await load("model.bin");
const {{ mel }} = model.network.speech.source;
answer(given.map((wave) => Array.from(mel.features(samplesOf(wave)))));
"""
    found = run_module(tmp_path, script, [wave.tolist() for wave in pair])
    # In float64: in float32, bands that are nearly empty are errors of rounding.
    mel = LogMel(16_000, 80).double()
    for features, samples in zip(found, pair, strict=True):
        expected, _ = mel(torch.from_numpy(samples / np.float64(32768))[None])
        flat = np.array(features).reshape(-1, 80)
        np.testing.assert_allclose(flat, expected[0].numpy(), atol=1e-4)


QUICK: list[tuple[str, tuple[str, ...]]] = [
    ("beside", ("audio.normalize=global",)),
    ("conformer", (*CHUNKS, "audio.subsampling=2")),
    ("conformer", ("decode.ctc_weight=0.4",)),
]
OTHERS: list[tuple[str, tuple[str, ...]]] = [
    (kind, ()) for kind in ("conformer", "relative", "places", "recurrent")
]


@pytest.mark.parametrize("kinds", some_slow([QUICK, OTHERS], [QUICK]), ids=["some", "others"])
def test_transcripts_are_those_of_python(
    tmp_path: Path, kinds: list[tuple[str, tuple[str, ...]]]
) -> None:
    waves = [noise(0.8), noise(1.3, seed=2)]
    some = [drawn(audio_model(*changes, encoder=kind)) for kind, changes in kinds]
    for number, model in enumerate(some):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
const found = [];
for (const name of given.names) {{
  const model = await load(name);
  found.push(given.waves.map((wave) => {{
    const output = model.run(samplesOf(wave));
    const {{ steps }} = model.explain(samplesOf(wave), output.ids);
    return {{ ...output, source: null, steps: steps.map((one) => one.logProbability) }};
  }}));
}}
answer(found);
"""
    names = [f"{number}.bin" for number in range(len(some))]
    given = {"names": names, "waves": [wave.tolist() for wave in waves]}
    for model, answers in zip(some, run_module(tmp_path, script, given), strict=True):
        outputs = [model.run([wave], rate=4000)[0] for wave in waves]
        assert any(output.ids for output in outputs)
        for output, answer in zip(outputs, answers, strict=True):
            assert answer["ids"] == list(output.ids)
            assert answer["text"] == output.text
            assert answer["score"] == pytest.approx(output.score, abs=1e-4)
            if not model.recipe.decode.ctc_weight:
                assert sum(answer["steps"]) == pytest.approx(output.log_probability, abs=1e-4)


RECURRENT = "model.decoder={kind: recurrent, cell: lstm, layers: 2, attention: none}"
STATELESS = "model.decoder={kind: convolutional, layers: 1, kernel: 2, positions: none}"


def transducer(decoder: str, *changes: str) -> SpeechTransducerModel:
    model = drawn(audio_model("model.transducer={joint_width: 24}", decoder, *changes))
    assert isinstance(model, SpeechTransducerModel)
    with torch.no_grad():
        model.network.head.bias[PAD] += 1.2  # so that it goes on to the next state
        model.network.head.bias[[BEGIN, END]] += 8.0  # which no text has
    return model


def test_transducers_write_what_they_write_in_python(tmp_path: Path) -> None:
    models, waves = [transducer(RECURRENT), transducer(STATELESS)], [noise(0.8), noise(1.1, seed=2)]
    for number, model in enumerate(models):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
import {{ lookAt }} from "RUNTIME/look.js";
const found = [];
for (const number of [0, 1]) {{
  const model = await load(`${{number}}.bin`);
  found.push(given.map((wave) => [1, 3].map((beam) => {{
    const output = model.run(samplesOf(wave), {{ beam, nbest: beam }});
    const {{ steps }} = model.explain(samplesOf(wave), output.ids);
    return [
      output.alternatives.map(({{ ids, score }}) => [ids, score]),
      steps.map((one) => one.logProbability),
      steps.map(({{ attention: [[row]] }}) => Array.from(row)),
    ];
  }})));
  const {{ look }} = lookAt(model, samplesOf(given[0]), {{ beam: 3 }});
  found.at(-1).push([look.attention.map((one) => one.kind), look.no_beam]);
}}
answer(found);
"""
    found = run_module(tmp_path, script, [wave.tolist() for wave in waves])
    for model, (*answers, look) in zip(models, found, strict=True):
        for wave, of_wave in zip(waves, answers, strict=True):
            for beam, (nbest, steps, emitted) in zip((1, 3), of_wave, strict=True):
                [output] = model.run([wave], rate=4000, beam=beam, nbest=beam)
                expected = output.alternatives or [output]
                assert [ids for ids, _ in nbest] == [list(one.ids) for one in expected]
                scores = [one.score for one in expected]
                np.testing.assert_allclose([score for _, score in nbest], scores, atol=1e-4)
                assert sum(steps) == pytest.approx(output.log_probability, abs=1e-4)
                assert output.ids
                shares = model.emissions(wave, output.ids)
                np.testing.assert_allclose(emitted[:-1], shares, atol=1e-4)
        assert look == [["emission"], "The beam of a transducer is not shown."]


def streamed(model: SpeechModel, wave: NDArray[np.int16]) -> torch.Tensor:
    """The states that the encoder gives chunk by chunk."""
    streams = EncoderStreams(model.network, round(160 / model.recordings.settings.state_ms))
    slot, found, shape = streams.open(), [], streams.shape
    with torch.inference_mode():
        for start in range(0, len(wave), shape.advance):
            piece = torch.from_numpy(wave[start : start + shape.samples])[None]
            if count := shape.states_in(piece.shape[1]):
                states_1TD, _ = streams.encode([slot], piece, torch.tensor([piece.shape[1]]))
                found.append(states_1TD[0, :count])
    return torch.cat(found)


def test_live_speech_is_read_chunk_by_chunk(tmp_path: Path) -> None:
    """Each chunk once, with what the encoder keeps of those before, as in Python."""
    chunk = "chunk: {ms: 160, trained: [40, 320], left_chunks: 2}"
    shape = "kind: conformer, layers: 2, heads: 2, feed_forward: 32, kernel: 5"
    places = ("rotary", "relative")
    kinds = [f"model.encoder={{{shape}, positions: {one}, {chunk}}}" for one in places]
    together = "audio.normalize=global"
    ctc = [drawn(audio_model(kind, together)) for kind in kinds]
    t = np.arange(7840) / 4000  # 11 chunks, and 3 states of another
    tone = np.sin(2 * np.pi * (300 + 200 * np.sin(9 * t)) * t)  # it changes all the time
    wave = (6000 * tone + noise(1.96) / 4).astype(np.int16)
    for model in ctc:  # all tokens equally probable in the mean, so that there are some of each
        output = model.network.ctc
        output.bias.data = -output.weight.data @ streamed(model, wave).mean(dim=0)
    models = [*ctc, transducer(RECURRENT, kinds[0], together)]
    for number, model in enumerate(models):
        (tmp_path / f"{number}.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
const found = [];
for (const number of [0, 1, 2]) {{
  const model = await load(`${{number}}.bin`);
  const [session, wave, texts] = [model.live(), samplesOf(given), []];
  for (let at = 0; at < wave.length; at += 500) {{
    texts.push(session.write(wave.subarray(at, at + 500)));
  }}
  found.push([...texts, session.end()]);
}}
answer(found);
"""
    grew = []
    for model, texts in zip(models, run_module(tmp_path, script, wave.tolist()), strict=True):
        states = streamed(model, wave)
        if isinstance(model, SpeechTransducerModel):
            search = model._search(model.network, model.settings(beam=1))
            count_1 = torch.tensor([len(states)])
            found, _ = search.advance(search.start(1, model.device), states[None], count_1)
            ids = found.tokens_BNU[0, 0, : int(found.lengths_BN[0, 0])].tolist()
        else:
            path = model.network.ctc_log_probs_of(states[None])[0].argmax(dim=-1).tolist()
            ids = [one for one, _ in itertools.groupby(path) if one]
        assert texts[-1] == model.target_tokens.decode(ids)
        assert len(set(texts)) > 3  # it grew meanwhile
        grew.append(texts[-1] != texts[-2])
        assert all(later.startswith(text) for text, later in itertools.pairwise(texts))
    assert any(grew)  # at the end, by what was left


def test_sound_is_resampled_as_it_comes_without_seams(tmp_path: Path) -> None:
    script = """
import { readFileSync as read } from "node:fs";
const text = read(new URL("RUNTIME/../page/resampler.js"), "utf-8");
const Resampler = new Function(`${text}; return Resampler`)();
const wave = (rate, n) => Math.sin((2 * Math.PI * 440 * n) / rate) / 2;
answer(given.map(([from, to]) => {
  const [one, found] = [new Resampler(from, to), []];
  for (let at = 0, size = 1; at < from; at += size, size = (3 * size) % 4001) {
    const block = Float32Array.from({ length: size }, (_, i) => wave(from, at + i));
    found.push(...one.push([block.subarray(0, 7), block.subarray(7)]));
  }
  const errors = found.slice(50).map((value, n) => Math.abs(value - wave(to, n + 50)));
  return [found.length, Math.max(...errors)];
}));
"""
    rates = [(48000, 16000), (44100, 16000), (8000, 16000), (16000, 16000)]
    for (_, to), (count, error) in zip(rates, run_module(tmp_path, script, rates), strict=True):
        assert 0.98 * to < count < 1.3 * to
        assert error < 2e-3


def test_quiet_before_and_after_speech_is_left_out(tmp_path: Path) -> None:
    """From the first frame that Python's silence detection finds loud to the last, and a margin."""
    rate, random = 8000, np.random.default_rng(4)
    envelope = np.repeat([0.0, 1.0, 0.02, 0.5, 0.0], (4000, 6000, 2000, 4000, 9000))
    speech = envelope * np.sin(0.4 * np.arange(len(envelope)))
    noises = (0.0, 0.003)
    waves = [speech + level * random.standard_normal(len(speech)) for level in noises]
    recordings = [wave.astype(np.float32) for wave in waves]
    recordings += [np.zeros(3000, np.float32), recordings[0][4000:10000], np.ones(30, np.float32)]
    faint = np.repeat([0.01, 0.0168, 0.028, 0.01], 4000)  # the first step is too small for speech
    recordings.append((faint * random.standard_normal(len(faint))).astype(np.float32))
    script = """
import { readFileSync as read } from "node:fs";
const text = read(new URL("RUNTIME/../page/quiet.js"), "utf-8");
const left = new Function(`${text}; return withoutQuietEnds`)();
answer(given.map((wave) => Array.from(left(Float32Array.from(wave), 8000))));
"""
    given = [wave.tolist() for wave in recordings]
    for wave, found in zip(recordings, run_module(tmp_path, script, given), strict=True):
        loud = np.flatnonzero(sounding(wave, rate))
        first, end = (loud[0] - 15, loud[-1] + 16) if len(loud) else (0, len(wave))
        expected = wave[max(0, first) * 80 : end * 80]
        assert np.array_equal(np.float32(found), expected)
        assert not len(loud) or len(found) < len(wave)


def test_ctc_alone_says_what_the_best_path_says(tmp_path: Path) -> None:
    model, wave = drawn(audio_model()), noise(2.0)
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
const model = await load("model.bin");
const wave = samplesOf(given);
answer([model.partial(wave), model.run(wave, {{ ctcWeight: 1, beam: 3 }})]);
"""
    partial, joint = run_module(tmp_path, script, wave.tolist())
    lengths = torch.tensor([len(wave)])
    with torch.inference_mode():
        memory = model.network.encode(torch.from_numpy(wave)[None], lengths)
        path = model.network.ctc_log_probs(memory)[0].argmax(dim=-1).tolist()
    ids = [one for at, one in enumerate(path) if one and (not at or one != path[at - 1])]
    assert partial == model.target_tokens.decode(ids)
    [output] = model.run([wave], rate=4000, ctc_weight=1, beam=3)
    assert joint["text"] == output.text
    assert joint["score"] == pytest.approx(output.score, abs=1e-4)


def test_ctc_is_the_sum_over_all_paths(tmp_path: Path) -> None:
    """Against all paths one by one: doubled letters, which need a blank between them, too."""
    states, size = 5, 6
    table = torch.randn(states, size, generator=torch.manual_seed(3), dtype=torch.float64)
    log_probs = table.log_softmax(dim=-1).numpy()
    collapsed: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(size), repeat=states):
        ids = tuple(one for one, _ in itertools.groupby(path) if one)
        p = np.exp(sum(log_probs[at, one] for at, one in enumerate(path)))
        collapsed[ids] = collapsed.get(ids, 0.0) + p
    prefixes = [[4], [4, 4], [4, 5, 5], [5, 4], [4, 4, 4]]
    script = f"""{LOAD}
import {{ CtcPrefix, PathReader }} from "RUNTIME/speech.js";
const logProbs = Float32Array.from(given.table);
const ctc = {{ logProbs, probs: logProbs.map(Math.exp), length: given.states, size: given.size }};
const one = (prefix) => {{
  let [state, begins] = [CtcPrefix.empty(ctc), 0];
  for (const id of prefix) {{ begins += state.next()[id]; state = state.with(id); }}
  return [begins, begins + state.next()[given.end]];
}};
const row = (id) => [0, 1, 2].map((one) => (one === id ? 0 : -9));
const sure = Float32Array.from([1, 1, 0, 1, 2, 0, 0, 2].flatMap(row));
const path = new PathReader();
[1, 2, 3, 2].reduce((at, count) => {{
  path.read(sure.subarray(3 * at, 3 * (at + count)), count);
  return at + count;
}}, 0);
answer([given.prefixes.map(one), path.ids]);
"""
    given = {"table": log_probs.ravel().tolist(), "states": states, "size": size}
    found, best = run_module(tmp_path, script, {**given, "prefixes": prefixes, "end": END})
    for prefix, (begins, whole) in zip(prefixes, found, strict=True):
        same = [p for ids, p in collapsed.items() if ids[: len(prefix)] == tuple(prefix)]
        assert begins == pytest.approx(np.log(sum(same)), abs=1e-4), prefix
        assert whole == pytest.approx(np.log(collapsed[tuple(prefix)]), abs=1e-4), prefix
    assert best == [1, 1, 2, 2]


def test_long_recordings_are_cut_where_they_are_quiet(tmp_path: Path) -> None:
    model = drawn(audio_model())  # it has heard 3 s at most
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    loud, quiet = noise(2.0), np.zeros(800, np.int16)
    script = f"""{LOAD}
const model = await load("model.bin");
const {{ text, warning }} = model.run(samplesOf(given.whole));
answer([text, warning, given.parts.map((part) => model.run(samplesOf(part)).text)]);
"""
    whole = np.concatenate([loud, quiet, loud])
    middle = len(loud) + 600  # of the last quiet tenth of a second
    parts = [whole[:middle], whole[middle:]]
    given = {"whole": whole.tolist(), "parts": [part.tolist() for part in parts]}
    text, warning, of_parts = run_module(tmp_path, script, given)
    assert warning == "The recording was cut into 2 parts."
    assert text == " ".join(one.strip() for one in of_parts if one.strip())


def test_recordings_with_nothing_to_hear(tmp_path: Path) -> None:
    """As in Python, there is no transcript; a part that is silent has none either."""
    model = drawn(audio_model())
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
import {{ lookAt }} from "RUNTIME/look.js";
const model = await load("model.bin");
const found = given.waves.map((wave) => {{
  const {{ look }} = lookAt(model, samplesOf(wave));
  return [look.text, look.warning, model.partial(samplesOf(wave))];
}});
const said = (...asked) => {{
  try {{ return model.run(...asked).text; }} catch (error) {{ return error.message; }}
}};
const sound = samplesOf(given.sound);
const halves = new Float32Array(2 * sound.length + 16000);
halves.set(sound);
const long = Float32Array.from({{ length: 40000 }}, (_, i) => Math.sin(i * i) / 4);
let steps = 0;
const cut = said(long, {{}}, () => ++steps === 3);
answer([found, [said(halves.subarray(0, 11800)), said(halves)], [cut, steps],
  [said("a text"), said(sound.map(() => NaN)), said(sound, {{ ctcWeight: 1.5 }})]]);
"""
    waves = [np.zeros(0, np.int16), np.zeros(8000, np.int16), noise(0.02)]
    given = {"waves": [one.tolist() for one in waves], "sound": noise(1.0).tolist()}
    found, (alone, before_silence), stopped, refused = run_module(tmp_path, script, given)
    assert [output.text for output in model.run(waves, rate=4000)] == ["", "", ""]
    short = "The recording has {} ms, less than one frame of 25 ms."
    assert found == [
        ["", short.format(0), ""],
        ["", "The recording is silent.", ""],
        ["", short.format(20), ""],
    ]
    assert before_silence == alone  # cut at 2.95 s, where it is quiet and 3 s are heard at once
    assert alone
    assert stopped == ["", 3]  # after the third token of the first part
    assert refused == [
        "This model hears recordings: give it samples, a Float32Array with 4000 a second.",
        "The recording holds samples that are not numbers (NaN or infinite): record it again.",
        "ctcWeight is 1.5; it must be a number from 0 to 1.",
    ]


def test_labels_of_recordings_are_those_of_python(tmp_path: Path) -> None:
    text = """
task: classify
data: {train: {file: a.tsv, audio: path}, valid: {file: a.tsv, audio: path}, max_length: 300}
audio: {sample_rate: 4000, mel_bands: 16, channels: 4}
model: {width: 16, pooling: attention, encoder: {kind: conformer, layers: 1, heads: 2, kernel: 5}}
"""
    tokens = Tokens.train(TokensRecipe(level="label"), ["yes", "no", "stop"])
    model = create(parse_recipe(text, "recipe", Path(), []), tokens, tokens)
    assert isinstance(model, AudioClassifier)
    drawn(model).network.eval()
    (tmp_path / "model.bin").write_bytes(model_bytes(model))
    script = f"""{LOAD}
const model = await load("model.bin");
answer(model.run(samplesOf(given), {{ nbest: 3 }}).alternatives);
"""
    wave = noise(1.0)
    found = run_module(tmp_path, script, wave.tolist())
    [output] = model.run([wave], rate=4000, nbest=3)
    assert [one["text"] for one in found] == [one.text for one in output.alternatives]
    expected = [one.score for one in output.alternatives]
    np.testing.assert_allclose([one["score"] for one in found], expected, atol=1e-4)


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(ModelError, match="Whisper's features do not run in a browser yet"):
        model_bytes(audio_model("audio={features: whisper, sample_rate: 16000, mel_bands: 80}"))
