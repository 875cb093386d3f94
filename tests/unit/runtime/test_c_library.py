"""The C library that was built with the package is loaded, in the variant for this CPU; where it
cannot be, the reason is told and torch does the work."""

from __future__ import annotations

import ctypes
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tiny_models import tiny
from transduce.interop.quantize import export as quantized
from transduce.runtime import Product, c_library, library, structures, why_not
from transduce.runtime.c_library import FILE, Library, open_variants
from transduce.runtime.packed_weight import quantize_weight
from transduce.tasks.transduce import load

needs_library = pytest.mark.skipif(not FILE.is_file(), reason="the C library was not built")

# Features in /proc/cpuinfo that each variant needs, the best first.
FEATURES = {
    "amx": {"avx512_vnni", "amx_tile", "amx_int8"},
    "vnni": {"avx512_vnni"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma"},
    "dotprod": {"asimddp"},
}


class Uncached(c_library.LibraryOfProcess):
    """Looks for the library anew at every call."""

    def load(self) -> Library | None:
        self.reset()
        return super().load()


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process that has not wanted it yet."""
    monkeypatch.setattr(c_library, "LIBRARY", Uncached())
    monkeypatch.delenv("TRANSDUCE_NATIVE", raising=False)
    return monkeypatch


def test_it_can_be_left_out(
    unopened: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unopened.setenv("TRANSDUCE_NATIVE", "0")
    assert library() is None
    assert why_not() == "TRANSDUCE_NATIVE is 0"
    assert capsys.readouterr().err == ""


def test_without_it_torch_decodes_and_a_sentence_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    expected = [output.text for output in tiny().run(["tea", "water"], beam=2)]
    monkeypatch.setattr(c_library, "LIBRARY", c_library.LibraryOfProcess())
    monkeypatch.delenv("TRANSDUCE_NATIVE", raising=False)
    monkeypatch.setattr(c_library, "FILE", tmp_path / "libtransduce.so")
    capsys.readouterr()
    model = tiny()
    for _ in range(2):
        assert [output.text for output in model.run(["tea", "water"], beam=2)] == expected
    model.compute_in("int8").run(["tea"])
    reported = capsys.readouterr().err
    assert reported.count("runs in torch, which is slower") == 1
    assert "install a wheel, or a C compiler" in reported
    assert len(reported.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"half a library"])
def test_a_damaged_file_is_reported(
    unopened: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: bytes,
) -> None:
    (tmp_path / "libtransduce.so").write_bytes(content)
    unopened.setattr(c_library, "FILE", tmp_path / "libtransduce.so")
    assert library() is None
    assert "libtransduce.so" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(sys.modules["math"], "__file__"), reason="math is built in")
def test_another_library_is_not_taken_for_it(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(math.__file__, tmp_path / "libtransduce.so")
    unopened.setattr(c_library, "FILE", tmp_path / "libtransduce.so")
    assert library() is None
    assert "not of this version" in (why_not() or "")


@needs_library
def test_other_structures_are_found(unopened: pytest.MonkeyPatch) -> None:
    class Step(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64), *structures.Step._fields_)

    changed = tuple(Step if one is structures.Step else one for one in structures.LAYOUTS["layout"])
    assert library() is not None
    unopened.setitem(structures.LAYOUTS, "layout", changed)
    assert library() is None
    assert "not of this version" in (why_not() or "")


@needs_library
def test_the_best_variant_for_this_cpu_is_chosen(unopened: pytest.MonkeyPatch) -> None:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        pytest.skip("features of the CPU are read from /proc/cpuinfo")
    has = {
        word
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for word in line.split()
    }
    expected = [name for name, features in FEATURES.items() if features <= has]
    chosen = library()
    assert chosen is not None
    assert [one.variant for one in open_variants(FILE)] == [*expected, "baseline"]
    assert chosen.variant == [*expected, "baseline"][0]


@needs_library
@torch.inference_mode()
def test_all_variants_give_the_same() -> None:
    torch.manual_seed(4)
    weight_FD, bias_F, x_RD = torch.randn(70, 130), torch.randn(70), torch.randn(7, 130)
    levels = quantize_weight(weight_FD)
    in_float32_RF, in_int8_RF = [], []
    for one in open_variants(FILE):
        in_float32_RF.append(Product.float32(one, weight_FD, bias_F)(x_RD))
        in_int8_RF.append(Product.int8(one, *levels, bias_F)(x_RD, relu=True))
    for found_RF in in_float32_RF:
        torch.testing.assert_close(found_RF, x_RD @ weight_FD.T + bias_F, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(found_RF, in_int8_RF[0]) for found_RF in in_int8_RF)


@needs_library
def test_searches_in_int8_are_the_same_on_every_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another last bit of a sum would round an input of the next product to another level."""
    side = {"layers": 2, "heads": 2, "feed_forward": 70, "activation": "gelu"}
    shape = {"width": 88, "tie_embeddings": "target", "encoder": side, "decoder": side}
    model = tiny(model=shape, banned=True)
    quantized(model, tmp_path, "int8")
    sources = ["a cup of tea made uncle iroh " * many for many in (1, 2, 5)]
    scores = []
    for one in open_variants(FILE):
        monkeypatch.setattr(c_library.LIBRARY, "_result", (one, None))
        outputs = load(tmp_path).freeze().run(sources, beam=3, nbest=3)
        scores.append([one.score for output in outputs for one in output.alternatives])
    assert len(set(scores[0])) == 9
    assert all(found == pytest.approx(scores[0], abs=1e-6) for found in scores)
