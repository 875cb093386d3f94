"""Glossaries that clients have made, and the folder that keeps them over a restart of the server.

A glossary is a file of JSON, ID.json. API keys are not written: a file has the SHA-256 of the key
that it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from transduce.decoding.constraints.glossary import Glossary
from transduce.errors import CheckpointError, DataError
from transduce.serving.errors import ServiceError
from transduce.storage import write_json

Pair = tuple[str, str]
"""The codes of source and target, such as EN and DE."""


@dataclass(frozen=True)
class Stored:
    """A glossary of a client."""

    id: str
    owner: str
    """See `owner_of`."""
    name: str
    created: str
    dictionaries: Mapping[Pair, Glossary]

    @property
    def characters(self) -> int:
        return sum(one.characters for one in self.dictionaries.values())

    def about(self) -> dict[str, Any]:
        """As version 3 of DeepL's protocol shows it."""
        return {
            "glossary_id": self.id,
            "name": self.name,
            "creation_time": self.created,
            "dictionaries": [about(pair, self.dictionaries[pair]) for pair in self.dictionaries],
        }

    def about_one(self) -> dict[str, Any]:
        """As version 2 shows one of a single pair."""
        ((pair, glossary),) = self.dictionaries.items()
        return {
            "glossary_id": self.id,
            "name": self.name,
            "ready": True,
            "creation_time": self.created,
            **about(pair, glossary),
        }


def owner_of(key: str) -> str:
    """Whose a glossary is: of an API key, or of all where the server requires none."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""


def about(pair: Pair, glossary: Glossary) -> dict[str, Any]:
    source, target = (language.lower() for language in pair)
    return {"source_lang": source, "target_lang": target, "entry_count": len(glossary.entries)}


class GlossaryFolder:
    """A folder of glossaries."""

    def __init__(self, path: Path) -> None:
        """Raises DataError where there can be no such folder."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"glossaries cannot be kept in {path} ({error.strerror}); give another folder"
            ) from None
        self.path = path

    def read(self) -> Iterator[Stored]:
        """All that it holds. Raises DataError for a file that is none of ours."""
        for file in sorted(self.path.glob("*.json")):
            try:
                values = json.loads(file.read_text("utf-8"))
                dictionaries = {
                    (one["source"], one["target"]): Glossary(one["entries"], str(file))
                    for one in values["dictionaries"]
                }
                owner, name, created = (values[key] for key in ("owner", "name", "created"))
                if not all(isinstance(text, str) for text in (owner, name, created)):
                    raise TypeError
            except (OSError, ValueError, TypeError, KeyError, DataError) as error:
                raise DataError(
                    f"{file} is no glossary of this server ({type(error).__name__}); move it "
                    f"elsewhere, or restore it from a backup"
                ) from None
            yield Stored(file.stem, owner, name, created, dictionaries)

    def write(self, stored: Stored) -> None:
        """Raises ServiceError; then the file is as it was."""
        dictionaries = [
            {"source": source, "target": target, "entries": glossary.entries}
            for (source, target), glossary in stored.dictionaries.items()
        ]
        values = {"owner": stored.owner, "name": stored.name, "created": stored.created}
        try:
            write_json(self._file(stored), values | {"dictionaries": dictionaries})
        except CheckpointError as error:
            raise _failed(error) from error

    def remove(self, stored: Stored) -> None:
        """Raises ServiceError."""
        try:
            self._file(stored).unlink(missing_ok=True)
        except OSError as error:
            raise _failed(error) from error

    def _file(self, stored: Stored) -> Path:
        return self.path / f"{stored.id}.json"


def _failed(error: Exception) -> ServiceError:
    failure = ServiceError(500, "the server could not keep the change; try again", "storage")
    failure.__cause__ = error  # for the log: it names folders
    return failure
