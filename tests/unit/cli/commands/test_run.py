"""The command run: sources in, outputs in their order, wishes and mistakes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import forked
from command_line import Transduce, sentence
from forked import Forked
from tiny_models import tiny
from tiny_sounds import tagged_model
from transduce.data.text.tags import UNKNOWN_TAG
from transduce.data.tokens.tokenizer import END
from transduce.recipe import Recordings
from transduce.tasks.members import write_members
from transduce.tasks.transduce import Transducer, load


def test_run_takes_arguments_a_file_or_standard_input(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    sources = ["ab", "b", "", "abcabc", "c"]
    given = transduce("run", folder, *sources)
    assert given.status == 0
    assert len(given.lines) == 5
    assert given.lines[2] == ""
    # Order is kept: each line is what the source gives alone.
    alone = [transduce("run", folder, source).lines[0] for source in sources]
    assert given.lines == alone
    text = "\n".join(sources).encode()
    assert transduce("run", folder, stdin=text).lines == alone
    assert transduce("run", folder, stdin=text + b"\n").lines == alone
    assert transduce("run", folder, stdin=text.replace(b"\n", b"\r\n")).lines == alone
    assert transduce("run", folder, stdin=b"\xef\xbb\xbf" + text).lines == alone
    (tmp_path / "in.txt").write_bytes(text + b"\n")
    assert transduce("run", folder, "--input", tmp_path / "in.txt").lines == alone


def test_tags_of_a_table_are_read_as_in_training(
    transduce: Transduce, tagged: Path, tmp_path: Path
) -> None:
    table = tmp_path / "new.tsv"
    rows = ["N\tba\tab", "V;PST\tba\tcd", "\tba\tab", "V\t\t"]
    table.write_text("\n".join(["features\tlemma\tform", *rows]), "utf-8")
    given = transduce("run", tagged, "--scores", "--input", table)
    by_hand = transduce("run", tagged, "<N> ba", "<V> <PST> ba", "ba", "", "--scores")
    assert given.lines == by_hand.lines
    assert len(set(given.lines)) == 4
    # --tag is in place of the column.
    verbs = transduce("run", tagged, "--scores", "--input", table, "--tag", "V")
    assert verbs.lines[:3] == 3 * transduce("run", tagged, "<V> ba", "--scores").lines
    objects = tmp_path / "new.jsonl"
    lines = [{"lemma": "ba", "features": "N"}, {"lemma": "ba", "features": ["V", "PST"]}]
    objects.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert transduce("run", tagged, "--scores", "--input", objects).lines == given.lines[:2]
    # Also where only the tags tell that these are no requests.
    other = tmp_path / "other"
    shutil.copytree(tagged, other)
    recipe = (other / "recipe.yaml").read_text("utf-8").replace("source: lemma", "source: source")
    (other / "recipe.yaml").write_text(recipe, "utf-8")
    objects.write_text(objects.read_text("utf-8").replace("lemma", "source"), "utf-8")
    assert transduce("run", other, "--scores", "--input", objects).lines == given.lines[:2]
    table.write_text("\n".join(["features\tlemma\tform", *rows[:2]]), "utf-8")
    scores = transduce("score", tagged, table).lines
    (tmp_path / "source").write_text("<N> ba\n<V> <PST> ba\n", "utf-8")
    (tmp_path / "target").write_text("ab\ncd\n", "utf-8")
    assert scores == transduce("score", tagged, tmp_path / "source", tmp_path / "target").lines
    table.write_text("id\tlemma\n1\tba\n", "utf-8")
    without = transduce("run", tagged, "--scores", "--input", table)
    assert without.lines == by_hand.lines[2:3]
    assert "new.tsv has no column features, which had the tags in training" in without.err
    table.write_text("features\tlemma\nV<\tba\n", "utf-8")
    said = sentence(transduce("run", tagged, "--input", table))
    assert said.startswith("new.tsv:2: the tag is 'V<'; it must be one word")


def test_a_table_with_a_tag_that_the_model_does_not_know_is_refused(
    transduce: Transduce, tagged: Path, tmp_path: Path
) -> None:
    """As --tag refuses it: it would be read as text."""
    own, table = tmp_path / "own", tmp_path / "new.tsv"
    shutil.copytree(tagged, own)
    table.write_text("features\tlemma\tform\nN\tba\tab\nV;PTS\tba\tcd\n", "utf-8")
    why = "the model has no tag PTS; did you mean PST?"
    assert sentence(transduce("run", own, "ba", "--tag", "V;PTS")) == why
    assert sentence(transduce("run", own, "--input", table)) == f"new.tsv:3: {why}"
    assert sentence(transduce("score", own, table)) == f"new.tsv:3: {why}"
    for command in (["evaluate", own], ["compare", own, tagged]):
        said = sentence(transduce(*command, "--source", table))
        assert said == f"{table}:3: {why}"
    assert len(transduce("run", own, "--input", table, "--tag", "V").lines) == 2
    # What the recipe holds out may have such a tag by chance.
    shutil.copy(table, tmp_path / "forms.tsv")
    held_out = ("--split", "valid", f"data.folder={tmp_path}")
    assert transduce("evaluate", own, *held_out).status == 0
    # A model with a tag for all that it does not know reads them so, and says it.
    model = tiny(tags=["V", "N", "PST", UNKNOWN_TAG])
    model.recipe = load(tagged).recipe
    model.save(own)
    read = transduce("run", own, "--input", table)
    assert (read.status, len(read.lines)) == (0, 2)
    assert "source 2: the source has a tag that training does not have" in read.err
    assert len(transduce("score", own, table).lines) == 2


@pytest.mark.parametrize("form", ["text", "srt"])
def test_tags_of_a_table_of_recordings_are_read_as_in_training(
    transduce: Transduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    soundfile = pytest.importorskip("soundfile")
    from tones import RATE, tones

    model, own = tagged_model(), tmp_path / "own"
    table = Recordings(file="all.tsv", audio="path", target="text", tags="language")
    data = model.recipe.data.model_copy(update={"train": table, "valid": table, "test": None})
    model.recipe = model.recipe.model_copy(update={"data": data})
    model.save(own)
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", tones("ab c"), RATE)
    listed = tmp_path / "new.tsv"
    listed.write_text("path\tlanguage\na.wav\tx\nb.wav\ty\n", "utf-8")
    if form == "srt":
        asked = ("--format", "srt", "--output", tmp_path / "out")
        written = transduce("run", own, "--input", listed, *asked)
        assert [Path(line).name for line in written.lines] == ["a.srt", "b.srt"]
        monkeypatch.chdir(tmp_path)
        again = sentence(transduce("run", own, "<x> a.wav", *asked))
        assert "a.srt exists" in again
        return
    read = transduce("run", own, "--scores", "--input", listed, "--partial").lines
    x, y = (
        transduce("run", own, "--scores", tmp_path / "a.wav", "--tag", tag).lines for tag in "xy"
    )
    assert read == [*x, *y]
    assert x != y
    assert transduce("run", own, "--scores", "--input", listed, "--tag", "y").lines == 2 * y
    objects = transduce("run", own, "--json", "--input", listed).lines
    assert json.loads(objects[0])["source"] == str(tmp_path / "a.wav")
    raw = (32767 * tones("ab c")).astype("<i2").tobytes()
    (tmp_path / "c.raw").write_bytes(raw)
    listed.write_text("path\tlanguage\nc.raw\ty\n", "utf-8")
    (heard,) = transduce("run", own, "--input", listed, "--rate", RATE).lines
    assert heard == transduce("run", own, tmp_path / "b.wav", "--tag", "y").lines[0]
    listed.write_text("path\tlanguage\na.wav\tz\n", "utf-8")
    said = sentence(transduce("run", own, "--input", listed))
    assert said == "new.tsv:2: the model has no tag z; its tags are x, y"


def test_times_of_a_table_of_recordings_are_read_as_in_training(
    transduce: Transduce, tmp_path: Path
) -> None:
    soundfile = pytest.importorskip("soundfile")
    from tones import RATE, tones

    model, own = tagged_model(), tmp_path / "own"
    table = Recordings(file="all.tsv", audio="path", start="from", end="to", tags="language")
    data = model.recipe.data.model_copy(update={"train": table, "valid": table, "test": None})
    model.recipe = model.recipe.model_copy(update={"data": data})
    model.save(own)
    samples = tones("ab c")
    soundfile.write(tmp_path / "all.wav", samples, RATE)
    soundfile.write(tmp_path / "end.wav", samples[RATE // 2 :], RATE)
    listed = tmp_path / "new.tsv"
    row = f"path\tfrom\tto\tlanguage\nall.wav\t0.5\t{len(samples) / RATE}\tx\n"
    listed.write_text(row, "utf-8")
    asked = ("run", own, "--scores")
    (part,) = transduce(*asked, "--input", listed).lines
    end, whole = (
        transduce(*asked, tmp_path / f"{one}.wav", "--tag", "x").lines[0] for one in ("end", "all")
    )
    assert part == end != whole
    listed.write_text("path\tlanguage\nall.wav\tx\n", "utf-8")
    read = transduce(*asked, "--input", listed)
    assert read.lines == [whole]
    assert "new.tsv lacks from and to, which had the times in training" in read.err
    listed.write_text(row.replace("0.5", "soon"), "utf-8")
    said = sentence(transduce(*asked, "--input", listed))
    assert said == "new.tsv:2: 'soon' is not a number of seconds; correct the line"


def test_the_ensemble_of_a_folder_is_used_unless_it_is_switched_off(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    whole, other = tmp_path / "whole", tmp_path / "whole" / "seed-2"
    shutil.copytree(folder, whole)
    model = load(folder)
    torch.manual_seed(9)
    Transducer.create(model.recipe, model.source_tokens, model.target_tokens).save(other)
    write_members(whole, [other])
    sources = ["ab", "abcabc", "c", "--scores"]
    alone = transduce("run", folder, *sources).lines
    together = transduce("run", folder, *sources, "--ensemble", other).lines
    assert alone != together
    assert transduce("run", whole, *sources).lines == together
    assert transduce("run", whole, *sources, "--ensemble", "none").lines == alone
    assert transduce("run", whole, *sources, "--ensemble", other).lines == together
    evaluate = ("evaluate", whole, f"data.folder={whole}", "--split", "valid")
    assert "saved as valid-2-models" in transduce(*evaluate).err
    assert "saved as" not in transduce(*evaluate, "--ensemble", "none").err
    assert transduce(*evaluate, "--ensemble", "none").status == 0
    other.rename(other.with_name("elsewhere"))
    said = sentence(transduce("run", whole, "ab"))
    assert "members.json names 'seed-2', but there is no" in said
    assert "--ensemble none uses the first model alone" in said
    assert transduce("run", whole, *sources, "--ensemble", "none").lines == alone


def test_empty_outputs_are_said_once(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    whole = transduce("run", folder, "--min-length", 1, stdin=b"ab\n\nb\n")
    assert (whole.lines[1], whole.err) == ("", "")  # nothing is right for an empty source
    assert all((whole.lines[0], whole.lines[2]))
    ending = load(folder)
    with torch.no_grad():
        ending.network.head.bias[END] += 50.0  # the end is the most probable from the start
    ending.save(tmp_path / "ending")
    said = "outputs {} empty; train longer, or decode with --beam 1 (greedy search) or --min-length"
    several = transduce("run", tmp_path / "ending", stdin=b"ab\n\nb\n")
    assert several.lines == ["", "", ""]
    assert several.err.startswith(f"transduce: 2 of 3 {said.format('are')}")
    assert several.err.count("\n") == 1
    one = transduce("run", tmp_path / "ending", "ab", "--json")
    assert one.err.startswith(f"transduce: 1 of 1 {said.format('is')}")
    assert transduce("run", tmp_path / "ending", "ab", "--min-length", 1).err == ""
    # What says itself why it is empty is not counted.
    refused = transduce("run", folder, "ab", "--include", "A", "--exclude", "A")
    assert "outputs is empty" not in refused.err


def test_only_a_newline_ends_a_line(transduce: Transduce, folder: Path) -> None:
    ended = transduce("run", folder, stdin="a\u2028b\u0085c\x0bd\n\n\nc\n".encode())
    assert len(ended.lines) == 4
    assert ended.lines[1:3] == ["", ""]


def test_no_source_is_no_line(transduce: Transduce, folder: Path) -> None:
    assert transduce("run", folder) == (0, "", "")


def test_lines_across_reads_stay_whole(transduce: Transduce, folder: Path) -> None:
    # The first read is of 1024 bytes; a letter of two bytes stands astride it.
    text = ("a" * 20 + "\n") * 48 + "a" * 15 + "é\n" + "b\n" * 3000
    ended = transduce("run", folder, "--beam", 1, stdin=text.encode())
    assert len(ended.lines) == 48 + 1 + 3000
    assert len(set(ended.lines[49:])) == 1


def test_scores_nbest_and_json(transduce: Transduce, folder: Path) -> None:
    scored = transduce("run", folder, "ab", "--scores").lines[0].split("\t")
    assert len(scored) == 2
    assert float(scored[0]) < 0
    best = transduce("run", folder, "ab", "", "b", "--nbest", 2, "--scores").lines
    rows = [line.split("\t") for line in best]
    # An empty source has one empty hypothesis, and its number all the same.
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert all(len(row) == 3 for row in rows)
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[0][2] == transduce("run", folder, "ab").lines[0]
    written = transduce("run", folder, "ab", "", "--nbest", 2, "--json").lines
    first, second = (json.loads(line) for line in written)
    assert first["text"] == rows[0][2]
    assert len(first["nbest"]) == 2
    assert second["text"] == ""


def test_run_takes_a_glossary(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("ab\tB A\nc\tC C\n", "utf-8")
    plain = transduce("run", folder, "ab", "b", "abc").lines
    lines = transduce("run", folder, "ab", "b", "abc", "--glossary", terms).lines
    assert "B A" in lines[0]
    assert lines[1:] == plain[1:]  # abc is another word
    wrong = transduce("run", folder, "ab", "--glossary", tmp_path / "none.tsv")
    assert "none.tsv cannot be read" in sentence(wrong)
    terms.write_text("ab\tX\n", "utf-8")
    assert "'X' has tokens" in sentence(transduce("run", folder, "ab", "--glossary", terms))


def test_run_takes_wishes_for_all_and_by_line(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    lines = transduce("run", folder, "ab", "b", "--prefix", "C", "--include", "B A").lines
    assert all(line.startswith("C") and "B A" in line for line in lines)
    shaped = ("--exclude", "A", "--exclude", "B", "--no-unknown", "--min-length", 2)
    assert transduce("run", folder, "ab", *shaped).lines == ["C C"]
    assert transduce("run", folder, "ab", "--only", "B", "--min-length", 2).lines == ["B B"]
    apart = ("--groups", 2, "--diversity", 50, "--nbest", 2, "--min-length", 1)
    one, other = transduce("run", folder, "ab", *apart).lines
    assert one.split("\t")[1][0] != other.split("\t")[1][0]
    file = tmp_path / "asked.jsonl"
    file.write_text(
        '{"source": "ab", "prefix": "B"}\n'
        '{"source": "b", "include": ["C C"], "exclude": ["A"]}\n{"source": ""}\n'
    )
    first, second, third = transduce("run", folder, "-i", file, "--prefix", "A A").lines
    assert first.startswith("B")
    assert second.startswith("A A")
    assert "C C" in second
    assert "A" not in second[3:]
    assert third == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ab", ":2: not valid JSON"),
        ("[1]", ':2: each line must be an object with a string "source"'),
        ('{"text": "a"}', ':2: each line must be an object with a string "source"'),
        ('{"source": "a", "prefxi": "A"}', ":2: unknown field prefxi; did you mean prefix?"),
        ('{"source": "a", "include": "A"}', ":2: include must be a list of strings"),
        ('{"source": "a", "include": ["Q"]}', "include 'Q' has tokens that are not in this model"),
    ],
)
def test_mistakes_by_line(
    transduce: Transduce, folder: Path, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "asked.jsonl").write_text('{"source": "ab"}\n' + line + "\n")
    assert said in sentence(transduce("run", folder, "-i", tmp_path / "asked.jsonl"))


def test_what_cannot_be_written_is_said_beside_the_outputs(
    transduce: Transduce, folder: Path
) -> None:
    ended = transduce("run", folder, "ab", "", "--include", "A", "--exclude", "A")
    assert (ended.status, ended.out) == (0, "\n\n")
    assert ended.err.startswith("transduce: source 1: no output was found")


def test_several_models_write_and_judge(transduce: Transduce, folder: Path) -> None:
    alone = transduce("run", folder, "abc", "ba", "--scores").lines
    assert transduce("run", folder, "abc", "ba", "--scores", "--ensemble", folder).lines == alone
    doubled = transduce("run", folder, "abc", "ba", "--scores", "--rerank", folder).lines
    for once, twice in zip(alone, doubled, strict=True):
        assert float(twice.split("\t")[0]) == pytest.approx(
            2 * float(once.split("\t")[0]), abs=2e-4
        )
    chosen = transduce("run", folder, "abc", "--mbr", "chrf", "--samples", 4, "--scores").lines
    assert 0 <= float(chosen[0].split("\t")[0]) <= 100


def test_sampling_repeats_with_its_seed(transduce: Transduce, folder: Path) -> None:
    typed = ("run", folder, "abcabc", "--sample", "--seed", 3)
    assert transduce(*typed).out == transduce(*typed).out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["a", "--input", "x"], "give sources as arguments or with --input, not both"),
        (["--input", "/no/where"], "/no/where cannot be read (No such file or directory); give"),
        (["--input", "/"], "the file / cannot be read (Is a directory); give one with"),
        (["a", "--beam", "0"], "beam is 0; it must be 1 or more"),
        (["a", "--nbest", "0"], "nbest is 0; it must be 1 or more"),
        (["a", "--top-k", "5"], "set sample as well"),
        (["a", "--device", "tpu"], "the device tpu cannot be used here; try auto"),
    ],
)
def test_run_mistakes(transduce: Transduce, folder: Path, typed: list[str], said: str) -> None:
    assert said in sentence(transduce("run", folder, *typed))


def test_a_line_that_is_not_utf8_is_named(transduce: Transduce, folder: Path) -> None:
    said = sentence(transduce("run", folder, stdin=b"ab\nb\n\xff\xfe\n"))
    assert said == "standard input:3: this line is not UTF-8; convert it first"


def started(
    folder: Path, *arguments: str, kind: type[subprocess.Popen[bytes]] = Forked[bytes]
) -> subprocess.Popen[bytes]:
    """The command in a process of its own, pipes on both sides."""
    typed = [sys.executable, "-m", "transduce", "run", str(folder), *arguments]
    pipe = subprocess.PIPE
    return kind(typed, stdin=pipe, stdout=pipe, stderr=pipe)


def test_an_answer_does_not_wait_for_the_next_question(folder: Path) -> None:
    with started(folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for question in (b"ab\n", b"b\n", b"\n", b"c\n"):
            process.stdin.write(question)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def test_an_output_that_is_closed(folder: Path) -> None:
    # As Python begins where nothing is open under the number 1 (`>&-` of a shell).
    begin = "import os, runpy, sys; os.close(1); sys.stdout = sys.__stdout__ = None; "
    begin += f"sys.argv = ['transduce', 'run', {str(folder)!r}, 'ab']; "
    begin += "runpy.run_module('transduce', run_name='__main__', alter_sys=True)"
    ended = forked.run([sys.executable, "-c", begin])
    assert ended.returncode == 2
    assert ended.stderr == "transduce: standard output cannot be written: it is closed\n"


BLANK = ["", " ", "\t ", "\u00a0\u3000"]


def test_a_line_of_blanks_is_an_empty_one(transduce: Transduce) -> None:
    model = Path(__file__).parents[3] / "fixtures" / "models" / "translate"
    reported = transduce("run", model, "--json", *BLANK, "ab")
    found = [json.loads(line) for line in reported.lines]
    assert [one["text"] for one in found[:-1]] == [""] * len(BLANK)
    assert found[-1]["text"]
    assert reported.err == ""
    assert transduce("run", model, *BLANK, "--beam", 1).lines == [""] * len(BLANK)


def test_a_reader_that_has_seen_enough(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("abc\n" * 3000)
    # Started as a person does it: what Python says at its end counts too.
    given = ["--input", str(tmp_path / "in.txt"), "--beam", "1"]
    with started(folder, *given, kind=subprocess.Popen) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_texts_that_are_continued_keep_their_lines(transduce: Transduce, speaker: Path) -> None:
    asked = ("run", speaker, "--max-length", 5)
    alone = transduce(*asked, "tea\nand")
    assert (alone.status, alone.err) == (0, "")
    assert alone.out.startswith("tea\nand")
    assert len(alone.out) == len("tea\nand") + 5 + 1
    piped = transduce(*asked, stdin=b"tea\n\ncup\n")
    texts = piped.out.split("\n\n")
    assert piped.out.startswith("tea")
    assert texts[-1].startswith("cup")
    several = transduce(*asked, "tea", "--beam", 3, "--nbest", 2, "--scores")
    assert re.match(r"1\t-\d+\.\d{4}\ntea", several.out)
    assert several.out.count("\n1\t-") == 1
    values = json.loads(transduce(*asked, "tea", "--json").out)
    assert len(values["tokens"]) == 5


SPEECH = Path(__file__).parents[3] / "fixtures" / "models" / "speech"


def test_audio_from_standard_input_and_without_a_header(
    transduce: Transduce, tmp_path: Path
) -> None:
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    import numpy as np

    wave, raw = tmp_path / "a.wav", tmp_path / "b.raw"
    samples = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    soundfile.write(wave, samples, 16_000)
    pcm = (samples * 32767).astype("<i2").tobytes()
    raw.write_bytes(pcm)
    (expected,) = transduce("run", SPEECH, wave).lines
    for arguments, stdin in ((("-",), wave.read_bytes()), ((), wave.read_bytes())):
        assert transduce("run", SPEECH, *arguments, stdin=stdin).lines == [expected]
    for arguments in (("-", "--rate", 16_000), ("--rate", 16_000)):
        assert len(transduce("run", SPEECH, *arguments, stdin=pcm).lines) == 1
    assert transduce("run", SPEECH, stdin=f"{wave}\n".encode()).lines == [expected]
    assert "standard input is" in sentence(transduce("run", SPEECH, "-", stdin=b"no audio"))
    assert "give the --rate" in sentence(transduce("run", SPEECH, "-", stdin=pcm))
    damaged = sentence(transduce("run", SPEECH, "-", stdin=wave.read_bytes()[:40]))
    assert "--rate" not in damaged  # it has a header
    # A file that cannot be used does not stop the others.
    ended = transduce("run", SPEECH, raw, wave)
    assert ended.status == 1
    assert "--rate" in ended.err
    assert ended.lines[-1] == f"{wave}\t{expected}"
    ended = transduce("run", SPEECH, raw, wave, "--rate", 16_000)
    assert (ended.status, len(ended.lines)) == (0, 2)


def test_what_there_is_of_a_truncated_recording(transduce: Transduce, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    import numpy as np

    wave = tmp_path / "a.wav"
    soundfile.write(wave, np.random.default_rng(0).normal(0, 0.1, 32_000), 16_000)
    wave.write_bytes(wave.read_bytes()[:40_000])
    refused = transduce("run", SPEECH, wave)
    assert refused.status == 1
    assert "--partial" in refused.err
    found = transduce("run", SPEECH, wave, "--partial")
    assert (found.status, len(found.lines)) == (0, 1)
    assert "is truncated or damaged: 1.25 s of it are used" in found.err
    subtitles = transduce("run", SPEECH, wave, "--partial", "--format", "srt")
    assert subtitles.status == 0
    # The header of FLAC does not tell that it is truncated.
    flac = tmp_path / "a.flac"
    soundfile.write(flac, np.random.default_rng(0).normal(0, 0.1, 32_000), 16_000)
    flac.write_bytes(flac.read_bytes()[: flac.stat().st_size * 3 // 4])
    assert "--partial" in transduce("run", SPEECH, flac).err
    found = transduce("run", SPEECH, flac, "--partial")
    assert (found.status, len(found.lines)) == (0, 1)
    assert "s of it are used" in found.err


def test_options_of_recordings_are_not_for_text(transduce: Transduce, folder: Path) -> None:
    assert "is for recordings" in sentence(transduce("run", folder, "a", "--partial"))
    assert "is for raw audio" in sentence(transduce("run", folder, "a", "--rate", 8000))
