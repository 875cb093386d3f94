"""Really train, export, and use the export; and see a wrong export thrown away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from lives import Command
from transduce.cli.main import commands
from transduce.errors import DataError, ModelError
from transduce.interop import ctranslate2, export
from transduce.interop.engine import open_model
from transduce.interop.parity import Measurement, measure_here
from transduce.tasks.transduce import Transducer, load

pytest.importorskip("ctranslate2")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def trained(trained_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    shutil.copytree(trained_tiny, folder)
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: starting two others each time takes seconds."""

    def here(
        folder: Path, engine: str | None, pairs: Any, sources: Any, scratch: Path
    ) -> Measurement:
        given = ([pair.source for pair in pairs], [pair.target for pair in pairs])
        return measure_here(folder, engine, given, sources)

    monkeypatch.setattr(export, "measure_in_subprocess", here)


def here(*arguments: object) -> Result:
    return CliRunner().invoke(commands(), [str(word) for word in arguments])


@pytest.mark.slow
def test_export_run_and_evaluate_by_the_command_line(command: Command, trained: Path) -> None:
    ended = command("export", trained, "--to", "ctranslate2", "--limit", 40)
    assert ended.returncode == 0, ended.stderr
    assert "Compared on 40 pairs of the recipe's validation set" in ended.stdout
    exported = trained / "ctranslate2"
    report = json.loads((exported / "parity.json").read_text())
    assert report["largest_difference"] < 1e-4
    assert report["identical_greedy"] == 1.0
    assert report["faults"] == []
    assert min(report["sentences_per_second"]) > 0
    assert report["bytes"][1] == (exported / "model.bin").stat().st_size
    assert "beam 2" in (exported / "PARITY.md").read_text()

    plain = here("run", trained, "abcd", "edc")
    assert plain.stdout == here("run", trained, "--engine", "ctranslate2", "abcd", "edc").stdout
    lines = trained.parent / "lines.txt"
    lines.write_text("".join(f"{'abcde'[: 1 + n % 5]}\n" for n in range(900)))  # several groups
    of_file = here("run", trained, "-i", lines).stdout
    assert of_file == here("run", trained, "--engine", "ctranslate2", "-i", lines).stdout
    assert len(of_file.splitlines()) == 900
    by_folder = here("evaluate", exported)  # it stands alone: no engine needs to be named
    assert by_folder.exit_code == 0, by_folder.output
    measured = json.loads((exported / "metrics.json").read_text())["test"]["metrics"]
    assert f"exact match {measured['exact']['value']:.2f} %" in by_folder.stdout
    assert "test" not in json.loads((trained / "metrics.json").read_text())
    # A forked process would wait forever for the threads of the engine.
    job = trained.parent / "batch"
    ended = command("batch", exported, "-i", lines, "--output", job, "--workers", 1)
    assert ended.returncode == 0, ended.stderr
    assert "".join(part.read_text() for part in sorted(job.glob("part-*.txt"))) == of_file


