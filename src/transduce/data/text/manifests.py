"""Lists of recordings that other toolkits write: Kaldi's data folders, Lhotse's manifests, tar
archives of Lhotse Shar and of WebDataset.

They are read as a table with the columns COLUMNS. Paths are as they are written: from the folder of
the list, or, as these toolkits have it, from a folder above it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from transduce.data.text.files import locate, read_lines
from transduce.data.text.shards import audio_by_cut, webdataset_rows
from transduce.errors import DataError
from transduce.recipe import nearest
from transduce.storage.positions import Place
from transduce.storage.remote import RemotePath, is_remote

COLUMNS = ("audio", "text", "start", "end", "speaker", "language", "id")
"""start and end are empty where the whole recording is meant."""
KALDI, LHOTSE, SHAR, WEBDATASET = FORMATS = (".kaldi", ".lhotse", ".shar", ".webdataset")
ABOVE = 4  # folders above that of the list, where relative paths may begin
ARCHIVE = re.compile(r"\.(ark|scp)(:\d+)?$")
CUTS = ("MonoCut", None)  # the type of a cut; of others a part would be lost

Rows = Iterator[tuple[int, list[str]]]


def manifest_kind(path: Path) -> Literal["kaldi", "lhotse"] | None:
    """Which of them a folder or file of this machine is; None: neither."""
    if path.is_dir():
        return "kaldi" if is_kaldi(path) else None
    return "lhotse" if is_lhotse(path) else None


def is_kaldi(folder: Path) -> bool:
    return (folder / "wav.scp").is_file()


def is_lhotse(path: Path) -> bool:
    """Whether the first line of a file is a cut or a supervision."""
    if ".jsonl" not in path.name:
        return False
    try:
        (first,) = islice(read_lines(str(path), None, table=True), 1)
        record = json.loads(first)
    except (DataError, ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or "duration" not in record:
        return False
    return "recording_id" in record or isinstance(record.get("supervisions"), list)


def manifest_rows(name: str, folder: str | None, kind: str, wanted: Sequence[Any]) -> Rows:
    """The wanted columns of a list of recordings. Raises DataError."""
    if kind == WEBDATASET:
        return webdataset_rows(name, folder, wanted)
    for column in wanted:
        if column not in COLUMNS:
            near = nearest(str(column), COLUMNS, f"; there are {', '.join(COLUMNS)}")
            raise DataError(f"{name} has no column {column}{near}")
    rows = {KALDI: _kaldi_rows, LHOTSE: _lhotse_rows, SHAR: _shar_rows}[kind](name, folder)
    return ((line, [row[column] for column in wanted]) for line, row in rows)


# --------------------------------------------------------------------------------------- Kaldi


def _kaldi_rows(name: str, folder: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """The utterances of the file text, with what the files beside it say of them."""
    beside = locate(name, folder).absolute().parent
    recordings = _recordings_of_kaldi(beside)
    segments = {
        utterance: _segment(beside / "segments", line, rest)
        for line, utterance, rest in _entries(beside / "segments", needed=False)
    }
    speakers = {one: rest for _, one, rest in _entries(beside / "utt2spk", needed=False)}
    languages = {one: rest for _, one, rest in _entries(beside / "utt2lang", needed=False)}
    for line, utterance, text in _entries(locate(name, folder)):
        recording, start, end = segments.get(utterance, (utterance, "", ""))
        if recording not in recordings:
            missing = "wav.scp" if utterance in segments or not segments else "segments"
            raise DataError(
                f"{name}:{line}: {recording} is not in {beside / missing}; add it, or remove the "
                f"line (utils/fix_data_dir.sh does)"
            )
        yield (
            line,
            {
                "audio": recordings[recording],
                "text": text,
                "start": start,
                "end": end,
                "speaker": speakers.get(utterance, ""),
                "language": languages.get(utterance, ""),
                "id": utterance,
            },
        )


def _recordings_of_kaldi(folder: Place) -> dict[str, str]:
    """The audio file of each recording of wav.scp. Raises DataError for what is no file."""
    file = folder / "wav.scp"
    places = _Places(folder)
    found = {}
    for line, recording, place in _entries(file):
        if place.endswith("|") or place.startswith("|"):
            raise DataError(
                f"{file}:{line}: {place[:60]!r} is a command, and commands of data are not run; "
                f"write its audio to a file (wav-copy does), and name that"
            )
        if place == "-" or ARCHIVE.search(place):
            raise DataError(
                f"{file}:{line}: {place[:60]!r} is not an audio file; write the audio to one, and "
                f"name that"
            )
        if not place:
            raise DataError(f"{file}:{line}: there is no path behind {recording}; add it")
        found[recording] = places.of(place)
    return found


def _segment(file: Place, line: int, rest: str) -> tuple[str, str, str]:
    fields = rest.split()
    if len(fields) != 3:
        raise DataError(
            f"{file}:{line}: write utterance, recording, start and end, as in `utt1 rec1 0.5 2.25`"
        )
    recording, start, end = fields
    return recording, start, "" if end.startswith("-") else end  # -1: to its end


def _entries(file: Place, needed: bool = True) -> Iterator[tuple[int, str, str]]:
    """The lines of one of Kaldi's files: a key, and what is behind it."""
    if not needed and not file.is_file():
        return
    if not file.is_file():
        raise DataError(f"{file.parent} has no {file.name}, which a Kaldi data folder needs")
    for line, text in enumerate(read_lines(str(file), None, table=True), start=1):
        key, *rest = text.split(maxsplit=1)[:2] or [""]
        if key:
            yield line, key, rest[0].strip() if rest else ""


# -------------------------------------------------------------------------------------- Lhotse


