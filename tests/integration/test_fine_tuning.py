"""Fine-tuning: runs that start from a trained model, with frozen parts, and their resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.make_models import MODELS
from lives import Lives
from slow_params import some_slow
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError, TokensError, TrainingError
from transduce.recipe import Recipe, read_recipe
from transduce.storage import read_tensors
from transduce.tasks.transduce import load
from transduce.training import train

START = MODELS / "translate"
SHORT = {
    "steps": 6,
    "batch_tokens": 128,
    "lr": 1e-2,
    "warmup": 0,
    "schedule": "constant",
    "device": "cpu",
}


def write_pairs(folder: Path, letters: str = "abcd") -> None:
    words = [a + b + c for a in letters for b in letters for c in letters]
    for name in ("train", "valid"):
        (folder / f"{name}.tsv").write_text("".join(f"{w}\t{w[::-1]}\n" for w in words), "utf-8")


def recipe_of(folder: Path, start: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {
        "data": {
            "folder": str(folder),
            "train": {"file": "train.tsv"},
            "valid": {"file": "valid.tsv"},
            "max_length": 16,
        },
        "metrics": ["exact"],
        "validation": {"every": 3, "limit": 3},
    }
    settings = {**SHORT, "start": {"from": str(START), **start}, **more.pop("train", {})}
    return {**own, **more, "train": settings}


def weights(folder: Path) -> dict[str, Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_pairs(tmp_path)
    return tmp_path


def test_frozen_parts_stay_and_have_no_optimizer_state(
    corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The network and the vocabulary are those of the start model, without a word in the recipe."""
    train(recipe_of(corpus, {"freeze": ["encoder.*", "decoder.embedding"]}), corpus / "run")
    before, after = weights(START), weights(corpus / "run")
    same = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {n for n in before if n.startswith(("encoder.", "decoder.embedding."))}
    assert same == frozen
    state, metadata = read_tensors(corpus / "run" / "state" / "training.safetensors")
    moments = {n.removeprefix("optimizer/exp_avg/") for n in state if "exp_avg/" in n}
    assert moments == set(before) - frozen
    reported = capfd.readouterr().err
    assert "encoder                        2,256  all     frozen" in reported
    assert f"Starting from {START}" in reported
    start = json.loads((corpus / "run" / "metrics.json").read_text())["training"]["start"]
    assert start["fingerprint"] == metadata["standing"]["start"]["fingerprint"]
    assert start["trained_parameters"] == 3512
    assert "base_model: model" in (corpus / "run" / "README.md").read_text()
    assert "| encoder | 2,256 | all | frozen |" in (corpus / "run" / "README.md").read_text()
    assert "Started from" in (corpus / "run" / "report.html").read_text()
    assert json.loads((corpus / "run" / "log.jsonl").read_text().splitlines()[0])["kind"] == "start"


def test_a_factor_of_the_learning_rate_by_pattern(corpus: Path) -> None:
    """AdamW's first update moves every weight with a gradient by the learning rate."""
    rates = {"head": 0.25, "encoder": 4.0, "encoder.norm": 0.5}
    settings = {"steps": 1, "weight_decay": 0.0, "clip_norm": 0.0}
    train(recipe_of(corpus, {"rates": rates}, train=settings), corpus / "run")
    before, after = weights(START), weights(corpus / "run")
    for name, factor in {
        "head.bias": 0.25,
        "decoder.embedding.table.weight": 0.25,  # tied to the head
        "encoder.blocks.0.feed_forward.expand.weight": 4.0,
        "encoder.norm.weight": 0.5,  # the last pattern that fits
        "decoder.norm.weight": 1.0,
    }.items():
        moved = (after[name] - before[name]).abs().max().item()
        assert moved == pytest.approx(1e-2 * factor, rel=1e-3), name


