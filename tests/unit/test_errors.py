"""Warnings name the line of the user that led to them, however deep in the package they arise."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

from transduce import errors
from transduce.errors import unreadable
from transduce.tasks.folder import update_metrics


def test_a_warning_names_the_line_outside_the_package(tmp_path: Path) -> None:
    update_metrics(tmp_path, "test", {"items": 1})
    (tmp_path / "metrics.json").write_text("{}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        update_metrics(tmp_path, "valid", {"items": 3})
        errors.warn("at once")
    assert [one.filename for one in caught] == [__file__, __file__]
    assert [str(one.message) for one in caught][1] == "at once"
    assert caught[1].lineno == caught[0].lineno + 1


def test_a_file_that_one_may_not_read_has_a_hint() -> None:
    refused = unreadable("a.tsv", PermissionError(errno.EACCES, "Permission denied"))
    assert str(refused).startswith("a.tsv cannot be read: Permission denied; let your user read it")
    broken = unreadable("a.tsv", OSError(errno.EIO, "Input/output error"))
    assert str(broken) == "a.tsv cannot be read: Input/output error"
