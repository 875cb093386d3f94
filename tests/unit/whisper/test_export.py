"""Whisper models exported again: bit for bit what was imported, and usable by their own engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_whisper
from transduce.errors import ModelError
from transduce.interop.export import export_folder
from transduce.interop.imports.registry import import_model
from transduce.models.call_context import Call
from transduce.storage import read_tensors
from transduce.tasks.audio_input import AudioSegment
from transduce.whisper.export import write_model_file
from transduce.whisper.vocabulary import original_order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """theirs/, of Hugging Face, and ours/."""
    work = tmp_path_factory.mktemp("whisper")
    (work / "theirs").mkdir()
    tiny_whisper.huggingface_folder(work / "theirs")
    import_model(work / "theirs", work / "ours")
    return work


def test_huggingface_gets_its_weights_back(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    place, _ = export_folder(folder / "ours", "huggingface", folder=tmp_path / "out")
    wanted, _ = read_tensors(folder / "theirs" / "model.safetensors")
    found, _ = read_tensors(place / "model.safetensors")
    assert found.keys() == wanted.keys() - {"proj_out.weight"}
    for name, tensor in found.items():
        assert torch.equal(tensor, wanted[name]), name
    for name in ("config.json", "generation_config.json"):
        theirs = json.loads((folder / "theirs" / name).read_text())
        assert json.loads((place / name).read_text()) == theirs
    model = transformers.WhisperForConditionalGeneration.from_pretrained(place).eval()
    wave = tiny_whisper.noises(1)[0]
    features = tiny_whisper.extractor()(
        wave.astype(np.float32) / 32768, sampling_rate=tiny_whisper.RATE, return_tensors="pt"
    ).input_features
    tokens = model.generate(features, language="de", task="transcribe", max_new_tokens=9)
    first = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "theirs").eval()
    again = first.generate(features, language="de", task="transcribe", max_new_tokens=9)
    assert tokens.tolist() == again.tolist()


def test_a_model_of_ours_is_used_by_ctranslate2(tmp_path: Path) -> None:
    """One that was never imported: its files are made of its recipe."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = tiny_whisper.our_model()
    model.save(tmp_path / "ours")
    place, compared = export_folder(tmp_path / "ours", "ctranslate2", folder=tmp_path / "out")
    assert compared.weights == len(list(model.network.parameters()))  # type: ignore[union-attr]
    whisper = ctranslate2.models.Whisper(str(place), device="cpu", compute_type="float32")
    wave = tiny_whisper.noises(1, seed=5)[0]
    samples = torch.from_numpy(wave.astype(np.float32) / 32768)[None]
    mel, _ = model.network.front.mel(samples)
    features = ctranslate2.StorageView.from_array(mel.mT.contiguous().numpy())
    states = np.array(whisper.encode(features, to_cpu=True))
    with torch.inference_mode():
        wanted = model.network.encode(samples, torch.tensor([len(wave)])).states_BSD
    assert np.abs(states - wanted.numpy()).max() < 1e-3
    named = tiny_whisper.ids(tiny_whisper.tokenizer_json())
    names = ("startoftranscript", "de", "transcribe", "notimestamps")
    prompt = [named[f"<|{name}|>"] for name in names]
    (found,) = whisper.generate(features, [prompt], beam_size=1, max_length=len(prompt) + 10)
    segment = AudioSegment.of("wave", wave)
    (output,) = model.decode_windows([segment], Call(language="de"), beam=1, max_length=20)
    order = original_order(named["<|startoftranscript|>"], named["<|endoftext|>"], len(named) + 270)
    theirs = found.sequences_ids[0]
    assert len(theirs) > 4
    assert theirs == [order[number - 2] for number in output.ids[: len(theirs)]]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_ctranslate2_gets_its_file_back(folder: Path, tmp_path: Path, kind: str) -> None:
    """Byte for byte, through our own reader and writer."""
    first, _ = export_folder(
        folder / "ours", "ctranslate2", folder=tmp_path / "first", quantize=kind
    )
    import_model(first, tmp_path / "ours")
    second, _ = export_folder(tmp_path / "ours", "ctranslate2", folder=tmp_path / "second")
    for name in ("model.bin", "config.json", "vocabulary.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_what_whisper_has_no_place_for_is_refused(tmp_path: Path) -> None:
    model = tiny_whisper.our_model()
    with torch.no_grad():
        model.network.head.bias[30] = 0.1
    model.save(tmp_path / "ours")
    with pytest.raises(ModelError, match="output layer has no bias"):
        export_folder(tmp_path / "ours", "ctranslate2")
    with pytest.raises(ModelError, match="to huggingface or ctranslate2, not to onnx"):
        export_folder(tmp_path / "ours", "onnx")
    with pytest.raises(ModelError, match="quantize is int8"):
        export_folder(tmp_path / "ours", "ctranslate2", quantize="int8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_a_written_file_has_the_types_of_its_variables(tmp_path: Path) -> None:
    from transduce.interop.imports.ctranslate2_file import read_model_file

    variables = {
        "a": torch.tensor([[1.5, -2.0]]),
        "b": torch.tensor(3, dtype=torch.int8),
        "c": torch.tensor([0.1], dtype=torch.float16),
    }
    write_model_file(tmp_path / "model.bin", "WhisperSpec", variables, {"d": "a"})
    found = read_model_file(tmp_path / "model.bin")
    assert (found.specification, found.revision, found.aliases) == ("WhisperSpec", 3, {"d": "a"})
    assert torch.equal(found.tensor("d"), variables["a"])
    assert found.number("b") == 3
    assert found.variable("c").dtype == "float16"
