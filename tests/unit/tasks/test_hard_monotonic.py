"""Models with hard monotonic attention, trained and searched as any other."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import ModelError, RecipeError
from transduce.nn.watchable import Gate
from transduce.recipe import Tokens as TokensKeys
from transduce.recipe import read_recipe
from transduce.tasks.transduce import Transducer, create, load
from transduce.training.distillation import load_teachers
from transduce.web.export import model_bytes

SOURCES = ["abcab", "ca", "bb"]
GRU = {"kind": "recurrent", "cell": "gru"}

pytestmark = pytest.mark.filterwarnings("ignore::transduce.errors.TransduceWarning")


def make(copying: bool = False, seed: int = 1, **keys: Any) -> Transducer:
    settings = {
        "data": {
            "train": {"name": "copy", "split": "train"},
            "valid": {"name": "copy", "split": "valid"},
            "tokens": {"both": {"level": "character"}},
        },
        "model": {
            "width": 8,
            "dropout": 0.0,
            "encoder": GRU,
            "decoder": {**GRU, "hard_monotonic": True, "copying": copying},
        },
        "decode": {"length_penalty": 0.0, "max_extra": 3},
        **keys,
    }
    tokens = Tokens.train(TokensKeys(level="character"), ["abc"])
    torch.manual_seed(seed)
    model = create(read_recipe(settings), tokens, tokens)
    assert isinstance(model, Transducer)
    model.network.eval()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


@torch.inference_mode()
def test_scores_are_sums_over_all_alignments() -> None:
    model = make()
    network: Any = model.network
    decoder = network.decoder
    read, written = model.source_tokens.encode("abc"), model.target_tokens.encode("ca")
    memory = network.encode(torch.tensor([[*read, END]]), torch.tensor([4]))
    outputs_1TD, _ = decoder.recurrent(
        decoder.embedding(torch.tensor([[BEGIN, *written]])), decoder.start(memory).layers
    )
    scores_TS = decoder.attention.score(outputs_1TD, decoder.attention.prepare(memory.states_BSD))[
        0
    ]
    total = 0.0
    for places in product(range(4), repeat=3):
        if list(places) == sorted(places):
            probability, before = 1.0, 0
            for step, (place, token) in enumerate(zip(places, [*written, END], strict=True)):
                both_1D = torch.cat([outputs_1TD[:, step], memory.states_BSD[:, place]], dim=-1)
                features_1D = torch.tanh(decoder.readout(both_1D))
                probability *= float(scores_TS[step, before:].softmax(dim=0)[place - before])
                probability *= float(network.head(features_1D).softmax(dim=-1)[0, token])
                before = place
            total += probability
    (score,) = model.score(["abc"], ["ca"])
    assert score.log_probability == pytest.approx(torch.tensor(total).log().item(), abs=1e-5)


@pytest.mark.parametrize("copying", [False, True])
def test_search_and_score_agree(copying: bool) -> None:
    model = make(copying)
    for beam in (1, 3):
        outputs = model.run(SOURCES, beam=beam, unknown=False)
        for source, output in zip(SOURCES, outputs, strict=True):
            (score,) = model.score([source], [output.text])
            assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)
            (alone,) = model.run([source], beam=beam, unknown=False)
            assert alone.text == output.text
    outputs = model.run(SOURCES, beam=2, ensemble=[make(copying, seed=2)], attention=True)
    for source, output in zip(SOURCES, outputs, strict=True):
        assert output.attention is not None
        weights_TS = output.attention[0, 0]
        assert weights_TS.shape == (len(output.tokens), len(source) + 1)
        assert weights_TS.sum(axis=-1) == pytest.approx(1.0, abs=1e-4)


def test_attention_never_goes_back() -> None:
    (output,) = make().run(["abcab"], beam=1, attention=True, min_length=4)
    assert output.attention is not None
    reached_TS = output.attention[0, 0].cumsum(axis=-1)  # how likely it is here or before
    assert (reached_TS[1:] <= reached_TS[:-1] + 1e-5).all()


def test_what_is_read_at_a_position_can_be_gated() -> None:
    model = make()
    attention: Any = model.network.decoder.attention  # type: ignore[union-attr]
    (whole,) = model.score(["abc"], ["ca"])
    attention.gate = Gate(positions={1: 0.0})
    (without,) = model.score(["abc"], ["ca"])
    attention.gate = None
    assert without.log_probability != pytest.approx(whole.log_probability, abs=1e-3)


def test_letters_that_are_in_no_vocabulary_are_copied_in_order() -> None:
    model = make(copying=True)
    pointer: Any = model.network.pointer
    with torch.no_grad():
        pointer.gate.weight.zero_()
        pointer.gate.bias.fill_(-20.0)
    (output,) = model.run(["жщ"], beam=4, max_length=3, min_length=3)
    assert output.text in ("жжж", "жжщ", "жщщ", "щщщ")
    (score,) = model.score(["жщ"], [output.text])
    assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)
    (back,) = model.score(["жщ"], ["щж"])
    assert back.log_probability < -15  # its second letter cannot be a copy


@pytest.mark.parametrize("copying", [False, True])
def test_it_learns(copying: bool) -> None:
    model = make(copying)
    network = model.network.train()
    read, written = (model.source_tokens.encode(text) for text in ("abcb", "bcba"))
    batch = (torch.tensor([[*read, END]] * 2), torch.tensor([5, 5]))
    target_BT = torch.tensor([[BEGIN, *written, END]] * 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = network.loss(*batch, target_BT, 0.1, 0.5)
        optimizer.zero_grad()
        loss.total.backward()
        assert all(
            bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None
        )
        optimizer.step()
        losses.append(float(loss.nll))
    assert losses[-1] < 0.3 * losses[0]
    network.eval()
    assert model("abcb") == "bcba"


def test_it_is_kept_with_the_model_and_in_int8(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert isinstance(again, Transducer)
    texts = [output.text for output in model.run(SOURCES)]
    assert [output.text for output in again.run(SOURCES)] == texts
    assert len(again.compute_in("int8").run(SOURCES)) == 3


def test_it_does_not_run_in_a_browser() -> None:
    with pytest.raises(ModelError, match="does not run in a browser"):
        model_bytes(make())


def test_it_does_not_teach(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "model")
    keys = model.recipe.model_dump(mode="json", exclude_unset=True)
    keys["model"]["decoder"]["hard_monotonic"] = False
    keys["train"] = {"teacher": {"model": str(tmp_path / "model")}}
    tokens = (model.source_tokens, model.target_tokens)
    with pytest.raises(ModelError, match="which has hard monotonic attention"):
        load_teachers(read_recipe(keys), tokens, torch.device("cpu"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"decoder": {"attention": "none"}}}, "attention is none"),
        ({"model": {"decoder": {"context": "both"}}}, "context is both"),
        ({"data": {"bidirectional": True}}, "writes from right to left"),
    ],
)
def test_recipes_that_cannot_be(keys: dict[str, Any], message: str) -> None:
    corpus = {"name": "copy", "split": "train"}
    data = {"train": corpus, "valid": {**corpus, "split": "valid"}, **keys.get("data", {})}
    decoder = {**GRU, "hard_monotonic": True, **keys.get("model", {}).get("decoder", {})}
    with pytest.raises(RecipeError, match=f"model.decoder.hard_monotonic is true, but .*{message}"):
        read_recipe({"data": data, "model": {"encoder": GRU, "decoder": decoder}})
