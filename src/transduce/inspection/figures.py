"""Figures: attention heat maps and training curves."""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transduce.errors import TransduceError, warn
from transduce.evaluation.metrics import TITLES
from transduce.inspection.page import visible
from transduce.storage import make_folder, write_file

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    Weights = npt.ArrayLike | torch.Tensor

__all__ = [
    "COLORS",
    "INK",
    "attention_grid",
    "attention_map",
    "axes_in_inches",
    "fonts",
    "save",
    "training_curve",
]

# a sequential colour map from white: readable in greyscale, and by colour-blind people
COLORS = "BuPu"
FAINT = "#999999"
SPACE = "␣"
TRAIN, VALID = "#8da0b6", "#b5367a"
METRIC_COLORS = ("#b5367a", "#3b6fb6", "#e08214", "#2f7f5f")
LABEL_HEIGHT = 11.0  # points from one label to the next
WIDEST = 13.0  # inches; a wider grid continues in the next row

# ----------------------------------------------------------------------------------- attention


def attention_map(
    weights_TS: Weights, source: list[str], target: list[str], path: Path, title: str = ""
) -> None:
    """Draw attention weights as a heat map: target tokens as rows, source tokens as columns.

    `path` ends in .png, .svg or .pdf. Raises ValueError if weights are NaN or infinite, or their
    shape is not one row for each target token and one column for each source token.
    """
    attention_grid([(weights_TS, source, target, title)], path)


def attention_grid(panels: Sequence[tuple[Weights, list[str], list[str], str]], path: Path) -> None:
    """Draw several (weights_TS, source, target, title) as heat maps in a grid.

    Cells have the same size in all of them. Raises as `attention_map` does.
    """
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("There is no attention to draw: the list of panels is empty.")
    checked = [
        (_checked(weights, source, target), source, target, title)
        for weights, source, target, title in panels
    ]
    longest = max(max(weights_TS.shape) for weights_TS, *_ in checked)
    cell = min(0.36, max(0.17, 9.0 / longest))
    font_size = min(11.0, cell * 72 * 0.62)

    # The space that a panel needs, in inches: labels on the left, labels and title on top.
    left = max(_label_width(target, font_size) for _, _, target, _ in checked) + 0.12
    top = max(_column_labels_height(source, font_size) for _, source, _, _ in checked) + 0.1
    titles = [
        _wrapped(title, font_size + 1, max(weights_TS.shape[1] * cell, 3.0))
        for weights_TS, _, _, title in checked
    ]
    lines = max(title.count("\n") + 1 if title else 0 for title in titles)
    top += (lines * 1.2 * (font_size + 1) + 8) / 72 if lines else 0.0

    maps = [left + weights_TS.shape[1] * cell for weights_TS, *_ in checked]
    widths = [
        max(map_width, left + _label_width(title.split("\n"), font_size + 1))
        for map_width, title in zip(maps, titles, strict=True)
    ]
    columns = _columns(widths)
    rows = [range(i, min(i + columns, len(checked))) for i in range(0, len(checked), columns)]
    gap, bar_gap, bar_width = 0.3, 0.2, 0.13
    # A title of the last column may extend over the colour bar, so only its maps count.
    column_widths = [max(widths[c::columns]) for c in range(columns - 1)]
    column_widths.append(max(maps[columns - 1 :: columns]))
    row_heights = [top + max(checked[i][0].shape[0] for i in row) * cell for row in rows]
    width = sum(column_widths) + gap * (columns - 1) + bar_gap + bar_width
    height = sum(row_heights) + gap * (len(rows) - 1)

    figure = Figure(figsize=(width, height), facecolor="white")
    image: Any = None
    below = height
    for row, row_height in zip(rows, row_heights, strict=True):
        beside = 0.0
        for i, column_width in zip(row, column_widths, strict=False):
            weights_TS, source, target, _ = checked[i]
            count_T, count_S = weights_TS.shape
            axes = axes_in_inches(
                figure, beside + left, below - top - count_T * cell, count_S * cell, count_T * cell
            )
            image = _heat_map(axes, weights_TS, source, target, titles[i], font_size)
            beside += column_width + gap
        below -= row_height + gap

    # The colour bar is as tall as the first row's cells, within limits for its numbers.
    tall = max(row_heights[0] - top, 1.0)
    tall = tall if tall < 5.0 else 3.0
    bar_axes = axes_in_inches(figure, width - bar_width, height - top - tall, bar_width, tall)
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0, 0.5, 1], format="%g")
    bar.outline.set_visible(False)
    bar_axes.tick_params(labelsize=min(9.0, font_size), length=0, labelcolor=INK)
    bar_axes.set_ylabel("attention", fontsize=min(9.0, font_size), color=INK)
    if any(SPACE in visible(token) for _, *sides, _ in checked for side in sides for token in side):
        figure.text(0.0, -0.06 / height, f"{SPACE} is a space", fontsize=8, color=INK, va="top")
    save(figure, path)


