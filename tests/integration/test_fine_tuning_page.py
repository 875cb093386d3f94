"""docs/guides/fine-tuning.md: its example runs, shortened, and prints the tables of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from transduce.interop.adapters import export_peft, merge_folder
from transduce.recipe import Train, load_recipe
from transduce.tasks.transduce import load
from transduce.training import train

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "fine-tuning.md"
SHORT = ["train.steps=2", "validation.every=2", "validation.limit=2", "train.batch_tokens=400"]


def blocks(kind: str) -> list[str]:
    """The code blocks of a kind, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == kind]


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus, use = blocks("python")
    exec(compile(corpus, "the page", "exec"), {})
    *whole_recipes, extended = blocks("yaml")
    assert Train.model_validate(yaml.safe_load(extended)["train"]).start is not None
    recipes = dict(zip(("british", "american", "lora"), whole_recipes, strict=True))
    reported = {}
    for name, text in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
        recipe = load_recipe(tmp_path / f"{name}.yaml", [*SHORT, "data.train.limit=100"])
        whole = load_recipe(tmp_path / f"{name}.yaml")
        assert whole.train.steps > recipe.train.steps
        if name == "british":  # all of it, for the vocabulary of the page
            recipe = load_recipe(tmp_path / f"{name}.yaml", SHORT)
        train(recipe, tmp_path / "runs" / recipe.name)
        reported[name] = capfd.readouterr().err
    tables = [block for block in blocks("") if "Starting from" in block]
    for name, shown in zip(("american", "lora"), tables, strict=True):
        for line in shown.splitlines()[1:]:
            assert line in reported[name].splitlines(), line
        assert "Starting from runs/british (fingerprint " in reported[name]
    exec(compile(use, "the page", "exec"), {})
    merge_folder(Path("runs/american-lora"), Path("runs/merged"))
    merged, adapted = load("runs/merged"), load("runs/american-lora")
    sources, targets = ["may 12 2019"], ["2019-05-12"]
    found = [one.score(sources, targets)[0].log_probability for one in (merged, adapted)]
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    place = export_peft(Path("runs/american-lora"))
    assert {path.name for path in place.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
