"""Time that is left: how it is used, what is kept, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from transduce.data.text.pairs import read_pairs
from transduce.errors import TrainingError
from transduce.evaluation.metrics import Measured
from transduce.recipe import Columns, Recipe, read_recipe
from transduce.recipe.corpus import Where
from transduce.tasks.folder import MEMBERS, WEIGHTS
from transduce.tasks.generate import GenerativeModel
from transduce.training.loop import Trained
from transduce.training.own_file import time_left
from transduce.training.own_file.plan import Uses, can_teach, runs_left, uses_of
from transduce.training.own_file.tags import folders_of, shares_of_tags
from transduce.training.own_file.time_left import COMPARED, TITLES, Rival, best_of, report, spend
from transduce.training.own_file.train import next_steps


@pytest.mark.parametrize(("elapsed", "runs"), [(20.0, 5.0), (1.0, 119.0), (0.25, 119.75)])
def test_runs_of_the_time_that_is_left(elapsed: float, runs: float) -> None:
    """A run of less than a second counts as one of a second: it has to start, too."""
    state: Any = SimpleNamespace(elapsed=elapsed)
    assert runs_left(state, 2.0) == runs


@pytest.mark.parametrize(
    ("runs", "seeds", "distilled"),
    [(0.9, 0, False), (1.0, 1, False), (3.9, 3, False), (4.0, 2, True), (50.0, 4, True)],
)
def test_what_the_time_of_so_many_runs_is_used_for(
    runs: float, seeds: int, distilled: bool
) -> None:
    assert uses_of(runs, distills=True) == Uses(seeds=seeds, distilled=distilled)
    assert uses_of(runs, distills=False) == Uses(seeds=min(int(runs), 4))


@pytest.mark.parametrize(
    ("runs", "shares", "uses"),
    [
        (0.4, (0.5, 0.5), Uses()),
        (0.5, (0.5, 0.5), Uses(fine_tuned=True)),
        (1.4, (0.5, 0.5), Uses(fine_tuned=True)),  # not a seed: less than a run is left
        (1.5, (0.5, 0.5), Uses(fine_tuned=True, by_tag=True)),
        (2.5, (0.5, 0.5), Uses(fine_tuned=True, by_tag=True, seeds=1)),
        (5.5, (0.5, 0.5), Uses(fine_tuned=True, by_tag=True, seeds=2, distilled=True)),
        (1.5, (0.1, 0.9), Uses(fine_tuned=True)),  # few rows need more than their share
        (2.4, (0.1,) * 10, Uses(fine_tuned=True, seeds=1)),
    ],
)
def test_models_for_tags_come_before_seeds(
    runs: float, shares: tuple[float, ...], uses: Uses
) -> None:
    assert uses_of(runs, distills=True, shares=shares) == uses
    assert uses.any == (uses != Uses())


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        (Uses(seeds=1), "1 more seed for an ensemble"),
        (
            Uses(seeds=2, distilled=True),
            "2 more seeds for an ensemble, then one model that learns from it",
        ),
        (Uses(fine_tuned=True), "the model fine-tuned for each tag"),
    ],
)
def test_what_is_tried_is_said(uses: Uses, said: str) -> None:
    assert uses.sentence() == said


def test_recordings_and_copies_are_not_distilled() -> None:
    data = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    plain = {"data": data, "model": {"preset": "gru-attention"}}
    assert can_teach(read_recipe(plain))
    copying = {"preset": "gru-attention", "decoder": {"copying": True}}
    assert not can_teach(read_recipe({**plain, "model": copying}))
    heard = {part: {"file": "x.tsv", "audio": "path"} for part in data}
    speech = {"data": heard, "audio": {}, "model": {"encoder": {"kind": "conformer"}}}
    assert not can_teach(read_recipe(speech))


def rival(name: str, right: int, ensemble: int = 0) -> Rival:
    rows = np.array([[float(n < right), 1.0] for n in range(100)])
    made: Any = object()
    measured = Measured(rows, lambda total: float(100 * total[0] / total[1]), {})
    return Rival(name, made, (made,) * ensemble, measured)


@pytest.mark.parametrize(
    ("first", "together", "kept"),
    [(60, 60, False), (60, 63, False), (60, 65, True), (70, 64, False), (70, 66, True)],
)
def test_an_ensemble_is_kept_if_it_is_better_than_its_seeds_in_the_mean(
    first: int, together: int, kept: bool
) -> None:
    """That the first seed is better than both may be chance."""
    singles = [rival("seed 1", first), rival("seed 2", 130 - first), rival("seed 3", 64)]
    several = rival("ensemble of 3", together, 2)
    best = best_of([singles[0], several], singles, "exact")
    assert best is (several if kept else singles[0])


def test_of_an_error_rate_less_is_better() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 66), rival("seed 3", 58)]
    low = rival("ensemble of 3", 57, 2)
    assert best_of([singles[0], low], singles, "wer") is low


def test_the_better_of_ensemble_and_distilled_model_is_kept() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 61)]
    together, student = rival("ensemble of 2", 65, 1), rival("distilled into one", 66)
    assert best_of([singles[0], together, student], singles, "exact") is student
    student = rival("distilled into one", 65)
    assert best_of([singles[0], together, student], singles, "exact") is together
    lucky = [rival("seed 1", 67), rival("seed 2", 61)]
    student = rival("distilled into one", 66)  # one model in place of another has to be better
    assert best_of([lucky[0], student], lucky, "exact") is lucky[0]


@pytest.mark.parametrize(("right", "kept"), [(59, False), (62, False), (80, True)])
def test_models_for_the_tags_must_be_clearly_better(right: int, kept: bool) -> None:
    """62 of 100 in place of 60 may be chance."""
    first = rival("the first model", 60)
    by_tag = replace(rival("fine-tuned for each tag", right), by_tag={"de": first.trained})
    best = best_of([first, by_tag], [first], "exact")
    assert best is (by_tag if kept else first)
    text = "\n".join(report([first, by_tag], [first], "exact", 100, best))
    assert ("may be chance" in text) is (right != 80)
    said = "the models fine-tuned" if kept else "one model for all, as nothing is better than it"
    assert f"Kept: {said}" in text
    assert "seeds, each alone" not in text
    ensemble = rival("ensemble of 2", 81, 1)
    assert best_of([first, by_tag, ensemble], [first], "exact") is ensemble
    if kept:  # the models for the tags are to be beaten, not only the seeds
        ensemble = rival("ensemble of 2", 79, 1)
        assert best_of([first, by_tag, ensemble], [first], "exact") is by_tag


def test_the_report_has_the_tags_where_they_are_few() -> None:
    first = replace(rival("the first model", 60), of_tags={"de": 50.0, "fr": 70.0})
    by_tag = replace(rival("fine-tuned for each tag", 80), by_tag={"de": first.trained})
    text = "\n".join(report([first, by_tag], [first], "exact", 100, by_tag))
    assert "one model for all         60.00 (de 50.00, fr 70.00)\n" in text


def test_the_report_calls_nothing_better_than_it_is() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 70)]
    together = rival("ensemble of 2", 62, 1)
    text = "\n".join(report([singles[0], together], singles, "exact", 100, singles[0]))
    assert "65.00 in the mean, from 60.00 to 70.00" in text
    assert "+2.00" in text
    assert "may be chance" in text
    assert "Kept: the first seed, as nothing is better than it and than the mean." in text
    clear = rival("ensemble of 2", 95, 1)
    text = "\n".join(report([singles[0], clear], singles, "exact", 100, clear))
    assert "may be chance" not in text
    assert "Kept: the ensemble, better than its seeds in the mean." in text
    student = rival("distilled into one", 95)
    text = "\n".join(report([singles[0], student], singles, "exact", 100, student))
    assert "Kept: the distilled model." in text


class State:
    def __init__(self, step: int, elapsed: float) -> None:
        self.step, self.elapsed = step, elapsed
        self.best: float | None = 99.0


def run_of(folder: Path, recipe: Recipe, step: int, elapsed: float = 60.0) -> Trained:
    from transduce.tasks.encoder_decoder import Transducer

    model = Transducer.__new__(Transducer)
    model.recipe = recipe
    state: Any = State(step, elapsed)
    return Trained(folder, model, state, interrupted=False)


Given = list[tuple[str, Recipe]]


def recipe_for(minutes: float, **data: Any) -> Recipe:
    parts = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    settings = {"steps": 100, "minutes": minutes, "r_drop": 1.0}
    made = {"data": parts | data, "train": settings, "validation": {"decoding": "chosen"}}
    return read_recipe(made)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> tuple[Given, list[str], dict[str, Any]]:
    """What is trained, what is measured, and settings: the run that a person interrupts, those that
    have ended, and scores."""
    given: Given = []
    measured: list[str] = []
    settings: dict[str, Any] = {"interrupted": None, "ended": {}, "exact": {}}

    def name_of(folder: Path) -> str:
        return "/".join(folder.parts[folder.parts.index("run") + 1 :])

    def trained(recipe: Recipe, folder: Path, **asked: bool) -> Trained:
        place = name_of(folder)
        given.append((place, recipe))
        assert not asked["count_reading"]  # the minutes are of training
        if place == settings["interrupted"]:
            return replace(run_of(folder, recipe, 50), interrupted=True)
        settings["ended"][place] = run_of(folder, recipe, 100)
        return settings["ended"][place]

    def measure(name: str, run: Trained, items: Any, metric: str) -> Rival:
        measured.append(name)
        found = rival("", settings["exact"].get(name, 60 + len(run.ensemble))).measured
        return Rival(name, run, run.ensemble, found, run.by_tag)

    monkeypatch.setattr(time_left, "train_recipe", trained)
    monkeypatch.setattr(
        time_left, "finished_run", lambda folder, recipe: settings["ended"].get(name_of(folder))
    )
    monkeypatch.setattr(time_left, "_items", lambda recipe, model: [None] * 9)
    monkeypatch.setattr(time_left, "_measured", measure)
    return given, measured, settings


Runs = tuple[Given, list[str], dict[str, Any]]


@pytest.mark.parametrize(
    ("step", "minutes", "folders"),
    [
        (99, 30, []),  # the time ended it: nothing is left
        (100, 1.5, []),
        (100, 3.5, ["seed-2", "seed-3"]),
        (100, 8, ["seed-2", "seed-3", "seed-4", "seed-5", "distilled"]),
    ],
)
def test_further_seeds_have_the_time_that_is_left(
    step: int, minutes: float, folders: list[str], tmp_path: Path, runs: Runs
) -> None:
    given, _, _ = runs
    recipe, folder = recipe_for(minutes), tmp_path / "run"
    folder.mkdir()
    ended = spend(run_of(folder, recipe, step), recipe, minutes, lambda line: None)
    assert [name for name, _ in given] == folders
    assert [again.seed for _, again in given] == list(range(2, 2 + len(folders)))
    left = [60 * (again.train.minutes or 0) for _, again in given]
    assert left == [pytest.approx(60 * (minutes - 1) - 60 * n) for n in range(len(folders))]
    assert all(again.validation.decoding == "fixed" for _, again in given)
    if folders[-1:] == ["distilled"]:
        teacher = given[-1][1].train.teacher
        assert teacher is not None
        assert teacher.models == [str(folder), *(str(folder / one) for one in folders[:-1])]
        assert teacher.weight == 0.5
        assert given[-1][1].train.r_drop == 0
    seeds = [name for name in folders if name.startswith("seed")]
    assert [one.folder.name for one in ended.ensemble] == seeds
    assert ended.folder == folder
    if seeds:
        assert json.loads((folder / MEMBERS).read_text()) == {"ensemble": seeds}
        assert isinstance(ended.model, GenerativeModel)
        assert ended.model.members.ensemble == tuple(one.model for one in ended.ensemble)


def test_a_distilled_model_that_is_kept_takes_the_place_of_the_first(
    tmp_path: Path, runs: Runs
) -> None:
    _, measured, settings = runs
    recipe, folder = recipe_for(8), tmp_path / "run"
    folder.mkdir()
    settings["exact"] = {"distilled into one": 70}
    for _ in range(2):  # the second time it goes on from what is there
        ended = spend(run_of(folder, recipe, 100), recipe, 8, lambda line: None, resume=True)
        assert json.loads((folder / MEMBERS).read_text()) == {"model": "distilled"}
        assert ended.folder == folder
        assert ended.model is settings["ended"]["distilled"].model
        assert not ended.ensemble
    assert measured.count("distilled into one") == 1


def test_a_slow_seed_leaves_no_time_for_another(tmp_path: Path, runs: Runs) -> None:
    given, _, settings = runs
    recipe, folder = recipe_for(5), tmp_path / "run"
    folder.mkdir()
    settings["ended"]["seed-2"] = run_of(folder / "seed-2", recipe, 100, elapsed=215.0)
    spend(run_of(folder, recipe, 100), recipe, 5, lambda line: None, resume=True)
    assert not given  # 25 s are left, and a run takes 60


def test_a_slow_model_of_a_tag_leaves_no_time_for_others(tmp_path: Path, runs: Runs) -> None:
    given, measured, settings = runs
    recipe, folder = tagged_file(tmp_path), tmp_path / "run"
    folder.mkdir()
    settings["ended"]["fine-tuned/de"] = run_of(folder / "fine-tuned/de", recipe, 100, 655.0)
    said: list[str] = []
    ended = spend(run_of(folder, recipe, 100), recipe, 12, said.append, resume=True)
    assert said[1:] == [
        "Fine-tuned for each tag: there is no time left for fr.",
        "One for each tag alone: there is no time left for de.",
    ]
    assert not given
    assert not measured
    assert not ended.by_tag


def tagged_file(folder: Path, rows: int = 600, **cells: str) -> Recipe:
    """A table with the tags de and fr, and its recipe."""
    lines = [f"{'de' if n % 2 else 'fr'}{cells.get('more', '')}\tw{n}\tx{n}" for n in range(rows)]
    (folder / "two.tsv").write_text("\n".join(lines), "utf-8")
    corpus = {"file": "two.tsv", "tags": 0, "source": 1, "target": 2, "header": False}
    parts = {"train": {**corpus, "split": "0-80%"}, "valid": {**corpus, "split": "80-100%"}}
    return recipe_for(12, **parts, folder=str(folder))


STAGES = ["fine-tuned/de", "fine-tuned/fr", "by-tag/de", "by-tag/fr"]
STAGES += ["seed-2", "seed-3", "seed-4", "seed-5", "distilled"]


def test_the_models_for_tags(tmp_path: Path, runs: Runs) -> None:
    given, measured, _ = runs
    recipe, folder = tagged_file(tmp_path), tmp_path / "run"
    folder.mkdir()
    said: list[str] = []
    spend(run_of(folder, recipe, 100), recipe, 12, said.append)
    assert [name for name, _ in given] == STAGES
    assert "fine-tuned for each tag, and one for each tag alone, then 4 more seeds" in said[0]
    for name, again in given[:4]:
        strategy, tag = name.split("/")
        for corpus in (again.data.train, again.data.valid):
            assert isinstance(corpus, Columns)
            assert corpus.where == [Where(column=0, value=tag)]
            assert [pair.tags for pair in islice(read_pairs(corpus, str(tmp_path)), 3)] == [
                (tag,)
            ] * 3
        tuned = strategy == "fine-tuned"
        assert again.train.steps == pytest.approx(25 if tuned else 50, abs=2)
        assert again.train.minutes == pytest.approx(0.5 if tuned else 1.0, abs=0.05)
        assert (again.train.start is not None) is tuned
        assert again.train.lr == pytest.approx((0.3 if tuned else 1.0) * recipe.train.lr)
        both = again.data.tokens.both
        assert tuned or both is None or both.file == str(folder / "target.tokens.json")
    assert measured[:3] == ["the first model", *TITLES.values()]


@pytest.mark.parametrize("more", [";PL", ""])
def test_what_has_no_models_for_tags(tmp_path: Path, more: str) -> None:
    """Features of a word, or too few rows of a tag."""
    assert shares_of_tags(tagged_file(tmp_path)) == pytest.approx({"de": 0.5, "fr": 0.5}, abs=0.05)
    assert not shares_of_tags(tagged_file(tmp_path, rows=600 if more else 300, more=more))


def test_the_minutes_that_models_for_tags_would_take_are_said(tmp_path: Path) -> None:
    recipe = tagged_file(tmp_path)
    first = run_of(tmp_path / "run", recipe, 100, elapsed=600.0)
    first.state.best_step = 100
    lines = next_steps(recipe, first, 10.5, Path("chosen.yaml"))
    # 10 minutes for the one, as many for one each, half as many for fine-tuning, a tenth to spare.
    assert "  a model for each tag, if it is better: --minutes 27" in lines
    lines = next_steps(recipe, first, 60, Path("chosen.yaml"))
    assert not any("tag" in line for line in lines)


def test_tags_that_cannot_be_names_of_folders() -> None:
    assert folders_of(["de", "pt_BR"]) == {"de": "de", "pt_BR": "pt_BR"}
    assert folders_of(["../a", "x/y"]) == {"../a": "_a", "x/y": "x_y"}
    assert folders_of(["a/b", "a.b"]) == {"a/b": "1-a_b", "a.b": "2-a_b"}


@pytest.mark.parametrize("stopped", ["fine-tuned/fr", "by-tag/de", "seed-2", "seed-5", "distilled"])
def test_what_was_stopped_goes_on_and_nothing_is_done_twice(
    tmp_path: Path, runs: Runs, stopped: str
) -> None:
    given, measured, settings = runs
    recipe, folder = tagged_file(tmp_path), tmp_path / "run"
    folder.mkdir()
    first = run_of(folder, recipe, 100)
    settings["interrupted"] = stopped
    said: list[str] = []
    halted = spend(first, recipe, 12, said.append)
    assert halted.interrupted
    assert halted.folder == folder  # what is resumed
    assert halted.state.step == 50
    assert f"Stopped in {folder / stopped}." in said[-1]
    assert not measured
    assert not (folder / COMPARED).exists()
    before, settings["interrupted"] = list(given), None
    given.clear()
    ended = spend(first, recipe, 12, said.append, resume=True)
    assert [name for name, _ in before] == STAGES[: STAGES.index(stopped) + 1]
    assert [name for name, _ in given] == STAGES[STAGES.index(stopped) :]
    assert before[-1][1] == given[0][1]  # the same recipe: it resumes exactly
    assert not ended.interrupted
    count = len(measured)
    given.clear()
    again = spend(first, recipe, 12, said.append, resume=True)
    assert not given
    assert len(measured) == count
    assert said[-1] == "Kept, as compared before: ensemble of 5."
    assert [one.folder for one in again.ensemble] == [one.folder for one in ended.ensemble]


def test_what_could_not_be_trained_costs_nothing_else(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, measured, _ = runs
    trained = time_left.train_recipe

    def failing(recipe: Recipe, folder: Path, **asked: bool) -> Trained:
        if folder.parent.name == "by-tag" or folder.name == "distilled":
            raise TrainingError("the disk is full")
        return trained(recipe, folder, **asked)

    monkeypatch.setattr(time_left, "train_recipe", failing)
    recipe, folder = tagged_file(tmp_path), tmp_path / "run"
    folder.mkdir()
    said: list[str] = []
    spend(run_of(folder, recipe, 100), recipe, 12, said.append)
    assert said.count("It could not: the disk is full.") == 2
    assert [name for name, _ in given] == [one for one in STAGES[:-1] if "by-tag" not in one]
    assert not {"one for each tag alone", "distilled into one"} & set(measured)


@pytest.mark.parametrize(
    ("step", "best", "elapsed", "said"),
    [
        (
            60,
            60,
            60,
            [
                "more time: --minutes 3 (it made 60 of 100 updates; all take about 2 min here)",
                "a search",
            ],
        ),
        # All of them, but no more than the usual minutes, rather than a few.
        (2, 2, 60, ["more time: --minutes 10 (it made 2 of 100 updates; all", "a search"]),
        (20, 20, 60, ["more time: --minutes 8 (it made 20 of 100 updates; all", "a search"]),
        (100, 95, 60, ["longer: train.steps=200", "an ensemble of seeds: --minutes 4", "a search"]),
        (100, 50, 20, ["less overfitting: more rows, or model.dropout=0.2", "a search"]),
    ],
)
def test_what_to_try_next(step: int, best: int, elapsed: float, said: list[str]) -> None:
    data = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    recipe = read_recipe({"data": data, "train": {"steps": 100}, "model": {"dropout": 0.1}})
    trained = run_of(Path("runs/x"), recipe, step, elapsed)
    trained.state.best_step = best
    lines = next_steps(recipe, trained, 1.5, Path("runs/x/chosen.yaml"))
    assert len(lines) == len(said)
    assert all(expected in line for line, expected in zip(lines, said, strict=True))
    assert "transduce tune runs/x/chosen.yaml" in lines[-1]


@pytest.mark.parametrize(("metric", "perfect"), [("exact", 100.0), ("per", 0.0)])
def test_a_model_without_errors_gets_no_rivals(
    metric: str, perfect: float, tmp_path: Path, runs: Runs
) -> None:
    validation = recipe_for(8).validation.model_copy(update={"metric": metric})
    recipe = recipe_for(8).model_copy(update={"validation": validation})
    first = run_of(tmp_path, recipe, 100)
    first.state.best = perfect
    assert spend(first, recipe, 8, lambda line: None) is first
    assert not runs[0]
    (line,) = next_steps(recipe, first, 8, Path("chosen.yaml"))
    assert "everything in the validation set is right" in line
    first.state.best, first.state.best_step = 100.0 - perfect, 100  # all are wrong
    assert len(next_steps(recipe, first, 8, Path("chosen.yaml"))) > 1


def test_after_few_rows_more_of_them_are_advised() -> None:
    data = {
        "train": {"file": "x.tsv", "split": "0-80%"},
        "valid": {"file": "x.tsv", "split": "80-100%"},
    }
    recipe = read_recipe({"data": data, "train": {"steps": 100}})
    lines = next_steps(recipe, run_of(Path("runs/x"), recipe, 100), 1.5, Path("chosen.yaml"))
    assert "more rows: of so few held out" in lines[0]


def test_without_resuming_all_is_trained_anew(tmp_path: Path, runs: Runs) -> None:
    given, _, settings = runs
    recipe, folder = recipe_for(3.5), tmp_path / "run"
    folder.mkdir()
    settings["ended"]["seed-2"] = run_of(folder / "seed-2", recipe, 100)
    spend(run_of(folder, recipe, 100), recipe, 3.5, lambda line: None)
    assert [name for name, _ in given] == ["seed-2", "seed-3"]


def test_further_runs_decode_as_was_chosen_for_the_first(tmp_path: Path, runs: Runs) -> None:
    given, _, _ = runs
    recipe, folder = recipe_for(3.5), tmp_path / "run"
    folder.mkdir()
    first = run_of(folder, recipe, 100)
    decode = recipe.decode.model_copy(update={"beam": 7})
    first.model.recipe = recipe.model_copy(update={"decode": decode})
    spend(first, recipe, 3.5, lambda line: None)
    assert [again.decode.beam for _, again in given] == [7, 7]


def test_no_run_has_more_time_than_is_left(tmp_path: Path, runs: Runs) -> None:
    given, _, _ = runs
    recipe = recipe_for(3)
    first = run_of(tmp_path / "run", recipe, 100)
    further = time_left.FurtherRuns(first, recipe, 3, False, lambda line: None)
    further.train("seed-2", "Seed 2", further.again(2), seconds=1000.0)
    assert given[0][1].train.minutes == pytest.approx(2)


def test_only_models_that_write_text_have_further_runs(tmp_path: Path, runs: Runs) -> None:
    given, _, _ = runs
    recipe = recipe_for(8).model_copy(update={"task": "language_modeling"})
    first = run_of(tmp_path / "run", recipe, 100)
    assert spend(first, recipe, 8, lambda line: None) is first
    assert not given


@pytest.mark.parametrize("changed", ["steps", "kept"])
def test_what_has_changed_is_compared_again(tmp_path: Path, runs: Runs, changed: str) -> None:
    _, measured, settings = runs
    recipe, folder = recipe_for(3.5), tmp_path / "run"
    folder.mkdir()
    spend(run_of(folder, recipe, 100), recipe, 3.5, lambda line: None)
    count = len(measured)
    if changed == "steps":
        settings["ended"]["seed-2"] = run_of(folder / "seed-2", recipe, 200)
    else:
        before = json.loads((folder / COMPARED).read_text())
        (folder / COMPARED).write_text(json.dumps({**before, "kept": "something"}))
    ended = spend(run_of(folder, recipe, 100), recipe, 3.5, lambda line: None, resume=True)
    assert len(measured) == 2 * count
    assert len(ended.ensemble) == 2


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_a_damaged_comparison_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / COMPARED).write_text(content)
    assert time_left.read_compared(tmp_path) == {}


def test_further_runs_of_an_earlier_training_are_removed(tmp_path: Path) -> None:
    ours = [tmp_path / name for name in ("seed-2", "distilled", "fine-tuned/de", "by-tag/de")]
    for place in (*ours, tmp_path / "mine"):
        place.mkdir(parents=True)
        (place / WEIGHTS).touch()
    (tmp_path / "seed-2" / "notes.txt").touch()
    (tmp_path / COMPARED).write_text("{}")
    time_left.discard_further(tmp_path)
    assert not any((place / WEIGHTS).exists() for place in ours)
    assert not (tmp_path / COMPARED).exists()
    assert (tmp_path / "mine" / WEIGHTS).exists()
    assert (tmp_path / "seed-2" / "notes.txt").exists()


def test_some_validation_pairs_of_all_parts_of_the_file_are_compared(tmp_path: Path) -> None:
    rows = [f"a{n}\tb{n}" for n in range(1200)]
    (tmp_path / "valid.tsv").write_text("\n".join(rows))
    valid = {"file": "valid.tsv", "source": 0, "target": 1, "header": False}
    recipe = recipe_for(8, valid=valid, folder=str(tmp_path))
    model: Any = SimpleNamespace(source_tokens=None)

    def compared(limit: int | None) -> list[Any]:
        limited = recipe.validation.model_copy(update={"limit": limit})
        return time_left._items(recipe.model_copy(update={"validation": limited}), model)

    assert [len(compared(limit)) for limit in (None, 500, 40)] == [1200, 400, 40]
    assert compared(500)[-1].source == "a1197"  # every third
    assert compared(40)[-1].source == "a1170"


def test_the_metric_of_each_tag_is_shown_where_they_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_of(tmp_path / "run", recipe_for(8), 100)
    for count in (6, 7):
        values = {f"t{n}": {"exact": SimpleNamespace(value=1.0)} for n in range(count)}
        found = SimpleNamespace(groups=values, rows={"exact": rival("", 60).measured})
        monkeypatch.setattr(time_left, "evaluate", lambda *a, found=found, **k: found)
        assert len(time_left._measured("one", first, [], "exact").of_tags) == (count % 7)


@pytest.mark.parametrize(
    ("seconds", "compared"),
    [(0.1, 400), (5.0, 400), (9.0, 600), (100.0, 1200)],
)
def test_more_pairs_are_compared_where_that_is_quick(
    monkeypatch: pytest.MonkeyPatch, seconds: float, compared: int
) -> None:
    """A model takes 4 s for 400 pairs here; every third of 1,200 are compared in any case."""
    items: list[Any] = list(range(1200))
    now = [0.0]

    def measured(name: str, trained: Any, some: list[Any], metric: str) -> None:
        now[0] += 0.01 * len(some)

    monkeypatch.setattr(time_left, "_measured", measured)
    monkeypatch.setattr(time_left, "clock_of", lambda recipe: lambda: now[0])
    made: Any = None
    found = time_left._some(items, made, "exact", made, seconds)
    assert len(found) == compared
    assert found[:2] == [0, 1200 // compared]


def test_few_pairs_are_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "_measured", None)  # and nothing is measured to find that out
    items: list[Any] = list(range(500))
    made: Any = None
    assert time_left._some(items, made, "exact", made, 0.0) == items
