"""Which model a run keeps, when it ends, and what a validation sees; the scores are given."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from one_by_one import one_by_one
from transduce.data.batches.bucketing import Position
from transduce.decoding.output import Output
from transduce.hardware import training_threads
from transduce.recipe import Recipe, parse_recipe
from transduce.storage import read_tensors
from transduce.tasks.transduce import Transducer
from transduce.training import loop, train
from transduce.training.distributed.processes import Processes
from transduce.training.log import read_log
from transduce.training.prepare import Prepared, prepare

RECIPE = """
data:
  train: {file: train.tsv}
  valid: {file: valid.tsv}
  tokens: {both: {level: character}}
model:
  width: 16
  dropout: 0
  encoder: {kind: recurrent, layers: 1}
  decoder: {kind: recurrent, layers: 1}
train: {device: cpu, steps: 12, batch_tokens: 64, lr: 0.01, warmup: 0, schedule: constant,
  log_every: 1}
validation: {every: 2, limit: 3, metric: exact}
decode: {beam: 1}
metrics: [exact, cer]
"""
WORDS = [f"{a}{b}{c}" for a in "abc" for b in "abc" for c in "abc"]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """A recipe of a few words written backwards, with other values of some keys."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, words in (("train", WORDS[:20]), ("valid", WORDS[20:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in words)
        (tmp_path / f"{name}.tsv").write_text(lines, "utf-8")

    def made(**sections: dict[str, Any]) -> Recipe:
        recipe = parse_recipe(RECIPE, "tiny", tmp_path)
        changed = recipe.model_dump()
        for section, values in sections.items():
            changed[section] |= values
        return Recipe.model_validate(changed)

    return made


class Scores:
    """Validations that give one value after the other, and remember what they were asked about."""

    def __init__(
        self, values: list[float], metric: str = "exact", losses: Sequence[float] = ()
    ) -> None:
        self.values, self.metric = iter(values), metric
        self.losses = iter(losses or range(1, 1 + len(values)))  # of equals the first is better
        self.seen: list[dict[str, Tensor]] = []

    def __call__(self, model: Transducer, *_: object) -> dict[str, float]:
        self.seen.append({n: p.detach().clone() for n, p in model.network.named_parameters()})
        return {"loss": float(next(self.losses)), self.metric: next(self.values)}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scores]:
    def scored(*values: float, metric: str = "exact", losses: Sequence[float] = ()) -> Scores:
        scores = Scores(list(values), metric, losses)
        monkeypatch.setattr(loop, "validate", scores)
        return scores

    return scored


def prepared(recipe: Recipe) -> Prepared:
    return prepare(recipe, None, lambda sentence: None, Processes())


def saved(folder: Path) -> dict[str, Tensor]:
    """The weights that the run has left."""
    return read_tensors(folder / "model.safetensors")[0]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def mean(several: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in several]).mean(0) for name in several[0]}


def reported(caught: pytest.CaptureFixture[str]) -> str:
    return " ".join(caught.readouterr().err.split())


# ------------------------------------------------------------------------------------ the best


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("exact", [10, 30, 20, 30, 25, 5], 2),
        ("exact", [math.nan, 20, 30, 10, math.nan, 5], 3),
        ("exact", [math.nan, 20, 10, 10, 10, 5], 2),
        ("exact", [20, math.nan, 10, math.nan, 10, 5], 1),
        ("cer", [30, 10, 20, 10, 15, 50], 2),
        ("cer", [math.nan, 30, 20, 40, math.nan, 50], 3),
    ],
)
def test_the_best_validation_is_kept(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    metric: str,
    values: list[float],
    best: int,
) -> None:
    scores = scored(*values, metric=metric)
    recipe = make(validation={"metric": metric})
    trained = train(recipe, tmp_path / "run")
    assert (trained.state.best_step, trained.state.best) == (2 * best, values[best - 1])
    assert equal(saved(tmp_path / "run"), scores.seen[best - 1])
    assert equal(dict(trained.model.network.named_parameters()), scores.seen[best - 1])
    assert not trained.model.network.training
    assert not any(equal(one, other) for one, other in combinations(scores.seen, 2))
    logged = [r["best"] for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "valid"]
    assert len(logged) == 6
    assert max(number for number, was in enumerate(logged, start=1) if was) == best