@pytest.mark.usefixtures("quick")
def test_quantized_and_elsewhere(trained: Path, task: Path, tmp_path: Path) -> None:
    pairs = [line.split("\t") for line in (task / "test.tsv").read_text().splitlines()]
    for name, side in (("a.src", 0), ("a.tgt", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    place, parity = export.export_folder(
        trained,
        "ctranslate2",
        quantize="int8",
        folder=tmp_path / "small",
        files=(tmp_path / "a.src", tmp_path / "a.tgt"),
    )
    assert place == tmp_path / "small"
    assert parity.pairs == 125
    assert parity.data == "a.src and a.tgt"
    assert (
        parity.bytes[1] < parity.bytes[0] * 5
    )  # a table of positions, in a model of a few letters
    assert open_model(place)("abcd") == load(trained)("abcd")


@pytest.mark.usefixtures("quick")
def test_onnx_searches_as_we_do(trained: Path) -> None:
    place, parity = export.export_folder(trained, "onnx")
    assert parity.identical_searched == 1.0
    assert parity.largest_difference < 1e-4
    assert open_model(trained, "onnx").run(["abcd"], include=["ee"])[0].text == (
        load(trained).run(["abcd"], include=["ee"])[0].text
    )
    assert place == trained / "onnx"
    before = {path.name: path.read_bytes() for path in place.iterdir() if "arity" not in path.name}
    notes = place / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(ModelError, match=r"notes\.txt was changed since the export"):
        export.export_folder(trained, "onnx", limit=5)
    notes.unlink()
    export.export_folder(trained, "onnx", limit=5)
    assert {name for name in before if (place / name).read_bytes() != before[name]} <= {
        "model.sha256",  # of the report, which has speeds in it
        "PARITY.md",
    }
    notes.write_text("mine")
    export.export_folder(trained, "onnx", limit=5, overwrite=True)
    assert not notes.exists()
    whole = (place / "decoder.onnx").read_bytes()
    (place / "decoder.onnx").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"decoder\.onnx is not the file"):
        open_model(trained, "onnx")


@pytest.mark.slow
def test_in_fewer_bits_by_the_command_line(command: Command, trained: Path) -> None:
    """Measured in processes of its own, as exports are; the test below measures here."""
    ended = command("export", trained, "--to", "native", "--quantize", "int8", "--limit", 40)
    assert ended.returncode == 0, ended.stderr
    assert f"The export is in {trained / 'int8'}" in ended.stdout
    report = json.loads((trained / "int8" / "parity.json").read_text())
    assert 0 < report["largest_difference"] < 0.5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("quantize", "share"), [("bfloat16", 0.55), ("int8", 0.45)])
def test_in_fewer_bits(trained: Path, quantize: str, share: float) -> None:
    given = ("--to", "native", "--quantize", quantize)
    ended = here("export", trained, *given, "--limit", 40)
    assert ended.exit_code == 0, ended.output
    exported = trained / quantize
    assert f"The export is in {exported}" in ended.stdout
    report = json.loads((exported / "parity.json").read_text())
    assert 0 < report["largest_difference"] < 0.5
    assert report["identical_greedy"] > 0.9
    assert report["bytes"][1] == (exported / "model.safetensors").stat().st_size
    assert report["bytes"][1] < share * report["bytes"][0]

    assert here("run", exported, "abcd").stdout == here("run", trained, "abcd").stdout
    evaluated = here("evaluate", exported)
    assert evaluated.exit_code == 0, evaluated.output
    assert "test" in json.loads((exported / "metrics.json").read_text())
    again = here("export", trained, *given, "--limit", 10)
    assert again.exit_code == 0, again.output  # an older export may be replaced
    assert not (exported / "metrics.json").exists()


@pytest.mark.usefixtures("quick")
def test_a_broken_weight_is_found_and_not_kept(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ctranslate2.export

    def broken(model: Transducer, folder: Path, quantize: str | None = None) -> None:
        with torch.no_grad():
            model.network.decoder.embedding.table.weight[7] *= 1.3
        right(model, folder, quantize)

    monkeypatch.setattr(ctranslate2, "export", broken)
    with pytest.raises(ModelError, match="the export is not kept, as log-probabilities differ by"):
        export.export_folder(trained, "ctranslate2", folder=tmp_path / "wrong")
    assert list(tmp_path.iterdir()) == []
    place, parity = export.export_folder(
        trained, "ctranslate2", folder=tmp_path / "wrong", allow=True
    )
    assert parity.faults
    assert "beyond the threshold" in (place / "PARITY.md").read_text()


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_is_reported_first(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds files that are not an export"):
        export.export_folder(trained, "onnx", folder=trained)
    with pytest.raises(ModelError, match="not quantized for onnx"):
        export.export_folder(trained, "onnx", quantize="int8")
    with pytest.raises(ModelError, match="there is no export to abacus"):
        export.export_folder(trained, "abacus")
    with pytest.raises(ModelError, match="quantize is left out; for native it must be one of"):
        export.export_folder(trained, "native")
    with pytest.raises(ModelError, match="quantize is float16; for native it must be one of"):
        export.export_folder(trained, "native", quantize="float16")
    with pytest.raises(ModelError, match="holds a trained model"):
        export.export_folder(trained, "native", quantize="int8", folder=trained)
    with pytest.raises(DataError, match="need both --source and --target"):
        export.export_folder(trained, "onnx", files=(tmp_path, None), folder=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
