"""Publishing: a model is there as a whole or not at all, and the folder here is only read."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transduce import hub
from transduce.cli.commands.convert.publish import publish
from transduce.errors import ModelError

TRANSLATE = Path(__file__).parents[4] / "fixtures" / "models" / "translate"


class Killed(BaseException):
    """As SIGINT and SIGTERM end a process: nothing that handles errors sees it."""


class Hub:
    """What publish asks of huggingface_hub; `fails` is raised by the call of that name."""

    def __init__(self, fails: str = "", error: BaseException | None = None) -> None:
        self.fails, self.error = fails, error
        self.calls: list[str] = []
        self.there: dict[str, bytes] = {}

    def HfApi(self, **_: Any) -> Hub:
        return self

    def CommitOperationAdd(self, name: str, content: str | bytes) -> SimpleNamespace:
        return SimpleNamespace(name=name, content=content)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails and self.error is not None:
            raise self.error

    def create_repo(self, *_: Any, **__: Any) -> None:
        self._called("create_repo")

    def create_branch(self, *_: Any, **__: Any) -> None:
        self._called("create_branch")

    def create_commit(
        self, repository: str, operations: list[SimpleNamespace], **_: Any
    ) -> SimpleNamespace:
        self._called("create_commit")
        for one in operations:
            raw = one.content if isinstance(one.content, bytes) else Path(one.content).read_bytes()
            self.there[one.name] = raw
        return SimpleNamespace(commit_url=f"https://hub.test/{repository}/commit/1")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(TRANSLATE, tmp_path / "model")


@pytest.mark.parametrize("call", ["create_repo", "create_branch", "create_commit"])
def test_a_kill_leaves_nothing_half_written(
    model: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    theirs = Hub(call, Killed())
    monkeypatch.setattr(hub, "load_hub", lambda: theirs)
    before = contents(model)
    with pytest.raises(Killed):
        publish(model, "user/name", revision="v1")
    assert theirs.there == {}
    assert contents(model) == before
    # All files go up by one commit, so that the hub has all of them or none.
    theirs.fails = ""
    publish(model, "user/name", revision="v1")
    assert theirs.calls.count("create_commit") == 1 + (call == "create_commit")
    assert {"model.safetensors", "model.sha256", "recipe.yaml", "README.md"} <= set(theirs.there)
    assert contents(model) == before


def test_what_the_hub_refuses_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Hub("create_commit", RuntimeError("the disk\nis full"))
    monkeypatch.setattr(hub, "load_hub", lambda: theirs)
    before = contents(model)
    with pytest.raises(ModelError, match="was not published: the disk is full"):
        publish(model, "user/name")
    assert theirs.there == {}
    assert contents(model) == before
