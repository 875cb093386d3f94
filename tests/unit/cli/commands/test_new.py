"""The command new, and data of one's own in place of a recipe."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
from command_line import TINY, Transduce, sentence
from transduce.automatic import Machine
from transduce.cli.try_model import run_command
from transduce.data.doctor import check
from transduce.data.text.trust import record_training_data
from transduce.data.tokens.sides import train_tokens
from transduce.errors import DataError, HardwareError
from transduce.recipe import load_recipe, read_recipe
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.transduce import Transducer, load
from transduce.training import loop
from transduce.training import train as transduce_train
from transduce.training.own_file import plan, time_left
from transduce.training.own_file import recipe as own_file
from transduce.training.own_file import train as own_train


@pytest.fixture(autouse=True)
def one_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice does not depend on how busy this machine is."""
    monkeypatch.setattr("transduce.automatic.this_machine", lambda device="auto": Machine("cpu"))


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of small numbers and their squares, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{' '.join(str(n))}\t{' '.join(str(n * n))}\n" for n in range(100, 400))
    (tmp_path / "pairs.tsv").write_text(rows, encoding="utf-8")
    return tmp_path / "pairs.tsv"


def test_a_recipe_for_a_gpu_that_is_not_here(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def this_machine(device: str = "auto") -> Machine:
        if device in ("cuda", "xyz"):
            raise HardwareError(f"the device {device} cannot be used here; try auto")
        return Machine("cpu")

    monkeypatch.setattr("transduce.automatic.this_machine", this_machine)
    ended = transduce("new", "pairs.tsv", "train.device=cuda")
    assert ended.status == 0
    assert "on a GPU as fast as an H200, which is not here" in ended.out
    Path("my.yaml").write_text(ended.out, encoding="utf-8")
    recipe = load_recipe("my.yaml")
    assert (recipe.model.encoder.kind, recipe.train.device) == ("conformer", "auto")
    assert sentence(transduce("new", "pairs.tsv", "train.device=xyz")).startswith("the device xyz")
    assert sentence(transduce("train", "pairs.tsv", "train.device=cuda")).startswith("the device")


def test_new_prints_the_recipe_that_train_takes(transduce: Transduce, pairs: Path) -> None:
    ended = transduce("new", "pairs.tsv", "--minutes", "3")
    assert ended.status == 0
    assert ended.err == ""
    Path("my.yaml").write_text(ended.out, encoding="utf-8")
    found, choice, left = own_file.chosen_for([pairs], ["train.lr=0.5"], 3.0)
    assert left == ["train.lr=0.5"]
    taken = own_file.recipe_of(found, choice, [])
    assert load_recipe("my.yaml") == taken
    assert taken.train.minutes == 3
    assert own_file.recipe_of(found, choice, left).train.lr == 0.5
    # As it is written into the run directory, from where it can be trained again.
    Path("runs").mkdir()
    Path("runs/chosen.yaml").write_text(own_file.recipe_text(found, choice), encoding="utf-8")
    assert load_recipe("runs/chosen.yaml") == taken


def test_what_the_user_says_holds_for_all_parts(transduce: Transduce, pairs: Path) -> None:
    ended = transduce("new", "pairs.tsv", "data.train.source=1", "data.train.target=0")
    Path("my.yaml").write_text(ended.out, encoding="utf-8")
    data = load_recipe("my.yaml").data
    for corpus in (data.train, data.valid, data.test):
        assert (getattr(corpus, "source"), getattr(corpus, "target")) == (1, 0)  # noqa: B009
    said = sentence(transduce("new", "pairs.tsv", "train.lr=1"))
    assert "train.lr=1 belongs to training" in said


def test_new_says_warnings_beside_the_recipe(transduce: Transduce, tmp_path: Path) -> None:
    rows = "".join(f"so many words of {n} here\t{n * 7919 % 1000:03}y\n" for n in range(100))
    (tmp_path / "labels.tsv").write_text(rows, encoding="utf-8")
    ended = transduce("new", str(tmp_path / "labels.tsv"))
    assert ended.status == 0
    assert "warning: column 1 has 100 different values in 100 rows" in ended.err


def test_check_says_what_a_file_is(transduce: Transduce, pairs: Path) -> None:
    ended = transduce("check", "pairs.tsv")
    assert ended.status == 0
    assert ended.lines[0] == "pairs.tsv: TSV with 2 columns: column 0 → column 1."
    assert "Fit to train" in ended.out


def test_of_a_large_file_check_reads_the_first_rows_and_says_so(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(pairs.read_text("utf-8").splitlines())
    for most, whole in ((count, True), (count - 1, False)):
        monkeypatch.setattr(own_file, "THOROUGHLY", most)
        ended = transduce("check", "pairs.tsv")
        assert ended.status == 0
        assert ("To check all of them:" in ended.out) == (not whole)
        read = int(re.search(r"Pairs: ([\d,]+) train", ended.out)[1])  # type: ignore[index]
        assert read < most if whole else read == most
    assert f"Checked are the first {count - 1:,} rows" in ended.out
    assert "transduce new pairs.tsv > my.yaml; transduce check my.yaml" in ended.out


def test_data_and_recipes_are_told_apart(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "my.recipe").write_text(TINY, encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").touch()
    (tmp_path / "announcements").write_text("one\tuno\n", encoding="utf-8")
    for recipe in ("my.yaml", "my.recipe", "run", "copy", "announcements", "nothing.tsv"):
        assert own_file.data_files(recipe, ["a=b"]) == ([], ["a=b"])
    for path in ("./copy", "copy/", "./announcements"):
        assert own_file.data_files(path, []) == ([Path(path)], [])
    assert own_file.data_files("pairs.tsv", ["a=b"]) == ([Path("pairs.tsv")], ["a=b"])
    both = own_file.data_files("pairs.tsv", ["my.recipe", "train.lr=1"])
    assert both == ([Path("pairs.tsv"), Path("my.recipe")], ["train.lr=1"])


def test_mistakes_are_a_sentence(transduce: Transduce, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
    for command in ("train", "new", "check"):
        assert "few.tsv has 2 different sources" in sentence(transduce(command, "few.tsv"))
    assert "there is no file nothing.tsv" in sentence(transduce("new", "nothing.tsv"))
    said = "pronounce is the recipe that comes with transduce; give a file of data"
    assert said in sentence(transduce("new", "pronounce"))
    (tmp_path / "pronounce").mkdir()
    (tmp_path / "pronounce" / "recipe.yaml").write_text(TINY, encoding="utf-8")
    for command in ("new", "train", "check", "tune"):  # none of them takes the folder of that name
        more = ["train.steps=none"] if command != "new" else []
        ended = transduce(command, "pronounce", *more)
        assert "./pronounce is what lies here" in ended.err
        assert not Path("runs/tiny").exists()
    assert "./pronounce is a recipe or a run" in sentence(transduce("new", "./pronounce"))
    os.mkfifo("pipe")
    for command in ("train", "new", "check"):
        assert "pipe is a pipe, which can be read once" in sentence(transduce(command, "pipe"))
    Path("nothing").mkdir()
    assert "nothing is an empty folder; give a file of data" in sentence(
        transduce("new", "nothing")
    )
    assert not Path("runs").exists()


def test_of_many_rows_the_first_are_checked(
    pairs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_file, "MAX_CHECKED", 100)
    rows = pairs.read_text("utf-8").splitlines()
    pairs.write_text("\n".join([*rows, *["1 0 0 0\t"] * 90]) + "\n", encoding="utf-8")
    found, choice, _ = own_file.chosen_for([pairs], [], 1.0)
    read: list[str] = []
    reading = check.read_pairs

    def noted(corpus: Any, *others: Any) -> Any:
        for pair in reading(corpus, *others):
            read.append(pair.source)
            yield pair

    monkeypatch.setattr(check, "read_pairs", noted)
    own_file.print_problems(own_file.recipe_of(found, choice, []), found)
    assert read == [row.partition("\t")[0] for row in rows[:100]]  # held out or not
    assert "warning" not in capsys.readouterr().out  # the empty targets are behind


def test_several_processes_need_a_recipe(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match="write it first with `transduce new"):
        own_file.chosen_for([pairs], [], None)


def test_training_on_a_file_ends_with_a_score_and_a_recipe(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_MODELS", 2)
    monkeypatch.setattr(own_train, "MANY", 100)
    small = ["train.steps=4", "model.width=8", "train.batch_tokens=64", "validation.every=4"]
    small += ["decode.max_ratio=1", "decode.max_extra=1"]
    ended = transduce("train", "pairs.tsv", "--minutes", "2", *small)
    assert ended.status == 0, ended.err
    assert ended.lines[0] == "pairs.tsv: TSV with 2 columns: column 0 → column 1."
    assert re.search(r"Decoding, per on \d\d validation pairs: .*as in the recipe", ended.err)
    assert "Reading so many rows takes a while" in ended.out
    # The updates are done at once, and the rest of the time goes into an ensemble.
    assert "1 more seed for an ensemble, then one model that learns from it" in ended.out
    assert "What the time brought, per on" in ended.out
    for rival in ("2 seeds, each alone", "ensemble of 2", "distilled into one", "Kept: "):
        assert rival in ended.out
    kept = "Kept: the ensemble" in ended.out
    assert ("It is an ensemble of 2 models; --ensemble none" in ended.out) == kept
    assert Path("runs/pairs/members.json").is_file() == kept
    assert "Held-out score (test" in ended.out
    beam = load_recipe("runs/pairs/recipe.yaml").decode.beam
    searches = f"; decoded with beam {beam}, in validation with greedy search):" in ended.out
    assert searches == (beam > 1)
    assert "exact match" in ended.out
    assert "To try next:" in ended.out
    assert "with the reason of each value, is runs/pairs/chosen.yaml" in ended.out
    again = load_recipe("runs/pairs/chosen.yaml", small)
    assert again.model.width == 8
    said = sentence_at_the_end(transduce("train", "pairs.tsv").err)
    assert "runs/pairs already holds a run" in said
    monkeypatch.setattr(time_left, "train_recipe", None)  # nothing is trained again
    same = ["pairs.tsv", "--minutes", "2", "train.steps=4"]
    for given in (same, ["runs/pairs"], ["runs/pairs", "--minutes", "3"], ["runs/pairs"]):
        resumed = transduce("train", *given, "--resume")
        assert resumed.status == 0, resumed.err
        assert "The first model is finished, at update 4." in resumed.out
        assert "Kept, as compared before: " in resumed.out
        assert "It was scored before: " in resumed.out
    assert load_recipe("runs/pairs/recipe.yaml").train.minutes == 3


PLACES = [f"{a}{b}" for a in "mnprst" for b in "aeiouxyz"]


def test_the_command_to_try_has_tags_where_sources_need_them(pairs: Path) -> None:
    Path("forms.tsv").write_text("sing\tsang\tV;PST\ndog\tdogs\tN;PL\n", "utf-8")
    tagged: dict[str, Any] = {"file": "forms.tsv", "source": 0, "target": 1, "tags": 2}
    for train, said in ((tagged, " --tag 'V;PST'"), ({"file": "pairs.tsv"}, "")):
        recipe = read_recipe({"data": {"train": train, "valid": train}, "model": {"width": 16}})
        record_training_data(recipe, print)
        assert run_command("runs/x", recipe) == f'transduce run runs/x "..."{said}'
        Path(train["file"]).unlink()
        assert run_command("runs/x", recipe) == 'transduce run runs/x "..."'


def test_after_an_export_the_command_to_try_has_tags(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: list[str], capture_output: bool, text: bool) -> Any:
        assert capture_output
        return forked.run(words, text=text)

    # An export is compared in processes of its own; each would take seconds to load torch.
    monkeypatch.setattr(subprocess, "run", run)
    lines = [f"{a}{b}\t{b}{a}\tV;PST\n" for a in "bdfgkl" for b in ("ana", "eri")]
    Path("forms.tsv").write_text("".join(lines), "utf-8")
    corpus = {"file": "forms.tsv", "source": 0, "target": 1, "tags": 2}
    data = {"train": corpus, "valid": corpus, "folder": str(Path.cwd())}
    recipe = read_recipe({"data": data, "model": {"width": 16}})
    Transducer.create(recipe, *train_tokens(recipe.data)).save(Path("forms"))
    assert run_command("forms", recipe) == 'transduce run forms "..."'  # it is of somebody else
    record_training_data(recipe, print)
    ended = transduce("export", "forms", "--to", "native", "--quantize", "int8", "--allow-mismatch")
    assert ended.status == 0, ended.err
    command = ended.lines[-1].split()
    assert command == ["transduce", "run", "forms/int8", '"..."', "--tag", "'V;PST'"]
    assert transduce("run", command[2], "bana", "--tag", "V;PST").status == 0


@pytest.mark.slow  # half a minute: seven trainings each
@pytest.mark.parametrize("by", ["ensemble", "by_tag"])
def test_what_was_kept_is_used_by_every_command(
    transduce: Transduce, pairs: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The better one is decided here: tiny models are all as bad."""
    words = [f"{a}{b}{c}" for a in "bdfgkl" for b in ("ana", "eri", "ilo") for c in PLACES]
    rows = [("odd", word, word[::-1]) for word in words[::2]]
    rows += [("even", word, word.upper()) for word in words[1::2]]
    lines = ["language\tsource\ttarget", *("\t".join(row) for row in rows)]
    Path("two.tsv").write_text("\n".join(lines), "utf-8")

    def best(rivals: list[time_left.Rival], *rest: object) -> time_left.Rival:
        return next(one for one in rivals if getattr(one, by))

    monkeypatch.setattr(plan, "MAX_MODELS", 2)
    monkeypatch.setattr(plan, "DISTILLED_FROM", 1e9)
    monkeypatch.setattr(time_left, "best_of", best)
    small = ["train.steps=40", "model.width=8", "train.batch_tokens=64", "validation.every=40"]
    small += ["validation.limit=40", "validation.decoding=fixed", "decode.beam=1"]
    ended = transduce("train", "two.tsv", "--minutes", "9", *small)
    assert ended.status == 0, ended.err
    said = {"ensemble": "ensemble of 2 models", "by_tag": "a model for each tag"}[by]
    assert f"Held-out score (test, {said})" in ended.out
    first = load("runs/two", members=False)
    sources = [f"<{tag}> {word}" for word in words[:10] for tag in ("odd", "even")]
    if by == "ensemble":
        assert json.loads(Path("runs/two/members.json").read_text()) == {"ensemble": ["seed-2"]}
        expected = first.run(sources, ensemble=[load("runs/two/seed-2")])
    else:
        assert 'transduce run runs/two "..." --tag even' in ended.out
        of_tag = [load(f"runs/two/fine-tuned/{tag}") for tag in ("odd", "even")]
        expected = [of_tag[n % 2].run([source])[0] for n, source in enumerate(sources)]
    texts = [output.text for output in expected]
    assert [output.text for output in load("runs/two").run(sources)] == texts
    assert transduce("run", "runs/two", *sources).lines == texts
    alone = transduce("run", "runs/two", *sources, "--ensemble", "none")
    assert alone.lines == [output.text for output in first.run(sources)]
    shutil.rmtree("runs/two/seed-2" if by == "ensemble" else "runs/two/fine-tuned")
    broken = transduce("run", "runs/two", "bana")
    assert broken.status == 2
    assert "members.json names" in sentence_at_the_end(broken.err)
    assert transduce("run", "runs/two", *sources, "--ensemble", "none").lines == alone.lines
    small[0] = "train.steps=90000"  # the time ends the first run: nothing follows it
    again = transduce("train", "two.tsv", "--overwrite", "--minutes", "0.05", *small)
    assert again.status == 0, again.err
    assert not Path("runs/two/members.json").exists()
    assert not (Path("runs/two/by-tag/odd") / WEIGHTS).exists()


def test_python_trains_a_file_too(
    pairs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["model.width=8", "train.batch_tokens=64"]
    # Reading is not of the minutes: it may take longer than they are.
    module = sys.modules["transduce.training.train"]
    prepare = vars(module)["prepare"]
    clock = loop.wall_clock
    late = [0.0]

    def slow(*given: Any) -> Any:
        late[0] = 1000.0
        return prepare(*given)

    monkeypatch.setattr(module, "prepare", slow)
    for one in (module, loop):
        monkeypatch.setattr(one, "wall_clock", lambda: clock() + late[0])
    trained = transduce_train("pairs.tsv", minutes=0.002, overrides=small)  # one update
    assert trained.folder == Path("runs/pairs")
    assert trained.state.elapsed < 100
    assert isinstance(trained.model.run(["1 2"])[0].text, str)
    assert trained.ensemble == ()
    printed = capsys.readouterr().out
    assert "pairs.tsv: TSV with 2 columns" in printed
    assert "exact match" in printed
    with pytest.raises(DataError, match="3 files are given"):
        transduce_train(["pairs.tsv"] * 3)


def sentence_at_the_end(err: str) -> str:
    return err.strip().splitlines()[-1]
