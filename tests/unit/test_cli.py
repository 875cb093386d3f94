"""The command line: what a person types, sees and gets wrong."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from language import language_model
from transduce import cli, cookbook
from transduce.cookbook import parse_recipe
from transduce.data.tokens import Tokens
from transduce.transducer import Transducer

RECIPE = """
name: tiny
data:
  train: {source: train.src, target: train.tgt}
  valid: {file: valid.tsv}
  tokens:
    source: {level: character}
    target: {level: symbol}
model:
  width: 16
  encoder: {layers: 1, heads: 2, feed_forward: 16}
  decoder: {layers: 1, heads: 2, feed_forward: 16}
decode: {beam: 2, max_ratio: 1, max_extra: 2}
metrics: [per, exact]
"""
COMMANDS = [
    *("demo", "train", "run", "score", "prompts", "evaluate"),
    *("export", "align", "check", "recipes", "corpus"),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny model with random weights, and a validation set."""
    import torch

    path = tmp_path_factory.mktemp("runs") / "tiny"
    path.mkdir()
    (path / "valid.tsv").write_text("ab\tA B\nba\tB A\nc\tC\n")
    recipe = parse_recipe(RECIPE, "tiny", path)
    both = recipe.data.tokens
    assert both.source is not None
    assert both.target is not None
    torch.manual_seed(1)
    source = Tokens.train(both.source, ["abc \u2028"])
    Transducer.create(recipe, source, Tokens.train(both.target, ["A B C"])).save(path)
    return path


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]


Transduce = Callable[..., Ended]


