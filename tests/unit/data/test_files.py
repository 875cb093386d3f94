"""Files of a recipe: names that are nearly right, and files that are not what their name says."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from transduce.data.files import find_files, read_lines
from transduce.errors import DataError


def test_the_nearest_name_is_said_where_one_is_near(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\n")
    with pytest.raises(DataError, match=r"no file .*trian\.en; did you mean train\.en\?$"):
        find_files("trian.en", str(tmp_path))
    for name in ("corpus.tsv", "train.de"):  # the other side is not meant
        with pytest.raises(DataError, match="mend the name, or say where the files are with data"):
            find_files(name, str(tmp_path))
    with pytest.raises(DataError, match="mend the name"):
        find_files("nowhere/train.en", str(tmp_path))


@pytest.mark.parametrize("packed", [".gz", ".xz"])
def test_a_text_that_is_not_compressed_is_told_from_a_damaged_file(
    tmp_path: Path, packed: str
) -> None:
    (tmp_path / f"plain{packed}").write_text("one\ntwo\n")
    with pytest.raises(
        DataError, match=f"is not compressed, whatever its name says: take {packed}"
    ):
        list(read_lines(f"plain{packed}", str(tmp_path)))


def test_a_compressed_file_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    with pytest.raises(DataError, match="damaged or cut short here"):
        list(read_lines("cut.gz", str(tmp_path)))
