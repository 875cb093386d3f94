"""Audio in tar archives: their members, indexed once and read where they lie; WebDataset's samples.

The index of an archive is a JSON file in the cache: the place of each member, and the text of small
ones. It is made again where the archive has changed.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from transduce.data.cache.eviction import note_use
from transduce.data.text.files import locate
from transduce.errors import CheckpointError, DataError
from transduce.storage import default_cache_folder, write_json
from transduce.storage.members import TarMember
from transduce.storage.positions import Place, open_at, version_of

FORMAT = 2  # format version: increase when the content of an index changes
ENDING = ".members.json"
AUDIO = ("wav", "flac", "mp3", "ogg", "opus", "sph", "aiff", "aif", "au")
TEXTS = ("txt", "text", "json", "cls", "transcript", "lang", "spk")
MAX_TEXT = 1 << 20  # bytes of a member that is kept in the index
OPTIONAL = ("start", "end", "speaker", "language", "id")  # columns that a sample may be without
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of an archive."""

    name: str
    start: int
    """Of its content, in bytes."""
    size: int
    text: str | None = None
    """Its content, of a small text."""

    @property
    def key(self) -> str:
        """What the members of a sample have in common: the name up to the first dot of the file."""
        folder, slash, file = self.name.rpartition("/")
        return folder + slash + file.partition(".")[0]

    @property
    def ending(self) -> str:
        return self.name.rpartition("/")[2].partition(".")[2].lower()


def members_of(name: str, folder: str | None) -> list[Entry]:
    """The files in a tar archive, from the cache or found now. Raises DataError."""
    path = locate(name, folder).absolute()
    version = version_of(path)
    key = sha256(json.dumps([FORMAT, str(path)]).encode()).hexdigest()
    place = default_cache_folder() / f"{key}{ENDING}"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(place.read_text("utf-8"))
        if kept["version"] == [version.size, version.changed]:
            note_use(place)
            return [Entry(*one) for one in kept["members"]]
    with open_at(path, 0, version) as file:
        _check_plain(path, file.read(6))
        file.seek(0)
        found = list(_members(name, file))
    if not found:
        raise DataError(f"{name} is empty; give an archive with at least one file")
    with suppress(OSError, CheckpointError):  # it is found again next time
        place.parent.mkdir(parents=True, exist_ok=True)
        made = [astuple(one) for one in found]
        write_json(place, {"version": [version.size, version.changed], "members": made})
    return found


def _check_plain(path: Place, start: bytes) -> None:
    if start.startswith(COMPRESSED):
        raise DataError(
            f"{path} is compressed, and cannot be read from its middle; decompress it: audio that "
            f"is compressed itself takes hardly more room"
        )


def _members(name: str, file: BinaryIO) -> Iterator[Entry]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for one in archive:
                # Hidden files are no samples: tar on a Mac adds ._a.wav to a.wav.
                if not one.isreg() or one.issparse() or PurePosixPath(one.name).name[:1] == ".":
                    continue
                if any("\ud800" <= letter <= "\udfff" for letter in one.name):
                    raise DataError(
                        f"{name}: the name {one.name!a} in it is not UTF-8; rename the file, "
                        f"and write the archive again"
                    )
                small = one.size <= MAX_TEXT and one.name.rpartition(".")[2].lower() in TEXTS
                content = archive.extractfile(one) if small else None
                text = None if content is None else content.read().decode("utf-8")
                yield Entry(one.name, one.offset_data, one.size, text)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: the text in {one.name} is not UTF-8 ({error.reason}); convert it, and write "
            f"the archive again"
        ) from None
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{name} is not a tar archive, or it is damaged or truncated ({error}); copy it again"
        ) from None


def expanded_braces(name: str) -> list[str]:
    """The names of a numbered list of shards: a-{000..011}.tar, as WebDataset writes it.

    Raises DataError for numbers that go down.
    """
    found = BRACES.search(name)
    if found is None:
        return [name]
    if int(found[1]) > int(found[2]):
        raise DataError(f"{name}: {found[0]} counts downwards; write the lower number first")
    before, after = name[: found.start()], name[found.end() :]
    numbers = range(int(found[1]), int(found[2]) + 1)
    names = (f"{before}{number:0{len(found[1])}d}{after}" for number in numbers)
    return [one for name in names for one in expanded_braces(name)]


def webdataset_rows(
    name: str, folder: str | None, wanted: Sequence[Any]
) -> Iterator[tuple[int, list[str]]]:
    """The wanted columns of each sample, and its number, from 1.

    A sample is the members in a row whose names are the same up to the first dot; those without one
    belong to none. A column is
    `audio`, the ending of a member (`txt`), or a key of its .json; `text` is either. Raises
    DataError for one that the first sample has not.
    """
    archive = locate(name, folder).absolute()
    members_of_samples = (entry for entry in members_of(name, folder) if entry.ending)
    samples = groupby(members_of_samples, lambda entry: entry.key)
    for number, (key, members) in enumerate(samples, start=1):
        sample = _Sample(archive, key, {one.ending: one for one in members}, f"{name}:{number}")
        cells = [sample.cell(str(column)) for column in wanted]
        for column, cell in zip(wanted, cells, strict=True):
            if cell is None and number == 1 and column not in OPTIONAL:
                raise DataError(
                    f"{name}: the first sample, {key}, has no {column}; it has "
                    f"{', '.join(sample.columns)}"
                )
        yield number, ["" if cell is None else cell for cell in cells]


@dataclass(frozen=True)
class _Sample:
    archive: Place
    key: str
    members: Mapping[str, Entry]
    """By their endings."""
    where: str

    @property
    def facts(self) -> dict[str, Any]:
        """What its .json says."""
        entry = self.members.get("json")
        if entry is None or entry.text is None:
            return {}
        try:
            found = json.loads(entry.text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.where}: {entry.name} is not valid JSON: {error}") from None
        return found if isinstance(found, dict) else {}

    @property
    def columns(self) -> list[str]:
        audio = ["audio"] if any(one in AUDIO for one in self.members) else []
        return [*audio, *self.members, *self.facts]

    def cell(self, column: str) -> str | None:
        """None where the sample has no such column."""
        if column == "audio":
            found = next((one for end, one in self.members.items() if end in AUDIO), None)
            return None if found is None else self._place(found)
        for ending in (column, "txt") if column == "text" else (column,):
            if ending in self.members:
                entry = self.members[ending]
                return self._place(entry) if entry.text is None else entry.text.strip()
        value = self.facts.get(column, self.key if column == "id" else None)
        return None if value is None else value if isinstance(value, str) else json.dumps(value)

    def _place(self, entry: Entry) -> str:
        return str(TarMember(self.archive, entry.start, entry.size, entry.name))


def audio_by_cut(cuts: Place) -> Mapping[str, str]:
    """The audio of each cut of a Shar shard, by its id; "" where it has none.

    Beside cuts.000000.jsonl.gz, that is recording.000000.tar. Raises DataError.
    """
    file = re.sub(r"\.jsonl(\.gz|\.xz)?$", ".tar", cuts.name.replace("cuts", "recording", 1))
    archive = cuts.with_name(file)
    if not archive.is_file():
        raise DataError(
            f"{cuts} has no recordings beside it, as {archive.name}; copy all files of the shard "
            f"into one folder"
        )
    found = {}
    for entry in members_of(str(archive), None):
        stem, _, ending = entry.name.rpartition(".")
        if ending == "nodata":
            found[stem] = ""
        elif ending not in ("json", "nometa"):
            found[stem] = str(TarMember(archive, entry.start, entry.size, entry.name))
    return found
