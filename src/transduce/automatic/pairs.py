"""Statistics of pairs of source and target, and checks that there is something to learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transduce.automatic.columns import SHOWN, run_name
from transduce.automatic.found import Found, Side, Task, Unseen, count_of, main_script
from transduce.automatic.siblings import in_other_forms, siblings
from transduce.data.text.tags import parts_of, split_tags
from transduce.errors import DataError

LONGEST_SHOWN = 40  # characters of an example
FEWEST = 40  # different sources: fewer cannot be split into train, valid and test
FEWEST_OF_TRAINING = 10  # where files of the other parts are there


def pairs_found(
    path: Path,
    corpus: dict[str, Any],
    rows: Sequence[tuple[str, str, str]],
    *,
    total: int,
    whole: bool,
    seen: list[str],
    task: Task,
    warnings: list[str] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
    name: str | None = None,
) -> Found:
    """Statistics of pairs: source, target and tags of each row."""
    warnings = list(warnings or [])
    both = [row for row in rows if row[0] and row[1]]
    _check_filled(path, rows, both)
    tagged = {(source, tags) for source, _, tags in both}
    distinct = len({source for source, _, _ in both})
    parts = {"train": corpus, **(others if others is not None else siblings(path, corpus))}
    warnings += in_other_forms(path, parts)
    _check_enough(path, distinct, len(both), whole, "valid" in parts)
    different = set(both)
    targets = {target for _, target, _ in different}
    if whole and len(targets) == 1 and task != "words to tags":
        raise DataError(
            f"{path.name}: the target is the same in every row ({_short(both[0][1])}), so there is "
            f"nothing to learn; give rows of at least two labels or texts, or name another "
            f"column: data.train.target=NAME"
        )
    copies = sum(source == target for source, target, _ in different)
    if copies == len(different):
        raise DataError(
            f"{path.name}: source and target are the same in every row; give a table in which they "
            f"differ, or name other columns: data.train.source=NAME data.train.target=NAME"
        )
    if 2 * copies >= len(different) and task == "text to text":
        warnings.append(
            f"source and target are the same in {100 * copies // len(different)} % of the rows; "
            f"is a column the wrong one? Name others with data.train.target=NAME"
        )
    warnings += _other_scripts([(source, target) for source, target, _ in both], task)
    factor = total / max(len(rows), 1)
    source = Side.of([source for source, _, _ in both])
    target = Side.of([target for _, target, _ in both])
    alternatives = Counter((source, tags) for source, _, tags in different)
    several = sum(count > 1 for count in alternatives.values()) / len(tagged)
    labels: Counter[str] = Counter()
    if task == "text to label":
        labels = Counter(target for _, target, _ in both)
    elif task == "words to tags":
        labels = Counter(tag for _, target, _ in both for tag in target.split())
    unseen = Unseen.of([(source, target) for source, target, _ in both], target.is_symbols)
    tags_of_rows = {tuple(split_tags(tags)) for tags in {tags for _, _, tags in both}}
    return Found(
        task,
        name or run_name(path),
        path.parent,
        parts,
        rows=round(total * len(both) / max(len(rows), 1)),
        sources=round(distinct * (factor if not whole else 1)),
        whole=whole,
        source=source,
        target=target,
        labels=len(labels),
        tags=len({tag for tags in tags_of_rows for tag in tags}),
        features=any(len(tags) > 1 for tags in tags_of_rows),
        joint_tags=min(
            (tag for tags in tags_of_rows for tag in tags if len(parts_of(tag)) > 1), default=""
        ),
        alternatives=several,
        unseen=unseen,
        examples=sorted({source for source, _, _ in both})[:SHOWN] if whole else [],
        seen=[
            *seen,
            *_about(
                both, different, len(rows) - len(both), labels, source, target, task, total, whole
            ),
            *_about_tags(both),
            *_about_alternatives(several, alternatives),
        ],
        warnings=warnings,
    )


TURNED = 0.01  # share of the rows with the scripts of both sides exchanged, from which it is said


def _other_scripts(both: Sequence[tuple[str, str]], task: Task) -> list[str]:
    """A warning where source and target are exchanged in some rows, as their scripts show."""
    if task != "text to text":
        return []
    rows = [(main_script(source), main_script(target)) for source, target in both[:SHOWN]]
    counts = Counter((one, other) for one, other in rows if one and other and one != other)
    for (one, other), count in counts.most_common(1):
        turned = counts[other, one]
        if turned >= max(2, TURNED * len(rows)) and count >= 2 * turned:
            shown = _short(both[rows.index((other, one))][0])
            return [
                f"source and target are exchanged in {_percent(turned / len(rows))} of the rows: "
                f"most go from {one} to {other}, but not {shown!r}; turn these rows round, if it "
                f"is not meant"
            ]
    return []


def _check_filled(path: Path, rows: Sequence[Any], both: Sequence[Any]) -> None:
    empty = [sum(not row[side] for row in rows) for side in (0, 1)]
    for side, name in ((1, "target"), (0, "source")):
        if 2 * empty[side] >= len(rows):
            raise DataError(
                f"{path.name}: the {name} is empty in {empty[side]:,} of {len(rows):,} rows; fill "
                f"it in, or name another column: data.train.{name}=NAME"
            )
    if not both:
        raise DataError(f"{path.name} has no row with a source and a target; correct the file")


def _check_enough(path: Path, distinct: int, rows: int, whole: bool, validated: bool) -> None:
    """validated: whether there is a validation part of its own."""
    fewest = FEWEST_OF_TRAINING if validated else FEWEST
    if whole and distinct < fewest:
        repeated = f" ({rows:,} rows)" if rows > distinct else ""
        raise DataError(
            f"{path.name} has {distinct:,} different source{'' if distinct == 1 else 's'}"
            f"{repeated}, too few to learn from"
            f"{'' if validated else ' and to measure'}; give at least {fewest}, and rather hundreds"
        )


def _about(
    both: Sequence[tuple[str, str, str]],
    different: set[tuple[str, str, str]],
    empty: int,
    labels: Counter[str],
    source: Side,
    target: Side,
    task: Task,
    total: int,
    whole: bool,
) -> list[str]:
    """Sizes, scripts, lengths and repetitions, in a line or two."""
    sizes = f"{count_of(total, whole)} rows; source {source.in_script}, {_length(source)}"
    if task == "text to label":
        shares = ", ".join(
            f"{label} {100 * n / len(both):.0f} %" for label, n in labels.most_common(4)
        )
        sizes += f"; {len(labels)} labels ({shares}{', …' if len(labels) > 4 else ''})"
    elif task == "words to tags":
        sizes += f"; {len(labels)} tags"
    else:
        sizes += f"; target {target.in_script}, {_length(target)}"
    repeated = len(both) - len(different)
    found = [f"{sizes}."]
    if empty:
        found.append(f"{_percent(empty / (len(both) + empty))} of the rows have an empty source ")
        found[-1] += "or target, and are left out."
    if repeated:
        found.append(f"{_percent(repeated / len(both))} of the rows repeat another exactly.")
    return [f"{line[0].upper()}{line[1:]}" for line in found]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "under 0.1 %"


def _about_tags(both: Sequence[tuple[str, str, str]]) -> list[str]:
    """How many tags there are, and which are the most frequent."""
    rows = [split_tags(tags) for _, _, tags in both if tags]
    if not rows:
        return []
    counts = Counter(tag for tags in rows for tag in tags)
    named = ", ".join(f"{tag} {_percent(n / len(both))}" for tag, n in counts.most_common(4))
    more = ", …" if len(counts) > 4 else ""
    each = max(map(len, rows))
    many = "one in a row" if each == 1 else f"up to {each} in a row"
    return [f"{len(counts):,} different tags, {many} ({named}{more})."]


def _about_alternatives(share: float, targets: Counter[tuple[str, str]]) -> list[str]:
    """How many sources have several targets, with an example."""
    if not share:
        return []
    (source, _), count = targets.most_common(1)[0]
    shown = _short(source)
    of_all = _percent(share).capitalize()
    return [f"{of_all} of the sources have several targets ({shown} has {count})."]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def _length(side: Side) -> str:
    of, unit = side.words, "symbol"
    if not side.is_symbols:
        of, unit = (side.words, "word") if side.words.median > 2 else (side.characters, "character")
    units = unit if of.median == 1 else f"{unit}s"
    return f"{of.median} {units} in the median, {of.maximum:,} at most"
