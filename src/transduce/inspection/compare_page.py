"""The page of `transduce compare`: scores with p-values, and the outputs that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from transduce.errors import TransduceError
from transduce.evaluation.bootstrap import p_value
from transduce.evaluation.compare import ModelComparison
from transduce.evaluation.metrics import TITLES
from transduce.evaluation.slices import plain_source
from transduce.inspection.drawings import attention_drawing
from transduce.inspection.page import Markup, document, paragraph, safe, section, table
from transduce.storage import make_folder, write_text
from transduce.tasks.transduce import Model

DRAWN = 5  # items whose attention is drawn


def write_comparison(
    comparison: ModelComparison, models: Sequence[Model], path: Path, examples: int = 20
) -> None:
    """The comparison as a page; attention of the first few items is drawn side by side."""
    make_folder(path.parent)
    write_text(path, comparison_page(comparison, models, examples))


def comparison_page(
    comparison: ModelComparison, models: Sequence[Model], examples: int = 20
) -> str:
    names = " and ".join(one.name for one in comparison.models)
    lead = (
        f"{len(comparison.items):,} items of {comparison.corpus}. 95 % intervals and two-sided "
        f"p-values by paired bootstrap resampling, {comparison.resamples:,} resamples."
    )
    parts = [section("Scores", score_table(comparison), *map(paragraph, comparison.notes))]
    metric = comparison.metrics[0]
    places = comparison.most_different(metric, examples)
    if places and comparison.models[0].outputs:
        drawn = places[:DRAWN]
        maps = [
            _attention(model, one.name, comparison, drawn)
            for model, one in zip(models, comparison.models, strict=True)
        ]
        cards = [
            _card(comparison, metric, place, [found.get(place, Markup("")) for found in maps])
            for place in places
        ]
        about = (
            f"Items whose {TITLES.get(metric, metric)}, each by itself, is furthest apart. Marked: "
            f"what the first reference does not have."
        )
        parts.append(section("Where they differ most", paragraph(about, "note"), *cards))
    return document(f"Comparison of {names}", lead, parts)


def score_table(comparison: ModelComparison) -> Markup:
    """A row for each metric and model: score, difference from the first, p-value."""
    rows: list[list[object]] = []
    for name in comparison.metrics:
        for one in comparison.models:
            metric = one.metrics.get(name)
            if metric is None:
                continue
            found = one.differences.get(name)
            change: object = ""
            if found is not None:
                change = found.shown()
                if found.is_clear:
                    good = (found.value > 0) == metric.higher_is_better
                    change = Markup(f'<b class="{"better" if good else "worse"}">{change}</b>')
            p = "" if found is None else p_value(found.p)
            rows.append([TITLES.get(name, name), one.name, metric.with_interval, change, p])
    head = ["metric", "model", "score [95 % interval]", "difference from the first", "p"]
    return table(head, rows, text=2)


def marked(reference: str, text: str) -> Markup:
    """A text whose words that a reference does not have, at that place, are marked; of single words
    the characters."""
    right, said, between = reference.split(), text.split(), " "
    if len(right) <= 1 and len(said) <= 1:
        right, said, between = list("".join(right)), list("".join(said)), ""
    parts = []
    for kind, _, _, start, end in SequenceMatcher(None, right, said, False).get_opcodes():
        words = safe(between.join(said[start:end]))
        if words:
            parts.append(words if kind == "equal" else Markup(f"<del>{words}</del>"))
    return Markup(between.join(parts)) or safe("(nothing)")


def _card(comparison: ModelComparison, metric: str, place: int, maps: list[Markup]) -> Markup:
    item = comparison.items[place]
    rows: list[list[object]] = [["source", plain_source(item), ""]]
    rows += [["reference", reference, ""] for reference in item.references[:4]]
    for one in comparison.models:
        text = marked(item.references[0], one.outputs[place].text)
        rows.append([one.name, text, f"{one.item_scores[metric][place]:.1f}"])
    body = table(["", f"item {place + 1}", TITLES.get(metric, metric)], rows, text=2)
    return Markup(f'<div class="card">{body}{"".join(maps)}</div>')


def _attention(
    model: Model, name: str, comparison: ModelComparison, places: list[int]
) -> dict[int, Markup]:
    """What each step of an output attended to in its source, the mean of all layers and heads."""
    try:
        outputs = model.run([comparison.items[place].source for place in places], attention=True)
    except (TransduceError, TypeError):
        return {}
    drawn = {}
    for place, output in zip(places, outputs, strict=True):
        found = attention_drawing(output, name)
        if found:
            drawn[place] = found
    return drawn
