"""What is collected for a page: the model's own weights, probabilities and hypotheses."""

from __future__ import annotations

import base64
import io
import json
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from language import LSTM as LM_LSTM
from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import PAD, Tokens
from transduce.errors import DataError, ModelError
from transduce.inspection.look.collect import collect, packed, packed_signed, unpacked
from transduce.nn.ctc.alignment import align
from transduce.nn.ctc.loss import token_posteriors
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import create

SOURCE = "iroh made tea"
RECURRENT = {"kind": "recurrent"}
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 8}
LSTM = {"kind": "recurrent", "cell": "lstm", "bidirectional": True}


def weights(page: dict[str, Any], name: str) -> Any:
    (part,) = [part for part in page["attention"] if part["name"] == name]
    return unpacked(part["weights"])


def labelled(task: str, encoder: dict[str, Any], **model: Any) -> Any:
    words = Tokens.train(recipe.Tokens(level="word"), ["a cup of tea", "iroh made tea"])
    data = {split: {"file": "a.tsv"} for split in ("train", "valid")}
    shape = {"width": 8, "encoder": encoder, **model}
    settings = Recipe.model_validate({"task": task, "data": data, "model": shape})
    labels = Tokens.train(settings.data.tokens.target, ["good", "bad", "so so"])
    torch.manual_seed(1)
    return create(settings, words, labels)


def test_numbers_come_back_to_four_decimals() -> None:
    given = np.random.default_rng(1).random((2, 3, 5))
    np.testing.assert_allclose(unpacked(packed(given)), given, atol=0.5e-4)
    np.testing.assert_allclose(unpacked(packed(given, 255)), given, atol=0.5 / 255 + 1e-9)


def test_attention_is_what_the_model_says_it_is() -> None:
    model = tiny(banned=True)
    page = collect(model, SOURCE, beam=3)
    (output,) = model.run([SOURCE], beam=3, attention=True)
    assert page["text"] == output.text
    assert output.attention is not None
    for layer, expected_HTS in enumerate(output.attention):
        found_HTS = weights(page, f"decoder.blocks.{layer}.cross_attention")
        np.testing.assert_allclose(found_HTS, expected_HTS, atol=1e-3)
    with model.lens() as lens:
        model.run([SOURCE], beam=3)
    for name, expected_HTS in lens[0].weights.items():
        np.testing.assert_allclose(weights(page, name), expected_HTS, atol=1e-3)
    for part in page["attention"]:
        found_HTS = unpacked(part["weights"])
        sizes = [len(page["axes"][part[side]]) for side in ("rows", "columns")]
        assert list(found_HTS.shape[1:]) == sizes
        if part["kind"] != "rollout":  # the rest of it is what was read of the target
            np.testing.assert_allclose(found_HTS.sum(axis=2), 1.0, atol=2e-3)
    kinds = {part["kind"] for part in page["attention"]}
    assert kinds == {"encoder", "decoder", "cross", "rollout"}
    json.dumps(page, allow_nan=False)


def test_what_was_said_is_the_likeliest_where_search_is_greedy() -> None:
    model = tiny(banned=True)
    page = collect(model, SOURCE, beam=1)
    target = page["axes"]["target"]
    assert len(page["steps"]) == len(target) > 3
    written = page["steps"][:-1]  # its end may be where there was no more room
    for token, step in zip(target, written, strict=False):
        shares = [share for _, share in step["alternatives"]]
        assert len(shares) == 8
        assert shares == sorted(shares, reverse=True)
        assert step["chosen"] == 0
        assert step["alternatives"][0][0] == token
        assert abs(np.exp(step["log_probability"]) - shares[0]) < 1e-3
        assert step["entropy"] > 0
    total = sum(step["log_probability"] for step in page["steps"])
    assert abs(total - page["log_probability"]) < 0.01