@pytest.mark.parametrize(
    ("losses", "best"),
    [([6, 5, 4, 3, 2, 1], 4), ([1, 2, 3, 4, 5, 6], 2), ([6, 5, 5, 5, 4, 4], 4)],
)
def test_of_equal_validations_the_one_with_the_lowest_loss_is_kept(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    losses: list[float],
    best: int,
) -> None:
    """And of equal losses the later; a better metric outweighs any loss."""
    scores = scored(10, 30, 20, 30, 25, 5, losses=losses)
    trained = train(make(), tmp_path / "run")
    assert trained.state.best_step == 2 * best
    assert equal(saved(tmp_path / "run"), scores.seen[best - 1])


def test_patience_is_about_the_metric(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path
) -> None:
    """A lower loss alone does not make a run go on, but its checkpoint is kept."""
    scores = scored(10, 20, 20, 20, 40, 50, losses=[6, 5, 4, 3, 2, 1])
    trained = train(make(validation={"patience": 2}), tmp_path / "run")
    assert (trained.state.step, trained.state.best_step) == (8, 8)
    assert equal(saved(tmp_path / "run"), scores.seen[3])


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([10, 20, 20, 15, 40, 50], 8),  # two in a row that are not better
        ([10, 5, 20, 15, 30, 20], 12),  # a better one in between
        ([math.nan, math.nan, 1, 2, 3, 4], 12),
        ([10, math.nan, math.nan, 50, 50, 50], 6),
    ],
)
def test_patience_counts_what_is_no_better(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    values: list[float],
    steps: int,
) -> None:
    scored(*values)
    trained = train(make(validation={"patience": 2}), tmp_path / "run")
    assert trained.state.step == steps