@pytest.fixture
def transduce(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Transduce:
    """The command, in this process."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return Ended(int(end.value.code or 0), out, err)

    return run


def sentence(ended: Ended) -> str:
    """The one sentence on standard error of a command that a person got wrong."""
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("transduce: ")
    assert ended.err.count("\n") == 1
    return ended.err.removeprefix("transduce: ").rstrip("\n")


# ------------------------------------------------------------------------------------------ help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(transduce: Transduce, command: str) -> None:
    shown = transduce(command, "--help")
    assert shown.status == 0
    described = re.sub(r"\n {20,}", " ", shown.out.partition("Options:")[2])
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)(?: <\w+>)?(.*)$", described, re.MULTILINE)
    assert options
    for name, about in options:
        assert len(about.split()) >= 2, f"{command} {name} is not explained"


def test_help_lists_every_command(transduce: Transduce) -> None:
    for shown in (transduce("--help"), transduce()):
        assert shown.status == 0
        assert re.findall(r"^  (\w+)  ", shown.out, re.MULTILINE) == COMMANDS
        assert "..." not in shown.out.partition("Commands:")[2].replace("translate, ...", "")


def test_version(transduce: Transduce) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", transduce("--version").out)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train"], "Missing argument 'RECIPE'; see transduce train --help"),
        (["run"], "Missing argument 'MODEL'; see transduce run --help"),
        (["evaluate"], "Missing argument 'MODEL'; see transduce evaluate --help"),
        (["run", "x", "--nbst", "3"], "No such option: --nbst; did you mean --nbest?"),
        (["run", "x", "--quiet"], "No such option: --quiet; see transduce run --help"),
        (["train", "x", "--set", "a.b=3"], "--set; a key of the recipe is set by its name alone:"),
        (["check", "."], ". is a folder without a run in it; name a recipe file"),
        (["run", "x", "--beam", "many"], "'--beam': it must be a valid integer; see transduce run"),
        (["train", "pronounce", "--train.lr=3"], "overrides have no dashes: train.lr=..."),
        (["train", "pronounce", "train.lr"], "'train.lr' is not of the form train.lr=3e-4"),
        (["train", "pronouce"], "no recipe file pronouce and no shipped recipe of that name; did"),
        (["train", "pronounce", "trian.lr=3"], "on the command line: unknown key trian; did you"),
        (["check", "pronouce"], "did you mean pronounce?"),
        (["recipes", "pronouce"], "there is no shipped recipe pronouce; did you mean pronounce?"),
        (["corpus"], "Missing command; see transduce corpus --help"),
        (["corpus", "gte"], "No such command 'gte'. Did you mean 'get'?"),
        (["corpus", "get", "multi3k"], "no corpus named multi3k; did you mean multi30k?"),
        (["run", "/no/where", "x"], "there is no folder /no/where"),
        (["evaluate", "/no/where"], "there is no folder /no/where"),
        (["run", "/", "x"], "/ is not a model folder: it has no model.safetensors"),
    ],
)
def test_a_mistake_is_one_sentence(transduce: Transduce, typed: list[str], said: str) -> None:
    assert said in sentence(transduce(*typed))


def test_several_mistakes_of_a_recipe_are_a_line_each(transduce: Transduce) -> None:
    ended = transduce("train", "pronounce", "train.lr=-1", "model.width=7", "foo=1")
    assert ended.status == 2
    assert all(line.startswith("transduce: on the") for line in ended.err.splitlines())
    assert ended.err.count("\n") == 3


def test_training_data_that_is_not_there(transduce: Transduce, tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text(RECIPE)
    said = sentence(transduce("train", recipe, "--folder", tmp_path / "run"))
    assert "train.src" in said
    assert transduce("check", recipe).status == 1


def test_a_folder_that_cannot_be_made(transduce: Transduce, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in sentence(transduce("train", "copy", "--folder", tmp_path / "file" / "run"))


def test_nothing_to_resume(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    assert "nothing to resume" in sentence(transduce("train", folder, "--resume"))


def test_our_own_mistakes_keep_their_traceback(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, str]:
        raise ZeroDivisionError

    monkeypatch.setattr("transduce.console.shipped", broken)
    with pytest.raises(ZeroDivisionError):
        transduce("recipes")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_too_little_memory_says_what_to_try(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def greedy() -> dict[str, str]:
        raise error

    monkeypatch.setattr("transduce.console.shipped", greedy)
    assert "train.tokens" in sentence(transduce("recipes"))


def test_ctrl_c(transduce: Transduce, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> dict[str, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.console.shipped", interrupted)
    assert transduce("recipes") == (130, "", "")


# --------------------------------------------------------------------------------------- recipes


def test_recipes_lists_and_prints(transduce: Transduce) -> None:
    listed = transduce("recipes").out
    assert all(name in listed for name in cookbook.shipped())
    assert transduce("recipes", "pronounce").out == cookbook.shipped()["pronounce"]


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_keys_wrap(transduce: Transduce, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = transduce("recipes", "--keys").lines
    assert max(map(len, shown)) <= min(int(width), 100)
    assert not any(line != line.rstrip() for line in shown)
    assert "data.train, data.valid, data.test" in " ".join(shown)


# ------------------------------------------------------------------------------------------- run


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
        ("ab", ":2: this line is no JSON"),
        ("[1]", ':2: each line is an object with a text "source"'),
        ('{"text": "a"}', ':2: each line is an object with a text "source"'),
        ('{"source": "a", "prefxi": "A"}', ":2: there is no prefxi here; did you mean prefix?"),
        ('{"source": "a", "include": "A"}', ":2: include must be a list of texts"),
        ('{"source": "a", "include": ["Q"]}', "include 'Q' has what this model has no token for"),
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
    assert transduce("run", folder, "abc", "ba", "--scores", "--with", folder).lines == alone
    doubled = transduce("run", folder, "abc", "ba", "--scores", "--rescore", folder).lines
    for once, twice in zip(alone, doubled, strict=True):
        assert float(twice.split("\t")[0]) == pytest.approx(
            2 * float(once.split("\t")[0]), abs=2e-4
        )
    chosen = transduce("run", folder, "abc", "--mbr", "chrf", "--samples", 4, "--scores").lines
    assert 0 <= float(chosen[0].split("\t")[0]) <= 100


# ----------------------------------------------------------------------------------------- score


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
        (["a", "--top-k", "5"], "ask for sample too"),
        (["a", "--device", "tpu"], "the device tpu cannot be used here; try auto"),
    ],
)
def test_run_mistakes(transduce: Transduce, folder: Path, typed: list[str], said: str) -> None:
    assert said in sentence(transduce("run", folder, *typed))


def test_a_line_that_is_not_utf8_is_named(transduce: Transduce, folder: Path) -> None:
    said = sentence(transduce("run", folder, stdin=b"ab\nb\n\xff\xfe\n"))
    assert said == "standard input:3: this line is not UTF-8; convert it first"


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process of its own, pipes on both sides."""
    typed = [sys.executable, "-m", "transduce", "run", str(folder), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(typed, stdin=pipe, stdout=pipe, stderr=pipe)


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


def test_a_reader_that_has_seen_enough(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("abc\n" * 3000)
    with started(folder, "--input", str(tmp_path / "in.txt"), "--beam", "1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# -------------------------------------------------------------------------------------- evaluate


def test_evaluate_scores_writes_and_renews_the_card(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    ended = transduce("evaluate", folder, "--split", "valid")
    assert ended.status == 0
    assert re.search(r"^PER \d+\.\d\d %", ended.out)
    assert "exact match" in ended.out
    assert len((folder / "valid.hypotheses.txt").read_text().split("\n")) == 4
    assert "| valid | 3 | per (lower is better) |" in (folder / "README.md").read_text()


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


# ------------------------------------------------------------------------------ language models


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "speaker"
    model = language_model()
    model.network.float()
    model.save(path)
    return path


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


def test_prompts_of_a_file(
    transduce: Transduce, speaker: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts").write_text("tea\n\nuncle\n")
    page = tmp_path / "page.html"
    ended = transduce("prompts", speaker, tmp_path / "prompts", "--length", 3, "--html", page)
    assert (ended.status, ended.err) == (0, "")
    assert "(nothing)" in ended.out
    assert f"The page is {page}" in ended.out.replace("\n", "")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    said = sentence(transduce("prompts", folder, tmp_path / "prompts"))
    assert "prompts are for language models" in said
    (tmp_path / "empty").write_text("")
    assert "there is no prompt" in sentence(transduce("prompts", speaker, tmp_path / "empty"))
    strange = transduce("prompts", speaker, tmp_path / "prompts", "--top-k", 3)
    assert "ask for sample too" in sentence(strange)
