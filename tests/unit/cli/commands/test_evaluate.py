"""The command evaluate: scores, files, mistakes."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from command_line import Transduce, sentence
from tiny_label_networks import FILMS, LABELS, classifier


def test_evaluate_scores_writes_and_renews_the_card(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    ended = transduce("evaluate", folder, "--split", "valid")
    assert ended.status == 0
    assert re.search(r"^PER \d+\.\d\d %", ended.out)
    assert "exact match" in ended.out
    assert len((folder / "valid.hypotheses.txt").read_text().split("\n")) == 4
    assert "| valid | 3 | per (lower is better) |" in (folder / "README.md").read_text()


def test_a_report_that_is_there_has_the_new_scores(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    from transduce.inspection.report import write_report
    from transduce.tasks.transduce import load

    model = tmp_path / "model"
    shutil.copytree(folder, model)
    (model / "metrics.json").unlink(missing_ok=True)
    pairs = tmp_path / "pairs.tsv"
    shutil.copy(folder / "valid.tsv", pairs)
    typed = ("evaluate", model, "--source", pairs)
    assert transduce(*typed).status == 0
    assert not (model / "report.html").exists()  # nobody has asked for one
    (model / "metrics.json").unlink()
    write_report(load(model), model)
    assert "Not evaluated yet" in (model / "report.html").read_text("utf-8")
    assert transduce(*typed).status == 0
    page = (model / "report.html").read_text("utf-8")
    assert "Not evaluated yet" not in page
    assert "`" not in page.partition("Recipe")[0]


def test_evaluate_where_the_corpus_has_moved(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    (folder / "valid.tsv").rename(tmp_path / "valid.tsv")
    try:
        reported = sentence(transduce("evaluate", folder, "--split", "valid"))
        assert "say where the files are with data.folder=..." in reported
        moved = f"data.folder={tmp_path}"
        assert transduce("evaluate", folder, moved, "--split", "valid").status == 0
        files = ("--source", tmp_path / "valid.tsv")
        ended = transduce("evaluate", folder, "decode.beam=1", *files)
        assert "saved as valid.tsv in " in ended.err
        assert "| valid.tsv | 3 | per" in (folder / "README.md").read_text()
        assert "cannot be changed after training" in sentence(
            transduce("evaluate", folder, "model.width=8")
        )
    finally:
        (tmp_path / "valid.tsv").rename(folder / "valid.tsv")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "has no test set; give --split valid, or --source and --target"),
        (["--split", "vaild"], "there is no split vaild; did you mean valid?"),
        (["--split", "train"], "there is no split train; there are test and valid"),
        (["--split", "valid", "--metrics", "blue"], "there is no metric blue; did you mean bleu?"),
        (["--split", "valid", "--metrics", ","], "--metrics names none; there are bleu, chrf"),
        (["--source", "x"], "--source and --target, or with --source alone"),
        (["--source", "/no/x", "--target", "/no/y"], "/no/x"),
    ],
)
def test_evaluate_mistakes(transduce: Transduce, folder: Path, typed: list[str], said: str) -> None:
    assert said in sentence(transduce("evaluate", folder, *typed))


def test_evaluate_by_slices_and_item_by_item(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    items = tmp_path / "items.jsonl"
    typed = ("evaluate", folder, "--split", "valid", "--by", "length", "--items", items)
    ended = transduce(*typed)
    assert re.search(r"^by length +items +PER +exact match$", ended.out, re.MULTILINE)
    assert re.search(r"^1 character +1 +\d+\.\d\d \[", ended.out, re.MULTILINE)
    assert "gap in PER between" in ended.out
    assert [json.loads(line)["source"] for line in items.read_text().splitlines()] == [
        "ab",
        "ba",
        "c",
    ]
    assert "items.jsonl exists already and would be replaced" in sentence(transduce(*typed))
    assert transduce(*typed, "--overwrite").status == 0
    reported = sentence(transduce("evaluate", folder, "--split", "valid", "--by", "speaker"))
    assert "speaker" in reported


def test_evaluate_writes_a_report_and_leaves_ones_own(transduce: Transduce, folder: Path) -> None:
    typed = ("evaluate", folder, "--split", "valid", "--report")
    ended = transduce(*typed)
    page = folder / "report.html"
    assert f"the report is {page}" in ended.err
    assert "Slices of valid" in page.read_text("utf-8")
    page.write_text("mine")
    try:
        assert "is your own and stays as it is" in transduce(*typed).err
        assert page.read_text() == "mine"
        assert transduce(*typed, "--overwrite").status == 0
        assert "Report of tiny" in page.read_text("utf-8")
    finally:
        page.unlink()


def test_evaluate_decodes_with_the_settings_that_are_given(
    transduce: Transduce, folder: Path
) -> None:
    asked = ("evaluate", folder, "--split", "valid")
    assert transduce(*asked, "--max-length", "1", "--min-length", "1").status == 0
    lines = (folder / "valid.hypotheses.txt").read_text().splitlines()
    assert all(len(line.split()) == 1 for line in lines)
    metadata = json.loads((folder / "metrics.json").read_text())["valid"]
    assert (metadata["max_length"], metadata["min_length"]) == (1, 1)
    assert transduce(*asked, "--sample", "--seed", "3", "--top-k", "2").status == 0
    assert transduce(*asked, "--rerank", folder, "--beam", "2").status == 0
    assert json.loads((folder / "metrics.json").read_text())["valid"]["rerank"] == str(folder)
    reported = sentence(transduce(*asked, "--ctc-weight", "0.3"))
    assert "ctc_weight needs a speech model" in reported


def test_a_score_on_the_files_of_training_is_said_to_be_too_good(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    (tmp_path / "train.src").write_text("ab\nc\n", "utf-8")
    (tmp_path / "train.tgt").write_text("A B\nC\n", "utf-8")
    (tmp_path / "other.src").write_text("ab\nc\n", "utf-8")
    here = f"data.folder={tmp_path}"
    files = ("--target", tmp_path / "train.tgt", here)
    said = "the model was trained on train.tgt, so the score is too good: --split valid has what"
    assert said in transduce("evaluate", own, "--source", tmp_path / "train.src", *files).err
    ended = transduce("evaluate", own, "--source", tmp_path / "other.src", *files)
    assert (ended.status, "too good" in ended.err) == (0, False)
    (tmp_path / "pairs.tsv").write_text("ab\tA B\nc\tC\n", "utf-8")
    table = ("evaluate", own, "--source", tmp_path / "pairs.tsv", here)
    assert "too good" not in transduce(*table).err


def test_labels_that_the_model_does_not_have_are_said(transduce: Transduce, tmp_path: Path) -> None:
    classifier().save(tmp_path / "films")
    table = tmp_path / "new.tsv"
    for other, said in (("splendid", "1 of 2 labels are wrong whatever"), (LABELS[1], "")):
        table.write_text(f"{FILMS[0]}\t{LABELS[0]}\n{FILMS[1]}\t{other}\n", "utf-8")
        ended = transduce("evaluate", tmp_path / "films", "--source", table)
        assert ended.status == 0
        assert ("labels are wrong" in ended.err) == bool(said)
        assert said in ended.err


def test_a_folder_of_text_is_refused(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    said = sentence(transduce("evaluate", folder, "--source", tmp_path))
    assert said == f"{tmp_path} is a folder; give a file of it"


def test_a_file_of_another_form_is_evaluated_scored_and_run(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "tiny"
    shutil.copytree(folder, own)
    rows = [{"tags": "x", "source": "ab", "target": "A B"}, {"source": "c", "target": "C"}]
    for name, content in {
        "test.json": json.dumps(rows),
        "test.csv": "source;target\nab;A B\nc;C\n",
        "test.tsv.gz": gzip.compress(b"source\ttarget\nab\tA B\nc\tC\n"),
        "test.UTF16.tsv": "source\ttarget\nab\tA B\nc\tC\n".encode("utf-16"),
    }.items():
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        ended = transduce("evaluate", str(own), "--source", str(path))
        assert (ended.status, "PER" in ended.out) == (0, True), (name, ended)
        assert "2 pairs" in transduce("score", str(own), str(path)).err, name
        asked = ["--column", "source"] if name == "test.json" else []
        job = transduce(
            "batch", str(own), "-i", str(path), "--output", str(tmp_path / f"{name}.out"), *asked
        )
        assert "2 lines in all" in job.out, (name, job)
        assert len(transduce("run", str(own), "-i", str(path)).lines) == 2, name