def test_a_run_that_ends_where_it_was_stopped_before_any_validation_has_a_model(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C, and then --resume with fewer updates or minutes than were made."""
    update = loop.Run._update

    def stopping(self: loop.Run, updates: Any) -> None:
        update(self, updates)
        if self.state.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop.Run, "_update", stopping)
    scores = scored(10, 20)
    every = {"validation": {"every": 6}}
    assert train(make(**every), tmp_path / "run").interrupted
    assert not (tmp_path / "run" / "model.safetensors").exists()
    shorter = make(**every, train={"steps": 2})
    trained = train(shorter, tmp_path / "run", resume=True)
    assert (trained.interrupted, trained.state.step, trained.state.best_step) == (False, 3, 3)
    assert equal(saved(tmp_path / "run"), scores.seen[0])
    train(shorter, tmp_path / "run", resume=True)
    assert len(scores.seen) == 1  # once is enough


# ------------------------------------------------------------------------------- the average


@pytest.mark.parametrize(
    ("value", "loss", "better"), [(40, 9, True), (30, 9, False), (30, 1, True), (20, 1, False)]
)
def test_an_average_is_kept_only_where_it_is_better(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    value: float,
    loss: float,
    better: bool,
) -> None:
    scores = scored(10, 30, 20, 25, 15, 12, value, losses=[2, 2, 2, 2, 2, 2, loss])
    trained = train(make(train={"average": {"of": "last", "count": 3}}), tmp_path / "run")
    average = mean(scores.seen[3:6])
    assert equal(scores.seen[6], average)
    assert equal(saved(tmp_path / "run"), average if better else scores.seen[1])
    assert equal(dict(trained.model.network.named_parameters()), saved(tmp_path / "run"))
    assert trained.state.best == (value if better else 30)
    kept = "average" if better else "single one"
    said = reported(capsys)
    assert f"The average of 3 checkpoints has exact {value} on the validation set" in said
    why = ", by the loss" if value == 30 else ""
    assert f"the best single one 30: the {kept} is kept{why}." in said


@pytest.mark.parametrize(
    ("metric", "values", "chosen"),
    [
        ("exact", [10, 30, 20, 25, 15, 12], (2, 3, 4)),
        ("cer", [10, 30, 20, 25, 15, 12], (1, 5, 6)),
        ("exact", [math.nan, 30, math.nan, 25, math.nan, 12], (2, 4, 6)),
        ("cer", [10, math.nan, 20, math.nan, math.nan, 12], (1, 3, 6)),
    ],
)
def test_the_average_of_the_best_is_of_the_best(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    metric: str,
    values: list[float],
    chosen: tuple[int, ...],
) -> None:
    scores = scored(*values, 20, metric=metric)
    recipe = make(validation={"metric": metric}, train={"average": {"of": "best", "count": 3}})
    train(recipe, tmp_path / "run")
    assert equal(scores.seen[6], mean([scores.seen[number - 1] for number in chosen]))


def test_two_checkpoints_are_averaged(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path
) -> None:
    scores = scored(*range(10, 16), 30)
    train(make(train={"average": {"of": "last", "count": 2}}), tmp_path / "run")
    assert equal(saved(tmp_path / "run"), mean(scores.seen[4:6]))


def test_one_checkpoint_is_no_average(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path
) -> None:
    scores = scored(*range(10, 16))
    train(make(train={"average": {"of": "last", "count": 1}}), tmp_path / "run")
    assert len(scores.seen) == 6


def test_the_moving_average_is_what_is_measured_and_saved(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = scored(*range(10, 16))
    train(make(), tmp_path / "plain")
    steps: list[dict[str, Tensor]] = []
    move = loop.MovingAverage.move

    def noted(self: loop.MovingAverage, *rest: Any) -> None:
        steps.append({n: p.detach().clone() for n, p in self._followed.items()})
        move(self, *rest)

    monkeypatch.setattr(loop.MovingAverage, "move", noted)
    scores = scored(*range(10, 16))
    train(make(train={"ema": 0.9}), tmp_path / "run")
    # The updates go on from the weights themselves, as if there were no average.
    assert all(equal(steps[2 * n + 1], weights) for n, weights in enumerate(plain.seen))
    assert not any(equal(a, b) for a, b in zip(plain.seen, scores.seen, strict=True))
    run = loop.Run(make(), tmp_path, prepared(make()))
    expected = {name: p.detach().clone() for name, p in run.network.named_parameters()}
    for decay, weights in zip((2 / 11, 3 / 12), steps, strict=False):
        expected = {n: decay * expected[n] + (1 - decay) * weights[n] for n in weights}
    assert equal(scores.seen[0], expected)
    assert equal(saved(tmp_path / "run"), scores.seen[-1])


# ---------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_run_ends_after_its_epochs(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path, epochs: int
) -> None:
    scores = scored(10, 20)
    recipe = make(train={"epochs": epochs, "steps": 1000}, validation={"every": 1000})
    batches = one_by_one(prepared(recipe).train)
    updates = sum(1 for _ in takewhile(lambda batch: batch[1].epoch < epochs, batches)) + 1
    trained = train(recipe, tmp_path / "run")
    assert (trained.state.step, trained.state.position) == (updates, Position(epochs))
    assert len(scores.seen) == 1  # the end is validated


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_update_takes_as_many_batches_as_asked(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path, accumulate: int
) -> None:
    scored(10)
    recipe = make(train={"steps": 2, "accumulate": accumulate}, validation={"every": 2})
    batches = list(islice(one_by_one(prepared(recipe).train), 2 * accumulate))
    assert train(recipe, tmp_path / "run").state.position == batches[-1][1]


@pytest.mark.parametrize(("tokens", "accumulate", "ahead"), [(64, 1, 64), (1 << 15, 2, 8)])
def test_on_a_gpu_batches_are_made_ahead_as_far_as_memory_allows(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokens: int,
    accumulate: int,
    ahead: int,
) -> None:
    scored(10)
    asked: list[int] = []

    def prefetched(items: Iterator[Any], count: int) -> Iterator[Any]:
        asked.append(count)
        return items

    monkeypatch.setattr(loop, "SYNCHRONOUS", ())
    monkeypatch.setattr(loop, "prefetched", prefetched)
    settings = {"steps": 1, "accumulate": accumulate, "batch_tokens": tokens}
    train(make(train=settings, validation={"every": 1}), tmp_path / "run")
    assert asked == [ahead]


def test_what_is_said_before_a_run_begins(make: Callable[..., Recipe], tmp_path: Path) -> None:
    def said(count: int = 1, **settings: Any) -> list[str]:
        run = loop.Run(make(train=settings), tmp_path, prepared(make(train=settings)))
        run.ranks = Processes(0, count)
        return run.about()

    assert said() == []
    assert said(fsdp=True) == ["train.fsdp has no effect: this run has one process."]
    (slow,) = said(warmup=12)
    assert "the run ends after 12 updates, before the warm-up of 12" in slow
    assert said(2, accumulate=4) == ["2 processes share the 4 batches of an update."]
    assert said(2, accumulate=2) == ["2 processes share the 2 batches of an update."]
    assert said(3, accumulate=2) == [
        "3 processes share the 3 batches of an update (train.accumulate is 2)."
    ]


def passing(monkeypatch: pytest.MonkeyPatch, update: float, validation: float) -> list[float]:
    """A clock on which updates and validations take so many seconds."""
    now = [100.0]
    monkeypatch.setattr(loop, "wall_clock", lambda: now[0])
    once, measure = loop.Run._update, loop.Run._measure

    def updated(self: loop.Run, updates: Any) -> None:
        now[0] += update
        once(self, updates)

    def measured(self: loop.Run) -> dict[str, float]:
        now[0] += validation
        return measure(self)

    monkeypatch.setattr(loop.Run, "_update", updated)
    monkeypatch.setattr(loop.Run, "_measure", measured)
    return now


@pytest.mark.parametrize(
    ("minutes", "startup", "validation", "every", "steps", "over"),
    [
        (1.0, 0.0, 0.0, 1000, 6, 0.0),
        (1.0, 25.0, 0.0, 1000, 4, 5.0),  # start-up counts
        (1.0, 0.0, 8.0, 1000, 6, 8.0),  # the first validation is not foreseen
        (1.0, 0.0, 8.0, 2, 4, -4.0),  # 10 10 8 10 10 8: the rest is too short for another two
        (2.0, 0.0, 10.0, 4, 9, 0.0),  # time for the last validation is kept
    ],
)
def test_minutes_are_of_wall_clock_from_the_start_with_validation(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minutes: float,
    startup: float,
    validation: float,
    every: int,
    steps: int,
    over: float,
) -> None:
    scored(*range(100))
    now = passing(monkeypatch, 10.0, validation)
    recipe = make(
        train={"minutes": minutes, "steps": 1000, "log_every": 1000}, validation={"every": every}
    )
    assert train(recipe, tmp_path / "run", began=now[0] - startup).state.step == steps
    assert now[0] - 100.0 + startup == pytest.approx(60 * minutes + over, abs=5.0)


def test_minutes_may_be_of_the_processor(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine that others use too, an update takes long and works little."""
    scored(*range(100))
    now = passing(monkeypatch, 50.0, 0.0)
    threads = torch.get_num_threads()
    monkeypatch.setattr(loop, "processor_clock", lambda: threads * now[0] / 5)
    train_settings = {"minutes": 1.0, "steps": 1000, "log_every": 1000}
    recipe = make(train={**train_settings, "clock": "processor"})
    found = train(recipe, tmp_path / "run", began=now[0] - 20.0)
    assert found.state.step == 4  # of 10 s each, after 20 s of start-up
    assert now[0] == 300.0
    wall = train(make(train=train_settings), tmp_path / "wall", began=now[0])
    assert wall.state.step == 2


def test_resumed_the_minutes_of_all_commands_count(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scored(*range(100))
    now = passing(monkeypatch, 10.0, 0.0)
    short = make(train={"steps": 2, "minutes": 1.0, "log_every": 1000})
    assert train(short, tmp_path / "run", began=now[0]).state.elapsed == 20.0
    assert "60 s of train.minutes are left: 0 s went before" in capsys.readouterr().err
    longer = make(train={"steps": 1000, "minutes": 1.0, "log_every": 1000})
    found = train(longer, tmp_path / "run", resume=True, began=now[0] - 10.0)
    assert "30 s of train.minutes are left: 30 s went before" in capsys.readouterr().err
    assert (found.state.step, found.state.elapsed) == (5, 60.0)
    train(longer, tmp_path / "run", resume=True, began=now[0])
    assert "resume it with a larger train.minutes" in capsys.readouterr().err


def test_validations_come_as_often_as_asked(
    make: Callable[..., Recipe], scored: Callable[..., Scores], tmp_path: Path
) -> None:
    scored(*range(100))
    recipe = make(train={"steps": 11, "log_every": 3}, validation={"every": 4})
    train(recipe, tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert [r["step"] for r in log if r["kind"] == "valid"] == [4, 8, 11]
    assert [r["step"] for r in log if r["kind"] == "train"] == [3, 6, 9]


# ---------------------------------------------------------------------------- what is decoded


@pytest.mark.parametrize("limit", [1, 3, None])
def test_as_many_pairs_are_decoded_as_asked(
    make: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
) -> None:
    asked: list[list[str]] = []
    run = Transducer.run

    def noted(self: Transducer, sources: Sequence[str], **settings: Any) -> list[Output]:
        asked.append(list(sources))
        return run(self, sources, **settings)

    monkeypatch.setattr(Transducer, "run", noted)
    # The report of a finished run decodes some examples of its own.
    module = sys.modules["transduce.training.train"]  # the package has a function of that name
    monkeypatch.setattr(module, "write_run_report", lambda *_: "")
    train(make(train={"steps": 1}, validation={"limit": limit}), tmp_path / "run")
    (sources,) = asked
    assert len(sources) == (len(WORDS[20:]) if limit is None else limit)
    assert sources == [word for word in WORDS[20:] if word in sources]  # in their order


def test_the_loss_is_of_all_pairs_whatever_is_decoded(
    make: Callable[..., Recipe], tmp_path: Path
) -> None:
    values = []
    for limit in (1, 5):
        folder = tmp_path / f"{limit}"
        train(make(train={"steps": 1}, validation={"limit": limit}), folder)
        values += [r["loss"] for r in read_log(folder / "log.jsonl") if r["kind"] == "valid"]
    assert values[0] == values[1]


def test_each_row_of_the_validation_set_has_its_own_source(
    make: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Where overlong pairs were skipped, rows and pairs are not numbered alike."""
    pairs = ["ab\tba", "abcabc\tcbacba", "\tx", "ba\tab", "bcabca\ta", "ca\tac"]
    (tmp_path / "valid.tsv").write_text("\n".join(pairs) + "\n", "utf-8")
    found = prepared(make(data={"max_length": 4}))
    assert found.valid_sources == ["ab", "ba", "ca"]
    for row, source in enumerate(found.valid_sources):
        assert found.valid.source(row).tolist() == found.source_tokens.encode(source)


def test_a_validation_is_of_one_token_and_with_the_beam_of_the_recipe(
    make: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    run = Transducer.run

    def watched(self: Transducer, sources: Sequence[str], **settings: Any) -> list[Output]:
        asked.append(settings.get("beam"))
        return run(self, sources, **settings)

    monkeypatch.setattr(Transducer, "run", watched)
    recipe = make(train={"steps": 2}, validation={"beam": 3})
    model = train(recipe, tmp_path / "run").model
    assert asked[0] == 3  # what comes after the training searches as its user would
    (validated,) = (r for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "valid")
    scores = model.score(WORDS[20:], [word[::-1] for word in WORDS[20:]])
    tokens = sum(len(word) + 1 for word in WORDS[20:])  # and the end of each
    total = -sum(score.log_probability for score in scores)
    assert validated["loss"] == pytest.approx(total / tokens, rel=1e-3)


def test_tiny_networks_train_on_one_thread_and_others_on_all(
    make: Callable[..., Recipe],
    scored: Callable[..., Scores],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert training_threads(32, 512, 8) == 1
    assert training_threads(256, 4096, 8) == 8
    assert training_threads(64, 2048, 8) == 8  # 2 ** 24 operations
    assert training_threads(64, 2047, 8) == 1
    assert training_threads(8, "auto", 8) == 8
    scored(*range(100))
    threads, during = [6], []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    once = loop.Run._update

    def updated(self: loop.Run, updates: Any) -> None:
        during.append(threads[0])
        once(self, updates)

    monkeypatch.setattr(loop.Run, "_update", updated)
    recipe = make(train={"steps": 2})
    for kept, used in (("", 1), ("6", 6)):  # what the user says counts
        monkeypatch.setenv("OMP_NUM_THREADS", kept) if kept else monkeypatch.delenv(
            "OMP_NUM_THREADS", raising=False
        )
        during.clear()
        train(recipe, tmp_path / f"run{kept}")
        assert set(during) == {used}
        assert threads == [6]
