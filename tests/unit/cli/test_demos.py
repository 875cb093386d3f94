"""The demo of speech, from end to end but small; and a run that is not to be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.cli import demos
from transduce.errors import ModelError
from transduce.recipe import dump_recipe, load_recipe
from transduce.synthesis import announcements as made
from transduce.tasks.folder import read_metrics

TINY = (
    "model.width=16",
    "model.encoder={kind: conformer, layers: 1, heads: 2, feed_forward: 16, kernel: 3}",
    "model.decoder={layers: 1, heads: 1, feed_forward: 16}",
    "audio.mel_bands=10",
    "audio.channels=2",
    "train.steps=2",
    "decode.beam=1",
)


@pytest.mark.slow
def test_speech_is_made_learnt_heard_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")
    spoken = {"train": ["bus to rome", "tram one"], "valid": ["bus one"], "test": ["tram to rome"]}
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(made, "announcements", lambda: spoken)
    monkeypatch.setattr(made, "KNOWN", made.KNOWN[:1])
    demos.listen(tmp_path / "run", 1, TINY)
    reported = capsys.readouterr().out
    assert "tram to rome" in reported
    assert "CER" in reported
    assert (tmp_path / "run" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert set(read_metrics(tmp_path / "run")["test"]["metrics"]) == {"cer", "wer"}


def test_a_run_of_another_recipe_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(dump_recipe(load_recipe("copy")), "utf-8")
    with pytest.raises(ModelError, match=r"holds a run of another recipe, copy, .* --output"):
        demos.pronounce(tmp_path, 1)
    assert (tmp_path / "recipe.yaml").exists()
