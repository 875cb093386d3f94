"""Further models within a model's folder that it decodes with: an ensemble, one for each tag, or
another one in its place.

`members.json` in the folder names them by their places within it: `{"ensemble": ["seed-2"]}`,
`{"by_tag": {"de": "fine-tuned/de"}}`, where sources without such a tag are for the model itself, or
`{"model": "distilled"}`.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from transduce.data.text.tags import without_tags
from transduce.errors import ModelError
from transduce.storage import write_json
from transduce.tasks.folder import MEMBERS, WEIGHTS

M = TypeVar("M")

ALONE = "--ensemble none uses the first model alone"


@dataclass(frozen=True)
class Members(Generic[M]):
    """The loaded models."""

    ensemble: tuple[M, ...] = ()
    by_tag: Mapping[str, M] = field(default_factory=dict)

    @property
    def all(self) -> tuple[M, ...]:
        return (*self.ensemble, *self.by_tag.values())

    def about(self) -> str:
        """What they are, and what they cost; empty where there are none."""
        if self.ensemble:
            count = 1 + len(self.ensemble)
            return f"an ensemble of {count} models, which takes {count} times as long to decode"
        if self.by_tag:
            return f"a model for each of {len(self.by_tag)} tags ({', '.join(self.by_tag)})"
        return ""


NO_MEMBERS: Members[Any] = Members()


@dataclass(frozen=True)
class MemberFolders:
    """Where they are."""

    ensemble: tuple[Path, ...] = ()
    by_tag: Mapping[str, Path] = field(default_factory=dict)
    model: Path | None = None
    """The one that is used in place of the folder's own."""

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.ensemble, *self.by_tag.values())


def write_members(
    folder: Path,
    ensemble: Iterable[Path] = (),
    by_tag: Mapping[str, Path] | None = None,
    model: Path | None = None,
) -> None:
    """Name the models, which are within the folder; none: it decodes alone. model: one that is used
    in its place."""

    def place(one: Path) -> str:
        return one.relative_to(folder).as_posix()

    found: dict[str, Any] = {}
    if others := [place(one) for one in ensemble]:
        found["ensemble"] = others
    if by_tag:
        found["by_tag"] = {tag: place(one) for tag, one in by_tag.items()}
    if model is not None:
        found["model"] = place(model)
    if found:
        write_json(folder / MEMBERS, found)
    else:
        (folder / MEMBERS).unlink(missing_ok=True)


def member_folders(folder: Path) -> MemberFolders:
    """The folders that `members.json` names. Raises ModelError where it is wrong, names what is not
    within the folder, or what is not there."""
    file = folder / MEMBERS
    if not file.is_file():
        return MemberFolders()
    try:
        found = json.loads(file.read_text("utf-8"))
        ensemble, by_tag = found.pop("ensemble", []), found.pop("by_tag", {})
        model = [found.pop("model")] if "model" in found else []
        strange = found or not isinstance(ensemble, list) or not isinstance(by_tag, dict)
        places = [*ensemble, *by_tag.values(), *model]
        if strange or not all(isinstance(one, str) for one in places):
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise ModelError(
            f'{file} cannot be read; it must be as {{"ensemble": ["seed-2"]}}, '
            f'{{"by_tag": {{"de": "fine-tuned/de"}}}} or {{"model": "distilled"}}: restore it, or '
            f"delete it to use the model alone"
        ) from None
    return MemberFolders(
        tuple(_inside(folder, one) for one in ensemble),
        {tag: _inside(folder, one) for tag, one in by_tag.items()},
        *(_inside(folder, one) for one in model),
    )


def folder_in_use(folder: Path) -> Path:
    """The folder of the model that a folder is used as: its own, or one that `members.json` names
    in its place. Raises ModelError as `member_folders` does."""
    return member_folders(folder).model or folder


def _inside(folder: Path, place: str) -> Path:
    path = folder / place
    inside = path.resolve().is_relative_to(folder.resolve()) and PurePosixPath(place).parts
    if not inside or ".." in PurePosixPath(place).parts:
        raise ModelError(
            f"{folder / MEMBERS} names {place!r}, which is not a folder within {folder}; copy the "
            f"model there ({ALONE})"
        )
    if not (path / WEIGHTS).is_file():
        raise ModelError(
            f"{folder / MEMBERS} names {place!r}, but there is no {path / WEIGHTS}: copy it there, "
            f"or delete {MEMBERS} ({ALONE})"
        )
    return path


def says_alone(folder: Path, done: str) -> str:
    """A sentence for a command that takes one model of a folder that has several; else empty."""
    found = member_folders(folder)
    if found.model is not None:
        return f"{folder} is used as {found.model}, which is {done}"
    if not found.all:
        return ""
    return f"{folder} decodes with the models of its {MEMBERS}; the first alone is {done}"


# ----------------------------------------------------------------------- each source to its model


def shared_out(
    model: M, by_tag: Mapping[str, M], known: Container[str], sources: Sequence[str]
) -> list[tuple[M, list[int]]]:
    """The models for sources, each with the places of its own: the one for the first tag of a
    source that has one, else the model itself. known: its tags."""
    places: dict[int, tuple[M, list[int]]] = {}
    for place, source in enumerate(sources):
        tags, _ = without_tags(source, known)
        one = next((by_tag[tag] for tag in tags if tag in by_tag), model)
        places.setdefault(id(one), (one, []))[1].append(place)
    return list(places.values())