def test_what_does_not_fit_is_left_out_and_reported(
    corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    block = {"layers": 2, "heads": 2, "feed_forward": 32}
    shape = {"width": 16, "encoder": block, "decoder": {**block, "layers": 1, "feed_forward": 8}}
    settings = {"steps": 1, "lr": 1e-9}
    train(recipe_of(corpus, {}, model=shape, train=settings), corpus / "run")
    before, after = weights(START), weights(corpus / "run")
    loaded = {
        name
        for name, value in before.items()
        if value.shape == after[name].shape and torch.allclose(value, after[name], atol=1e-6)
    }
    others = ("expand.weight", "expand.bias", "contract.weight")
    assert set(before) - loaded == {f"decoder.blocks.0.feed_forward.{one}" for one in others}
    reported = capfd.readouterr().err
    assert "14 of 26 tensors (the start model has none)" in reported
    assert "(32 x 16 there, 8 x 16 here)" in reported


def test_a_tagger_starts_from_a_language_model(
    corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its encoder from the decoder there; a word's embedding is the mean of its letters'."""
    (corpus / "train.tsv").write_text("the cat\tD N\na dog\tD N\n" * 4)
    (corpus / "valid.tsv").write_text("the cat\tD N\n")
    block = {"layers": 1, "heads": 2, "feed_forward": 32}
    given = {"task": "tag", "model": {"width": 16, "encoder": block}, "metrics": ["accuracy"]}
    start = {"from": str(MODELS / "language_model"), "freeze": ["front", "encoder"]}
    train(recipe_of(corpus, start, **given), corpus / "run")
    before, after = weights(MODELS / "language_model"), weights(corpus / "run")
    name = "blocks.0.self_attention.in_projection.weight"
    assert torch.equal(after[f"encoder.{name}"], before[f"decoder.{name}"])
    letters = Tokens.load(MODELS / "language_model" / "target.tokens.json")
    words = Tokens.load(corpus / "run" / "source.tokens.json")
    table = before["decoder.embedding.table.weight"]
    mean = table[torch.tensor(letters.encode("cat"))].mean(dim=0)
    assert torch.allclose(after["front.table.weight"][words.encode("cat")[0]], mean, atol=1e-6)
    assert "from their pieces" in capfd.readouterr().err


def test_new_tokens_are_added_behind_the_old_ones(corpus: Path) -> None:
    write_pairs(corpus, "abxy")
    tokens = {"tokens": {"both": {"level": "character", "size": 20}}}
    recipe = recipe_of(corpus, {"tokens": "extend"}, train={"steps": 1, "lr": 1e-9})
    train({**recipe, "data": {**recipe["data"], **tokens}}, corpus / "run")
    old = Tokens.load(START / "target.tokens.json")
    new = Tokens.load(corpus / "run" / "target.tokens.json")
    assert new.names() == [*old.names(), "x", "y"]
    before, after = weights(START), weights(corpus / "run")
    for name in ("front.table.weight", "decoder.embedding.table.weight", "head.bias"):
        assert torch.allclose(after[name][: len(old)], before[name], atol=1e-6), name
        assert len(after[name]) == len(new)
    small = {"tokens": {"both": {"level": "character", "size": 6}}}
    with pytest.raises(TokensError, match="raise it"):
        train({**recipe, "data": {**recipe["data"], **small}}, corpus / "other")


def test_labels_of_another_corpus(corpus: Path) -> None:
    """Known labels keep their rows; kept vocabularies refuse new ones."""
    (corpus / "train.tsv").write_text("a fine day\tgood\nso dull\tbad\nso odd\todd\n" * 4)
    (corpus / "valid.tsv").write_text("so dull\tbad\n")
    recipe = recipe_of(corpus, {"from": str(MODELS / "classify")}, task="classify")
    recipe["metrics"] = ["accuracy"]
    recipe["train"] |= {"steps": 1, "lr": 1e-9}
    recipe["data"] |= {"tokens": {"source": {"level": "word"}}}
    train(recipe, corpus / "run")
    old, new = (
        Tokens.load(folder / "target.tokens.json")
        for folder in (MODELS / "classify", corpus / "run")
    )
    before, after = weights(MODELS / "classify"), weights(corpus / "run")
    for label in ("good", "bad"):
        row, was = new.encode(label)[0] - 4, old.encode(label)[0] - 4
        assert torch.allclose(after["head.weight"][row], before["head.weight"][was], atol=1e-6)
    recipe["train"]["start"]["tokens"] = "keep"
    with pytest.raises(TokensError, match="does not know the label 'odd'"):
        train(recipe, corpus / "kept")


@pytest.mark.parametrize(
    ("start", "reported"),
    [
        ({"freeze": ["encodr.*"]}, "did you mean encoder"),
        ({"freeze": ["*"]}, "nothing is left to train"),
        ({"rates": {"decoder.embeding": 2.0}}, "did you mean decoder.embedding"),
        ({"parts": ["front=decoder.embed"]}, "did you mean decoder.embedding"),
        ({"parts": ["decodr"]}, "did you mean decoder"),
        ({"parts": ["pool*"]}, "its parts are front"),
    ],
)
def test_patterns_that_name_nothing_are_refused(
    corpus: Path, start: dict[str, Any], reported: str
) -> None:
    with pytest.raises(TrainingError, match=reported):
        train(recipe_of(corpus, start), corpus / "run")
    assert not (corpus / "run" / "model.safetensors").exists()


def test_a_start_that_cannot_be_used_is_refused(corpus: Path) -> None:
    with pytest.raises(ModelError, match=r"train\.start\.from: there is no folder"):
        train(recipe_of(corpus, {"from": str(corpus / "none")}), corpus / "run")
    with pytest.raises(TrainingError, match="no matrix of"):
        train(recipe_of(corpus, {}, model={"width": 32}), corpus / "run")
    shutil.copytree(START, corpus / "same")
    with pytest.raises(TrainingError, match="choose another --output"):
        train(recipe_of(corpus, {"from": str(corpus / "same")}), corpus / "same", overwrite=True)


def test_the_paths_of_the_start_model_are_never_read(corpus: Path) -> None:
    """Its recipe may name any file; vocabularies come from its folder."""
    folder = corpus / "start"
    model = load(START)
    file = model.recipe.data.tokens.both.model_copy(update={"file": "/nowhere/tokens.json"})
    tokens = model.recipe.data.tokens.model_copy(update={"both": file})
    data = model.recipe.data.model_copy(update={"folder": "/nowhere", "tokens": tokens})
    model.recipe = model.recipe.model_copy(update={"data": data})
    model.save(folder)
    trained = train(recipe_of(corpus, {"from": str(folder)}), corpus / "run")
    assert trained.model.recipe.data.tokens.both.file is None
    assert trained.model.recipe.data.folder == str(corpus)


def add_bias(network: Any) -> None:
    network.extra = torch.nn.Parameter(torch.zeros(3))


def test_it_works_with_a_changed_network(corpus: Path) -> None:
    start = {"freeze": ["extra", "encoder"]}
    trained = train(recipe_of(corpus, start), corpus / "run", change=add_bias)
    assert torch.equal(trained.model.network.extra, torch.zeros(3))


# ------------------------------------------------------------------------------------ adapters


AVERAGED = {"ema": 0.5, "average": {"of": "last", "count": 2}}


@pytest.mark.parametrize(
    ("kind", "more"),
    some_slow(
        [(kind, more) for kind in ("lora", "dora") for more in ({}, AVERAGED)],
        quick=[("lora", AVERAGED), ("dora", {})],
    ),
)
def test_an_adapter_is_trained_beside_the_model_as_it_is(
    corpus: Path, kind: str, more: dict[str, Any]
) -> None:
    adapter = {"kind": kind, "rank": 2, "unfreeze": ["head.bias"]}
    settings = {"steps": 30, **more, "adapter": adapter}
    lines = [f"{a}{b}\t{a}{b}\n" for a in "abcd" for b in "abcd"]  # not backwards any more
    for name in ("train", "valid"):
        (corpus / f"{name}.tsv").write_text("".join(lines))
    recipe = recipe_of(corpus, {}, train=settings, validation={"every": 10, "limit": 3})
    trained = train(recipe, corpus / "run")
    state, _ = read_tensors(corpus / "run" / "state" / "training.safetensors")
    before = weights(START)
    for name, value in before.items():
        unchanged = torch.equal(state[f"weights/network.{name}"], value)
        assert unchanged == (name != "head.bias"), name
    assert not any(f"exp_avg/network.{name}" in state for name in before if name != "head.bias")
    assert not set(weights(corpus / "run")) & set(before)
    sources, targets = ["ab", "dc", "ba"], ["ab", "dc", "ba"]

    def scores(model: Any) -> list[float]:
        return [one.log_probability for one in model.score(sources, targets)]

    loaded = scores(load(corpus / "run"))
    assert loaded == pytest.approx(scores(trained.model), abs=1e-5)
    assert sum(loaded) > sum(scores(load(START))) + 3.0
    # The loss of validation is of the very weights that were saved.
    log = [json.loads(line) for line in (corpus / "run" / "log.jsonl").read_text().splitlines()]
    best = min(record["loss"] for record in log if record["kind"] == "valid")
    found = load(corpus / "run").score([line[:2] for line in lines], [line[:2] for line in lines])
    loss = -sum(one.log_probability for one in found) / (3 * len(lines))
    if "average" not in more:
        assert loss == pytest.approx(best, abs=2e-3)
    else:
        assert loss < best + 2e-3


def test_the_moving_average_of_an_adapter_is_saved(corpus: Path) -> None:
    settings = {"steps": 3, "ema": 0.5, "adapter": {"rank": 2}}
    train(recipe_of(corpus, {}, train=settings), corpus / "run")
    state, _ = read_tensors(corpus / "run" / "state" / "training.safetensors")
    for name, value in weights(corpus / "run").items():
        place, _, part = name.rpartition(".")
        stored = f"low_rank.{place.replace('.', '/')}.{part}"
        assert torch.equal(value, state[f"average/{stored}"]), name
        assert not torch.equal(value, state[f"weights/{stored}"]), name


@pytest.mark.parametrize(
    "more",
    [
        {"checkpoint_activations": True},
        {"teacher": {"model": str(START)}},
        {"optimizer": "muon"},
        {"fsdp": True},
    ],
)
def test_what_does_not_go_with_an_adapter_is_refused(corpus: Path, more: dict[str, Any]) -> None:
    """Activations that are computed again, for one, would be those without the adapter."""
    settings = {**more, "adapter": {"rank": 2}}
    with pytest.raises(RecipeError, match=f"train.{next(iter(more))}"):
        train(recipe_of(corpus, {}, train=settings), corpus / "run")


def test_an_adapter_needs_the_whole_model(corpus: Path) -> None:
    block = {"layers": 2, "heads": 2, "feed_forward": 32}
    deeper = {"width": 16, "encoder": block, "decoder": {**block, "layers": 1}}
    settings = {"adapter": {"rank": 2}}
    with pytest.raises(TrainingError, match="an adapter needs the network of"):
        train(recipe_of(corpus, {}, model=deeper, train=settings), corpus / "run")
    train(recipe_of(corpus, {}, train=settings), corpus / "one")
    with pytest.raises(TrainingError, match="merge it first"):
        train(recipe_of(corpus, {"from": str(corpus / "one")}, train=settings), corpus / "two")
    # Without an adapter, the merged weights are a start as any other.
    train(recipe_of(corpus, {"from": str(corpus / "one")}), corpus / "two")


# ------------------------------------------------------------------------------------ resuming

TUNED = {"freeze": ["encoder"], "rates": {"head": 3.0}}
ADAPTER = {"kind": "dora", "rank": 2, "dropout": 0.2, "unfreeze": ["head.bias"]}
ALL = {"ema": 0.9, "average": {"of": "best", "count": 2}, "accumulate": 2}


def equal_runs(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "state/training.safetensors"):
        mine, theirs = read_tensors(one / name)[0], read_tensors(other / name)[0]
        assert mine.keys() == theirs.keys()
        different = [key for key in mine if not mine[key].equal(theirs[key])]
        assert not different, f"{name}: {different[:3]}"


@pytest.mark.parametrize("adapter", [None, ADAPTER], ids=["frozen", "adapter"])
def test_resuming_is_exact_without_the_start_model(
    corpus: Path, adapter: dict[str, Any] | None
) -> None:
    start = corpus / "start"
    shutil.copytree(START, start)
    given = {**({} if adapter else TUNED), "from": str(start)}
    more = {**ALL, **({"adapter": adapter} if adapter else {})}
    recipe = read_recipe(recipe_of(corpus, given, train=more))
    train(recipe, corpus / "whole")
    short = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 3})})
    train(short, corpus / "run")
    shutil.rmtree(start)
    train(recipe, corpus / "run", resume=True)
    equal_runs(corpus / "run", corpus / "whole")
    reported = [json.loads((corpus / f / "metrics.json").read_text()) for f in ("run", "whole")]
    assert reported[0]["training"]["start"] == reported[1]["training"]["start"]


@pytest.mark.slow
def test_a_killed_run_resumes_as_if_nothing_had_happened(
    lives: Lives, corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(START, tmp_path / "start")
    text = f"""
data: {{train: {{file: train.tsv}}, valid: {{file: valid.tsv}}, max_length: 16}}
metrics: [exact]
validation: {{every: 20, limit: 3}}
train: {{steps: 60, batch_tokens: 128, warmup: 5, device: cpu, log_every: 5, ema: 0.9,
  start: {{from: "{tmp_path / "start"}"}}, adapter: {{rank: 2, dropout: 0.1}}}}
"""
    (tmp_path / "tune.yaml").write_text(text, "utf-8")

    def arguments(folder: str) -> list[str]:
        return ["train", str(tmp_path / "tune.yaml"), "--output", str(tmp_path / folder)]

    lives.start(*arguments("whole"))
    assert lives.end() == 0, lives.reported
    process = lives.start_and_hold(7, *arguments("run"))
    assert "step 30/60" in lives.reported
    os.kill(process, signal.SIGKILL)
    assert lives.end() == -signal.SIGKILL
    shutil.rmtree(tmp_path / "start")
    lives.start(*arguments("run"), "--resume")
    assert lives.end() == 0, lives.reported
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_frozen_parts_cannot_change_when_resuming(corpus: Path) -> None:
    train(recipe_of(corpus, TUNED), corpus / "run")
    more = {"steps": 9}
    with pytest.raises(TrainingError, match=r"train\.start\.freeze"):
        train(recipe_of(corpus, {"freeze": ["front"]}, train=more), corpus / "run", resume=True)
    moved = {**TUNED, "from": "runs/elsewhere"}
    trained = train(recipe_of(corpus, moved, train=more), corpus / "run", resume=True)
    assert trained.state.step == 9
    assert isinstance(trained.model.recipe, Recipe)