def _checked(weights: Weights, source: list[str], target: list[str]) -> npt.NDArray[np.float64]:
    # A tensor may be on a device, have gradients, or be bfloat16, which numpy does not have.
    plain: Any = weights.detach().float().cpu() if hasattr(weights, "detach") else weights
    weights_TS = np.asarray(plain, dtype=np.float64)
    if weights_TS.shape != (len(target), len(source)) or not weights_TS.size:
        raise ValueError(
            f"Attention of shape {weights_TS.shape} cannot be drawn for {len(target)} target "
            f"and {len(source)} source tokens."
        )
    if not np.isfinite(weights_TS).all():
        raise ValueError("Attention cannot be drawn: some of its weights are NaN or infinite.")
    return weights_TS


def _heat_map(
    axes: Axes,
    weights_TS: npt.NDArray[np.float64],
    source: list[str],
    target: list[str],
    title: str,
    font_size: float,
) -> Any:
    count_T, count_S = weights_TS.shape
    image = axes.imshow(
        weights_TS, cmap=COLORS, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.xaxis.tick_top()
    axes.set_xticks(range(count_S), [visible(token) for token in source])
    axes.set_yticks(range(count_T), [visible(token) for token in target])
    for label, turned in zip(axes.get_xticklabels(), _turned(source), strict=True):
        label.set(rotation=90 if turned else 0, ha="center", va="bottom")
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set(fontsize=font_size, color=INK, family=fonts())
        label.set_parse_math(False)  # a token may be a dollar sign
    axes.tick_params(length=0, pad=4)
    # Thin lines between the cells, so that rows and columns can be followed on a light background.
    axes.set_xticks(np.arange(0.5, count_S - 1), minor=True)
    axes.set_yticks(np.arange(0.5, count_T - 1), minor=True)
    axes.grid(which="minor", color="#e8e4e0", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set(edgecolor="#cfc9c4", linewidth=0.6)
    if title:
        text = axes.set_title(title, fontsize=font_size + 1, color=INK, loc="left", pad=8)
        text.set(family=fonts())
        text.set_parse_math(False)
    return image


def _columns(widths: list[float]) -> int:
    """The number of panels side by side: as many as the page holds, with rows evenly filled."""
    fitting = max(1, min(len(widths), int(WIDEST // max(widths))))
    rows = -(-len(widths) // fitting)
    return -(-len(widths) // rows)


def _turned(source: list[str]) -> list[bool]:
    """Which column labels are rotated by 90 degrees.

    All of them, unless most fit their column: then characters stay upright beside a rotated `</s>`.
    """
    long = [len(visible(token)) > 2 for token in source]
    return long if sum(long) < len(long) / 2 else [True] * len(long)


def _wrapped(title: str, font_size: float, width: float) -> str:
    """The title in lines of about `width` inches."""
    inches = _label_width([title], font_size)
    if inches <= width:
        return title
    return "\n".join(textwrap.wrap(title, max(12, int(len(title) * width / inches))))


def _label_width(labels: list[str], font_size: float) -> float:
    """The width of the widest label in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    with warnings.catch_warnings():
        no_glyph_warnings()
        properties = FontProperties(family=families_for("".join(labels), fonts()))
        return (
            max(
                TextPath((0, 0), visible(label).replace("$", "S"), font_size, prop=properties)
                .get_extents()
                .width
                if label
                else 0.0
                for label in {*labels}
            )
            / 72
        )


def _column_labels_height(source: list[str], font_size: float) -> float:
    turned = [token for token, turn in zip(source, _turned(source), strict=True) if turn]
    return max(font_size / 72, _label_width(turned, font_size) if turned else 0.0)


def axes_in_inches(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


# ------------------------------------------------------------------------------ training curve


def training_curve(log: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the log of a run (`transduce.training.log.read_log`) against updates.

    Losses on the left; on the right, where validations measured any, the other metrics. The best
    validation is marked.
    """
    from matplotlib.figure import Figure

    train = [record for record in log if record.get("kind") == "train"]
    valid = [record for record in log if record.get("kind") == "valid"]
    about = {"kind", "step", "loss", "best", "seconds"}
    names = list(
        dict.fromkeys(
            key
            for record in valid
            for key, value in record.items()
            if key not in about and isinstance(value, (int, float))
        )
    )
    best = next((record for record in reversed(valid) if record.get("best")), None)

    last = max([int(record["step"]) for record in [*train, *valid]], default=1)

    figure = Figure(figsize=(10 if names else 6, 3.8), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    left = figure.add_subplot(1, 2 if names else 1, 1)
    drawn = _line(left, train, "loss", "training", TRAIN)
    drawn |= _line(left, valid, "loss", "validation", VALID)
    stars = [(left, _star(left, best, "loss", VALID))]
    _dress(left, "loss" if drawn else "nothing logged yet", last)
    if not drawn:
        left.set_yticks([])
    if names:
        right = figure.add_subplot(1, 2, 2)
        titles = [TITLES.get(name, name) for name in names]
        for name, title, color in zip(names, titles, cycle(METRIC_COLORS), strict=False):
            _line(right, valid, name, title, color)
            stars.append((right, _star(right, best, name, color)))
        _dress(right, f"validation {titles[0]}" if len(titles) == 1 else "validation", last)
    for axes in figure.axes:
        _spread([label for where, label in stars if where is axes and label is not None])
    save(figure, path)


def _line(
    axes: Axes,
    records: list[dict[str, Any]],
    key: str,
    label: str,
    color: str,
) -> bool:
    """Draw one value of the records; whether there was any."""
    points = [
        (record["step"], float(record[key])) for record in records if record.get(key) is not None
    ]
    if not points:
        return False
    steps, values = zip(*points, strict=True)
    # A line of few points would be invisible: show markers.
    few = len(points) == 1 or (len(points) <= 40 and label != "training")
    marker = "o" if few else ""
    axes.plot(steps, values, color=color, linewidth=1.6, marker=marker, markersize=3, label=label)
    return True


def _star(axes: Axes, best: dict[str, Any] | None, key: str, color: str) -> Annotation | None:
    """Mark the best validation, with its value beside it."""
    if best is None or best.get(key) is None:
        return None
    at, value = best["step"], float(best[key])
    axes.plot([at], [value], "*", color=color, markersize=13, markeredgecolor="white")
    return axes.annotate(
        f"{value:.3f}" if key == "loss" else f"{value:.2f}",
        (at, value),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=color,
        # Lines stay behind the label.
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.3},
    )


def _spread(labels: list[Annotation]) -> None:
    """Move overlapping labels apart vertically."""
    if len(labels) < 2:
        return
    axes = labels[0].axes
    assert axes is not None
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout has a size only now
    points = 72 / figure.dpi
    at = [float(axes.transData.transform(label.xy)[1]) * points for label in labels]
    order = sorted(range(len(labels)), key=lambda number: at[number])
    places = [at[number] for number in order]
    for _ in range(100):  # two labels that are too close move apart by half of the overlap each
        for below, above in pairwise(range(len(places))):
            short = LABEL_HEIGHT - (places[above] - places[below])
            if short > 0:
                places[below] -= short / 2
                places[above] += short / 2
    for number, place in zip(order, places, strict=True):
        labels[number].set_position((9, place - at[number]))


def _dress(axes: Axes, title: str, last_step: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel("updates", fontsize=9, color=INK)
    axes.margins(y=0.14)
    axes.set_xlim(0, last_step * 1.12)  # with room for labels beside the last point
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(color="#ebebeb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", edgecolor=FAINT)
    handles, _ = axes.get_legend_handles_labels()
    if any(line.get_marker() == "*" for line in axes.lines):
        handles.append(
            Line2D([], [], color=FAINT, marker="*", markersize=10, linestyle="", label="best")
        )
    if handles:
        axes.legend(handles=handles, frameon=False, fontsize=9, labelcolor=INK)


# ----------------------------------------------------------------------------------------------
# Save a figure, each text with an installed font that has its script; where there is none, say
# what to install.

INK = "#222222"
WIDTH_OF_LETTER = 0.07  # inches, at 8 points
# Fallback fonts for scripts that the default font lacks, as far as they are installed.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans",
    "Arial Unicode MS",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
)

# Most scripts have a font of their name, such as Noto Sans Devanagari; these do not.
FONT_OF = {
    "CJK": "Noto Sans CJK SC",
    "HIRAGANA": "Noto Sans CJK JP",
    "KATAKANA": "Noto Sans CJK JP",
    "HANGUL": "Noto Sans CJK KR",
    "BOPOMOFO": "Noto Sans CJK TC",
}
SYMBOLS = "symbols"


def save(figure: Figure, path: Path) -> None:
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise TransduceError(f"{path} cannot be drawn: its name should end in .png, .svg or .pdf.")
    make_folder(path.parent)
    _find_fonts(figure, path)

    def write(part: Path) -> None:
        with warnings.catch_warnings():
            no_glyph_warnings()
            figure.savefig(part, dpi=160, bbox_inches="tight", pad_inches=0.12)

    write_file(path, write)


def _find_fonts(figure: Figure, path: Path) -> None:
    """Give each text the fonts it needs; if there are none, the figure and a warning say so."""
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    boxes: set[str] = set()
    for text in texts:
        families = families_for(text.get_text(), fonts())
        text.set_fontfamily(families)
        boxes |= missing(text.get_text(), families)
    if warning := what_to_install(boxes):
        lines = textwrap.fill(warning, max(30, int(figure.get_figwidth() / WIDTH_OF_LETTER)))
        figure.text(0.0, -0.24 / figure.get_figheight(), lines, fontsize=8, color=INK, va="top")
        warn(f"{path}: {warning[0].lower()}{warning[1:]}")


def no_glyph_warnings() -> None:
    # A character without a font becomes a box; _find_fonts has warned about it.
    warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
    warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")


@cache
def fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]


def families_for(text: str, usual: Sequence[str]) -> list[str]:
    """The usual fonts, followed by installed ones that have the missing characters."""
    families = list(usual)
    lacking = missing(text, families)
    for name in _installed() if lacking else ():
        if lacking & _letters_of(name):
            families.append(name)
            lacking -= _letters_of(name)
        if not lacking:
            break
    return families


def missing(text: str, families: Iterable[str]) -> set[str]:
    """The characters of a text that none of the fonts has."""
    left = {letter for letter in text if letter.isprintable() and not letter.isspace()}
    for name in families:
        left -= _letters_of(name)
    return left


def what_to_install(letters: Iterable[str]) -> str:
    """A sentence about characters that are drawn as boxes; empty if there are none."""
    scripts = sorted({_script(letter) for letter in letters})
    if not scripts:
        return ""
    fonts = [FONT_OF.get(script, f"Noto Sans {script.title()}") for script in scripts]
    named = ", ".join(
        script if script in ("CJK", SYMBOLS) else script.title() for script in scripts
    )
    install = " and ".join(dict.fromkeys(fonts))
    return f"No installed font has {named}, drawn as boxes here: install {install}."


def _script(letter: str) -> str:
    """The script of a character, from its Unicode name: DEVANAGARI LETTER KA."""
    if unicodedata.category(letter)[0] not in "LM":
        return SYMBOLS
    return unicodedata.name(letter, SYMBOLS).split()[0]


@cache
def _installed() -> list[str]:
    """All font families; sans-serif ones first, which match the rest of a figure."""
    from matplotlib.font_manager import fontManager

    # The Last Resort font has a box for every character, which is of no use here.
    found = {font.name for font in fontManager.ttflist}
    names = [name for name in found if not name.startswith("Last Resort")]
    return sorted(names, key=lambda name: ("Sans" not in name, name))


@cache
def _letters_of(family: str) -> frozenset[str]:
    from matplotlib.font_manager import fontManager, get_font

    for font in fontManager.ttflist:
        if font.name == family:
            try:
                return frozenset(map(chr, get_font(font.fname).get_charmap()))
            except (RuntimeError, OSError):  # moved away since, or no font that can be read
                continue
    return frozenset()
