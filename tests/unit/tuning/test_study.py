"""The directory of a search: what a kill leaves, who works on what, and the time."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.errors import DataError
from transduce.recipe import dump_recipe
from transduce.storage.locks import held
from transduce.tuning.rungs import Trial
from transduce.tuning.space import Choices, Range, named
from transduce.tuning.study import MAX_GAP, STUDY, Study, begin_study, clean, open_study
from tuning_study import Make


def test_a_search_is_opened_as_it_was_begun(make: Make, tmp_path: Path) -> None:
    recipe = make()
    space = {"train.lr": Range(1e-4, 1.0), "train.average": Choices((None, {"count": 2}))}
    begun = begin_study(tmp_path / "tune", recipe, space, {"files": ["x"]})
    assert open_study(tmp_path / "tune") == begun
    assert begin_study(tmp_path / "tune", recipe, space, {}) == begun
    trial = Trial(3, {"train.lr": 0.1}, 1, [2.5, None], [2.5, None], best=2.5, updates=7)
    begun.write(trial)
    begun.write(Trial(11, {}))
    assert begun.trials() == [trial, Trial(11, {})]
    assert open_study(tmp_path / "nothing") is None


def test_another_recipe_or_other_keys_are_refused(make: Make, study: Study) -> None:
    folder, space = study.folder, study.space
    with pytest.raises(DataError) as found:
        begin_study(folder, make("train.lr=0.5"), space, {})
    assert "holds another search: train.lr is 0.01 there, and 0.5 now" in str(found.value)
    with pytest.raises(DataError, match=r"--search train.lr is 0.0001..1 there, and None now"):
        begin_study(folder, study.recipe, {"model.dropout": Range(0, 0.5)}, {})


def test_a_folder_with_something_else_is_left_alone(make: Make, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    recipe = make()
    with pytest.raises(DataError, match="holds something else than a search"):
        begin_study(tmp_path, recipe, named(recipe, ["seed=1,2"], []), {})
    assert not (tmp_path / STUDY).exists()
    assert {*before} <= {path.name for path in tmp_path.iterdir()}


def test_a_kill_while_the_search_begins(make: Make, study: Study, tmp_path: Path) -> None:
    """The recipe is there, the keys are not yet: it begins again."""
    (study.folder / STUDY).unlink()
    again = begin_study(study.folder, make(), study.space, {})
    assert dump_recipe(again.recipe) == dump_recipe(study.recipe)
    assert open_study(study.folder) == again


def test_a_kill_while_a_trial_is_written_leaves_the_one_before(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write(Trial(0, {"train.lr": 0.1}))

    def killed(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text.encode()[:20])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            study.write(Trial(0, {"train.lr": 0.1}, scores=[1.0]))
    clean(study)
    assert study.trials() == [Trial(0, {"train.lr": 0.1})]
    study.write(Trial(1, {}))
    assert len(study.trials()) == 2


def test_a_damaged_file_is_named(study: Study) -> None:
    study.write(Trial(0, {}))
    path = study.folder / "trials" / "000.json"
    path.write_text('{"number": 0, "val', "utf-8")
    with pytest.raises(DataError, match=r"000\.json is not a trial of a search"):
        study.trials()
    (study.folder / STUDY).write_text("{}", "utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        open_study(study.folder)


def test_a_trial_is_trained_by_one_process(study: Study) -> None:
    trial = Trial(0, {})
    claim = study.claim(trial)
    assert claim is not None
    assert study.claim(trial) is None
    other = study.claim(replace(trial, number=1))
    assert other is not None
    os.close(claim)
    again = study.claim(trial)
    assert again is not None  # a lock ends with the one who has it
    os.close(again)
    os.close(other)
    with held(study.run(trial)):  # its process has died, but not the one that trains
        assert study.claim(trial) is None


def test_time_counts_while_somebody_works(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    assert study.begin() == 0.0
    for seconds in (1.0, 1.0, 0.5):
        now[0] += seconds
        study.beat()
    assert study.begin() == pytest.approx(2.5)  # a second process joins
    now[0] += 1.0
    assert study.beat() == pytest.approx(3.5)
    assert study.beat() == pytest.approx(3.5)  # of two processes at the same time
    now[0] += 5000.0  # nobody worked
    assert study.begin() == pytest.approx(3.5)
    now[0] += 1.0
    assert study.beat() == pytest.approx(4.5)
    now[0] += 5000.0  # the machine slept
    assert study.beat() == pytest.approx(4.5 + MAX_GAP)
