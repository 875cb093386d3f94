"""Messages for errors that a user can cause: one sentence in place of a traceback."""

from __future__ import annotations

import difflib
import errno
import re
import sys
import warnings
from typing import TextIO

import typer

from transduce.errors import TransduceError, TransduceWarning

# What the loader says of a shared library for which there is no memory.
NOT_MAPPED = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

# Of other commands than train.
ELSE = "; in decoding fewer or shorter inputs at once, or a smaller beam"


def user_message(error: BaseException) -> str | None:
    """The message for an error that a user can cause; None for a bug."""
    if isinstance(error, TransduceError):
        return str(error)
    if isinstance(error, typer.BadParameter.__mro__[1]):  # click's UsageError
        return _usage(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, OSError) and error.errno in WRITE_ERRORS:  # no file name: a stream
        return f"standard output cannot be written: {error.strerror}"
    if type(error).__name__ == "PanicException":  # a panic of a Rust library; not an Exception
        return f"a library has failed on this input: {' '.join(str(error).split())}"
    if isinstance(error, ImportError) and NOT_MAPPED.search(str(error)):
        return (
            "there is not enough memory to load the libraries that this needs, such as torch: end "
            "other programs, or raise the limit of the shell (ulimit -v)"
        )
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory; in training try a smaller train.batch_tokens, or "
            f"data.streaming=true{ELSE}"
        )
    if isinstance(error, RuntimeError) and "memory" in str(error) and "alloc" in str(error):
        return (
            f"out of memory on the device: in training try half of train.batch_tokens and "
            f"train.accumulate=2{ELSE}"
        )
    return None


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """For `warnings.showwarning`: TransduceWarning as one line, others as Python prints them."""
    if issubclass(category, TransduceWarning):
        print(f"transduce: warning: {message}", file=file or sys.stderr)
        return
    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr)


def _usage(error: BaseException) -> str:
    message = " ".join(str(error.format_message()).split()).rstrip(".")  # type: ignore[attr-defined]
    message = message.partition(", unable to parse")[0].replace("Input should be", "it must be")
    option = str(getattr(error, "option_name", ""))
    if "." in option:
        return f"{message}; overrides have no dashes: {option.lstrip('-')}=..."
    context = getattr(error, "ctx", None)
    if message.endswith("?"):
        return message
    if option:
        message = message.partition(" (Possible options")[0]
        known = getattr(error, "possibilities", None) or []
        near = difflib.get_close_matches(option, known, 1, cutoff=0.75)
        if near:
            return f"{message}; did you mean {near[0]}?"
        if context is not None and "overrides" in (given.name for given in context.command.params):
            return f"{message}; a key of the recipe is set by its name alone: train.steps=1000"
    return f"{message}; see {context.command_path if context else 'transduce'} --help"
