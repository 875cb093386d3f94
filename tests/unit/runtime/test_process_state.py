"""State of the process is listed in one place and can be reset."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import transduce
from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.mixed_precision import CastCopies, cast
from transduce.nn.triton import early
from transduce.runtime import library, top_k_scores
from transduce.runtime.c_library import LIBRARY
from transduce.runtime.process_state import CACHED, reset_process_state

SOURCE = Path(transduce.__file__).parent


def test_after_a_reset_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    if library() is None:
        pytest.skip("no C library here")
    scores = torch.randn(1, 9)
    assert top_k_scores(scores, 2) is not None
    gradient, weight = torch.ones(2, 2), torch.ones(2, 2)
    GRADIENT_SUMS.put(gradient, gradient.sum(dim=0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert early(torch.device("cuda:0"))["EARLY"] == (torch.version.hip is None)
    try:
        reset_process_state()
        assert LIBRARY.loaded is None
        assert GRADIENT_SUMS.get(gradient) is None
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        assert not early(torch.device("cuda:0"))["EARLY"]
        casts = CastCopies([weight], torch.bfloat16)
        block = casts.active()
        block.__enter__()
        reset_process_state()
        assert cast(weight, torch.bfloat16) is not casts.copy_of(weight)
    finally:
        early.cache_clear()
        library()
    assert top_k_scores(scores, 2) is not None


def test_every_cached_function_is_listed() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(["transduce", *path.relative_to(SOURCE).with_suffix("").parts])
        module = module.removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not isinstance(node, ast.Global), f"{path} has a global statement"
            if isinstance(node, ast.FunctionDef):
                decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
                if decorators & {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}:
                    found.add(f"{module}:{node.name}")
    assert found == CACHED
