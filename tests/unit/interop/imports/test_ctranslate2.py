"""Folders of CTranslate2, others' and our own exports, say what CTranslate2 says."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
import transduce
from real_weights import real_weights
from tiny_models import SOURCES, difference, tiny
from transduce.data.tokens.tokenizer import END
from transduce.errors import ModelError
from transduce.interop.ctranslate2 import export
from transduce.interop.imports import ctranslate2
from transduce.interop.imports.registry import find_format, import_model
from transduce.tasks.transduce import Transducer

package = optional.package("ctranslate2")

LONGEST = 40
SHAPES: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "activation": "gelu", "norm_position": "post"},
    {"positions": "rotary", "activation": "swiglu", "norm": "rms", "rotary_base": 300.0},
    {"positions": "none", "activation": "geglu_tanh", "norm_epsilon": 0.01},
    {"positions": "learned", "norm_embeddings": True, "scale_embeddings": False},
]


def imported(folder: Path, output: Path) -> Transducer:
    import_model(folder, output)
    model = transduce.load(output)
    assert isinstance(model, Transducer)
    return model


def theirs(folder: Path, sources: Sequence[list[str]]) -> list[tuple[list[str], float]]:
    """What CTranslate2 says, in float32 whatever it is stored in."""
    translator = package.Translator(str(folder), compute_type="float32", intra_threads=1)
    found = translator.translate_batch(
        list(sources),
        beam_size=1,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=LONGEST,
        return_scores=True,
    )
    return [(one.hypotheses[0], one.scores[0]) for one in found]


def test_arabic_names(tmp_path: Path) -> None:
    folder = real_weights("ct2_aren")
    model = imported(folder, tmp_path / "model")
    names = (folder / "source_vocabulary.txt").read_text("utf-8").split("\n")[3:]
    letters = [name for name in names if name.strip() and name.isprintable()]
    draw = random.Random(4)
    words = [draw.choices(letters, k=draw.randint(1, 12)) for _ in range(100)]
    outputs = model.run([" ".join(word) for word in words], beam=1)
    for (tokens, score), ours in zip(theirs(folder, words), outputs, strict=True):
        assert ours.text.split() == tokens
        assert ours.log_probability == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", ["all", "target", "none"])
def test_our_own_export_gives_the_same_weights(
    tmp_path: Path, shape: dict[str, Any], tied: str
) -> None:
    model = tiny(shape, shape, tie_embeddings=tied)
    export(model, tmp_path / "export")
    again = imported(tmp_path / "export", tmp_path / "model")
    assert again.recipe.model.tie_embeddings == tied
    for part in ("encoder", "decoder"):
        ours, back = getattr(model.recipe.model, part), getattr(again.recipe.model, part)
        assert back.positions == shape.get("positions", "sinusoidal")
        assert (back.activation, back.norm, back.heads) == (ours.activation, ours.norm, ours.heads)
    weights = dict(again.network.named_parameters())
    assert weights.keys() == dict(model.network.named_parameters()).keys()
    for name, weight in model.network.named_parameters():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0)
    texts = [[output.text for output in one.run(SOURCES, beam=3)] for one in (model, again)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("quantize", ["float16", "bfloat16", "int8"])
def test_fewer_bits_are_read_as_ctranslate2_reads_them(tmp_path: Path, quantize: str) -> None:
    model = tiny(SHAPES[1], SHAPES[2], banned=True)
    export(model, tmp_path / "export", quantize)
    again = imported(tmp_path / "export", tmp_path / "model")
    assert 1e-6 < difference(model, again) < 0.5
    texts = [source for source in SOURCES if source]
    pieces = model.source_tokens.names()
    sources = [[pieces[number] for number in model.source_tokens.encode(text)] for text in texts]
    for text, (tokens, score) in zip(texts, theirs(tmp_path / "export", sources), strict=True):
        ours = again.run([text], beam=1, max_length=LONGEST)[0]
        assert [pieces[number] for number in ours.ids] == tokens[: len(ours.ids)]
        values = again.score([text], ["".join(tokens)])[0].token_log_probabilities
        ended = len(tokens) < LONGEST  # otherwise it was cut
        assert sum(values if ended else values[:-1]) == pytest.approx(score, abs=1e-4)


def test_a_source_without_an_end(tmp_path: Path) -> None:
    model = tiny(source_end=False)
    export(model, tmp_path / "export")
    again = imported(tmp_path / "export", tmp_path / "model")
    assert not again.recipe.model.source_end
    assert difference(model, again) == 0


def test_a_vocabulary_in_another_order(tmp_path: Path) -> None:
    """Without our tokens, a source is symbols; specials may stand anywhere, or be missing."""
    model = tiny(tie_embeddings="none", banned=True)
    export(model, tmp_path / "export")
    folder = tmp_path / "export"
    (folder / "recipe.yaml").unlink()
    names = model.target_tokens.names()
    renamed = ["<junk>", "<unk>", "<bos>", "<eos>", *names[4:]]
    renamed[renamed.index(" ")] = "▁"
    for name in list(folder.glob("*_vocabulary.json")):
        name.write_text(json.dumps(renamed))
    config = json.loads((folder / "config.json").read_text())
    config |= {"decoder_start_token": "<bos>", "eos_token": "<eos>"}
    (folder / "config.json").write_text(json.dumps(config))
    again = imported(folder, tmp_path / "model")
    assert again.source_tokens.level == "symbol"
    assert again.target_tokens.names()[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<junk>"]
    texts = [source for source in SOURCES if source]
    spaced = [" ".join(text.replace(" ", "▁")) for text in texts]
    one, two = model.score(texts, texts), again.score(spaced, spaced)
    for a, b in zip(one, two, strict=True):
        assert a.token_log_probabilities == pytest.approx(b.token_log_probabilities, abs=1e-5)


def test_a_begin_that_is_the_end(tmp_path: Path) -> None:
    """BEGIN gets a row of its own, which is never written."""
    model = tiny(banned=True)
    export(model, tmp_path / "export")
    folder = tmp_path / "export"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decoder_start_token": "</s>"}))
    with pytest.raises(ModelError, match="not those of the vocabularies"):
        ctranslate2.read(folder)  # our own tokens have another BEGIN
    (folder / "recipe.yaml").unlink()
    again = imported(folder, tmp_path / "model")
    table = again.network.decoder.embedding.table.weight
    assert torch.equal(table[2], table[END])
    assert float(again.network.head.bias[2].detach()) < -1e8
    words = [source for source in SOURCES if source and " " not in source]
    found = again.run([" ".join(word) for word in words], beam=1, max_length=10)
    for (tokens, _), ours in zip(theirs(folder, list(map(list, words))), found, strict=True):
        assert again.target_tokens.pieces(ours.ids) == tokens[: len(ours.ids)]


def altered(folder: Path, arrays: dict[str, int]) -> None:
    """Add settings to a model.bin."""
    whole = bytearray((folder / "model.bin").read_bytes())
    place = 4 + 2 + struct.unpack_from("<H", whole, 4)[0] + 4
    (count,) = struct.unpack_from("<I", whole, place)
    struct.pack_into("<I", whole, place, count + len(arrays))
    added = b"".join(
        struct.pack("<H", len(name) + 1) + name.encode() + struct.pack("<BBBIb", 0, 0, 1, 1, value)
        for name, value in arrays.items()
    )
    (folder / "model.bin").write_bytes(whole[: place + 4] + added + whole[place + 4 :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decoder/scale_outputs": 1}, "no place for"),
        ({"encoder/layer_0/self_attention/queries_scale": 1}, "no place for"),
        ({"encoder/layer_0/self_attention/num_heads_kv": 1}, "heads of keys"),
        ({"encoder/layer_7/new": 1}, "not all layers"),
    ],
)
def test_what_we_have_no_equal_of(tmp_path: Path, change: dict[str, int], reason: str) -> None:
    export(tiny(), tmp_path / "export")
    altered(tmp_path / "export", change)
    with pytest.raises(ModelError, match=reason):
        ctranslate2.read(tmp_path / "export")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"add_source_bos": True}, "add_source_bos"),
        ({"decoder_start_token": None}, "decoder_start_token"),
        ({"eos_token": "<none>"}, "<none> ends texts"),
        ({"layer_norm_epsilon": "much"}, "must be a number"),
    ],
)
def test_settings_that_are_not_supported(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    export(tiny(), tmp_path / "export")
    path = tmp_path / "export" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ModelError, match=reason):
        ctranslate2.read(tmp_path / "export")


def test_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    export(tiny(), tmp_path / "export")
    folder = tmp_path / "export"
    assert find_format(folder) is ctranslate2
    (folder / "shared_vocabulary.json").write_text("{}")
    with pytest.raises(ModelError, match="not a list of tokens"):
        ctranslate2.read(folder)
    (folder / "shared_vocabulary.json").write_text(json.dumps(list("abcdefgh")))
    with pytest.raises(ModelError, match="ends texts"):
        ctranslate2.read(folder)
    (folder / "shared_vocabulary.json").unlink()
    with pytest.raises(ModelError, match="no source_vocabulary"):
        ctranslate2.read(folder)
    (folder / "model.bin").write_bytes(b"\6\0\0\0 and nothing")
    with pytest.raises(ModelError, match="is damaged"):
        import_model(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    shutil.rmtree(folder)
    assert not ctranslate2.recognises(folder)
