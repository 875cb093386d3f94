"""The page on Python: its code, from top to bottom; and a changed network's life."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import transduce
from transduce.errors import CheckpointError, ModelError

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
PLAIN = "Networks from plain numbers"


def sections() -> list[tuple[str, str]]:
    """The page by its headings."""
    parts = re.split(r"^##? (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def code(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(blocks: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_a_network_of_plain_numbers_is_trained_in_ten_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = code(dict(sections())[PLAIN])
    loop = blocks[0].splitlines()
    first, last = loop.index("torch.manual_seed(1)"), loop.index("    optimizer.step()")
    assert last - first <= 10
    names = run(blocks)  # on its own: nothing above on the page is needed
    assert names["right"] >= 90
    assert f"{names['right']} of 100 reversed" in capsys.readouterr().out


@pytest.mark.slow
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for title, text in sections() if title != PLAIN for block in code(text)]
    assert len(blocks) == 10
    names = run(blocks)
    shown = capsys.readouterr().out
    assert "unknown key train.stepps; did you mean train.steps?" in shown
    assert not Path("runs/never").exists()
    assert names["trained"].state.best >= 90  # what the page tells its reader to expect
    assert names["score"].attention.shape == (2, 4, 5, 5)
    assert names["encoding"].states_BSD.shape == (2, 5, 32)
    assert names["encoding"].mask_BS.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert len(names["lens"]) == 4
    assert "steps" in shown
    assert names["gated"].changed == "page.gate_the_decoder"

    with pytest.raises(ModelError, match=r"runs/gated .* by page\.gate_the_decoder.*change="):
        transduce.load("runs/gated")
    with pytest.raises(CheckpointError, match=r"by page\.gate_the_decoder.*change="):
        transduce.train(names["recipe"], "runs/gated", resume=True)
    ended = transduce.train(
        names["recipe"],
        "runs/gated",
        resume=True,
        overrides=["train.steps=62"],
        change=names["gate_the_decoder"],
    )
    assert ended.state.step == 62
    assert isinstance(ended.model.network.decoder.blocks[0].feed_forward, nn.Module)
    said = ended.model.run(["abca"])[0]
    again = transduce.load("runs/gated", change=names["gate_the_decoder"]).run(["abca"])[0]
    assert (said.text, said.score) == (again.text, again.score)
