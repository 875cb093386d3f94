"""Errors a person can cause. Each carries one plain sentence: what, where, and how to mend it."""

from __future__ import annotations


class TransduceError(Exception):
    """The command line prints the sentence and exits with status 2; no traceback."""


class RecipeError(TransduceError):
    """A recipe, or an override on the command line, asks for something that cannot be."""


class DataError(TransduceError):
    """A corpus or a line of it cannot be used."""


class TokensError(TransduceError):
    """A tokeniser cannot be trained, loaded or applied."""


class ModelError(TransduceError):
    """A model folder cannot be used, or a model cannot do what was asked of it."""


class CheckpointError(TransduceError):
    """The training state on disk cannot be written or read back."""


class TrainingError(TransduceError):
    """Training cannot go on."""


class HardwareError(TransduceError):
    """A device is asked for that is not there."""


class TransduceWarning(UserWarning):
    """Something that a person should know of and that stops nothing, in one sentence."""
