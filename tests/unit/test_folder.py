"""A model folder: what of it is a run's, and what is somebody's own."""

from __future__ import annotations

from pathlib import Path

from transduce.folder import OF_A_RUN, discard_run
from transduce.interop.parity import REPORT


def test_a_run_that_is_discarded_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    run = [name.replace("*", "test") for name in OF_A_RUN]
    for name in (*run, "corpus.tsv", "my.yaml"):
        (tmp_path / name).write_text("x")
    for name in (f"onnx/{REPORT}", "state/training.safetensors", "corpora/train.tsv"):
        (tmp_path / name).parent.unlink(missing_ok=True)
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    (tmp_path / "training.png").unlink()
    (tmp_path / "training.png").symlink_to(tmp_path / "corpora")
    discard_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.tsv", "my.yaml", "corpora"}
    assert (tmp_path / "corpora" / "train.tsv").exists()
