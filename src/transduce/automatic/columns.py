"""The columns of a table: what is in each, and which of them are source, target and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.data.text.columns import NUMBER, IdWatch
from transduce.data.text.files import suffix_of
from transduce.data.text.tags import split_tags
from transduce.errors import DataError

MAX_LABELS = 1000
SHORT_LABEL = 40  # characters, in the mean
OF_EACH_LABEL = 5  # rows of a label, in the mean; 20 where there are SOME rows
SOME = 400
SHOWN = 5000  # values that are looked at one by one
MAX_TAGS = 1000
_SOUND = ".wav .flac .mp3 .ogg .opus .m4a .aac .aif .aiff .sph .webm .wma"
_SPLITS = "train training valid validation val dev devel development test eval"
# Names of columns, as whole words; the first that fits is taken.
_SOURCES = (
    "source src instruction input lemma grapheme graphemes spelling word words question query "
    "prompt document article review sentence text body content comment tweet message title"
)
_TARGETS = (
    "target tgt trg output label labels class category sentiment intent form inflected phoneme "
    "phonemes phones pronunciation ipa transliteration translation answer response summary "
    "reference rating stars"
)
_TRANSCRIPTS = (
    "text transcript transcription sentence target utterance phrase word command keyword label "
    "class translation"
)
# Of a recording, but hardly what is to be learnt of it.
_ABOUT_SOUND = "speaker client voice gender sex age accent dialect locale language device room"
SOUND_ENDINGS = tuple(_SOUND.split())
SPLITS = frozenset(_SPLITS.split())
SOURCES, TARGETS, TRANSCRIPTS = _SOURCES.split(), _TARGETS.split(), _TRANSCRIPTS.split()
ABOUT_SOUND = frozenset(_ABOUT_SOUND.split())
LABELS = frozenset(("label", "labels", "class", "category", "sentiment", "intent"))
TAGS = frozenset(("tag", "tags", "feature", "features", "feats"))
LANGUAGES = frozenset(("language", "lang", "locale", "dialect"))

# 2024-01-31, 31.1.24, 12:30, 2024-01-31T12:30:00Z
_DATE = re.compile(r"\d{1,4}([-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\S+)?|:\d{2}(:\d{2})?([.,]\d+)?)")

Kind = Literal[
    "empty", "constant", "audio", "split", "id", "tags", "number", "label", "text"
]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table, and what is in it."""

    place: int
    name: str | None
    kind: Kind
    distinct: int
    filled: int
    numeric: bool
    """Whether all values are numbers."""

    @property
    def key(self) -> int | str:
        """How a recipe names it."""
        return self.place if self.name is None else self.name

    @property
    def title(self) -> str:
        return f"column {self.place}" if self.name is None else self.name

    def named(self, names: Sequence[str] | frozenset[str]) -> bool:
        return any(word in names for word in _words(self.name))


def _words(name: str | None) -> list[str]:
    own = (name or "").rpartition(".")[2]  # of translation.en, the language
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", own).lower()
    return re.findall(r"[^\W\d_]+", spaced)


def column_of(place: int, name: str | None, cells: Sequence[str]) -> Column:
    values = [cell.strip() for cell in cells if cell.strip()]
    distinct = len(set(values))
    numeric = all(NUMBER.fullmatch(value) for value in values[:SHOWN])
    return Column(place, name, _kind(name, values, distinct), distinct, len(values), numeric)


