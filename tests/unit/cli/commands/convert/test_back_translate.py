"""The command back-translate: pairs with the given text as target, and going on after a stop."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Transduce, sentence
from transduce.cli.commands.convert import back_translate as command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and locks")
MODEL = Path(__file__).parents[4] / "fixtures" / "models" / "translate"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


def test_pairs_are_outputs_and_their_inputs(
    transduce: Transduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["ab", "", "bca", "a", "cc"]
    (tmp_path / "mono.txt").write_text("".join(f"{text}\n" for text in texts))
    pairs = tmp_path / "pairs.tsv"
    asked = ["back-translate", MODEL, "--input", tmp_path / "mono.txt", "--output", pairs]
    asked += ["--shard-lines", 2, "--workers", 1]
    # Stopped after the job, before the pairs are written: the finished shards are kept.
    stopped: list[Any] = []

    def stop(job: Path) -> Any:
        stopped.append(sorted(path.name for path in job.glob("part-*")))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "_rows", stop)
        assert transduce(*asked).status == 130
    assert len(stopped[0]) == 3
    assert not pairs.exists()
    ended = transduce(*asked)
    assert ended.status == 0, ended.err
    assert "3 of 3 shards are finished already" in ended.err
    assert "4 pairs; 1 line without an output left out" in ended.out
    outputs = transduce("run", MODEL, *filter(None, texts)).lines
    expected = [f"{out}\t{text}" for out, text in zip(outputs, filter(None, texts), strict=True)]
    assert pairs.read_text().splitlines() == expected
    assert not list(tmp_path.glob("*.job"))
    assert "pairs.tsv" in sentence(transduce(*asked))  # not overwritten
    marked = transduce(*asked, "--overwrite", "--mark", "<bt>")
    assert marked.status == 0, marked.err
    assert pairs.read_text().splitlines() == [f"{line}\tbt" for line in expected]


def test_mistakes_are_one_sentence(transduce: Transduce, tmp_path: Path) -> None:
    shutil.copy(MODEL / "recipe.yaml", tmp_path / "a.csv")
    (tmp_path / "a.txt").write_text("ab\n")
    for name, output, more, message in [
        ("a.csv", "b.tsv", [], "--input is csv; give plain text"),
        ("a.txt", "b.txt", [], "the name must end in .tsv"),
        ("a.txt", "b.tsv", ["--mark", "a b"], "--mark is 'a b'; it must be one word"),
        ("b.txt", "b.tsv", [], "no file matches"),
    ]:
        typed = ["--input", tmp_path / name, "--output", tmp_path / output, *more]
        assert message in sentence(transduce("back-translate", MODEL, *typed))
