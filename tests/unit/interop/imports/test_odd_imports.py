"""Odd folders of other toolkits are refused in one sentence, and nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import odd_imports
import optional
from transduce.errors import ModelError, TransduceError
from transduce.interop.imports import g2p_en, registry
from transduce.interop.imports.registry import import_model

optional.skip_without("transformers")
optional.skip_without("sentencepiece")

# One of four always, which has each setting with some values; the others take a minute.
CASES = [
    pytest.param(case, id=str(case), marks=[pytest.mark.slow] if number % 4 else [])
    for number, case in enumerate(odd_imports.cases())
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return odd_imports.models(tmp_path_factory.mktemp("whole"))


def imported(source: Path, output: Path, kind: str) -> None:
    import_model(source, output, odd_imports.LANGUAGES.get(kind, (None, None)))


@pytest.mark.parametrize("kind", odd_imports.WRITERS)
def test_the_folders_are_whole_before(whole: dict[str, Path], tmp_path: Path, kind: str) -> None:
    imported(whole[kind], tmp_path / "ours", kind)
    assert (tmp_path / "ours" / "model.safetensors").is_file()


@pytest.mark.parametrize("case", CASES)
def test_refused(whole: dict[str, Path], tmp_path: Path, case: odd_imports.Case) -> None:
    source, output = tmp_path / "odd", tmp_path / "ours"
    shutil.copytree(whole[case.format], source)
    case.change(source)
    with pytest.raises(TransduceError) as raised:
        imported(source, output, case.format)
    sentence = str(raised.value)
    assert sentence.isprintable()
    assert len(sentence) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: no memory")])
@pytest.mark.parametrize("when", ["read", "checked", "saved"])
def test_memory_that_runs_out(
    whole: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    when: str,
) -> None:
    def exhausted(*_: object) -> None:
        raise error

    module, name = {
        "read": (g2p_en, "_read_arrays"),
        "checked": (registry, "_check_finite"),
        "saved": (registry, "write_origin"),
    }[when]
    monkeypatch.setattr(module, name, exhausted)
    with pytest.raises(ModelError, match="not enough memory to import"):
        import_model(whole["g2p_en"], tmp_path / "ours")
    assert list(tmp_path.iterdir()) == []
