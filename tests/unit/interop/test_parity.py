"""What a comparison finds, and what it thinks of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.evaluation.items import Item
from transduce.interop.parity import Measurement, Parity, compare, parity_beam
from transduce.recipe.training import Decode

WORDS = [f"w{number}" for number in range(200)]
ITEMS = [Item(word, [word]) for word in WORDS]
BEFORE = Measurement(
    log_probabilities=[[-0.5, -0.25]] * 200,
    greedy=[[word] for word in WORDS],
    searched=[[word] for word in WORDS],
    greedy_texts=WORDS,
    texts=WORDS,
    seconds=2.0,
)


def compared(after: Measurement, quantize: str | None = None, own_search: bool = True) -> Parity:
    metadata: dict[str, Any] = {"pairs": 200, "data": "a set", "beam": 4, "bytes": (100, 30)}
    return compare(
        BEFORE,
        after,
        ITEMS,
        ["exact"],
        engine="ctranslate2",
        quantize=quantize,
        own_search=own_search,
        **metadata,
    )


def changed(count: int) -> list[list[str]]:
    return [["other"]] * count + [[word] for word in WORDS[count:]]


def test_the_same_is_well(tmp_path: Path) -> None:
    near = replace(BEFORE, log_probabilities=[[-0.5001, -0.25]] * 200, seconds=1.0)
    parity = compared(near)
    assert parity.faults == []
    assert parity.largest_difference == pytest.approx(1e-4)
    assert parity.mean_difference == pytest.approx(5e-5)
    assert parity.sentences_per_second == (100.0, 200.0)
    parity.write(tmp_path)
    assert json.loads((tmp_path / "parity.json").read_text())["metrics"]["exact"] == [100, 100]
    assert "identical hypotheses: greedy 100.00%, beam 4 100.00%" in (
        (tmp_path / "PARITY.md").read_text()
    )


def test_other_probabilities_are_a_fault_unless_quantized() -> None:
    rows = [*BEFORE.log_probabilities[1:], [-0.502, -0.25]]
    assert "log-probabilities differ" in compared(replace(BEFORE, log_probabilities=rows)).faults[0]
    assert compared(replace(BEFORE, log_probabilities=rows), "int8").faults == []


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_what_is_no_number_is_always_a_fault(value: float, quantize: str | None) -> None:
    rows = [[value, -0.25], *BEFORE.log_probabilities[1:]]
    faults = compared(replace(BEFORE, log_probabilities=rows), quantize).faults
    assert faults == ["some log-probabilities are NaN or infinite"]


def test_other_hypotheses_are_a_fault_where_the_search_is_the_same() -> None:
    greedy = replace(BEFORE, greedy=changed(1))
    searched = replace(BEFORE, searched=changed(1))
    assert "99.50% of greedy hypotheses" in compared(greedy).faults[0]
    assert compared(greedy, "int8").faults == []
    assert compared(searched).faults == []
    assert "99.50% of beam hypotheses" in compared(searched, own_search=False).faults[0]


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_worse_metric_is_a_fault(quantize: str | None) -> None:
    two, three = (replace(BEFORE, texts=["x"] * n + WORDS[n:]) for n in (2, 3))
    assert compared(two, quantize).faults == []  # one point
    assert compared(three, quantize).faults == ["exact match is 1.50 worse, the most is 1.0"]


def test_of_few_pairs_one_output_may_differ() -> None:
    """Of 40, one output is 2.5 points of exact match."""

    def first(measured: Measurement) -> Measurement:
        lists = ("log_probabilities", "greedy", "searched", "greedy_texts", "texts")
        return replace(measured, **{name: getattr(measured, name)[:40] for name in lists})

    for wrong, faults in ((1, 0), (2, 1)):
        after = first(replace(BEFORE, texts=["x"] * wrong + WORDS[wrong:]))
        reported = {"pairs": 40, "data": "a set", "beam": 4, "bytes": (100, 30)}
        kind = {"engine": "native", "quantize": "int8", "own_search": True}
        parity = compare(first(BEFORE), after, ITEMS[:40], ["exact"], **kind, **reported)  # type: ignore[arg-type]
        assert len(parity.faults) == faults


def test_both_searches_are_measured() -> None:
    parity = compared(replace(BEFORE, greedy_texts=["x", *WORDS[1:]]))
    assert parity.metrics == {"exact": (100, 100)}
    assert parity.greedy_metrics == {"exact": (100, 99.5)}
    assert "exact match, greedy: 100.00 before, 99.50 after" in parity.lines()
    assert "exact match, beam 4: 100.00 before, 100.00 after" in parity.lines()


@pytest.mark.parametrize(("beam", "compared"), [(1, 4), (2, 2), (5, 5)])
def test_an_export_is_compared_with_a_beam_too(beam: int, compared: int) -> None:
    assert parity_beam(Decode(beam=beam)) == compared
