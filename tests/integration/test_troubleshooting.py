"""docs/reference/troubleshooting.md: the sentences that it shows are those that are printed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from transduce.cli import main as cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "troubleshooting.md").read_text("utf-8")
SENTENCES = re.findall(r"^transduce: (.*)$", PAGE, re.MULTILINE)
RECIPE = """
name: numbers
data:
  train: {file: good.tsv}
  valid: {file: good.tsv}
  tokens: {source: {level: word}, target: {level: character}}
"""
# What is typed, and the beginning of the sentence that comes.
MISTAKES = {
    "train my.yaml train.learning_rate=1": "on the command line: unknown key train.learning_rate",
    "train my.yaml name=d model.heads=3": "on the command line: unknown key model.heads",
    "train my.yaml name=d model.width=65": "on the command line: model.width is 65",
    "train my.yaml name=d data.train.file=nope.tsv": "there is no file",
    "train my.yaml name=d data.train.file=bad.tsv": "bad.tsv:2: the line has 1 column",
    "train my.yaml": "runs/numbers already holds a run",
    "run runs/number x": "there is no folder runs/number",
    "train my.yaml name=d train.device=cuda": "the device cuda cannot be used here",
    "run runs/numbers Ж-Ж": "source 1: 3 of its 3 tokens are not in the vocabulary",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_sentence_of_the_page(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    if "cuda" in typed and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(RECIPE)
    (tmp_path / "good.tsv").write_text("one\t1\ntwo\t2\n")
    (tmp_path / "bad.tsv").write_text("one\t1\ntwo 2\n")
    shutil.copytree(ROOT / "tests" / "fixtures" / "models" / "translate", "runs/numbers")
    Path("runs/numbers/state").mkdir(exist_ok=True)
    Path("runs/numbers/state/training.safetensors").touch()
    monkeypatch.setattr(sys, "argv", ["transduce", *typed.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    warned = typed.startswith("run runs/numbers ")
    assert end.value.code == (0 if warned else 2)
    shown = [sentence for sentence in SENTENCES if sentence.startswith(MISTAKES[typed])]
    assert len(shown) == 1
    said = capfd.readouterr().err.replace(f"{tmp_path}/", "")
    if "CUDA" in shown[0]:  # the reason is torch's
        shown[0] = shown[0].split(" (")[0]
    assert shown[0] in said


def test_every_sentence_of_the_page_is_tried() -> None:
    assert len(SENTENCES) == len(MISTAKES)
