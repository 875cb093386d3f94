"""What is printed of an evaluation."""

from __future__ import annotations

import pytest

from transduce.cli.printing import error_sentences, print_metrics
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
    names = "ab" if by in ("group", "tag") else "xy"  # those of the groups, or others
    slices = None if by is None else Slices(by, [names[0]] * 2 + [names[1]] * 2, list(names))
    scores = None if slices is None else score_slices(slices, rows)
    return Evaluation(
        whole, ITEMS, outputs, groups, mean_over(groups), rows=rows, slices=slices, by_slice=scores
    )


@pytest.mark.parametrize("by", [None, "group", "tag", "length"])
def test_one_table_of_groups(by: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(evaluation(by))
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines.count(["a", "2"]) == 1
    assert lines.count(["x", "2"]) == (by == "length")


def test_outputs_with_a_warning_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics(evaluation())
    reported = capsys.readouterr().err
    assert "1 of 4 outputs have a warning; --items writes each (low confidence)" in reported


@pytest.mark.parametrize(("empty", "said"), [(1, False), (2, False), (3, True)])
def test_many_empty_outputs_are_said(
    empty: int, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not those for which nothing is right, nor those that say themselves why."""
    outputs = [Output("", -1.0)] * empty + [Output("tea", -1.0)] * (18 - empty)
    outputs += [Output("", -1.0), Output("", -1.0, warning="no output satisfies all constraints")]
    items = [Item("source", ["tea"])] * 18 + [Item("source", [""]), Item("source", ["tea"])]
    print_metrics(Evaluation({}, items, outputs))
    sentence = f"{empty} of 20 outputs are empty: the model has learnt too little; train longer"
    assert (sentence in " ".join(capsys.readouterr().err.split())) == said


def test_errors_are_counted_in_what_the_rate_is_of() -> None:
    for name, units in {"wer": "words", "per": "phones"}.items():
        rows = rows_of([name], ["t iː"], [["t iː k"]])
        (counts,) = error_sentences(metric_of(name, rows[name], 0))
        assert counts == f"0 substitutions, 1 deletion, 0 insertions in 3 {units}"
