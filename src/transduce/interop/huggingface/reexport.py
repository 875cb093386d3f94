"""Export of a model that was imported from Hugging Face: its own class, names and ids again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.tasks.transduce import Transducer


def export_imported(model: Transducer, origin: dict[str, Any], folder: Path) -> str:
    raise NotImplementedError
