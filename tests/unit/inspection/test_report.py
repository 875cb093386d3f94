"""The report of a run: what was measured, nothing that runs, and nobody's own file replaced."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

import transduce
from tiny_models import SOURCES, TARGETS, tiny
from transduce.checksums import is_ours
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item
from transduce.evaluation.results import write_evaluation
from transduce.inspection.report import energy_estimate, report_page, write_report
from transduce.tasks.folder import conflicting_file, discard_run, update_metrics

EVIL = "<script>alert('x')</script><img src=http://evil>"
FULL = [place for place, source in enumerate(SOURCES) if source]
TRAINING = {
    "steps": 1234,
    "seconds": 7200.0,
    "best_step": 1200,
    "best": {"cer": 12.5},
    "device": "NVIDIA A100-SXM4-40GB",
    "processes": 2,
    "precision": "bfloat16",
    "torch": "2.0",
    "data": {"train": {"pairs": 4321, "source_tokens": 10, "target_tokens": 98765}},
}


def filled(folder: Path) -> None:
    records = [
        {"kind": "train", "step": 10, "loss": 4.0},
        {"kind": "train", "step": 20, "loss": None},
        {"kind": "train", "step": 30, "loss": 2.0},
        {"kind": "valid", "step": 15, "loss": 3.5, "cer": 50.0},
        {"kind": "valid", "step": 30, "loss": 2.5, "cer": 12.5},
    ]
    lines = [json.dumps(record) for record in records]
    (folder / "log.jsonl").write_text("\n".join([*lines, '{"kind": "tr']))
    update_metrics(folder, "training", TRAINING)


def test_all_that_was_measured_is_there(tmp_path: Path) -> None:
    model = tiny(metrics=["cer", "exact"])
    filled(tmp_path)
    items = [Item(SOURCES[n], [TARGETS[n] or "tea"]) for n in FULL] + [Item("tea", [EVIL])]
    found = evaluate(model, items, ["cer", "exact"], bootstrap=50)
    write_evaluation(tmp_path, "test", found)
    page = report_page(model, tmp_path, found)
    assert "Best in validation: cer 12.5, at update 1,200." in page
    value = found.metrics["cer"].value
    assert f"<td>{value:.2f}</td>" in page
    # Training and validation loss are in one drawing, on one scale.
    first = page.partition("Learning curves")[2].partition("</svg>")[0]
    assert first.count("<polyline") == 2
    assert ">training<" in first
    assert ">validation<" in first
    points = [re.findall(r"[\d.]+,([\d.]+)", one) for one in re.findall(r'points="(.*?)"', first)]
    assert float(points[0][0]) < float(points[1][0]) < float(points[1][1]) < float(points[0][1])
    assert "4,321" in page
    assert "98,765" in page
    # Two A100 for two hours.
    assert "1.6 kWh, an estimate and not measured: 2 h × 400 W assumed for an A100" in page
    assert "attention of" in page
    assert "layers: 2" in page  # of the recipe
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    worst = page.partition("Worst examples")[2]
    by_item = found.rows["cer"].of_items()
    assert f"<td>{max(by_item):.1f}</td>" in worst.partition("</tr>")[2].partition("</tr>")[0]


def test_a_folder_with_nothing_but_a_model(tmp_path: Path) -> None:
    page = report_page(tiny(), tmp_path)
    assert "Not evaluated yet" in page
    assert "Learning curves" not in page


def test_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", missing)
    assert f"transduce {transduce.__version__}" in report_page(tiny(), tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", '{"training": 5, "test": {"metrics": 7}}'])
def test_strange_files_are_no_hindrance(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    (tmp_path / "log.jsonl").write_text('[1]\n{"kind": "train", "step": "x", "loss": [2]}\n')
    assert "Report of" in report_page(tiny(), tmp_path)


def test_a_report_of_ones_own_stays(tmp_path: Path) -> None:
    model = tiny()
    model.save(tmp_path)
    assert write_report(model, tmp_path) == ""
    assert write_report(model, tmp_path) == ""  # it is ours: it may be replaced
    assert is_ours(tmp_path / "report.html")
    (tmp_path / "report.html").write_text("mine")
    assert "is your own and stays" in write_report(model, tmp_path)
    discard_run(tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert conflicting_file(tmp_path) is None
    assert write_report(model, tmp_path, overwrite=True) == ""
    assert "Report of" in (tmp_path / "report.html").read_text()


def test_the_estimate_says_what_it_assumes() -> None:
    assert energy_estimate(36000, "x86 CPU, 8 threads").startswith("1 kWh, an estimate")
    assert "10 h × 100 W" in energy_estimate(36000, "x86 CPU, 8 threads")
    assert "300 W assumed for a GPU" in energy_estimate(60, "Some New GPU")
