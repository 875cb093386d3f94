"""Figures: files of the right kind come out, whatever the tokens; nonsense is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import optional
from transduce.errors import TransduceError
from transduce.inspection import figures
from transduce.inspection import figures as saving
from transduce.inspection.figures import attention_grid, attention_map, training_curve
from transduce.inspection.page import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

mpl = optional.package("matplotlib")
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def weights(count_T: int, count_S: int) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(0).random((count_T, count_S))
    return raw / raw.sum(axis=1, keepdims=True)


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    header = path.read_bytes()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


@pytest.mark.parametrize("suffix", STARTS)
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"map{suffix}"
    attention_map(weights(3, 3), list("cat"), ["K", "AE1", "T"], path, "cat")
    assert path.read_bytes().startswith(STARTS[suffix])


def test_unknown_suffix_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"should end in \.png, \.svg or \.pdf"):
        attention_map(weights(1, 1), ["a"], ["b"], tmp_path / "map.docx")


def test_tensors_of_any_kind(tmp_path: Path) -> None:
    tensor = torch.tensor(weights(2, 3), dtype=torch.bfloat16, requires_grad=True)
    attention_map(tensor, list("abc"), list("xy"), tmp_path / "map.png")
    assert (tmp_path / "map.png").exists()


def test_tokens_of_any_script_without_a_warning_of_matplotlib(tmp_path: Path) -> None:
    source = ["日本", "$x$", "$", " ", "\n", "", "ا", "😀", "a_b^c", "\\frac"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*no installed font has")
        attention_map(weights(2, 10), source, ["तु", "ん"], tmp_path / "map.png", "$ 日 \\x")
    assert (tmp_path / "map.png").exists()


def test_a_script_without_a_font_is_named_with_one_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_installed", lambda: ["DejaVu Sans"])
    monkeypatch.setattr(saving, "fonts", lambda: ["DejaVu Sans"])
    said = (
        r"map.svg: no installed font has CJK, Devanagari, drawn as boxes here: install Noto Sans "
        r"CJK SC and Noto Sans Devanagari\."
    )
    with mpl.rc_context({"svg.fonttype": "none"}), pytest.warns(UserWarning, match=said):
        attention_map(weights(2, 2), ["我", "b"], ["म", "é"], tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text("utf-8")
    assert "No installed font has" in drawn, "the picture says so too"


def test_a_font_that_has_the_script_is_found(tmp_path: Path) -> None:
    """matplotlib brings STIX along, with signs that its usual font lacks."""
    usual = ["DejaVu Sans"]
    letter = min(saving._letters_of("STIXGeneral") - saving._letters_of("DejaVu Sans"))
    found = saving.families_for(f"a{letter}", usual)
    assert found[0] == "DejaVu Sans"
    assert not saving.missing(letter, found)
    assert saving.families_for("plain", usual) == usual


def test_spaces_of_subwords_are_seen_and_explained(tmp_path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        attention_map(weights(1, 2), ["▁a", " b"], ["c"], tmp_path / "map.svg")
        attention_map(weights(1, 1), ["a"], ["c"], tmp_path / "plain.svg")
    drawn = (tmp_path / "map.svg").read_text("utf-8")
    assert ">␣a</text>" in drawn
    assert ">␣b</text>" in drawn
    assert "▁" not in drawn.replace("<!-- ▁", "")
    assert ">␣ is a space</text>" in drawn
    assert "is a space" not in (tmp_path / "plain.svg").read_text("utf-8")


def test_size_follows_the_tokens(tmp_path: Path) -> None:
    attention_map(weights(3, 3), ["a"] * 3, ["b"] * 3, tmp_path / "small.png")
    attention_map(weights(60, 60), ["token"] * 60, ["token"] * 60, tmp_path / "large.png")
    small, large = size(tmp_path / "small.png"), size(tmp_path / "large.png")
    assert max(small) < 500
    assert 1400 < min(large) <= max(large) < 2400


def test_one_label_a_cell_is_drawn(tmp_path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        attention_map(weights(2, 3), ["un", "deux", "$3$"], ["one", "two"], tmp_path / "m.svg", "Q")
    drawn = (tmp_path / "m.svg").read_text(encoding="utf-8")
    assert all(f">{token}</text>" in drawn for token in ["un", "deux", "$3$", "one", "two", "Q"])


def drawn_by(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> Figure:
    """The figure that a function draws, in place of its file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    found: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: found.append(figure))
    draw()
    FigureCanvasAgg(found[0]).draw()
    return found[0]