def test_all_hypotheses_of_the_beam_best_first() -> None:
    model = tiny(banned=True)
    page = collect(model, SOURCE, beam=4)
    outputs = model.run([SOURCE], beam=4, nbest=4)[0].alternatives
    assert [one["text"] for one in page["nbest"]] == [output.text for output in outputs]
    assert [one["score"] for one in page["nbest"]] == pytest.approx(
        [output.score for output in outputs], abs=1e-3
    )
    assert page["how"] == "beam search, 4 hypotheses"


def test_a_target_of_ones_own() -> None:
    model = tiny(banned=True)
    page = collect(model, SOURCE, target="tea")
    (score,) = model.score([SOURCE], ["tea"])
    assert page["text"] == "tea"
    assert page["given"]
    assert page["nbest"] == []
    assert [step["log_probability"] for step in page["steps"]] == pytest.approx(
        score.token_log_probabilities, abs=1e-3
    )
    unlikely = [step for step in page["steps"] if step["chosen"] < 0]
    assert unlikely, "what is not among the likeliest is told apart"


def test_gates_of_recurrent_networks() -> None:
    page = collect(tiny(RECURRENT, RECURRENT, banned=True), SOURCE)
    assert [one["columns"] for one in page["cells"]] == ["source", "target"]
    for cells in page["cells"]:
        found_1GS = unpacked(cells["values"])
        assert found_1GS.shape == (1, len(cells["rows"]), len(page["axes"][cells["columns"]]))
        assert found_1GS.max() > 0.1
    assert "cell 0 forget gate" in page["cells"][0]["rows"]
    assert {part["kind"] for part in page["attention"]} == {"cross"}


@pytest.mark.parametrize("decoder", [None, LM_LSTM], ids=["transformer", "lstm"])
def test_language_models(decoder: dict[str, Any] | None) -> None:
    model = language_model(decoder=decoder)
    page = collect(model, "tea", max_length=3, beam=1)
    assert page["prompt"] == 3
    assert len(page["axes"]["target"]) == len(page["steps"]) == 6
    assert bool(page["attention"]) == (decoder is None)
    assert bool(page["cells"]) == (decoder is not None)
    for step in page["steps"][3:]:
        assert step["chosen"] == 0


def test_classifiers_and_what_they_pool() -> None:
    model = labelled("classify", TRANSFORMER, pooling="attention")
    page = collect(model, "a cup of tea")
    (output,) = model.run(["a cup of tea"], nbest=3, attention=True)
    assert [name for name, _ in page["labels"]] == [one.text for one in output.alternatives]
    assert sum(share for _, share in page["labels"]) == pytest.approx(1.0, abs=1e-3)
    assert output.attention is not None
    np.testing.assert_allclose(
        weights(page, "pool.attention")[0], output.attention[0, 0], atol=1e-3
    )
    assert page["nbest"] == []


def test_a_classifier_without_attention_shows_its_labels() -> None:
    page = collect(labelled("classify", LSTM), "a cup of tea")
    assert page["attention"] == []
    assert len(page["labels"]) == 3


def test_taggers() -> None:
    model = labelled("tag", TRANSFORMER)
    page = collect(model, "a cup of tea")
    (output,) = model.run(["a cup of tea"])
    assert [step["alternatives"][0][0] for step in page["steps"]] == output.tokens
    assert [np.exp(step["log_probability"]) for step in page["steps"]] == pytest.approx(
        output.probabilities, abs=1e-3
    )


def test_speech_has_a_picture_times_and_the_audio_itself() -> None:
    model = audio_model()
    sound = noise(0.8)
    page = collect(model, AudioSegment.of("noise", sound), max_length=5)
    audio = page["audio"]
    bands, frames = audio["spectrogram"]["shape"]
    assert bands == 16
    assert frames == pytest.approx(80, abs=3)
    assert audio["seconds"] == pytest.approx(0.8)
    with wave.open(io.BytesIO(base64.b64decode(audio["wav"]))) as file:
        assert file.getframerate() == 4000
        assert np.array_equal(np.frombuffer(file.readframes(9999), "<i2"), sound)
    assert len(page["times"]) == len(page["axes"]["source"])
    assert page["axes"]["source"][0] == f"{page['times'][0]:.2f} s"
    json.dumps(page, allow_nan=False)


