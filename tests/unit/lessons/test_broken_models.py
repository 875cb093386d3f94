"""The same for the lessons that train models: their assertions fail where the claim is not so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transduce.decoding
import transduce.models.architectures
from broken_lessons import fails
from transduce.data.tokens.tokenizer import Tokens
from transduce.models import encoder_decoder, language_model, streaming
from transduce.models.lens import Gates
from transduce.models.word_embedding import WordEmbedding
from transduce.nn import chunks, positions
from transduce.nn.recurrent import cells
from transduce.tasks import LanguageModel

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow  # each trains the lesson's models


def test_words_cut_into_characters(monkeypatch: Patch, tmp_path: Path) -> None:
    train = Tokens.train

    def characters(settings: Any, texts: Any) -> Tokens:
        return train(settings.model_copy(update={"level": "character"}), texts)

    monkeypatch.setattr(Tokens, "train", characters)
    fails("vocabularies", tmp_path, "")


def test_a_beam_that_is_greedy(monkeypatch: Patch, tmp_path: Path) -> None:
    def argmax(network: Any, *source: Tensor, **settings: Any) -> Any:
        return transduce.decoding.greedy(network, *source)

    monkeypatch.setattr(transduce.decoding, "beam", argmax)
    fails("search", tmp_path, "no likelier")


def test_tables_that_are_never_shared(monkeypatch: Patch, tmp_path: Path) -> None:
    head = encoder_decoder.output_head

    def apart(embedding: Any, width: int, tie: str = "target", output_bias: bool = True) -> Any:
        return head(embedding, width, "none", output_bias)

    for module in (encoder_decoder, language_model):
        monkeypatch.setattr(module, "output_head", apart)
    fails("tying", tmp_path, "input's table misses")


def test_embeddings_that_do_not_learn(monkeypatch: Patch, tmp_path: Path) -> None:
    build = WordEmbedding.__init__

    def frozen(self: WordEmbedding, *arguments: Any, **settings: Any) -> None:
        build(self, *arguments, **settings)
        self.table.weight.requires_grad_(False)

    monkeypatch.setattr(WordEmbedding, "__init__", frozen)
    fails("embeddings", tmp_path, "classified right|apart")


def test_a_forget_gate_that_stays_half_shut(monkeypatch: Patch, tmp_path: Path) -> None:
    build = cells.PeepholeLSTM._equations

    def leaky(self: Any, from_x: Tensor, h_BD: Tensor, c_BD: Tensor) -> Any:
        return build(self, from_x, h_BD, 0.5 * c_BD)

    monkeypatch.setattr(cells.PeepholeLSTM, "_equations", leaky)
    fails("gates", tmp_path, "peepholes")


def test_heads_that_cannot_be_switched_off(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(Gates, "gate", lambda *arguments, **settings: None)
    fails("pruning_heads", tmp_path, "the best head is worth")


def test_a_prompt_that_is_not_read(monkeypatch: Patch, tmp_path: Path) -> None:
    continued = LanguageModel.run

    def deaf(self: LanguageModel, prompts: Any, **settings: Any) -> Any:
        return continued(self, ["the"] * len(prompts), **settings)

    monkeypatch.setattr(LanguageModel, "run", deaf)
    fails("prompts", tmp_path, "of the words are about")


def test_attention_that_does_not_know_places(monkeypatch: Patch, tmp_path: Path) -> None:
    def unturned(self: Any, x_BHTK: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        return x_BHTK

    monkeypatch.setattr(positions.Rotary, "rotate", unturned)
    with torch.random.fork_rng():
        fails("three_ways_to_context", tmp_path, "0\\.")


def test_chunks_that_see_the_future(monkeypatch: Patch, tmp_path: Path) -> None:
    def all_of_it(S: int, size: int, left_chunks: int, device: Any = None) -> Tensor:
        return torch.ones(1, S, S, dtype=torch.bool, device=device)

    monkeypatch.setattr(chunks, "visible_chunks", all_of_it)
    fails("streaming", tmp_path, "see the future")


def test_streams_that_forget_the_past(monkeypatch: Patch, tmp_path: Path) -> None:
    rows = streaming._rows

    def forgetful(cache: Any, rows_B: Tensor, fresh_B: Tensor) -> Any:
        return rows(cache, rows_B, torch.arange(len(rows_B)))

    monkeypatch.setattr(streaming, "_rows", forgetful)
    fails("streaming", tmp_path, "live states differ")
