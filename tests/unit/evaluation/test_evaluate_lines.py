"""A language model by slices of its text, and line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from language import language_model
from transduce.errors import DataError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.results import write_item_results
from transduce.tasks.folder import read_metrics

LINES = ["tea", "a cup of tea", "of tea", "tea tea tea of a cup", "a"]
TRAINING = "tea tea tea tea tea tea tea tea tea tea of a cup\n"


@pytest.mark.parametrize("lines", ["apart", "joined"])
def test_slices_add_up_to_the_whole(lines: str, tmp_path: Path) -> None:
    model = language_model(lines=lines, data={"folder": str(tmp_path)})
    (tmp_path / "tea.txt").write_text(TRAINING)
    text, folder = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("".join(f"{line}\n" for line in LINES))
    model.save(folder)
    found = evaluate_folder(
        model, folder, files=(text, None), metrics="bits_per_character", by="frequency", lines=True
    )
    assert found.by_slice is not None
    assert found.by_slice.counts == {"1–9 times": 4, "10–99 times": 1}
    only_tea = found.by_slice.metrics["10–99 times"]["bits_per_character"].value
    assert found.by_slice.gaps["bits_per_character"].value > 0
    kept = read_metrics(folder)["text.txt"]
    assert kept["slices"]["slices"]["10–99 times"]["metrics"]["bits_per_character"]["value"] == (
        pytest.approx(only_tea)
    )
    write_item_results(tmp_path / "items.jsonl", model, found)
    records = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == LINES
    assert records[1]["lengths"]["words"] == 4
    assert [record["by_frequency"] for record in records][:2] == ["10–99 times", "1–9 times"]
    assert records[0]["scores"]["bits_per_character"] == pytest.approx(only_tea, abs=1e-3)
    # Weighted by the characters of each line, break included, they are the score of the whole.
    sizes = [len(line) + 1 for line in LINES]
    mean = sum(r["scores"]["bits_per_character"] * s for r, s in zip(records, sizes, strict=True))
    whole = found.metrics["bits_per_character"].value
    assert mean / sum(sizes) == pytest.approx(whole, abs=1e-3)


def test_without_being_asked_there_are_no_items(tmp_path: Path) -> None:
    model, text = language_model(), tmp_path / "text.txt"
    text.write_text("tea\n")
    model.save(tmp_path / "model")
    found = evaluate_folder(model, tmp_path / "model", files=(text, None))
    assert found.items == []
    with pytest.raises(DataError, match="measured as a whole"):
        write_item_results(tmp_path / "items.jsonl", model, found)