def _lhotse_rows(name: str, folder: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Cuts; or supervisions, whose recordings are in the manifest beside them."""
    path = locate(name, folder).absolute()
    places = _Places(path.parent)
    recordings: dict[str, dict[str, Any]] | None = None
    for line, record in _records(name, folder):
        where = f"{name}:{line}"
        if "supervisions" in record:
            yield line, _cut(record, where, places)
            continue
        if "recording_id" not in record:
            raise DataError(
                f"{where}: neither a cut nor a supervision of Lhotse; give the manifest of cuts, "
                f"or that of supervisions"
            )
        if recordings is None:
            recordings = _recordings_beside(path)
        recording = recordings.get(str(record["recording_id"]))
        if recording is None:
            raise DataError(
                f"{where}: the recording {record['recording_id']!r:.60} is not in "
                f"{_beside(path).name}; add it, or remove the line"
            )
        yield line, _row(record, [record], recording, where, places)


def _shar_rows(name: str, folder: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """The cuts of a shard of Lhotse Shar, whose audio is in the archive beside them."""
    audio = audio_by_cut(locate(name, folder).absolute())
    for line, record in _records(name, folder):
        said = _supervisions(record, f"{name}:{line}")
        if record.get("id") not in audio:
            raise DataError(
                f"{name}:{line}: the cut {record.get('id')!r:.60} is not in the archive beside it; "
                f"write the shard again"
            )
        # A member is the audio of the cut alone, whatever its start was.
        whole = {"audio": audio[str(record["id"])], "start": "", "end": ""}
        yield line, _said(said, record) | whole


def _supervisions(cut: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Raises DataError for what is no plain cut."""
    if cut.get("type") not in CUTS:
        raise DataError(
            f"{where}: a cut of type {cut.get('type')!r:.40}; only plain ones (MonoCut) are read: "
            f"save its audio (cuts.save_audios), and give the cuts of that"
        )
    said = cut.get("supervisions")
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise DataError(f"{where}: supervisions must be a list of objects; correct the line")
    return said


def _cut(cut: dict[str, Any], where: str, places: _Places) -> dict[str, str]:
    said, recording = _supervisions(cut, where), cut.get("recording")
    if not isinstance(recording, dict):
        raise DataError(f"{where}: the cut has no recording; features alone are not read")
    return _row(cut, said, recording, where, places)


def _row(
    part: Mapping[str, Any],
    said: Sequence[Mapping[str, Any]],
    recording: Mapping[str, Any],
    where: str,
    places: _Places,
) -> dict[str, str]:
    """A part of a recording, and what is said in it."""
    try:
        start, duration = float(part.get("start", 0.0)), float(part["duration"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{where}: start and duration must be numbers of seconds") from None
    return {
        "audio": places.of(_file_of(recording, part.get("channel"), where)),
        "start": f"{start:.6f}",
        "end": f"{start + duration:.6f}",
        **_said(said, part),
    }


def _said(said: Sequence[Mapping[str, Any]], part: Mapping[str, Any]) -> dict[str, str]:
    """What is said in a part of a recording, and by whom."""
    texts = [str(one.get("text") or "").strip() for one in said]
    first: Mapping[str, Any] = said[0] if said else {}
    return {
        "text": " ".join(" ".join(text.split()) for text in texts if text),
        "speaker": str(first.get("speaker") or ""),
        "language": str(first.get("language") or ""),
        "id": str(part.get("id", "")),
    }


def _file_of(recording: Mapping[str, Any], channel: Any, where: str) -> str:
    """The audio file of a recording. Raises DataError where that is not all."""
    sources = recording.get("sources")
    if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], dict):
        raise DataError(f"{where}: a recording of one audio file is needed; join its channels")
    (source,) = sources
    if source.get("type") != "file" or not isinstance(source.get("source"), str):
        raise DataError(
            f"{where}: the audio is a {source.get('type')!r:.40}, not a file; save it as one "
            f"(cuts.save_audios)"
        )
    if recording.get("transforms"):
        raise DataError(
            f"{where}: the recording is to be transformed ({recording['transforms']!r:.60}); save "
            f"the result (cuts.save_audios), or leave it to audio.speed_perturbation"
        )
    channels = source.get("channels")
    if isinstance(channels, list) and len(channels) > 1 and isinstance(channel, int):
        raise DataError(
            f"{where}: channel {channel} of {len(channels)} is meant; save it as a file of its own "
            f"(cuts.save_audios)"
        )
    return str(source["source"])


def _recordings_beside(path: Place) -> dict[str, dict[str, Any]]:
    beside = _beside(path)
    if not beside.is_file():
        raise DataError(
            f"{path.name} has supervisions, but the recordings are not beside it as {beside.name}; "
            f"give that name to their manifest, or give cuts"
        )
    return {str(one.get("id")): one for _, one in _records(str(beside), None)}


def _beside(path: Place) -> Place:
    """The manifest of recordings of one of supervisions."""
    return path.with_name(path.name.replace("supervisions", "recordings"))


def _records(name: str, folder: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(read_lines(name, folder, table=True), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: this is not valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{name}:{line}: each line must be a JSON object, as in {{...}}")
        yield line, record


class _Places:
    """Paths of a list, as they are from its folder."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        above = [] if isinstance(folder, RemotePath) else list(folder.parents)[:ABOVE]
        self._starts = [folder, *above]

    def of(self, place: str) -> str:
        if isinstance(self.folder, RemotePath) or is_remote(place) or Path(place).is_absolute():
            return place
        for start in self._starts:
            if (start / place).is_file():
                self._starts = [start]  # that of the first is that of all
                return os.path.relpath(str(start / place), str(self.folder))
        return place
