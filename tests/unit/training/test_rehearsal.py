"""A rehearsal: which batches it passes, what it leaves alone, and what it compiles on a GPU."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.batches.packing import pack
from transduce.errors import DataError
from transduce.nn.triton import CompiledOnly, compile_only
from transduce.recipe import Recipe, load_recipe
from transduce.tasks.transduce import build
from transduce.training.optimizer import build_optimizer
from transduce.training.rehearsal import Rehearsal, small_batches, vocabulary_sizes
from transduce.training.update import build_update

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
SMALL = {
    "text": "multi30k-en-de-small",
    "letters": "cmudict-small",
    "language model": "shakespeare-small",
    "classifier": "imdb-pooled",
    "tagger": "ewt-rnn",
    "audio": "udhr-small",
    "labels of audio": "announcements",
}


def recipe_of(kind: str) -> Recipe:
    return load_recipe(SMALL[kind], ["model.width=16"])


@pytest.mark.parametrize("kind", SMALL)
def test_a_network_of_any_task_learns_from_its_batches(kind: str) -> None:
    """What fails in a rehearsal is not heard of: it fails here."""
    recipe = recipe_of(kind)
    network = build(recipe, *vocabulary_sizes(recipe))
    optimizer = build_optimizer(network, recipe.train)
    update = build_update(network, optimizer, recipe.train, torch.float32)
    shortest = next(small_batches(recipe))
    objective, _, tokens = update.gradients(shortest).tolist()
    assert tokens > 0
    assert objective > 0
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_batches_have_every_length_for_which_kernels_differ() -> None:
    recipe = recipe_of("text")
    assert [pack(batch).shape.longest for batch in small_batches(recipe)] == [16, 32, 64, 128]
    short = load_recipe("multi30k-en-de-small", ["data.max_length=20"])
    assert [pack(batch).shape.longest for batch in small_batches(short)] == [16, 32]


def test_nothing_is_rehearsed_on_a_cpu_and_errors_pass() -> None:
    rehearsal = Rehearsal(recipe_of("text"), torch.device("cpu"))
    with pytest.raises(DataError, match="no such file"), rehearsal:
        raise DataError("no such file")
    rehearsal.wait()


def test_a_kernel_that_is_only_compiled_is_told_all_that_a_launch_is() -> None:
    told: list[Any] = []

    class Kernel:
        def warmup(self, *values: Any, grid: Any, **options: Any) -> None:
            told.append((values, grid, options))

    CompiledOnly(Kernel())[(4, 2)](1.0, "x", BLOCK=16, num_warps=2)
    assert told == [((1.0, "x"), (4, 2), {"BLOCK": 16, "num_warps": 2})]


# ---------------------------------------------------------------------------------- on a GPU

COUNTED = """
import sys
from triton import knobs
compiled = []
knobs.compilation.listener = lambda **told: told["cache_hit"] or compiled.append(told["src"].name)
import torch
from transduce.data.batches.batch import collate
from transduce.recipe import load_recipe
from transduce.tasks.transduce import build
from transduce.training.optimizer import build_optimizer
from transduce.training.rehearsal import Rehearsal, vocabulary_sizes
from transduce.training.update import build_update

recipe, device = load_recipe(sys.argv[1]), torch.device("cuda")
with Rehearsal(recipe, device) as rehearsal:
    pass
rehearsal.wait()
print(len(compiled))
compiled.clear()
network = build(recipe, *vocabulary_sizes(recipe)).to(device)
optimizer = build_optimizer(network, recipe.train)
update = build_update(network, optimizer, recipe.train, torch.bfloat16)
for length in (5, 20, 40):
    update([collate([[5] * length] * 100, [[6] * length] * 100)])
    update.apply()
print(len(compiled), *compiled)
"""


@needs_gpu
@pytest.mark.parametrize("name", ["multi30k-en-de", "sigmorphon"])
def test_updates_compile_nothing_after_a_rehearsal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = subprocess.run(
        [sys.executable, "-c", COUNTED, name], capture_output=True, text=True, check=True
    )
    rehearsed, later = made.stdout.splitlines()
    assert int(rehearsed) > 10
    assert later == "0"


@needs_gpu
def test_what_is_only_compiled_is_not_run() -> None:
    from transduce.nn.linear import column_sums

    x_NF = torch.ones(64, 32, device="cuda", dtype=torch.bfloat16)
    with ThreadPoolExecutor(1) as pool, compile_only(pool):
        column_sums(x_NF).fill_(0.0)
    assert column_sums(x_NF).tolist() == [64.0] * 32
