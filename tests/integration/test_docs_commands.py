"""The commands and the Python of pages that have no test of their own, run with small stand-ins.

tests/docs_pages.py has the stand-ins; tests/unit/test_docs_blocks.py checks that every block is run
by some test, or stands in its list of those that cannot be.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from docs_blocks import CANNOT_RUN, Block, all_blocks
from docs_pages import PAGES, Page
from transduce.cli import main as cli

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page, blocks = PAGES[name], [block for block in all_blocks() if block.page == name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepare(page, blocks, tmp_path)
    names: dict[str, Any] = {} if page.names is None else page.names(tmp_path)
    used: set[str] = set()
    for block in blocks:
        if block.kind == "python" and page.runs_python:
            exec(compile(page.code(block), f"{name}.md", "exec"), names)
        for command in block.commands:
            if any(re.search(pattern, command) for pattern in CANNOT_RUN):
                continue
            if page.fails and f"$ {command}" in block.text:
                fail(command, block, monkeypatch, capfd)
                continue
            line, changed = page.changed(command)
            used |= changed
            run(line, monkeypatch, capfd)
    assert used == {pattern for pattern, _ in page.changes}, "a change that changes nothing"


def prepare(page: Page, blocks: list[Block], folder: Path) -> None:
    for place, model in page.models.items():
        (folder / place).parent.mkdir(exist_ok=True)
        shutil.copytree(MODELS / model, folder / place)
    for file, text in page.files.items():
        (folder / file).write_text(text, "utf-8")
    for block in blocks:
        if block.kind == "yaml" and (title := re.match(r"# (\S+\.yaml)\n", block.text)):
            (folder / title[1]).write_text(block.text, "utf-8")
    if page.prepare is not None:
        page.prepare(folder)


def fail(
    command: str, block: Block, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command ends with the sentences that the page shows after it."""
    ended, _, said = typed(shlex.split(command), patch, capfd)
    assert ended == 2
    assert said.splitlines() == re.findall(r"^transduce: .*$", block.text, re.MULTILINE)


def typed(
    words: list[str], patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[object, str, str]:
    """The exit status of a command, and what it has printed."""
    capfd.readouterr()
    patch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capfd.readouterr()
    return end.value.code, printed.out, printed.err


def run(line: str, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A command ends well, and says something; what the shell would write is written."""
    words = shlex.split(line)
    while re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        words.pop(0)
    if words[0] == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return
    assert words[0] == "transduce", line
    if words[1] == "serve":
        serve(words[1:])
        return
    words, file = (words[:-2], words[-1]) if ">" in words else (words, None)
    ended, out, said = typed(words, patch, capfd)
    assert ended == 0, (line, said)
    assert out or said, line
    if file:
        Path(file).write_text(out, "utf-8")


def serve(words: list[str]) -> None:
    """A server comes up, says where, is ready, and ends when it is asked to."""
    words = re.sub(r"--port \d+", "", shlex.join(words)).split()
    command = [sys.executable, "-m", "transduce", *words, "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert server.stdout is not None
    try:
        said = server.stdout.readline()
        address = re.search(r"http://\S+", said)
        assert address is not None, said
        with urllib.request.urlopen(f"{address[0]}/ready") as answer:
            assert answer.status == 200
    finally:
        server.send_signal(signal.SIGTERM)
        _, reported = server.communicate(timeout=200)
    assert server.returncode == 0, reported
