"""Errors that a user can cause. Each has one sentence: what, where, and how to fix it."""

from __future__ import annotations


class TransduceError(Exception):
    """The command line prints its sentence and exits with status 2; no traceback."""


class RecipeError(TransduceError):
    """A recipe, or an override on the command line, is invalid."""


class PluginError(RecipeError):
    """A plugin cannot be loaded, or registers what cannot be."""


class DataError(TransduceError):
    """A corpus or one of its lines cannot be used."""


class TokensError(TransduceError):
    """A tokenizer cannot be trained, loaded or applied."""


class ModelError(TransduceError):
    """A model folder cannot be used, or a model cannot do what was asked of it."""


class CheckpointError(TransduceError):
    """A checkpoint cannot be written or read."""


class TrainingError(TransduceError):
    """Training cannot continue."""


class HardwareError(TransduceError):
    """The requested device is not available."""


class TransduceWarning(UserWarning):
    """A warning in one sentence, which stops nothing."""
