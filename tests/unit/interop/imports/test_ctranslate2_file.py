"""model.bin of CTranslate2 is read in every version and type; a damaged one is one sentence."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from transduce.errors import ModelError
from transduce.interop.imports.ctranslate2_file import TYPES, read_model_file

Arrays = Mapping[str, NDArray[Any]]


def text(value: str) -> bytes:
    letters = value.encode() + b"\0"
    return struct.pack("<H", len(letters)) + letters


def model_bin(
    arrays: Arrays,
    version: int = 6,
    aliases: Mapping[str, str] | None = None,
    kind: int | None = None,
) -> bytes:
    """A file as the documented layout says; `kind` is the type's number, for bfloat16."""
    parts = [struct.pack("<I", version)]
    if version >= 2:
        parts += [text("TransformerSpec"), struct.pack("<I", 7)]
    parts.append(struct.pack("<I", len(arrays)))
    for name, array in arrays.items():
        parts += [text(name), struct.pack("<B", array.ndim)]
        parts += [struct.pack("<I", size) for size in array.shape]
        if version >= 4:
            number = TYPES.index(array.dtype.name) if kind is None else kind
            parts.append(struct.pack("<BI", number, array.nbytes))
        else:
            parts.append(struct.pack("<BI", array.itemsize, array.size))
        parts.append(array.tobytes())
    if version >= 3:
        parts.append(struct.pack("<I", len(aliases or {})))
        for alias, name in (aliases or {}).items():
            parts += [text(alias), text(name)]
    return b"".join(parts)


WEIGHT = np.array([[0.5, -2.0, 4.0], [1.0, 0.0, -0.25]], np.float32)


def write(folder: Path, whole: bytes) -> Path:
    path = folder / "model.bin"
    path.write_bytes(whole)
    return path


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version(tmp_path: Path, version: int) -> None:
    arrays = {"encoder/num_heads": np.array(8, np.int8), "a/weight": WEIGHT}
    aliases = {"b/weight": "a/weight", "c/weight": "b/weight"} if version >= 3 else {}
    file = read_model_file(write(tmp_path, model_bin(arrays, version, aliases)))
    assert file.version == version
    assert (file.specification, file.revision) == (
        ("TransformerSpec", 7) if version > 1 else ("", 1)
    )
    assert file.number("encoder/num_heads") == 8
    assert list(file) == ["encoder/num_heads", "a/weight", *aliases]
    for name in ("a/weight", *aliases):
        torch.testing.assert_close(file.tensor(name), torch.tensor(WEIGHT), rtol=0, atol=0)


def test_floats_of_16_bits(tmp_path: Path) -> None:
    half = read_model_file(write(tmp_path, model_bin({"w": WEIGHT.astype(np.float16)})))
    assert half.tensor("w", 2, 3).tolist() == WEIGHT.tolist()
    bits = torch.tensor(WEIGHT).to(torch.bfloat16).view(torch.uint16).numpy()
    brain = read_model_file(write(tmp_path, model_bin({"w": bits}, kind=TYPES.index("bfloat16"))))
    assert brain.tensor("w").tolist() == WEIGHT.tolist()


def test_integers_are_divided_by_their_scales(tmp_path: Path) -> None:
    rows = {
        "w": np.array([[127, -64], [3, 0]], np.int8),
        "w_scale": np.array([2.0, 0.5], np.float32),
    }
    file = read_model_file(write(tmp_path, model_bin(rows)))
    assert file.tensor("w").tolist() == [[63.5, -32.0], [6.0, 0.0]]
    one = {"w": np.array([[1024, -1]], np.int16), "w_scale": np.array(4.0, np.float32)}
    file = read_model_file(write(tmp_path, model_bin(one)))
    assert file.tensor("w").tolist() == [[256.0, -0.25]]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"w": np.array([[1]], np.int8)}, "no variable w_scale"),
        ({"w": np.array([[1]], np.int8), "w_scale": np.zeros(1, np.float32)}, "above 0"),
        ({"w": np.ones((2, 1), np.int8), "w_scale": np.ones(3, np.float32)}, "each row"),
        ({"w": np.array([np.nan], np.float32)}, "no finite numbers"),
        ({"w": np.ones((2, 2), np.float32)}, r"is \[2, 2\], not \[1\]"),
    ],
)
def test_weights_that_cannot_be_used(tmp_path: Path, arrays: Arrays, reason: str) -> None:
    file = read_model_file(write(tmp_path, model_bin(arrays)))
    with pytest.raises(ModelError, match=reason):
        file.tensor("w", 1)


def test_zero_points_are_refused(tmp_path: Path) -> None:
    arrays = {name: np.ones(1, np.float32) for name in ("w_scale", "w_zero")}
    arrays = {"w": np.ones((1, 1), np.int32), **arrays}
    with pytest.raises(ModelError, match="AWQ"):
        read_model_file(write(tmp_path, model_bin(arrays))).tensor("w")


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is missing"):
        read_model_file(tmp_path / "none")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model_file(write(tmp_path, b""))
    with pytest.raises(ModelError, match="no model of CTranslate2"):
        read_model_file(write(tmp_path, b"\x89PNG, and so on"))
    whole = model_bin({"w": WEIGHT, "v": WEIGHT})
    with pytest.raises(ModelError, match="bytes are left"):
        read_model_file(write(tmp_path, whole + b"\0"))
    with pytest.raises(ModelError, match="ends too early"):
        read_model_file(write(tmp_path, whole[:-5]))
    with pytest.raises(ModelError, match="there twice"):
        read_model_file(write(tmp_path, whole.replace(text("v"), text("w"))))
    with pytest.raises(ModelError, match="for no variable"):
        read_model_file(write(tmp_path, model_bin({"w": WEIGHT}, aliases={"v": "u"})))


def test_a_file_cannot_claim_more_than_it_holds(tmp_path: Path) -> None:
    """Sizes of 2^32 a dimension would be exabytes."""
    huge = struct.pack("<BIIIBI", 3, *[2**32 - 1] * 3, 0, 12)
    whole = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<II", 1, 1)
    with pytest.raises(ModelError, match=r"fit its shape|ends too early"):
        read_model_file(write(tmp_path, whole + text("w") + huge + b"\0" * 12))
    with pytest.raises(ModelError, match="announces"):
        read_model_file(write(tmp_path, whole[:-4] + b"\xff" * 4))


WHOLE = model_bin(
    {
        "heads": np.array(2, np.int8),
        "q": np.array([[1, 2], [3, 4]], np.int8),
        "q_scale": np.array([1.0, 2.0], np.float32),
        "w": WEIGHT,
    },
    aliases={"v": "w"},
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
    end=st.integers(0, len(WHOLE)),
)
def test_damage_is_an_error_or_leaves_a_readable_file(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], end: int
) -> None:
    damaged = bytearray(WHOLE)
    for place, value in changes:
        damaged[place] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(damaged[:end]))
    try:
        file = read_model_file(path)
    except ModelError as error:
        message = str(error)
    else:
        assert end == len(WHOLE)  # nothing can be left out
        message = ""
        for name in file:
            for reading in (file.tensor, file.number, file.text):
                with contextlib.suppress(ModelError):
                    reading(name)
    assert message.isprintable()
