"""The command score: what run reports, and what it says of texts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import Transduce, sentence


def test_score_is_what_run_reports(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    sources = ["ab", "ba", "abcabc"]
    ran = transduce("run", folder, *sources, "--scores", "--length-penalty", 0, "--no-unknown")
    scores, texts = zip(*(line.split("\t") for line in ran.lines), strict=True)
    (tmp_path / "source").write_text("\n".join(sources) + "\n")
    (tmp_path / "target").write_text("\n".join(texts) + "\n")
    (tmp_path / "both.tsv").write_text(
        "".join(f"{s}\t{t}\n" for s, t in zip(sources, texts, strict=True))
    )
    ended = transduce("score", folder, tmp_path / "source", tmp_path / "target")
    assert ended.status == 0
    columns = [line.split("\t") for line in ended.lines]
    assert [float(row[0]) for row in columns] == pytest.approx([*map(float, scores)], abs=2e-4)
    total = sum(float(row[0]) for row in columns)
    assert ended.err.startswith("3 pairs, ")
    assert f"log-probability {total:.3f}" in ended.err
    assert transduce("score", folder, tmp_path / "both.tsv") == ended
    written = transduce("score", folder, tmp_path / "both.tsv", "--json").lines
    for line, row in zip(written, columns, strict=True):
        values = json.loads(line)
        assert values["log_probability"] == pytest.approx(float(row[0]), abs=1e-4)
        assert values["perplexity"] == pytest.approx(float(row[1]), abs=1e-4)
        assert len(values["tokens"]) == len(values["token_log_probabilities"])


def test_score_mistakes(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("A\n")
    said = sentence(transduce("score", folder, tmp_path / "two", tmp_path / "one"))
    assert re.search(r"two has 2 lines, but .*one has 1", said)
    assert "two:1: 1 columns" in sentence(transduce("score", folder, tmp_path / "two"))
    assert "No such file" in sentence(transduce("score", folder, tmp_path / "none"))


def test_scores_of_texts_and_of_what_follows_prompts(
    transduce: Transduce, speaker: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts").write_text("tea cup\na\tb\n")
    (tmp_path / "prompts").write_text("tea\na\n")
    (tmp_path / "rest").write_text(" cup\n\tb\n")
    whole = transduce("score", speaker, tmp_path / "texts")
    assert whole.err.startswith("2 texts, 10 tokens: log-probability")
    heads = transduce("score", speaker, tmp_path / "prompts")
    tails = transduce("score", speaker, tmp_path / "prompts", tmp_path / "rest")
    for one, *parts in zip(whole.lines, heads.lines, tails.lines, strict=True):
        values = [float(part.split("\t")[0]) for part in parts]
        assert float(one.split("\t")[0]) == pytest.approx(sum(values), abs=2e-4)
