"""What `transduce corpus` prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loopback import Loopback, status
from tiny_corpus import CONTENTS
from transduce.cli import main as cli
from transduce.corpora import get
from transduce.corpora.entry import Listing


def command(*words: str, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    """All that a command prints, with its exit status first."""
    patch.setattr(sys, "argv", ["transduce", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    return f"{end.value.code}\n{printed.out}{printed.err}"


def test_the_list(
    tiny: Listing,
    shelf: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transduce.corpora.show.FETCHED", {"tiny": tiny})
    lines = command("corpus", "list", capsys=capsys, patch=monkeypatch).splitlines()
    assert lines[1].split() == ["corpus", "to", "fetch", "licence"]
    assert lines[2].startswith("cmudict  here")
    assert lines[5].split("  ")[0] == "tiny"
    assert lines[5].endswith("0.2 MB    public domain  dogs and cats")
    assert lines[-1].endswith(f"They are kept in {shelf}")
    get(tiny, shelf, None, lambda file, there: None)
    lines = command("corpus", "list", capsys=capsys, patch=monkeypatch).splitlines()
    assert lines[5].startswith("tiny     here  0.2 MB")


def test_getting(
    tiny: Listing,
    server: Loopback,
    shelf: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*words: str) -> str:
        return command("corpus", "get", *words, capsys=capsys, patch=monkeypatch)

    said = run("tiny").splitlines()
    assert said == [
        "0",
        "tiny: dogs and cats",
        "  licence:  in the public domain",
        "  home:     https://example.org",
        "  size:     0.2 MB to download, 0.3 MB on disk",
        f"  goes to:  {shelf}/tiny",
        "Done: train 5,000 pairs.",
        "In a recipe: train: {name: tiny, split: train, pair: en-de}",
    ]
    assert "It was there already, and is intact: train 5,000" in run("tiny")
    for name, text in CONTENTS.items():
        (tmp_path / name).write_bytes(text)
    said = run("tiny", "--from", str(tmp_path), "--output", str(tmp_path / "other")).splitlines()
    assert said[4] == f"  size:     from {tmp_path}, 0.3 MB on disk"
    assert said[-1] == f"For recipes to find it there: export TRANSDUCE_DATA={tmp_path}/other"
    assert (tmp_path / "other" / "tiny" / "train.de").is_file()
    assert run("copy") == "0\ncopy comes with transduce; there is nothing to get.\n"
    assert run("tny") == "2\ntransduce: there is no corpus named tny; did you mean tiny?\n"
    assert run("tiny", "--from", "/no", "--output", str(tmp_path / "3")).endswith(
        "transduce: there is no folder /no; name the one that holds tiny\n"
    )


def test_what_goes_wrong_is_one_sentence(
    tiny: Listing,
    server: Loopback,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.replies["one.en.gz"] = [status(404)]
    said = command("corpus", "get", "tiny", capsys=capsys, patch=monkeypatch)
    assert said.startswith("2\ntiny: dogs and cats\n  licence:")  # before anything is fetched
    last = said.splitlines()[-1]
    assert last.startswith("transduce: http://127.0.0.1:")
    assert "answers 404 (Not Found)" in last
    assert said.count("transduce: ") == 1
