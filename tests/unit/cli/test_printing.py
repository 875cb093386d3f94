"""What is printed of an evaluation."""

from __future__ import annotations

import pytest

from transduce.cli.printing import print_metrics
from transduce.decoding.output import Output
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import metric_of, rows_of
from transduce.evaluation.results import Evaluation
from transduce.evaluation.slices import Slices, mean_over, score_slices

ITEMS = [Item(f"source {n}", ["tea"], group=group) for n, group in enumerate("aabb")]


def evaluation(by: str | None = None) -> Evaluation:
    outputs = [Output("tea", -1.0, warning="low confidence" * (n == 2)) for n in range(4)]
    rows = rows_of(["exact"], [one.text for one in outputs], [one.references for one in ITEMS])
    whole = {"exact": metric_of("exact", rows["exact"], 0)}
    groups = {"a": whole, "b": whole}
    slices = None if by is None else Slices(by, list("aabb"), ["a", "b"])
    scores = None if slices is None else score_slices(slices, rows)
    return Evaluation(
        whole, ITEMS, outputs, groups, mean_over(groups), rows=rows, slices=slices, by_slice=scores
    )


@pytest.mark.parametrize(("by", "tables"), [(None, 1), ("group", 1), ("tag", 1), ("length", 2)])
def test_one_table_of_groups(
    by: str | None, tables: int, capsys: pytest.CaptureFixture[str]
) -> None:
    print_metrics(evaluation(by))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.split()[:2] == ["a", "2"]]) == tables


def test_outputs_with_a_warning_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(evaluation())
    reported = capsys.readouterr().err
    assert "1 of 4 outputs have a warning; --items writes each (low confidence)" in reported