def test_speech_has_the_best_path_of_ctc() -> None:
    """Its states and probabilities are those of CTC's own alignment of the output."""
    model, sound = audio_model(), noise(0.8)
    source = AudioSegment.of("noise", sound)
    page = collect(model, source, target="abc de")
    ctc, names = page["ctc"], page["axes"]["target"]
    log_probs_SV = model.network.ctc_log_probs(
        model.network.encode(torch.from_numpy(sound[None]), torch.tensor([len(sound)]))
    )[0]
    ids = torch.tensor(model.target_tokens.encode("abc de"))
    path = align(log_probs_SV.detach(), ids, PAD)
    assert (ctc["first"], ctc["last"]) == (path.first_U.tolist(), path.last_U.tolist())
    found = unpacked(ctc["probabilities"])
    assert found.shape == (1, len(names), len(page["times"]))
    expected = token_posteriors(log_probs_SV.detach(), ids, PAD).numpy()
    np.testing.assert_allclose(found[0, : len(ids)], expected, atol=1e-4)
    assert not found[0, len(ids) :].any()  # the end is not heard
    assert collect(audio_model("model.ctc_weight=0"), source, target="abc")["ctc"] is None


def test_samples_and_a_part_of_a_file(tmp_path: Path) -> None:
    model = audio_model()
    page = collect(model, noise(0.5, rate=8000) / 32768, rate=8000, max_length=4)
    assert page["audio"]["seconds"] == pytest.approx(0.5, abs=0.01)
    soundfile.write(tmp_path / "long.wav", noise(2.0), 4000)
    page = collect(model, f"{tmp_path}/long.wav#t=1.2,1.7", max_length=4)
    assert page["audio"]["start"] == pytest.approx(1.2)
    assert page["audio"]["seconds"] == pytest.approx(0.5, abs=0.01)
    assert 1.2 <= page["times"][0] < page["times"][-1] < 1.7


def test_what_cannot_be_looked_at_is_reported_in_a_sentence() -> None:
    with pytest.raises(DataError, match="the input is empty; give a text"):
        collect(tiny(), "  ")
    with pytest.raises(DataError, match="reads 400; it was truncated; give a shorter input"):
        collect(tiny(data=short()), "tea " * 200)
    with pytest.raises(DataError, match=r"longer than the 3 s .* such as long#t=0,3"):
        collect(audio_model(), AudioSegment.of("long", noise(7.0)))
    with pytest.raises(DataError, match="contains only silence"):
        collect(audio_model(), np.zeros(4000, np.float32), rate=4000)
    with pytest.raises(DataError, match=r"no.wav"):
        collect(audio_model(), "no.wav")
    with pytest.raises(ModelError, match="does not score targets"):
        collect(labelled("tag", TRANSFORMER), "a cup", target="good bad")
    with pytest.raises(ModelError, match="beam is not a setting of a"):
        collect(labelled("tag", TRANSFORMER), "a cup", beam=3)
    exported = tiny()
    exported.engine = SimpleNamespace(name="ONNX Runtime")  # type: ignore[assignment]
    with pytest.raises(ModelError, match="ONNX Runtime does not show attention; give the folder"):
        collect(exported, "tea")


def short() -> dict[str, Any]:
    return {
        "train": {"name": "copy", "split": "train"},
        "valid": {"name": "copy", "split": "valid"},
        "tokens": {"both": {"level": "character"}},
        "max_length": 100,
    }


def test_signed_numbers_come_back() -> None:
    given = np.random.default_rng(1).normal(size=(4, 7))
    near = np.abs(given).max() / 10_000
    np.testing.assert_allclose(unpacked(packed_signed(given)), given, atol=near)


