"""The command line, typed in a test."""

from __future__ import annotations

import io
import sys

import pytest

from command_line import Ended, Transduce
from transduce.cli import main as cli


@pytest.fixture
def transduce(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Transduce:
    """The command, in this process."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return Ended(int(end.value.code or 0), out, err)

    return run