def test_each_cell_stands_beside_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pixels: right of the target's label, below the source's; the first on top."""
    own = np.array([[0.9, 0.3, 0.0], [0.0, 0.6, 0.1]])
    other = np.array([[0.2, 0.8]])
    panels = [(own, list("abc"), list("xy"), "one"), (other, list("de"), ["z"], "two")]
    figure = drawn_by(monkeypatch, lambda: attention_grid(panels, Path("grid.png")))
    image = np.asarray(figure.canvas.buffer_rgba())[::-1, :, :3] / 255  # counted from below
    named = {axes.get_title(loc="left"): axes for axes in figure.axes}
    for weights_TS, source, target, title in panels:
        axes = named[title]
        down = [label.get_window_extent() for label in axes.get_yticklabels()]
        across = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert [label.get_text() for label in axes.get_yticklabels()] == target
        assert [label.get_text() for label in axes.get_xticklabels()] == source
        assert [box.y0 for box in down] == sorted([box.y0 for box in down], reverse=True)
        assert [box.x0 for box in across] == sorted(box.x0 for box in across)
        for weights_S, beside in zip(weights_TS, down, strict=True):
            for weight, above in zip(weights_S, across, strict=True):
                x, y = (above.x0 + above.x1) / 2, (beside.y0 + beside.y1) / 2
                pixel = image[round(y), round(x)]
                shade = mpl.colormaps[figures.COLORS](weight)[:3]
                assert pixel == pytest.approx(shade, abs=0.02), (title, weight)


WIDE = list("abcdefghijkl")
LAYOUTS = {
    "alike": [
        *[("", WIDE, ["a long token"] * 2)] * 4,
        *[("a title\nof two lines", ["psychology"] * 12, ["a long token"] * 2)] * 4,
    ],
    "mixed": [
        ("short", list("abc"), list("xy")),
        ("a title that is so long that it must be broken into lines", list("ab"), ["a long token"]),
        ("turned labels", ["attention", "through", "knight"], list("xyzw")),
        ("short", list("abcdefghijkl"), list("xyz")),
        ("", ["psychology"] * 4, ["phoenix", "y"]),
        ("the last one has a title that may pass over the bar", list("ab"), list("xyz")),
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_panels_and_their_texts_keep_clear_of_each_other(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Long labels and titles in any of the panels, several rows of them."""
    sides = LAYOUTS[layout]
    panels = [(weights(len(t), len(s)), s, t, title) for title, s, t in sides]
    figure = drawn_by(monkeypatch, lambda: attention_grid(panels, Path("grid.png")))
    *maps, bar = figure.axes
    boxes = [axes.get_tightbbox().padded(-1) for axes in maps]
    for number, box in enumerate(boxes):
        others = boxes[:number] + boxes[number + 1 :]
        assert not any(box.overlaps(other) for other in others), sides[number]
        extent = maps[number].get_window_extent()
        assert not extent.overlaps(bar.get_window_extent().padded(-1))
        words = [maps[number]._left_title, *maps[number].get_xticklabels()]
        words += maps[number].get_yticklabels()
        for word in words:
            if word.get_text():
                assert not word.get_window_extent().padded(-1).overlaps(extent.padded(-1))
    cells = {
        (round(axes.bbox.width / w.shape[1], 3), round(axes.bbox.height / w.shape[0], 3))
        for axes, (w, *_) in zip(maps, panels, strict=True)
    }
    assert len(cells) == 1  # the same size in all of them, and square
    ((across, up),) = cells
    assert across == pytest.approx(up, rel=0.01)


def test_tokens_are_as_large_as_their_cells_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for count in (4, 40, 60):
        panel = (weights(count, count), ["a"] * count, ["b"] * count, "")
        figure = drawn_by(monkeypatch, lambda panel=panel: attention_grid([panel], Path("g.png")))
        label = figure.axes[0].get_yticklabels()[0]
        height = figure.axes[0].bbox.height / count * 72 / figure.dpi  # of a cell, in points
        assert label.get_fontsize() <= height
        sizes.append(label.get_fontsize())
    assert sizes[0] > sizes[1] > sizes[2] > 6


@pytest.mark.parametrize(
    ("token", "shown"),
    [(" ", "␣"), ("", "∅"), ("a b", "a␣b"), ("\n", "↵"), ("\x07", "\\x07"), ("日", "日")],
)
def test_a_token_that_would_not_be_seen_is_shown(token: str, shown: str) -> None:
    assert visible(token) == shown


def test_not_finite_weights_are_refused(tmp_path: Path) -> None:
    bad = weights(2, 2)
    bad[0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        attention_map(bad, ["a", "b"], ["c", "d"], tmp_path / "map.png")


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2), (0, 0)])
def test_wrong_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be drawn for 2 target and 3 source tokens"):
        attention_map(np.zeros(shape), list("abc"), list("xy"), tmp_path / "map.png")


