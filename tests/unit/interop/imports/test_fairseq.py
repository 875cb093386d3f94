"""Checkpoints of fairseq: weights by its names, dictionaries, codes of subword-nmt."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transduce
from real_weights import real_weights
from transduce.data.tokens.tokenizer import END, UNKNOWN
from transduce.errors import ModelError
from transduce.interop.imports import fairseq
from transduce.interop.imports.fairseq import read_codes, read_dictionary, vocabulary_of
from transduce.interop.imports.registry import find_format, import_model
from transduce.tasks.transduce import Transducer

SOURCE, TARGET = list("abcdefghij"), list("klmnopqr")
MERGES = [("a", "b"), ("l", "o</w>"), ("ab", "c</w>"), ("e", "d"), ("l", "o")]
SETTINGS: dict[str, Any] = {
    "arch": "transformer_tiny",
    "activation_fn": "relu",
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 20,
    "max_source_positions": 40,
    "max_target_positions": 40,
    "source_lang": "xx",
    "target_lang": "yy",
}


def written(folder: Path, weights: dict[str, Tensor], newer: bool = True, **changes: Any) -> Path:
    """A folder with a checkpoint and dictionaries."""
    space = argparse.Namespace(**(SETTINGS | changes))
    root: dict[str, Any] = {"args": space, "model": weights}
    if newer:
        root = {"args": None, "cfg": {"model": space, "task": {}}, "model": weights}
    folder.mkdir(exist_ok=True)
    torch.save(root, folder / "checkpoint_best.pt")
    for language, tokens in (("xx", SOURCE), ("yy", TARGET)):
        lines = [f"{token} {9 - number}\n" for number, token in enumerate(tokens)]
        (folder / f"dict.{language}.txt").write_text("".join(lines), "utf-8")
    return folder


def oracle() -> Any:
    """fairseq's Transformer as `transformers` has it, with random weights."""
    package = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = package.FSMTConfig(
        langs=["xx", "yy"],
        src_vocab_size=len(SOURCE) + 4,
        tgt_vocab_size=len(TARGET) + 4,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=20,
        max_position_embeddings=40,
        dropout=0.0,
        init_std=0.3,
    )
    network = package.FSMTForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=0.3)
                parameter.add_("norm" in name and name.endswith("weight"))
    return network


def weights_of(network: Any) -> dict[str, Tensor]:
    """By fairseq's names, with what else it saves."""
    found = {
        name.removeprefix("model."): parameter.detach().clone()
        for name, parameter in network.named_parameters()
        if "embed_positions" not in name
    }
    for side in ("encoder", "decoder"):
        found[f"{side}.version"] = torch.tensor([3.0])
        found[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return found


def imported(source: Path, output: Path) -> Transducer:
    import_model(source, output)
    model = transduce.load(output)
    assert isinstance(model, Transducer)
    return model


@pytest.mark.parametrize("newer", [True, False])
def test_against_transformers(tmp_path: Path, newer: bool) -> None:
    theirs = oracle()
    folder = written(tmp_path / "fairseq", weights_of(theirs), newer)
    model = imported(folder, tmp_path / "model")
    draw = random.Random(1)
    for _ in range(10):
        source = draw.choices(range(len(SOURCE)), k=draw.randint(1, 9))
        target = draw.choices(range(len(TARGET)), k=draw.randint(1, 9))
        ids = torch.tensor([[*(number + 4 for number in source), 2]])
        labels = torch.tensor([*(number + 4 for number in target), 2])
        with torch.no_grad():
            decoded = torch.cat([torch.tensor([2]), labels[:-1]])[None]
            logits = theirs(input_ids=ids, decoder_input_ids=decoded, use_cache=False).logits[0]
        expected = logits.log_softmax(-1)[torch.arange(len(labels)), labels]
        texts = [" ".join(SOURCE[n] for n in source), " ".join(TARGET[n] for n in target)]
        (score,) = model.score([texts[0]], [texts[1]])
        assert score.token_log_probabilities == pytest.approx(expected.tolist(), abs=1e-4)


def test_ours_there_and_back(tmp_path: Path) -> None:
    """Pre-norm, learned positions, tied embeddings: the network of ours, by fairseq's names."""
    torch.manual_seed(3)
    weights: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns) * 0.3
        weights[f"{name}.bias"] = torch.randn(rows) * 0.3

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = 1 + torch.randn(16), torch.randn(16)

    for side, tokens in (("encoder", SOURCE), ("decoder", TARGET)):
        weights[f"{side}.embed_tokens.weight"] = torch.randn(len(tokens) + 4, 16)
        weights[f"{side}.embed_positions.weight"] = torch.randn(42, 16)
        norm(f"{side}.layer_norm")
        norm(f"{side}.layernorm_embedding")
        for number in range(2):
            name = f"{side}.layers.{number}"
            attentions = ["self_attn"] + ["encoder_attn"] * (side == "decoder")
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{name}.{attention}.{part}", 16, 16)
                norm(f"{name}.{attention}_layer_norm")
            hidden = SETTINGS[f"{side}_ffn_embed_dim"]
            linear(f"{name}.fc1", hidden, 16)
            linear(f"{name}.fc2", 16, hidden)
            norm(f"{name}.final_layer_norm")
    changes = {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "layernorm_embedding": True,
        "no_scale_embedding": True,
        "share_decoder_input_output_embed": True,
        "activation_fn": "gelu",
    }
    folder = written(tmp_path / "fairseq", weights, **changes)
    network = imported(folder, tmp_path / "model").network
    section = network.decoder.stack[1]  # type: ignore[union-attr]
    torch.testing.assert_close(
        section.cross_attention.in_projection.weight[16:32],
        weights["decoder.layers.1.encoder_attn.k_proj.weight"],
    )
    table = network.front.positions.positions.table_TD  # type: ignore[union-attr]
    torch.testing.assert_close(table, weights["encoder.embed_positions.weight"][2:])
    assert network.front.scale == 1.0
    assert network.head.weight is network.decoder.embedding.table.weight
    order = [1, 3, 2, 2, 0, *range(4, len(TARGET) + 4)]  # pad, unknown, begin, end; then <s>
    torch.testing.assert_close(network.head.weight, weights["decoder.embed_tokens.weight"][order])
    assert float(network.head.bias[2].detach()) < -1e8
    assert float(network.head.bias[END].detach()) == 0.0


