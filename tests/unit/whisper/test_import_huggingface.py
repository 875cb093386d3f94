"""Import of Whisper: compared with `transformers` itself, on random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tiny_whisper
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.errors import ModelError
from transduce.interop.imports.registry import import_model
from transduce.models.call_context import Call
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import load
from transduce.whisper import WhisperModel

WAVES = tiny_whisper.noises(5)


class Both(NamedTuple):
    ours: WhisperModel
    theirs: Any
    features: torch.Tensor
    folder: Path
    named: dict[str, int]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    work = tmp_path_factory.mktemp("whisper")
    (work / "theirs").mkdir()
    theirs = tiny_whisper.huggingface_folder(work / "theirs")
    import_model(work / "theirs", work / "ours")
    ours = load(work / "ours")
    assert isinstance(ours, WhisperModel)
    features = tiny_whisper.extractor()(
        [wave.astype(np.float32) / 32768 for wave in WAVES],
        sampling_rate=tiny_whisper.RATE,
        return_tensors="pt",
    ).input_features
    named = tiny_whisper.ids(tiny_whisper.tokenizer_json())
    return Both(ours, theirs, features, work / "theirs", named)


def to_ours(number: int, named: dict[str, int]) -> int:
    """Our id of one of theirs: the four special tokens first, the others as they were."""
    begin, end = named["<|startoftranscript|>"], named["<|endoftext|>"]
    if number in (begin, end):
        return BEGIN if number == begin else END
    return number + 4 - (number > begin) - (number > end)


def test_encoder_and_log_probabilities(both: Both) -> None:
    batch = collate(WAVES, None)
    network, named = both.ours.network, both.named
    prompt = [named[f"<|{one}|>"] for one in ("startoftranscript", "de", "transcribe")]
    target = torch.tensor([[*prompt, 90, 120, 266, 43, 67]]).expand(len(WAVES), -1)
    ours_BT = torch.tensor([[to_ours(int(number), named) for number in row] for row in target])
    with torch.no_grad():
        memory = network.encode(batch.source_BS, batch.source_lengths_B)
        wanted_BSD = both.theirs.model.encoder(both.features).last_hidden_state
        assert (memory.states_BSD - wanted_BSD).abs().max() < 1e-4
        logits_BTV = both.theirs(both.features, decoder_input_ids=target).logits
        found_BTV = network.head(network.decoder(ours_BT, memory)).log_softmax(dim=-1)
    size = logits_BTV.shape[-1]
    order = [to_ours(number, named) for number in range(size)]
    assert (found_BTV[..., order] - logits_BTV.log_softmax(dim=-1)).abs().max() < 1e-4
    assert found_BTV[..., :2].exp().max() < 1e-30  # PAD and UNKNOWN, which Whisper does not have


@pytest.mark.parametrize("timestamps", [False, True])
def test_greedy_output_is_that_of_transformers(both: Both, timestamps: bool) -> None:
    """Token for token, with suppressed tokens and the rules of timestamps."""
    ours = both.ours
    segments = [AudioSegment.of(f"wave {n}", wave) for n, wave in enumerate(WAVES)]
    call = Call(language="de", task="translate", timestamps=timestamps)
    outputs = ours.decode_windows(segments, call, beam=1, max_length=19)
    for output, features in zip(outputs, both.features, strict=True):
        wanted = both.theirs.generate(
            features[None],
            language="de",
            task="translate",
            return_timestamps=timestamps,
            num_beams=1,
            max_new_tokens=19,
        )[0].tolist()
        end = both.named["<|endoftext|>"]
        in_ours = [to_ours(number, both.named) for number in wanted if number != end]
        length = min(len(output.ids), len(in_ours), 18)
        assert length > 5
        assert output.ids[:length] == in_ours[:length]


def test_language_is_that_of_transformers(both: Both) -> None:
    found = both.ours.detect_language(WAVES, rate=tiny_whisper.RATE)
    wanted = both.theirs.detect_language(both.features).tolist()
    for probabilities, number in zip(found, wanted, strict=True):
        best = next(iter(probabilities))
        assert both.named[f"<|{best}|>"] == number
        assert sum(probabilities.values()) == pytest.approx(1)


def test_folder_of_ctranslate2_has_the_same_weights(both: Both, tmp_path: Path) -> None:
    folder = tmp_path / "ctranslate2"
    tiny_whisper.ctranslate2_folder(folder, both.theirs, both.folder)
    import_model(folder, tmp_path / "ours")
    found = load(tmp_path / "ours")
    wanted = dict(both.ours.network.named_parameters())
    for name, parameter in found.network.named_parameters():
        assert torch.equal(parameter, wanted[name]), name
    assert found.recipe.audio == both.ours.recipe.audio
    assert found.target_tokens.to_json() == both.ours.target_tokens.to_json()
    # The same in parts, as large files are handed on.
    whole = (folder / "model.bin").read_bytes()
    (folder / "model.bin").unlink()
    cuts = [0, 1000, 20_000, len(whole)]
    for number in (3, 1, 2):
        part = whole[cuts[number - 1] : cuts[number]]
        (folder / f"model.bin.part{number}").write_bytes(part)
    joined, _ = import_model(folder, tmp_path / "joined")
    for name, parameter in joined.network.named_parameters():
        assert torch.equal(parameter, wanted[name]), name
    (folder / "model.bin.part2").unlink()
    with pytest.raises(ModelError, match=r"model\.bin\.part2 is missing: put all of them into"):
        import_model(folder, tmp_path / "less")


def test_tokens_are_read_as_by_their_own_tokenizer(both: Both) -> None:
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(json.dumps(tiny_whisper.tokenizer_json()))
    for text in ("the uncle's tea", "für Iroh, 1 茶", "<|en|> is <s> text"):
        wanted = [to_ours(n, both.named) for n in theirs.encode(" " + text[2:]).ids]
        found = both.ours.target_tokens.encode(text[2:])
        assert found == wanted
        assert both.ours.target_tokens.decode(found) == text[2:]
    assert both.ours.target_tokens.pieces(both.ours.target_tokens.encode("ä tea"))[-1] == "▁tea"


def test_what_cannot_be_imported_is_refused(both: Both, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((both.folder / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"activation_function": "relu"}))
    with pytest.raises(ModelError, match="activation_function is 'relu'"):
        import_model(tmp_path, tmp_path / "ours")
    (tmp_path / "config.json").write_text(json.dumps(config | {"encoder_ffn_dim": 49}))
    with pytest.raises(ModelError, match=r"encoder.layers.0.fc1.weight is \[48, 32\]"):
        import_model(tmp_path, tmp_path / "ours")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        import_model(tmp_path, tmp_path / "ours")