def test_neighbours_and_positions() -> None:
    model = tiny(banned=True)
    page = collect(model, "tea", target="uncle")
    source, target = page["embeddings"]
    assert [name for name, _ in source["neighbours"]] == ["t", "e", "a"]
    assert [name for name, _ in target["neighbours"]] == ["u", "n", "c", "l", "e"]
    table = torch.nn.functional.normalize(model.network.front.table.weight.detach(), dim=1)
    (number,) = model.source_tokens.encode("t")
    cosines = (table @ table[number]).tolist()
    others = [i for i in range(4, len(cosines)) if i != number]
    best = max(others, key=lambda i: cosines[i])
    name, cosine = source["neighbours"][0][1][0]
    assert [name] == model.source_tokens.pieces([best])
    assert cosine == pytest.approx(cosines[best], abs=1e-3)
    assert [
        n for n, used in zip(source["map"]["names"], source["map"]["used"], strict=True) if used
    ] == [
        "t",
        "e",
        "a",
    ]
    assert source["positions"]["kind"] == "sinusoidal"
    expected_TD = model.network.front.positions.positions(32)
    np.testing.assert_allclose(unpacked(source["positions"]["values"]), expected_TD, atol=2e-4)


@pytest.mark.parametrize("kind", ["fourier", "learned", "rotary", "none", "recurrent"])
def test_positions_of_every_kind(kind: str) -> None:
    side = {"kind": "recurrent"} if kind == "recurrent" else {"positions": kind}
    model = tiny(side, side, banned=True)
    page = collect(model, "tea", target="uncle")
    for name, one in zip(("front", "decoder.embedding"), page["embeddings"], strict=True):
        shown = one["positions"]
        if kind in ("none", "recurrent"):
            assert shown["values"] is None
            assert "no positional encoding" in shown["note"]
            continue
        assert shown["kind"] == kind
        values = unpacked(shown["values"])
        assert values.shape == (len(shown["rows"]), len(shown["columns"]))
        if kind == "rotary":
            expected = np.cos(np.outer(np.arange(32), 10_000.0 ** -(np.arange(0, 8, 2) / 8)))
        else:
            module = model.network.get_submodule(name)
            expected = module.positions.positions(32).detach()  # type: ignore[union-attr, operator]
        np.testing.assert_allclose(values, expected, atol=2e-4)


def test_relative_positions_are_the_scores_of_distances() -> None:
    """Against attention itself: with queries and keys of zero, only the distance is scored."""
    model = audio_model("model.encoder.positions=relative")
    source, _ = collect(model, AudioSegment.of("noise", noise(0.8)), max_length=4)["embeddings"]
    shown = source["positions"]
    assert shown["kind"] == "relative"
    values = unpacked(shown["values"])
    part = model.network.encoder.blocks[0].self_attention
    seen: list[torch.Tensor] = []
    part.watch = seen.append
    with torch.no_grad():
        part(torch.zeros(1, 5, part.width))
        bias = part.in_projection.bias
        assert bias is None or not bias.any(), "as it is untrained"
    part.watch = None
    middle = shown["columns"].index("+0")
    of_keys = values[0, middle - 2 : middle + 3]  # around the third of five
    assert shown["columns"][middle - 2] == "-2"
    expected = np.exp(of_keys) / np.exp(of_keys).sum()
    np.testing.assert_allclose(seen[0][0, 0, 2].numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("kind", ["transduce", "language", "classify", "tag", "speech"])
def test_attribution(kind: str) -> None:
    made: dict[str, Any] = {
        "transduce": lambda: (tiny(banned=True), SOURCE),
        "language": lambda: (language_model(), "tea"),
        "classify": lambda: (labelled("classify", TRANSFORMER), "a cup of tea"),
        "tag": lambda: (labelled("tag", TRANSFORMER), "a cup of tea"),
        "speech": lambda: (audio_model(), AudioSegment.of("noise", noise(0.6))),
    }
    model, source = made[kind]()
    settings = {"max_length": 3} if kind in ("transduce", "language", "speech") else {}
    page = collect(model, source, attribution=True, **settings)
    assert page["attribution"]
    for one in page["attribution"]:
        found_TS = unpacked(one["values"])
        assert found_TS.shape == (len(one["row_names"]), len(one["column_names"]))
        assert one["method"] == "integrated gradients"
    assert np.abs(unpacked(page["attribution"][0]["values"])).max() > 0
