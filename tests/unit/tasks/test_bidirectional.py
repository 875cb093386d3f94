"""Bidirectional decoding: outputs of both directions, and the best of them by both."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.errors import ModelError, RecipeError
from transduce.inspection.look.collect import collect
from transduce.interop.huggingface.export import export
from transduce.recipe import Tokens as TokensKeys
from transduce.recipe import read_recipe
from transduce.tasks.observer import RunObserver, Watch
from transduce.tasks.transduce import Transducer, create, load
from transduce.training.distillation import load_teachers
from transduce.web.export import model_bytes

LETTERS = "abc"
SOURCES = ["abcab", "ca", "", "bb"]
TRANSFORMER = {"layers": 1, "heads": 2, "feed_forward": 16}
KINDS = {
    "transformer": TRANSFORMER,
    "recurrent": {"kind": "recurrent", "cell": "gru"},
    "learned": {**TRANSFORMER, "positions": "learned", "max_positions": 300},
}


def make(
    kind: str = "transformer",
    seed: int = 1,
    decoder: dict[str, Any] | None = None,
    trained: bool = True,
    **decode: Any,
) -> Transducer:
    """Random weights, far from uniform."""
    keys = {
        "data": {
            "train": {"name": "copy", "split": "train"},
            "valid": {"name": "copy", "split": "valid"},
            "tokens": {"both": {"level": "character"}},
            "bidirectional": trained,
        },
        "model": {
            "width": 8,
            "encoder": KINDS[kind],
            "decoder": {**KINDS[kind], **(decoder or {})},
        },
        "decode": {"length_penalty": 0.7, **decode},
    }
    tokens = Tokens.train(TokensKeys(level="character"), [LETTERS])
    torch.manual_seed(seed)
    model = create(read_recipe(keys), tokens, tokens)
    assert isinstance(model, Transducer)
    model.network.eval()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model.freeze()


def logits(model: Transducer, source: list[int], written: list[int]) -> torch.Tensor:
    source_1S, lengths_1 = torch.tensor([[*source, END]]), torch.tensor([len(source) + 1])
    return model.network.logits(source_1S, lengths_1, torch.tensor([[BEGIN, *written]]))[0]


def total(model: Transducer, source: str, target: str, *others: Transducer) -> float:
    """Of both directions, token by token; of several models the mean of probabilities."""
    read, written = model.source_tokens.encode(source), model.target_tokens.encode(target)
    found = 0.0
    for ids, tokens in (read, written), ([*read, BEGIN], written[::-1]):
        every = [logits(one, ids, tokens).softmax(dim=-1) for one in (model, *others)]
        probability_TV = torch.stack(every).mean(dim=0)
        steps = enumerate([*tokens, END])
        found += sum(float(probability_TV[place, token].log()) for place, token in steps) / 2
    return found


def score(model: Transducer, source: str, text: str) -> float:
    return total(model, source, text) / ((6 + len(text)) / 6) ** 0.7


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
@torch.inference_mode()
def test_a_wide_beam_finds_the_best_of_all_texts_by_both_directions(kind: str) -> None:
    model = make(kind)
    texts = ["".join(text) for length in range(4) for text in product(LETTERS, repeat=length)]
    for source in ("abcab", "ca"):
        (output,) = model.run(
            [source], beam=60, nbest=5, max_length=3, unknown=False, patience=1000
        )
        scores = {text: score(model, source, text) for text in texts}
        order = sorted(texts, key=lambda text: -scores[text])
        assert [one.text for one in output.alternatives] == order[:5]
        assert output.score == pytest.approx(scores[order[0]], abs=1e-4)
        assert output.log_probability == pytest.approx(total(model, source, order[0]), abs=1e-4)


def greedy(model: Transducer, ids: list[int], longest: int) -> str:
    written: list[int] = []
    while len(written) < longest:
        logits_V = logits(model, ids, written)[-1]
        logits_V[:END] = -torch.inf  # PAD, unknown and BEGIN
        token = int(logits_V.argmax())
        if token == END:
            break
        written.append(token)
    return model.target_tokens.decode(written)


@torch.inference_mode()
def test_greedy_search_takes_the_better_of_two() -> None:
    chosen = {"first": 0, "second": 0}
    for seed in range(1, 7):
        model = make(seed=seed)
        for source in ("abcab", "ca", "bb"):
            ids = model.source_tokens.encode(source)
            one, other = greedy(model, ids, 6), greedy(model, [*ids, BEGIN], 6)[::-1]
            best = max((one, other), key=lambda text: score(model, source, text))
            (output,) = model.run([source], beam=1, max_length=6, unknown=False)
            assert output.text == best
            chosen["first"] += best == one != other
            chosen["second"] += best == other != one
    assert min(chosen.values()) > 0


@torch.inference_mode()
def test_an_ensemble_averages_the_probabilities_of_each_direction() -> None:
    first, second = make(), make(seed=2)
    (output,) = first.run(["abcab"], ensemble=[second], beam=30, max_length=3)
    by_hand = total(first, "abcab", output.text, second)
    assert output.log_probability == pytest.approx(by_hand, abs=1e-4)
    (other,) = first.run(["abcab"], ensemble=[second], beam=30, max_length=3, geometric=True)
    mean = (total(first, "abcab", other.text) + total(second, "abcab", other.text)) / 2
    assert other.log_probability == pytest.approx(mean, abs=1e-4)


def test_score_gives_what_run_reports() -> None:
    model = make("recurrent")
    outputs = model.run(SOURCES, beam=3)
    assert outputs[2].text == ""
    for source, output in zip(SOURCES, outputs, strict=True):
        if source:
            (given,) = model.score([source], [output.text])
            assert given.log_probability == pytest.approx(output.log_probability, abs=1e-4)
            assert given.tokens == output.tokens
            assert output.source_tokens == [*source, "</s>"]
    values = model.score(["abcab"], ["bca"])[0].token_log_probabilities
    ids, written = model.source_tokens.encode("abcab"), model.target_tokens.encode("bca")
    with torch.inference_mode():
        ahead = logits(model, ids, written).log_softmax(dim=-1)
        back = logits(model, [*ids, BEGIN], written[::-1]).log_softmax(dim=-1)
    places = [(0, 2), (1, 1), (2, 0), (3, 3)]  # of each token in one direction and the other
    for value, token, (one, other) in zip(values, [*written, END], places, strict=True):
        by_hand = float(ahead[one, token] + back[other, token]) / 2
        assert value == pytest.approx(by_hand, abs=1e-4)
    alone = [output.text for source in SOURCES for output in model.run([source], beam=3)]
    assert alone == [output.text for output in outputs]


def test_a_call_or_the_recipe_may_ask_for_one_direction() -> None:
    model, plain = make(), make(bidirectional=False)
    asked = model.run(SOURCES, beam=3, bidirectional=False)
    assert [one.text for one in plain.run(SOURCES, beam=3)] == [one.text for one in asked]
    (both,), (one,) = model.run(["abcab"]), model.run(["abcab"], bidirectional=False)
    assert both.log_probability != pytest.approx(one.log_probability, abs=1e-3)
    for source in ("abcab", "bb"):
        (written,) = model.run([source], beam=1, bidirectional=False, max_length=5)
        assert "".join(model.stream(source, max_length=5)) == written.text
    # One direction's score, as search reports it.
    (given,) = plain.score(["abcab"], [one.text])
    assert given.log_probability == pytest.approx(one.log_probability, abs=1e-4)


def test_the_reranker_scores_in_both_directions() -> None:
    model, other = make(), make("recurrent", seed=4)
    (output,) = model.run(["abcab"], beam=4, rerank=other, rerank_weight=0.5, length_penalty=0.0)
    own, second = total(model, "abcab", output.text), total(other, "abcab", output.text)
    assert output.score == pytest.approx(own + 0.5 * second, abs=1e-4)


@pytest.mark.filterwarnings("ignore::transduce.errors.TransduceWarning")
def test_letters_that_are_in_no_vocabulary_are_copied_from_both_sides() -> None:
    model = make("recurrent", decoder={"copying": True})
    pointer: Any = model.network.pointer
    with torch.no_grad():
        pointer.gate.weight.zero_()
        pointer.gate.bias.fill_(-20.0)
    (output,) = model.run(["жщжщж"], beam=3, max_length=4, min_length=4)
    assert set(output.text) <= set("жщ")
    assert len(output.text) == 4
    (given,) = model.score(["жщжщж"], [output.text])
    assert given.log_probability == pytest.approx(output.log_probability, abs=1e-4)


class Watching(RunObserver):
    watched: Mapping[int, Watch] = MappingProxyType({0: Watch()})


REFUSED: dict[str, dict[str, Any]] = {
    "prefix": {"prefix": "a"},
    "include, or glossary,": {"include": "a"},
    "exclude": {"exclude": "a"},
    "hotwords": {"hotwords": "ab"},
    "sample": {"sample": True},
    "mbr": {"mbr": "chrf"},
    "coverage_penalty": {"coverage_penalty": 0.1},
    "an observer of tokens": {"observer": Watching()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_works_from_left_to_right_is_refused(name: str) -> None:
    model = make()
    with pytest.raises(ModelError, match=f"^{name} works from left to right.*--no-bidirectional"):
        model.run(["ab"], **REFUSED[name])
    assert model.run(["ab"], bidirectional=False, max_length=3, **REFUSED[name])


def test_other_models_must_know_both_directions(tmp_path: Path) -> None:
    model, plain = make(), make(trained=False)
    with pytest.raises(ModelError, match="model 2 of the ensemble writes from left to right alone"):
        model.run(["ab"], ensemble=[plain])
    with pytest.raises(ModelError, match="needs a model that was trained to write from right"):
        plain.run(["ab"], bidirectional=True)
    with pytest.raises(ModelError, match="stream writes from left to right"):
        list(model.stream("ab", bidirectional=True))
    with pytest.raises(ModelError, match=r"set decode.bidirectional: false"):
        export(model, tmp_path / "export")
    with pytest.raises(ModelError, match=r"set decode.bidirectional: false"):
        model_bytes(model)
    assert model_bytes(make(bidirectional=False))


def test_a_teacher_must_know_both_directions(tmp_path: Path) -> None:
    model, plain = make(), make(trained=False)
    for name, one in (("both", model), ("plain", plain)):
        one.save(tmp_path / name)
    keys = model.recipe.model_dump(mode="json", exclude_unset=True)
    tokens = (model.source_tokens, model.target_tokens)

    def taught_by(name: str) -> list[Any]:
        taught = {**keys, "train": {"teacher": {"model": str(tmp_path / name)}}}
        return list(load_teachers(read_recipe(taught), tokens, torch.device("cpu")))

    assert len(taught_by("both")) == 1
    with pytest.raises(ModelError, match="which writes from left to right alone"):
        taught_by("plain")


def test_it_is_kept_with_the_model(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert isinstance(again, Transducer)
    assert [one.text for one in again.run(SOURCES)] == [one.text for one in model.run(SOURCES)]
    assert again.is_bidirectional


def test_the_page_says_what_it_shows() -> None:
    page = collect(make(), "abcab", beam=2)
    assert page["how"].endswith("from left to right and from right to left; shown: left to right")
    assert page["no_beam"].startswith("Two beams")
    assert page["axes"]["source"] == ["a", "b", "c", "a", "b", "</s>"]
    one = collect(make(), "abcab", beam=2, bidirectional=False)
    assert one["how"] == "beam search, 2 hypotheses"
    assert one["beam"]["nodes"]


def test_sources_leave_a_position_for_the_direction() -> None:
    (output,) = make("learned").run(["a" * 400], max_length=3)
    assert "this model has positions for 298" in output.warning


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"task": "language_modeling", "data": {"bidirectional": True}},
            "data.bidirectional is for task: transduce with text sources",
        ),
        ({"decode": {"bidirectional": True}}, "decode.bidirectional is true, but the model learns"),
        (
            {"data": {"bidirectional": True}, "decode": {"coverage_penalty": 0.1}},
            "decode.coverage_penalty is 0.1, which is for one direction",
        ),
        (
            {
                "data": {"bidirectional": True, "max_length": 99},
                "model": {"encoder": {"positions": "learned", "max_positions": 100}},
            },
            "model.encoder.max_positions is 100, but data.max_length allows 101 tokens",
        ),
    ],
)
def test_recipes_that_cannot_be(keys: dict[str, Any], message: str) -> None:
    corpus = {"name": "copy", "split": "train"}
    data = {"train": corpus, "valid": {**corpus, "split": "valid"}, **keys.get("data", {})}
    with pytest.raises(RecipeError, match=message):
        read_recipe({**keys, "data": data})