@pytest.mark.parametrize("count", [1, 4, 6])
def test_grid_keeps_to_a_page(tmp_path: Path, count: int) -> None:
    words = ["attention", "through", "knight", "phoenix", "psychology", "yacht"]
    panels = [(weights(5, len(word)), list(word), list("ABCDE"), word) for word in words]
    attention_grid(panels[:count], tmp_path / "grid.png")
    across, _ = size(tmp_path / "grid.png")
    assert across < 160 * 15


def test_grid_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        attention_grid([], tmp_path / "grid.png")


def records(steps: int, validations: int) -> list[dict[str, Any]]:
    train = [{"kind": "train", "step": 50 * i, "loss": 5 / i} for i in range(1, steps + 1)]
    valid = [
        {"kind": "valid", "step": 100 * i, "loss": 4 / i, "bleu": 3.0 * i, "best": i < 3}
        for i in range(1, validations + 1)
    ]
    return [*train, *valid]


@pytest.mark.parametrize(("steps", "validations"), [(0, 0), (1, 0), (20, 0), (20, 1), (20, 10)])
def test_curve_of_any_length(tmp_path: Path, steps: int, validations: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training_curve(records(steps, validations), tmp_path / "curve.png")
    across, up = size(tmp_path / "curve.png")
    # The metric has a panel of its own, only where there is one.
    assert (across > 2 * up) == (validations > 0)


def test_curve_marks_the_best_validation(tmp_path: Path) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        training_curve(records(20, 10), tmp_path / "curve.svg")
    drawn = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert ">6.00</text>" in drawn
    assert ">2.000</text>" in drawn
    assert ">validation BLEU</text>" in drawn


def test_curve_shows_the_values_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = records(6, 4)
    log[2]["loss"] = None
    figure = drawn_by(monkeypatch, lambda: training_curve(log, Path("curve.png")))
    left, right = figure.axes
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    seen = {
        name: list(zip(lines[name].get_xdata(), lines[name].get_ydata(), strict=True))
        for name in ("training", "validation", "BLEU")
    }
    assert seen["training"] == [(50 * i, 5 / i) for i in (1, 2, 4, 5, 6)]
    assert seen["validation"] == [(100 * i, 4 / i) for i in (1, 2, 3, 4)]
    assert seen["BLEU"] == [(100 * i, 3 * i) for i in (1, 2, 3, 4)]
    stars = [
        [*line.get_xdata(), *line.get_ydata()]
        for axes in (left, right)
        for line in axes.lines
        if line.get_marker() == "*"
    ]
    assert stars == [[200, 2.0], [200, 6.0]]  # the last that was best
    assert all(axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 400 for axes in figure.axes)


@pytest.mark.parametrize(("steps", "validations"), [(1, 0), (20, 1), (20, 10)])
def test_few_values_are_seen(monkeypatch: pytest.MonkeyPatch, steps: int, validations: int) -> None:
    """A line of one point has no length; the best is explained where it is marked."""
    log = records(steps, validations)
    figure = drawn_by(monkeypatch, lambda: training_curve(log, Path("curve.png")))
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    assert (lines["training"].get_marker() == "o") == (steps == 1)
    if validations:
        assert lines["validation"].get_marker() == lines["BLEU"].get_marker() == "o"
    for axes in figure.axes:
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert ("best" in legend) == (validations > 0)


def test_curve_leaves_out_what_was_not_finite(tmp_path: Path) -> None:
    log = [*records(3, 1), {"kind": "train", "step": 200, "loss": None}]
    training_curve(log, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()


def test_labels_of_the_best_are_beside_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics that end near one another have labels that do not overlap."""
    from matplotlib.text import Annotation

    from transduce.inspection import figures

    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure))
    values = {"bleu": 40.0, "chrf": 40.2, "exact": 39.9, "cer": 40.1, "loss": 2.0}
    none = dict.fromkeys(values, 0.0)  # so that the axis is long and the ends are near
    log = [{"kind": "valid", "step": 100, **none}]
    log += [{"kind": "valid", "step": 200, **values, "best": True}]
    training_curve(log, tmp_path / "curve.png")
    (figure,) = kept
    figure.draw_without_rendering()
    labels = [one for one in figure.findobj(Annotation) if one.get_text()]
    assert len(labels) == 5
    boxes = [label.get_window_extent() for label in labels]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])
        inside = labels[number].axes.get_window_extent()
        assert inside.y0 <= box.y0
        assert box.y1 <= inside.y1


def test_a_short_title_of_a_narrow_panel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = (weights(3, 1), ["a"], list("xyz"), "of the second layer")
    figure = drawn_by(monkeypatch, lambda: attention_grid([panel], Path("grid.png")))
    assert "of the second layer" in {
        axes.get_title(place) for axes in figure.axes for place in ("left", "center")
    }
