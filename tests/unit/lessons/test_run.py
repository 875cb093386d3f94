"""A lesson runs with names, random numbers and an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from transduce.lessons import Lesson, run

TEXT = """# %% [markdown]
# # 1. T
#
# **Claim.** C.
#
# **Time.** 1 s; full size 1 s.

# %%
import torch
from transduce.lessons import panels, show, size

torch.manual_seed(1)
drawn = torch.rand(1)
asked = size("reduced", "full")
show(panels()[0], "short")
assert HOLDS, "it did not"
"""


def lesson(folder: Path, holds: bool = True) -> Lesson:
    path = folder / "01_short.py"
    path.write_text(TEXT.replace("HOLDS", str(holds)))
    return Lesson.read(path)


@pytest.mark.parametrize("full", [False, True])
def test_run(tmp_path: Path, full: bool) -> None:
    torch.manual_seed(5)
    state, environment = torch.get_rng_state(), dict(os.environ)
    output = tmp_path / "figures"
    output.mkdir()
    (output / "other.svg").write_text("<svg/>")
    for _ in range(2):  # the second replaces the figure of the first
        finished = run(lesson(tmp_path), output, full=full)
        assert finished.figures == (output / "short.svg",)
    assert finished.names["asked"] == ("full" if full else "reduced")
    assert torch.equal(torch.get_rng_state(), state)
    assert dict(os.environ) == environment


def test_a_claim_that_does_not_hold(tmp_path: Path) -> None:
    environment = dict(os.environ)
    with pytest.raises(AssertionError, match="it did not"):
        run(lesson(tmp_path, holds=False), tmp_path)
    assert dict(os.environ) == environment
