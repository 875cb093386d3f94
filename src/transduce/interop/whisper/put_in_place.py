"""An export of a Whisper model is written aside, compared, and only then put in place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from transduce.checksums import list_files, strangers
from transduce.errors import ModelError
from transduce.interop.parity import REPORT
from transduce.interop.whisper.export import export
from transduce.storage import replaced_folder, write_json
from transduce.tasks.whisper import WhisperModel


class Compared(NamedTuple):
    """How many weights of an export were read back and found equal bit for bit."""

    weights: int


def export_whisper(
    model: WhisperModel, to: str, place: Path, quantize: str | None, overwrite: bool
) -> tuple[Path, Compared]:
    """Export to a folder. Raises ModelError where it holds anything but an unchanged export."""
    filled = place.is_dir() and any(place.iterdir())
    if filled and not (place / REPORT).is_file():
        raise ModelError(f"{place} holds files that are not an export; give another --output")
    for found in [] if overwrite or not place.is_dir() else strangers(place):
        raise ModelError(
            f"{found} was changed since the export and would be removed: move it, give another "
            f"--output, or --overwrite"
        )
    with replaced_folder(place) as part:
        compared = Compared(export(model, part, to, quantize))
        write_json(part / REPORT, {"engine": to, "weights_equal": compared.weights})
        list_files(part, *strangers(part))
    return place, compared
