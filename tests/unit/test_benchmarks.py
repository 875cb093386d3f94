"""Every script of benchmarks/ still runs: in a small size, beside what it is compared with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
from tiny_models import SOURCES, tiny

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))
# What a script needs to run in seconds. MODEL, SOURCE, TARGET and OUT are put in by the test.
QUICK: dict[str, str] = {
    "busy.py": "copy --device cpu --seconds 0.2 --warm 0 --override train.batch_tokens=64 "
    "--out OUT",
    "checkpointing.py": "--rounds 1 --steps 1 --json OUT",
    "decode_speed.py": "--quick --device cpu --out OUT --systems ours;float32,hf --only greedy,;1",
    "engine_speed.py": "MODEL --rounds 1 --lines 4 --beams 1 --quantize float32 --out OUT",
    "growth.py": "--device cpu --size tiny --tokens 64 --longest 32 --largest 1000 --steps 1 "
    "--out OUT",
    "lens_overhead.py": "--size tiny --rounds 1",
    "optimizer.py": "--files SOURCE TARGET --seconds 1 --seeds 1 --rates 1e-3 --batch-tokens 64",
    "parity.py": "MODEL --source SOURCE --target TARGET --limit 2 --out OUT",
    "patience.py": "MODEL --source SOURCE --target TARGET --rounds 1 --json OUT",
    "recipes.py": "--list",
    "scale.py": "--pairs 2000",
    "serve_load.py": "MODEL --sources SOURCE --count 4 --single 2 --clients 2 --seconds 0.5 "
    "--requests 4 --json OUT",
    "serving_parts.py": "MODEL --quick --json OUT",
    "train_speed.py": "--quick --device cpu --kinds synthetic --modes eager --steps 1 --out OUT",
}
PARTS = {
    "alone.py": "train_speed.py",
    "decode_engines.py": "decode_speed.py",
    "decode_model.py": "decode_speed.py",
    "decode_twin.py": "decode_speed.py",
    "decode_worker.py": "decode_speed.py",
    "scores.py": "recipes.py",
    "systems.py": "train_speed.py",
    "whisper_systems.py": "whisper.py",
}
"""Modules of a script, and the script."""
NEED_CORPORA = {
    "ablation.py",
    "alignment.py",
    "demo.py",
    "fine_tuning.py",
    "language_detection.py",
    "live.py",
    "live_load.py",
    "sound_speed.py",
    "toy_tasks.py",
    "inflection.py",
    "whisper.py",
    "whisper_fine_tuning.py",
    "whisper_profile.py",
}
"""They train, or need a trained model with its corpus: here they only tell their options."""
NO_OPTIONS = {"reading.py", "tokenise.py"}
"""They need a corpus too, and have no options: they are only imported."""
FAST = {"recipes.py"}


def run(folder: Path, name: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a copy, so that no results of the repository are written over."""
    if not (folder / "benchmarks").exists():
        ignored = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
        (folder / "benchmarks" / "results").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-W", "ignore", f"benchmarks/{name}", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_every_script_is_listed() -> None:
    listed = [*QUICK, *PARTS, *NEED_CORPORA, *NO_OPTIONS]
    assert sorted(listed) == SCRIPTS
    assert set(PARTS.values()) <= set(QUICK) | NEED_CORPORA


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in QUICK]
)
def test_quick(tmp_path: Path, name: str) -> None:
    for package in ("transformers", "ctranslate2", "onnxruntime"):
        optional.skip_without(package)
    tiny().save(tmp_path / "model")
    lines = [line for line in SOURCES if line.strip()] * 3
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    places = {"MODEL": "model", "SOURCE": "source", "TARGET": "target", "OUT": "out.json"}
    options = [places.get(word, word.replace(";", " ")) for word in QUICK[name].split()]
    done = run(tmp_path, name, options)
    assert done.returncode == 0, done.stdout + done.stderr
    if "OUT" in QUICK[name]:
        assert (tmp_path / "out.json").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NEED_CORPORA))
def test_options(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name, ["--help"])
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


# ---------------------------------------------------------------------------- missing systems


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.usefixtures("scripts")
def test_a_peer_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import systems

    assert systems.peers("") == ["marian", "torch"]
    monkeypatch.setattr(systems.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="marian: transformers is not installed"):
        systems.peers("")
    assert systems.peers("marian") == ["torch"]
    systems.end({})


@pytest.mark.usefixtures("scripts")
def test_the_twin_of_hugging_face_says_the_same() -> None:
    """As decode_speed.py needs it, for both positions of norms."""
    transformers: Any = optional.package("transformers")
    from decode_twin import twin_of

    for place in ("pre", "post"):
        part = {"norm_position": place}
        model = tiny(part, part, tie_embeddings="all")
        theirs = twin_of(model, transformers).eval()
        sources, targets = torch.tensor([[5, 7, 6, 3]]), torch.tensor([[2, 6, 5, 8]])
        network = model.network
        with torch.no_grad():
            memory = network.encode(sources, torch.tensor([4]))
            ours_BTV = network.head(network.decoder(targets, memory)).log_softmax(dim=-1)
            logits_BTV = theirs(input_ids=sources, decoder_input_ids=targets).logits
        torch.testing.assert_close(ours_BTV, logits_BTV.log_softmax(dim=-1), rtol=0, atol=1e-4)
