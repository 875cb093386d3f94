"""Distillation and back-translation: the page's commands in reduced size; resuming; mistakes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transduce import load
from transduce.cli import main as cli
from transduce.errors import ModelError, RecipeError
from transduce.recipe import Recipe, load_recipe, parse_recipe
from transduce.tasks.folder import read_metrics
from transduce.training import train
from transduce.training.log import read_log

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "distillation.md"


def run(patch: pytest.MonkeyPatch, *typed: str) -> int:
    patch.setattr(sys, "argv", ["transduce", *typed])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform == "win32", reason="batch needs fork")
def test_the_commands_of_the_page(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    lines = (task / "train.tsv").read_text().splitlines(keepends=True)
    # Less than there is, so that more of it helps.
    (tmp_path / "train.tsv").write_text("".join(lines[:400]))
    (tmp_path / "mono.txt").write_text("".join(f"{line.split()[1]}\n" for line in lines[400:]))
    for split in ("valid", "test"):
        (tmp_path / f"{split}.tsv").write_text((task / f"{split}.tsv").read_text())
    text = PAGE.read_text("utf-8")
    for name, body in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.DOTALL):
        body, count = re.subn("steps: 400", "steps: 200", body)  # short words: half will do
        assert count == 1
        (tmp_path / name).write_text(body, "utf-8")
    blocks = re.findall(r"```\n((?:transduce|cut) .*?)```", text, re.DOTALL)
    commands = "".join(blocks).splitlines()
    assert len(commands) == 11
    for command in commands:
        if command.startswith("cut"):
            subprocess.run(command, shell=True, check=True)
        else:
            assert run(monkeypatch, *shlex.split(command)[1:]) == 0, command
    pairs = [line.split("\t") for line in Path("synthetic.tsv").read_text().splitlines()]
    assert len(pairs) == 200
    assert {mark for _, _, mark in pairs} == {"bt"}
    right = sum(source == target[::-1] for source, target, _ in pairs)
    assert right > 100  # they are translations, source first
    for name in ("student", "distilled", "forwards"):
        assert read_metrics(Path("runs") / name)["test"]["metrics"]["exact"]["value"] > 50, name


def losses(folder: Path, key: str = "loss") -> list[float]:
    return [r[key] for r in read_log(folder / "log.jsonl") if r["kind"] == "train"]


@pytest.fixture(scope="module")
def teacher(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    few = ["train.steps=30", "validation.every=30", "validation.limit=1", "model.width=16"]
    train(load_recipe(task / "tiny.yaml", few), folder)
    return folder


def taught(task: Path, teacher: Path, steps: int, **keys: object) -> Recipe:
    settings = {"train.steps": steps, "train.log_every": 1, "validation.every": 6}
    settings |= {"validation.limit": 1, "model.dropout": 0.1}
    settings["data.tokens"] = f"{{both: {{file: {teacher}/target.tokens.json}}}}"
    settings |= {"train.teacher": f"{{model: {teacher}, weight: 0.9, temperature: 2}}", **keys}
    return load_recipe(task / "tiny.yaml", [f"{key}={value}" for key, value in settings.items()])


def test_a_student_resumes_to_the_letter(
    task: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (teacher / "model.safetensors").read_bytes()
    train(taught(task, teacher, 6), tmp_path / "whole")
    train(taught(task, teacher, 3), tmp_path / "parts")
    train(taught(task, teacher, 6), tmp_path / "parts", resume=True)
    for key in ("loss", "objective"):
        assert losses(tmp_path / "whole", key) == losses(tmp_path / "parts", key)
    # A teacher without weight changes nothing: it takes no random numbers of the student's.
    train(taught(task, teacher, 6, **{"train.teacher": "null"}), tmp_path / "alone")
    light = f"{{model: {teacher}, weight: 1e-12}}"
    train(taught(task, teacher, 6, **{"train.teacher": light}), tmp_path / "light")
    assert losses(tmp_path / "light") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert losses(tmp_path / "whole")[1:] != pytest.approx(losses(tmp_path / "alone")[1:], rel=1e-5)
    assert (teacher / "model.safetensors").read_bytes() == before
    assert "have changed" not in capsys.readouterr().err
    # The same folder with other weights is another teacher.
    model = load(teacher)
    with torch.no_grad():
        model.network.head.bias.add_(0.5)
    other = tmp_path / "teacher"
    shutil.copytree(teacher, other)
    train(taught(task, other, 1), tmp_path / "moved")
    model.save(other)
    train(taught(task, other, 2), tmp_path / "moved", resume=True)
    assert f"the weights of the teacher {other} have changed" in capsys.readouterr().err


def test_a_teacher_that_cannot_teach_is_reported(task: Path, teacher: Path, tmp_path: Path) -> None:
    other = {"data.tokens": "{both: {level: byte}}"}
    with pytest.raises(ModelError, match=r"another source vocabulary; use the teacher's: data\.t"):
        train(taught(task, teacher, 2, **other), tmp_path / "run")
    nowhere = {"train.teacher": "{model: nowhere}"}
    with pytest.raises(ModelError, match="there is no folder"):
        train(taught(task, teacher, 2, **nowhere), tmp_path / "run")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("train: {teacher: {model: a}, r_drop: 1}", r"train\.r_drop is 1\.0, which does not go"),
        ("train: {teacher: {model: a, weight: 2}}", r"train\.teacher\.weight is 2"),
        ("task: classify\ntrain: {teacher: {model: a}}", r"train\.teacher is for task: transduce"),
    ],
)
def test_mistakes_in_the_recipe(keys: str, message: str) -> None:
    data = "data: {train: {file: a.tsv}, valid: {file: a.tsv}}"
    with pytest.raises(RecipeError, match=message):
        parse_recipe(f"{data}\n{keys}\n", "r.yaml", Path())
