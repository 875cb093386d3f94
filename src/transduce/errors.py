"""Errors that a user can cause. Each has one sentence: what, where, and how to fix it."""

from __future__ import annotations

import importlib
import sys
import warnings
from errno import EACCES
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent)


class TransduceError(Exception):
    """The command line prints its sentence and exits with status 2; no traceback."""


class RecipeError(TransduceError):
    """A recipe, or an override on the command line, is invalid."""


class PluginError(RecipeError):
    """A plugin cannot be loaded, or registers what cannot be."""


class DataError(TransduceError):
    """A corpus or one of its lines cannot be used."""


class MissingPackageError(DataError):
    """A package that reads a kind of file is not installed: no fault of the file."""


class TokensError(TransduceError):
    """A tokenizer cannot be trained, loaded or applied."""


class ModelError(TransduceError):
    """A model folder cannot be used, or a model cannot do what was asked of it."""


class CheckpointError(TransduceError):
    """A checkpoint cannot be written or read."""


class TrainingError(TransduceError):
    """Training cannot continue."""


class DivergedError(TrainingError):
    """The loss or its gradient stays NaN or infinite."""


class HardwareError(TransduceError):
    """The requested device is not available."""


class TransduceWarning(UserWarning):
    """A warning in one sentence, which stops nothing."""


def warn(sentence: str) -> None:
    """A warning at the line outside this package that led to it, however deep it is called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, TransduceWarning, stacklevel=level)


def warn_once(sentence: str) -> None:
    """A warning that Python's own filter shows once in a process, wherever it comes from."""
    warnings.warn(sentence, TransduceWarning, stacklevel=1)


def unreadable(name: object, error: OSError) -> DataError:
    """For a file that the system does not let us read."""
    how = "; let your user read it (chmod), or name another" if error.errno == EACCES else ""
    return DataError(f"{name} cannot be read: {error.strerror or error}{how}")


def load_package(
    name: str, extra: str, what: str = "this", error: type[TransduceError] = ModelError
) -> Any:
    """Import a package of an extra; the error says `what` needs it, and how to install it.

    Never at the top of a file: CTranslate2 has its own OpenMP, which takes the cores from torch's
    as soon as it is loaded.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as problem:  # OSError: it is there, its shared library is not
        raise error(
            f"{what} needs the package {name}, which cannot be loaded here ({problem}): "
            f"pip install '.[{extra}]'"
        ) from None
