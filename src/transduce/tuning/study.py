"""The directory of a search: its settings, a file for each trial, who works on which, and the time.

    study.json        the keys that are searched, and what the search was started with
    base.yaml         the recipe
    trials/003.json   the values of a trial, and its score at each rung
    trials/003/       its run directory
    clock.json        the time that the search has taken

Every file is replaced as a whole (`storage`), so a kill leaves the old one or the new one, never a
part. Optuna's own storages are not used: a line that a kill has cut makes its journal unreadable
once another is appended, and in none of them can a trial that was stopped at a rung go on.

Processes share a search by locks, which end with the process that holds them: one on the study to
take a trial, and one on each trial while it is trained.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transduce.errors import DataError
from transduce.recipe import Recipe, dump_recipe, parse_recipe
from transduce.storage import locked, make_folder, remove_stale, write_json, write_text
from transduce.storage.locks import held, take_lock
from transduce.tuning.rungs import Trial
from transduce.tuning.space import Choices, Range, Space

STUDY, BASE, CLOCK = "study.json", "base.yaml", "clock.json"
TRIALS = "trials"
BEAT = 1.0  # seconds between two times that a process notes the clock
MAX_GAP = 3 * BEAT  # a longer time between two of them did not belong to the search


@dataclass(frozen=True)
class Study:
    """A search in a folder: the recipe and the keys that are searched."""

    folder: Path
    recipe: Recipe
    space: Space
    given: dict[str, Any] = field(default_factory=dict)
    """What the recipe was chosen for: files, and overrides; empty: it was given."""

    @property
    def metric(self) -> str:
        return str(self.recipe.validation.metric)

    def run(self, trial: Trial) -> Path:
        """The run directory of a trial."""
        return self.folder / TRIALS / f"{trial.number:03d}"

    # ------------------------------------------------------------------------------- trials

    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        paths = sorted((self.folder / TRIALS).glob("[0-9]*.json"))
        return sorted((_read_trial(path) for path in paths), key=lambda trial: trial.number)

    def write(self, trial: Trial) -> None:
        write_json(self.folder / TRIALS / f"{trial.number:03d}.json", asdict(trial))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While entered, no other process takes or begins a trial."""
        with locked(self.folder / STUDY):
            yield

    def claim(self, trial: Trial) -> int | None:
        """A lock on a trial, until it is closed (os.close); None: another process trains it.

        A process that was killed may have left one that still trains: it ends with its next update.
        """
        run = self.run(trial)
        make_folder(run)
        with held(run) as free:
            if not free:
                return None
        handle = os.open(
            self.folder / TRIALS / f".{trial.number:03d}.claim", os.O_CREAT | os.O_RDWR
        )
        if take_lock(handle):
            return handle
        os.close(handle)
        return None

    def is_claimed(self, trial: Trial) -> bool:
        """Whether a process trains a trial."""
        claim = self.claim(trial)
        if claim is not None:
            os.close(claim)
        return claim is None

    # --------------------------------------------------------------------------------- time

    def beat(self) -> float:
        """Note that the search goes on; returns the seconds that it has taken in all.

        Time in which no process beats does not count, and time in which several do counts once.
        """
        path, now = self.folder / CLOCK, time.time()
        with locked(path):
            seconds, last = self._clock()
            seconds += min(max(now - last, 0.0), MAX_GAP)
            write_json(path, {"seconds": seconds, "last": now})
        return seconds

    def begin(self) -> float:
        """Start the clock, unless it goes already; returns the seconds taken so far."""
        path, now = self.folder / CLOCK, time.time()
        with locked(path):
            seconds, last = self._clock()
            if now - last > MAX_GAP:
                write_json(path, {"seconds": seconds, "last": now})
        return seconds

    def _clock(self) -> tuple[float, float]:
        try:
            found = json.loads((self.folder / CLOCK).read_text("utf-8"))
            return float(found["seconds"]), float(found["last"])
        except FileNotFoundError:
            return 0.0, 0.0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.folder / CLOCK} cannot be read ({error}); remove it") from None


def _read_trial(path: Path) -> Trial:
    try:
        return Trial(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is not a trial of a search ({error}); remove it to leave this trial out"
        ) from None


# ----------------------------------------------------------------------------- open and begin


def open_study(folder: Path) -> Study | None:
    """The search in a folder; None: there is none. Raises DataError where it is damaged."""
    path = folder / STUDY
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        space = {key: _searched(one) for key, one in values["search"].items()}
        text = (folder / BASE).read_text("utf-8")
        given = dict(values["given"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); choose another --output, or remove {folder}"
        ) from None
    recipe = parse_recipe(text, str(folder / BASE), folder, run_plugins=True)
    return Study(folder, recipe, space, given)


def begin_study(folder: Path, recipe: Recipe, space: Space, given: Mapping[str, Any]) -> Study:
    """The search in a folder, begun now, or the one that is there, if it is the same."""
    make_folder(folder / TRIALS)
    study = Study(folder, recipe, space, dict(given))
    with study.alone():
        if (there := open_study(folder)) is not None:
            _check_same(there, study)
            return there
        strange = [one.name for one in folder.iterdir() if one.name[0] != "."]
        if set(strange) - {TRIALS, BASE}:
            raise DataError(
                f"{folder} holds something else than a search ({min({*strange} - {TRIALS, BASE})});"
                f" choose another --output"
            )
        write_text(folder / BASE, dump_recipe(recipe))
        search = {key: {type(one).__name__: asdict(one)} for key, one in space.items()}
        write_json(folder / STUDY, {"search": search, "given": study.given})
    return study


def clean(study: Study) -> None:
    """Remove what killed processes have left half-written."""
    for place in (study.folder, study.folder / TRIALS):
        remove_stale(place)


def _searched(values: Mapping[str, Any]) -> Range | Choices:
    if "Range" in values:
        return Range(**values["Range"])
    return Choices(tuple(values["Choices"]["values"]))


def _check_same(there: Study, asked: Study) -> None:
    """Raise DataError where a folder holds the search of another recipe, or over other keys."""
    before, now = _flat(there), _flat(asked)
    for key in [*before, *(key for key in now if key not in before)]:
        if before.get(key) != now.get(key):
            raise DataError(
                f"{there.folder} holds another search: {key} is {before.get(key)} there, and "
                f"{now.get(key)} now; go on with the settings that it was begun with, or choose "
                f"another --output"
            )


def _flat(study: Study) -> dict[str, str]:
    found = {f"--search {key}": str(one) for key, one in study.space.items()}

    def add(values: Any, place: str) -> None:
        if isinstance(values, dict):
            for key, value in values.items():
                add(value, f"{place}.{key}".lstrip("."))
        else:
            found[place] = str(values)

    add(study.recipe.model_dump(mode="json"), "")
    return found
