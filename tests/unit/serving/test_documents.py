"""The examples of docs/guides/serving.md, as they are written there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from served import serving
from tiny_models import tiny
from transduce.tasks.transduce import load

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "models"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_example_works(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="needs the extra speech")
    import numpy as np

    blocks = re.findall(
        r"```bash\n(.*?)```", (ROOT / "docs/guides/serving.md").read_text("utf-8"), re.S
    )
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) >= 12
    wave = (0.1 * np.sin(np.arange(16000) / 10)).astype(np.float32)
    soundfile.write(tmp_path / "recording.wav", wave, 16000)
    # A vocabulary of letters: the prefix of an example must be made of known ones.
    models = {"en-de": tiny(), **{n: load(FIXTURES / n) for n in ("classify", "tag", "speech")}}
    with serving(models) as server:
        for command in commands:
            shown = command.replace("http://127.0.0.1:5000", server.url).replace('"Ein"', '"e"')
            assert shown != command
            words = shlex.split(shown)
            ended = subprocess.run(
                [*words, "--fail-with-body", "--noproxy", "*"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert ended.returncode == 0, (command, ended.stdout)
            assert ended.stdout.strip()