def _kind(name: str | None, values: Sequence[str], distinct: int) -> Kind:
    """What the values of a column are."""
    count, words = len(values), _words(name)
    if not count:
        return "empty"
    if 10 * sum(value.lower().endswith(SOUND_ENDINGS) for value in values) >= 8 * count:
        return "audio"
    if {value.lower() for value in values[:SHOWN]} <= SPLITS and (distinct > 1 or "split" in words):
        return "split"
    watch = IdWatch()
    for value in values[: IdWatch.MOST]:
        watch.add(value)
    # What is called a label is not one of these, whatever it has.
    id_name = bool(words) and words[-1] in ("id", "ids", "idx", "uuid", "guid", "key", "index")
    if (watch.found and not LABELS & set(words)) or (id_name and distinct == count):
        return "id"
    shown = values[:SHOWN]
    found = [tag for value in shown for tag in split_tags(value)]
    parts = set(found)
    several = sum(";" in value or "|" in value for value in shown)
    spaced = any(" " in value for value in shown)
    if len(parts) <= MAX_TAGS and not spaced:
        if 2 * several >= len(shown) and 2 * len(parts) <= len(found):
            return "tags"
        if (TAGS | LANGUAGES) & set(words) and 2 * distinct <= count:
            return "tags" if distinct > 1 else "constant"
    if distinct == 1 < count:
        return "constant"
    if all(map(_DATE.fullmatch, shown)):
        return "number"
    length = sum(map(len, shown)) / len(shown)
    each = OF_EACH_LABEL if count < SOME else 4 * OF_EACH_LABEL
    few = 1 < distinct <= min(MAX_LABELS, max(2, count // each))
    if few and length <= SHORT_LABEL:
        return "label"
    if all(NUMBER.fullmatch(value) for value in shown):
        return "number"
    return "text"


@dataclass(frozen=True)
class Roles:
    """Which column is what."""

    source: Column
    target: Column
    tags: Column | None = None
    start: Column | None = None
    end: Column | None = None
    parts: Column | None = None
    """Says of each row which part it is in: train, valid or test."""


def roles_of(path: Path, columns: Sequence[Column], hints: Mapping[str, Any]) -> Roles:
    """Source, target and tags: as the person says, by names, by what is in the columns."""
    given = {
        role: _asked(path, columns, hints[role])
        for role in ("source", "target", "tags", "audio")
        if hints.get(role) is not None
    }
    taken = list(given.values())
    unfit = ("empty", "constant", "id", "split")
    free = [one for one in columns if one not in taken and one.kind not in unfit]
    if len(free) + len(taken) < 2:  # what is wrong with it is said later
        constant = [one for one in columns if one.kind == "constant" and one not in taken]
        alike = [one for one in constant if not one.named(TAGS | LANGUAGES)]
        free = [one for one in columns if one in free or one in alike]
    parts = next((one for one in columns if one.kind == "split" and one not in taken), None)
    tags = given.get("tags") or next((one for one in free if one.kind == "tags"), None)
    if tags is not None and "tags" not in given and _is_needed(tags, free, given):
        tags = None  # a table of a text and its tags: they are the target
    free = [one for one in free if one is not tags]
    sound = given.get("audio") or next((one for one in free if one.kind == "audio"), None)
    if sound is not None:
        target = given.get("target") or _transcript(free)
        if target is None:
            raise DataError(
                f"{path.name} has audio files in {sound.title} and no column of their text or "
                f"label beside it; there are: {_listed(columns)}"
            )
        times = [_by_name(free, names) for names in (["start", "begin"], ["end", "stop"])]
        both = all(time is not None and time.numeric for time in times)
        start, end = times if both else (None, None)
        return Roles(sound, target, tags, start, end, parts)
    source, target = given.get("source"), given.get("target")
    if source is None:
        source = _by_name([one for one in free if one is not target], SOURCES)
        source = source if source is not None and source.kind == "text" else None
    if target is None:
        target = _by_name([one for one in free if one is not source], TARGETS)
    left = [one for one in free if one not in (source, target)]
    texts = [one for one in left if one.kind == "text"]
    labels = [one for one in left if one.kind == "label"]
    if source is None and target is None and len(left) == 2:
        source, target = left
        if source.kind == "label" and target.kind == "text" and tags is None:
            source, target = target, source  # label first, as in many collections
    source = source or next(iter([*texts, *(one for one in left if one.kind == "number")]), None)
    left = [one for one in left if one is not source]
    texts = [one for one in texts if one is not source]
    # Numbers beside labels or texts are often scores.
    words = [one for one in labels if not one.numeric]
    order = [*texts, *words] if tags is not None else [*words, *texts]
    target = target or next(iter([*order, *left]), None)
    if target is None and source is not None and tags is not None and "tags" not in given:
        target, tags = tags, None
    empty = next((one for one in columns if one.kind == "empty"), None)
    if target is None and empty is not None:
        raise DataError(
            f"{path.name}: {empty.title} is empty in every row, and there is no other target; fill "
            f"it in, or name another column: data.train.target=NAME"
        )
    if source is not None and target is None and source.kind == "text":
        raise DataError(
            f"{path.name}: {source.title} is a text, and no other column is something to learn "
            f"from it ({_listed(columns)}); give a column of texts, or of labels, which repeat, or "
            f"name one: data.train.target=NAME"
        )
    number = source is not None and (source.numeric or source.kind == "number")
    if source is None or target is None or (number and len(columns) > 2 and "source" not in given):
        raise DataError(
            f"{path.name}: no column is a text to learn from ({_listed(columns)}); give a table "
            f"with a source and a target, or name them: data.train.source=NAME "
            f"data.train.target=NAME"
        )
    return Roles(source, target, tags, parts=parts)


def _is_needed(tags: Column, free: Sequence[Column], given: Mapping[str, Column]) -> bool:
    """Whether a column of tags is the only one that can be a target."""
    others = [one for one in free if one is not tags and one.kind != "number"]
    return len(others) + len({"source", "target"} & set(given)) < 2


def _asked(path: Path, columns: Sequence[Column], asked: Any) -> Column:
    for column in columns:
        if asked in (column.name, column.place) or str(asked) == column.name:
            return column
    raise DataError(f"{path.name}: there is no column {asked}; there are: {_listed(columns)}")


def _by_name(columns: Sequence[Column], names: Sequence[str]) -> Column | None:
    for name in names:
        for column in columns:
            if name in _words(column.name):
                return column
    return None


def _transcript(columns: Sequence[Column]) -> Column | None:
    fitting = [one for one in columns if one.kind in ("text", "label")]
    about = [one for one in fitting if one.named(ABOUT_SOUND)]
    others = [one for one in fitting if one not in about]
    texts = [one for one in others if one.kind == "text"]
    return _by_name(fitting, TRANSCRIPTS) or next(iter([*texts, *others, *about]), None)


MEANING = {
    "empty": "empty",
    "constant": "the same in every row",
    "audio": "audio files",
    "split": "parts",
    "id": "ids",
    "tags": "tags",
    "number": "numbers or dates",
    "label": "labels",
    "text": "text",
}


def _listed(columns: Sequence[Column]) -> str:
    return ", ".join(f"{one.title}: {MEANING[one.kind]}" for one in columns)


def left_out(columns: Sequence[Column], roles: Roles) -> list[str]:
    """A sentence about columns that are not used, and how to use them."""
    used = (roles.source, roles.target, roles.tags, roles.start, roles.end, roles.parts)
    rest = [one for one in columns if one not in used]
    if not rest:
        return []
    likely = [one for kind in ("text", "label", "tags") for one in rest if one.kind == kind]
    how = f" (to use one: data.train.target={likely[0].key})" if likely else ""
    return [f"Not used: {_listed(rest)}{how}."]


def format_by_name(path: Path) -> str:
    """How a name ends, without .gz or .xz and the dot."""
    return suffix_of(path.name).removeprefix(".")


def run_name(path: Path) -> str:
    """The name of a run: that of the file, without endings and the word train."""
    bare = path.name if path.is_dir() else path.name.removesuffix(".gz").removesuffix(".xz")
    bare = bare if path.is_dir() else Path(bare).stem or bare
    kept = [
        part
        for part in re.split(r"[._\-\s]+", bare)
        if part and part.lower() not in SPLITS | {"trn"}
    ]
    return "-".join(kept)[:60] or path.absolute().parent.name or "model"
