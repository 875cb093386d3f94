"""Tags that the decoder reads and the encoder does not: model.decoder.tag_attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import RecipeError
from transduce.recipe import Recipe, read_recipe
from transduce.recipe import Tokens as TokensKeys
from transduce.tasks.transduce import Transducer, create, load

CORPUS = {"file": "a.tsv", "tags": 2}


def recipe(
    encoder: dict[str, Any] | None = None, corpus: dict[str, Any] = CORPUS, **decoder: Any
) -> Recipe:
    keys = {"kind": "recurrent", "tag_attention": True, **decoder}
    return read_recipe(
        {
            "data": {
                "train": corpus,
                "valid": corpus,
                "tokens": {side: {"level": "character"} for side in ("source", "target")},
            },
            "model": {
                "width": 8,
                "dropout": 0.0,
                "encoder": encoder or {"kind": "recurrent"},
                "decoder": keys,
            },
        }
    )


def make(**decoder: Any) -> Transducer:
    letters = TokensKeys(level="character")
    source = Tokens.train(letters, ["abcd"], ["PL", "SG", "ACC"])
    torch.manual_seed(1)
    model = create(recipe(**decoder), source, Tokens.train(letters, ["abcd"]))
    assert isinstance(model, Transducer)
    model.network.eval()
    return model


def scores(model: Transducer, *sources: str) -> list[float]:
    return [one.log_probability for one in model.score(list(sources), ["abd"] * len(sources))]


@pytest.mark.parametrize("more", [{}, {"context": "both"}, {"copying": True}])
def test_tags_are_a_set_that_the_encoder_does_not_read(
    more: dict[str, Any], tmp_path: Path
) -> None:
    model = make(**more)
    one, other, fewer, none = scores(
        model, "<PL> <ACC> abcd", "<ACC> <PL> abcd", "<ACC> abcd", "abcd"
    )
    assert one == pytest.approx(other, abs=1e-5)
    assert len({round(score, 4) for score in (one, fewer, none)}) == 3
    # Whatever else is in the batch.
    assert scores(model, "<PL> <ACC> abcd") == pytest.approx([one], abs=1e-5)
    states_BSD = model.encode(["<PL> <ACC> abcd", "abcd"]).states_BSD
    assert not states_BSD[0, :2].any()
    torch.testing.assert_close(states_BSD[0, 2:], states_BSD[1, :-2])
    sources = ["<PL> <ACC> abcd", "<SG> dcba", "ab"]
    for beam in (1, 3):
        outputs = model.run(sources, unknown=False, max_length=4, beam=beam)
        for source, output in zip(sources, outputs, strict=True):
            (given,) = model.score([source], [output.text])
            assert output.log_probability == pytest.approx(given.log_probability, abs=1e-4)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert isinstance(again, Transducer)
    assert scores(again, "<PL> <ACC> abcd") == pytest.approx([one], abs=1e-5)


@pytest.mark.parametrize("context", ["output", "both"])
def test_attention_is_shown_to_letters_and_to_tags(context: str) -> None:
    (found,) = make(context=context).score(["<PL> <ACC> abcd"], ["abd"], attention=True)
    assert found.attention is not None
    (letters,), (tags,) = found.attention  # of each layer its only head
    assert not letters[:, :2].any()
    assert not tags[:, 2:].any()
    assert letters.sum(axis=-1) == pytest.approx(1.0)
    assert tags.sum(axis=-1) == pytest.approx(1.0)


@torch.no_grad()
def test_a_step_is_that_of_the_equations() -> None:
    """By plain loops: the sum of tags in the input, a context by each attention in the output."""
    model = make(attention="additive")
    network = model.network.double()
    ids = [*model.source_tokens.encode("<PL> <ACC> abc"), END]
    memory = network.encode(torch.tensor([ids]), torch.tensor([len(ids)]))
    decoder, tags = network.decoder, network.decoder.tags
    vectors = [network.front.table.weight[one] * network.front.scale for one in ids]
    values = [torch.tanh(tags.values.weight @ one + tags.values.bias) for one in vectors[:2]]
    x_D = decoder.embedding.table.weight[BEGIN] * decoder.embedding.scale
    x_D = x_D + tags.sum.weight @ (vectors[0] + vectors[1])
    h_1D, _ = decoder.recurrent.step(x_D[None], memory.final)
    contexts = [
        context(score, h_1D[0], those)
        for score, those in [
            (decoder.attention.score, list(memory.states_BSD[0, 2:])),
            (tags.attention.score, values),
        ]
    ]
    read_out = decoder.readout.weight @ torch.cat([h_1D[0], *contexts]) + decoder.readout.bias
    features_11D = decoder(torch.tensor([[BEGIN]]), memory)
    torch.testing.assert_close(features_11D[0, 0], torch.tanh(read_out))


def context(score: Any, query_D: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
    """Additive attention (Bahdanau et al. 2015) of one query, which reads what it compares with."""
    asked_D, energy_D = score.query_projection.weight @ query_D, score.energy.weight[0]
    found = [
        energy_D @ torch.tanh(asked_D + score.key_projection.weight @ value_D) for value_D in values
    ]
    weights = torch.stack(found).exp() / torch.stack(found).exp().sum()
    return sum(
        (weight * value_D for weight, value_D in zip(weights, values, strict=True)),
        torch.zeros_like(query_D),
    )


def test_training_looks_at_the_places_of_tags_alone_and_learns_the_same() -> None:
    network = make().network
    seen = []
    network.decoder.tags.attention.register_forward_hook(lambda *of: seen.append(of[1][1].shape[1]))
    tokens = make().source_tokens
    rows = [tokens.encode(text) for text in ("<PL> <ACC> abcd", "<SG> dcba", "ab")]
    lengths_B = torch.tensor([len(row) for row in rows])
    source_BS = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True)
    target_BT = torch.tensor([[1, 4, 5, 2]] * 3)
    losses = [
        network.train(mode).loss(source_BS, lengths_B, target_BT).total for mode in (False, True)
    ]
    assert seen == [source_BS.shape[1], 2]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("silent", [["sum"], ["values"], ["sum", "values"]])
def test_tags_enter_the_input_and_by_attention(silent: list[str]) -> None:
    model = make()
    for part in silent:
        for weight in model.network.decoder.tags.get_submodule(part).parameters():
            torch.nn.init.zeros_(weight)
    one, other = scores(model, "<PL> abcd", "<SG> abcd")
    assert (one == pytest.approx(other, abs=1e-6)) == (len(silent) == 2)


def test_recipes_that_cannot_be() -> None:
    with pytest.raises(RecipeError, match=r"tag_attention is true, but model\.encoder is trans"):
        recipe({"kind": "transformer"})
    with pytest.raises(RecipeError, match=r"but the sources of data\.train have no tags"):
        recipe(corpus={"file": "a.tsv"})
    with pytest.raises(RecipeError, match=r"but model\.decoder\.attention is none"):
        recipe(attention="none")
    with pytest.raises(RecipeError, match=r"but model\.decoder\.context is input"):
        recipe(context="input")
