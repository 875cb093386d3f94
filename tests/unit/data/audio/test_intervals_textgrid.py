"""TextGrids: what is written is read again, Praat's own files are read, and faults have a place."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import corpus
from transduce.data.audio.intervals import (
    Interval,
    TextGrid,
    Tier,
    format_textgrid,
    number_grid,
    numbered_lines,
    parse_textgrid,
    read_textgrid,
)
from transduce.errors import DataError

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r")
    | st.sampled_from('"\\!<>[]\n')
)
LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0 
xmax = 2.5 
tiers? <exists> 
size = 2 
item []: 
    item [1]:
        class = "IntervalTier" 
        name = "words" 
        xmin = 0 
        xmax = 2.5 
        intervals: size = 2 
        intervals [1]:
            xmin = 0 
            xmax = 1.25 
            text = "say ""yes"" 3 times" ! a note with "quotes" and 7
        intervals [2]:
            xmin = 1.25 
            xmax = 2.5 
            text = "" 
    item [2]:
        class = "TextTier" 
        name = "clicks" 
        xmin = 0 
        xmax = 2.5 
        points: size = 1 
        points [1]:
            number = 1.5 
            mark = "x" 
"""  # noqa: W291
SHORT = """File type = "ooTextFile"
"TextGrid"

0
2.5
<exists>
2
"IntervalTier"
"words"
0
2.5
2
0
1.25
"say ""yes"" 3 times"
1.25
2.5
""
"TextTier"
"clicks"
0
2.5
1
1.5
"x"
"""
GRID = TextGrid(
    0.0,
    2.5,
    (Tier("words", (Interval(0.0, 1.25, 'say "yes" 3 times'), Interval(1.25, 2.5, ""))),),
)


@st.composite
def grids(draw: st.DrawFn) -> TextGrid:
    tiers = []
    for name in draw(st.lists(TEXTS, max_size=3)):
        steps = draw(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=5))
        places = [0.0]
        for step in steps:
            places.append(places[-1] + step)
        tiers.append((name, [(a, b, draw(TEXTS)) for a, b in pairwise(places)]))
    end = max([1.0, *(intervals[-1][1] for _, intervals in tiers)])
    made = []
    for name, intervals in tiers:
        whole = [Interval(*interval) for interval in intervals]
        if whole[-1].end < end:
            whole.append(Interval(whole[-1].end, end, draw(TEXTS)))
        made.append(Tier(name, tuple(whole)))
    return TextGrid(0.0, end, tuple(made))


@given(grids())
def test_what_is_written_is_read_again(grid: TextGrid) -> None:
    assert parse_textgrid(format_textgrid(grid), "a") == grid


@pytest.mark.parametrize("text", [LONG, SHORT])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_both_forms_in_every_encoding(
    tmp_path: Path, text: str, encoding: str, ending: str
) -> None:
    path = tmp_path / "a.TextGrid"
    path.write_bytes(text.replace("\n", ending).encode(encoding))
    assert read_textgrid(path) == GRID


def test_gaps_become_silence() -> None:
    grid = TextGrid(0.0, 9.0, (Tier("a", (Interval(1.0, 2.0, "x"), Interval(5.0, 6.0, "y"))),))
    tier = parse_textgrid(format_textgrid(grid), "a").tiers[0]
    assert [(i.start, i.end, i.text) for i in tier.intervals] == [
        (0, 1, ""),
        (1, 2, "x"),
        (2, 5, ""),
        (5, 6, "y"),
        (6, 9, ""),
    ]
    empty = parse_textgrid(format_textgrid(TextGrid(0.0, 1.0, (Tier("a", ()),))), "a")
    assert empty.tiers[0].intervals == (Interval(0.0, 1.0, ""),)


def test_a_grid_without_tiers() -> None:
    absent = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1\n<absent>\n'
    assert parse_textgrid(absent, "a") == TextGrid(0.0, 1.0, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "a.TextGrid is truncated"),
        ('"ooTextFile"\n"Pitch"\n', "is not a TextGrid in text form"),
        (LONG[:-30], "is truncated: it ends where"),
        (LONG.replace("1.25", '"1.25"', 1), "a.TextGrid:17: a number should stand here"),
        (LONG.replace("size = 2 \nitem", "size = 1.5 \nitem"), "1.5 cannot be a number of tiers"),
        (LONG.replace('"IntervalTier"', '"OtherTier"'), "a kind unknown to Praat: OtherTier"),
        (LONG.replace("xmax = 1.25", "xmax = -1"), "ends at -1 s, before it begins at 0 s"),
    ],
)
def test_faults_are_reported(text: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_textgrid(text, "a.TextGrid")
    assert said in str(caught.value)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_textgrid(tmp_path / "none.TextGrid")
    path = tmp_path / "old.TextGrid"
    path.write_bytes(LONG.replace("words", "w\u00f6rter").encode("latin-1"))
    with pytest.raises(DataError, match="not text in UTF-8 or UTF-16"):
        read_textgrid(path)


def test_what_praat_could_not_open_is_not_written() -> None:
    for intervals in [
        (Interval(0.0, 2.0), Interval(1.0, 3.0)),
        (Interval(0.0, 99.0),),
        (Interval(2.0, 1.0),),
    ]:
        with pytest.raises(DataError, match="overlaps the one before it or leaves"):
            format_textgrid(TextGrid(0.0, 9.0, (Tier("a", intervals),)))
    with pytest.raises(DataError, match="cannot hold the time inf"):
        format_textgrid(TextGrid(0.0, float("inf"), ()))


def test_numbers_of_lines() -> None:
    grid = number_grid([(0.5, 1.0, 2), (1.0, 2.0, 1), (3.0, 4.0, 2)], 5.0)
    again = parse_textgrid(format_textgrid(grid), "a")
    assert numbered_lines(again, ["one", "two"], "a") == [
        (2, Interval(0.5, 1.0, "two")),
        (1, Interval(1.0, 2.0, "one")),
        (2, Interval(3.0, 4.0, "two")),
    ]
    with pytest.raises(DataError, match=r"a: the label '2' at 0\.50 s is not the number of one"):
        numbered_lines(again, ["one"], "a")
    with pytest.raises(DataError, match="no tier named seg; its tiers: words"):
        numbered_lines(GRID, ["one"], "a")


def test_the_readings_of_the_declaration_of_human_rights() -> None:
    """19 grids made by hand: every label is a line of the text, in the order of reading."""
    archive = corpus("udhr_uiuc") / "udhr_uiuc.tar.xz"
    grids, texts = {}, {}
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            path = Path(member.name)
            if file is not None and path.suffix == ".TextGrid":
                grids[path.stem] = file.read().decode()
            elif file is not None and path.parent.name == "text":
                lines = io.TextIOWrapper(file, "utf-8").read().splitlines()
                texts[path.stem] = [line.partition("\t")[2] for line in lines]
    assert len(grids) == 19
    stretches = 0
    for name, text in grids.items():
        grid = parse_textgrid(text, name)
        assert [tier.name for tier in grid.tiers] == ["seg"]
        assert parse_textgrid(format_textgrid(grid), name) == grid
        stretches += sum(bool(interval.text) for interval in grid.tiers[0].intervals)
        if name in texts:
            read = numbered_lines(grid, texts[name], name)
            assert all(interval.text for _, interval in read)
    assert stretches == 2_269
