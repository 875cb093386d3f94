"""Control characters of data reach no terminal; files and pipes get the text as it is."""

from __future__ import annotations

import io
import sys
import time

import pytest

from transduce.terminal import Filtered, Waiting, console, duration, guarded, plain

HOSTILE = "a\x1b]0;title\x07b\x9b2Jc\rd\u2028e\ud800f\x7fg"
SHOWN = "a\\x1b]0;title\\x07b\\x9b2Jc\\x0dd\\u2028e\\ud800f\\x7fg"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_as_escapes() -> None:
    assert plain(HOSTILE) == SHOWN
    kept = "tab\tline\n é 茶 🎉 \u202eעברית\u202c ا\u200dب"
    assert plain(kept) == kept


def test_a_terminal_is_filtered_and_a_pipe_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err, raw = Terminal(), io.StringIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with guarded():
        print(HOSTILE)
        sys.stdout.writelines(["\x1b", "\n"])
        print(HOSTILE, file=sys.stderr)
        assert sys.stdout.isatty()
    assert sys.stdout is out
    assert out.getvalue() == f"{SHOWN}\n\\x1b\n"
    assert err.getvalue() == f"{SHOWN}\n"
    piped = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", piped)
    with guarded():
        print("\x1b[31mé\ud800")
    piped.flush()
    assert raw.getvalue().decode("utf-8") == "\x1b[31mé\\ud800\n"


def test_rich_keeps_its_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", Filtered(out))
    shown = console(force_terminal=True, color_system="standard", highlight=False)
    table = Table()
    table.add_column("text")
    table.add_row("\x1b]0;title\x07 and more")
    shown.print("\x1b[2Jred", style="red", markup=False)
    shown.print(table)
    text = out.getvalue()
    assert "\x1b[31m\\x1b[2Jred\x1b[0m" in text
    assert "\\x1b]0;t" in text
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3599, "1 h 0 min"),
        (9000, "2 h 30 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_goes_on_is_said_while_nothing_else_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "SECONDS", 0.01)
    printed = ""
    with Waiting() as waiting:
        waiting.set("reading")
        while printed.count("\n") < 2:
            printed += capsys.readouterr().err
        waiting.set("counting")
        while printed.count("\n") < 3:
            printed += capsys.readouterr().err
        said = ["transduce: reading", "transduce: reading", "transduce: counting"]
        assert printed.splitlines()[:3] == said
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""  # it ends