def segment(word: str, merges: Sequence[tuple[str, str]]) -> list[str]:
    """Byte pair encoding written out: the earliest merge, wherever it applies, until none does."""
    pieces = [*word[:-1], word[-1] + "</w>"]
    while True:
        pairs = set(itertools.pairwise(pieces))
        best = next((merge for merge in merges if merge in pairs), None)
        if best is None:
            return pieces
        joined, place = [], 0
        while place < len(pieces):
            if tuple(pieces[place : place + 2]) == best:
                joined.append("".join(best))
                place += 2
            else:
                joined.append(pieces[place])
                place += 1
        pieces = joined


def expected_ids(text: str, names: list[str], merges: Sequence[tuple[str, str]]) -> list[int]:
    """Ids of fairseq's dictionary."""
    spelt = [
        piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@"
        for word in text.split()
        for piece in segment(word, merges)
    ]
    return [names.index(piece) if piece in names else 3 for piece in spelt]


def check_subwords(texts: Sequence[str], names: list[str], merges: list[tuple[str, str]]) -> None:
    made = vocabulary_of(names, merges)
    for text in texts:
        ids = made.tokens.encode(text)
        rows = [made.layout.rows[number] for number in ids]
        assert rows == expected_ids(text, names, merges)
        if UNKNOWN not in ids:
            assert made.tokens.decode(ids) == " ".join(text.split())


def test_codes_of_subword_nmt() -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", "ab@@", "abc", "lo", "l@@", "o", "ed@@", "a", "b@@"]
    check_subwords(["abc  lo", "ablo edo", "zabc", "loab x", "a", "<s> abc </s>"], names, MERGES)


def test_real_subwords_and_lines(tmp_path: Path) -> None:
    """Of the 6,350 lines of the package: subwords as subword-nmt makes them, chrF of 64 lines."""
    sacrebleu = pytest.importorskip("sacrebleu")
    assets = real_weights("detransliterator") / "assets"
    folder = assets / "latin2nqo_001.35"
    lines, references = (
        (assets / "test_data" / f"diane_parallel_002.{ending}").read_text("utf-8").split("\n")
        for ending in ("emk-tonal", "nqo")
    )
    codes = read_codes(folder / "data" / "bpe.code")
    names = read_dictionary(folder / "data" / "dict.roman.txt")
    texts = [line.strip().strip('"').lower() for line in lines[:64]]
    check_subwords(texts, names, codes)
    model = imported(folder, tmp_path / "model")
    outputs = [output.text for output in model.run(texts, beam=1)]
    assert sacrebleu.corpus_chrf(outputs, [references[:64]]).score > 95


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": "transformer_lm_big"}, "not a Transformer for translation"),
        ({"arch": "lstm"}, "not a Transformer for translation"),
        ({"adaptive_input": True}, "adaptive_input"),
        ({"activation_fn": "tanh"}, "activation_fn is 'tanh'"),
        ({"encoder_layers": "many"}, "encoder_layers"),
        ({"encoder_layers": 1}, "no place for"),
        ({"encoder_layers": 3}, "layers.2.*needs"),
        ({"encoder_normalize_before": True}, "norm after the last layer"),
        ({"encoder_ffn_embed_dim": 10}, r"\[24, 16\], and not \[10, 16\]"),
    ],
)
def test_what_we_have_no_equal_of(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    folder = written(tmp_path / "fairseq", weights_of(oracle()), **changes)
    assert find_format(folder) is fairseq
    with pytest.raises(ModelError, match=reason):
        fairseq.read(folder)


def test_dictionaries_that_do_not_fit(tmp_path: Path) -> None:
    folder = written(tmp_path / "fairseq", weights_of(oracle()))
    (folder / "dict.xx.txt").write_text("a 1\nb\n")
    with pytest.raises(ModelError, match="line 2"):
        fairseq.read(folder)
    (folder / "dict.xx.txt").write_text("a 1\nb 1\n")
    with pytest.raises(ModelError, match="has 6 tokens"):
        fairseq.read(folder)
    (folder / "dict.xx.txt").unlink()
    with pytest.raises(ModelError, match=r"no dict\.xx\.txt"):
        fairseq.read(folder)
    (folder / "dict.yy.txt").unlink()
    assert not fairseq.recognises(folder)
    with pytest.raises(ModelError, match="no dictionaries"):
        fairseq.read(folder)
