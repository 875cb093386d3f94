"""The table of experiments, what is kept of them, and what the page of results says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def imported(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return imported("benchmarks/recipes.py")


def test_every_experiment_is_of_a_recipe_that_can_be(runner: ModuleType) -> None:
    experiments = runner.read_experiments()
    assert len(experiments) > 10
    assert len({one.fingerprint for one in experiments.values()}) > 10
    for one in experiments.values():
        assert one.seeds
        assert not (one.ensemble and len(one.seeds) < 2)


def test_a_candidate_never_sees_a_test_set(runner: ModuleType) -> None:
    for name, one in runner.read_experiments().items():
        if "-try-" in name:
            assert one.sets == ["valid"], name


def score(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 1, "high": value + 1}


def result(value: float) -> dict[str, Any]:
    training = {
        "seconds": 9.0,
        "steps": 10,
        "parameters": 1234,
        "device": "a CPU",
        "torch": "2",
        "precision": "float32",
    }
    scores = {"metrics": {"exact": score(value)}, "mean": {"exact": score(value + 5)}}
    test = {**scores, "groups": {"fre": {"exact": score(value - 10)}}}
    return {"training": training, "scores": {"valid": scores, "test": test}}


def test_results_are_kept_until_the_recipe_changes(runner: ModuleType, tmp_path: Path) -> None:
    results = runner.Results(tmp_path)
    one = runner.Experiment(name="x", group="g", recipe="copy", seeds=[1, 2], splits=["test"])
    assert not results.has(one, "1")
    results.add(one, "1", result(70.0))
    results.add(one, "2", result(72.0))
    assert results.has(one, "1")
    assert not results.has(one, "ensemble")
    assert "exact 71.00 ± 1.41  mean exact 76.00 ± 1.41" in runner.table([one], results)[1]
    changed = runner.replace(one, overrides=["model.width=32"])
    assert not results.has(changed, "1")
    kept = json.loads((tmp_path / "recipes_g.json").read_text("utf-8"))
    assert str(tmp_path) not in json.dumps(kept)


def test_the_page_has_ours_beside_the_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = imported("tools/recipe_results.py")
    published = {
        "g": {
            "title": "A set",
            "about": "Of words.",
            "metrics": {"word error rate, %": "100 - mean exact", "words right": "exact"},
            "not_for": {"words right": ["x-try-*"]},
            "by_group": "exact",
            "published": [
                {
                    "who": "Someone 2020",
                    "metric": "100 - mean exact",
                    "beside": ["x"],
                    "values": {"test": 21.5},
                    "source": "A paper.",
                    "differs": "In nothing.",
                    "quoted": ["test"],
                }
            ],
        }
    }
    (tmp_path / "published.yaml").write_text(json.dumps(published), "utf-8")
    only_valid = result(50.0)
    del only_valid["scores"]["test"]
    said = {"command": "python x", "overrides": ["model.width=8"], "recipe": "x"}
    experiments = {
        "x": {**said, "runs": {"1": result(70.0), "2": result(72.0), "ensemble": result(75.0)}},
        "x-try-y": {**said, "runs": {"1": only_valid}},
        "gone": {**said, "runs": {"1": result(1.0)}},
        "far": {**said, "runs": {"1": {**result(90.0), "at_once": 1}, "2": result(40.0)}},
    }
    experiments["far"]["runs"]["1"]["training"]["seconds"] = 3.0
    experiments["far"]["runs"]["2"]["at_once"] = 8
    (tmp_path / "g.yaml").write_text(json.dumps({"far": {}, "x": {}, "x-try-y": {}}), "utf-8")
    monkeypatch.setattr(page, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(page, "PUBLISHED", tmp_path / "published.yaml")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    assert page.pages() == {}
    (tmp_path / "recipes_g.json").write_text(json.dumps({"experiments": experiments}), "utf-8")
    text = "\n".join(page.pages()["g"])
    (beside,) = page.beside_published()
    assert beside[:2] == ["[`x`](results/g.md)", "word error rate, %, test"]
    assert beside[2] == "24.00 ± 1.41 (2 seeds)"
    assert beside[-1] == "a CPU"
    row = "| `x` | test | 2 | 24.00 ± 1.41 | 24.00 to 26.00 | 20.00 | 21.5 (Someone 2020) |"
    assert row in text
    assert "| `x-try-y` | 45.00 |  | model.width=8 |" in text
    assert "| `x` | test | 2 | 71.00 ± 1.41 | 69.00 to 71.00 | 75.00 |  |" in text
    assert "| `x` | 1,234 | 10 | 9 s | a CPU, torch 2, float32 | `python x` |" in text
    note = "- Someone 2020: A paper. In nothing. As commonly quoted, not seen at its source: test."
    assert note in text
    assert "| EXACT, test | `far` | `x` |" in text
    assert "| fre | 55.00 ± 35.36 | 61.00 ± 1.41 |" in text
    assert "| 30.00 ± 35.36 (5.0, 55.0) |" in text  # too far apart for a deviation to say much
    assert "| `far` | 1,234 | 10 | 3 s | a CPU" in text  # alone, not that beside seven others
    assert "gone" not in text  # it is no experiment any more
    assert text.index("`far`") < text.index("`x`")
