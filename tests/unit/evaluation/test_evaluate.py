"""Evaluation: items, what is written down, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from transduce import recipe
from transduce.corpora.location import metadata_of
from transduce.data.text.pairs import Pair
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import CheckpointError, DataError, TransduceError
from transduce.evaluation.evaluate import evaluate, evaluate_folder
from transduce.evaluation.items import Item, items_of
from transduce.evaluation.metrics import Metric, measure
from transduce.evaluation.results import Evaluation, write_evaluation
from transduce.evaluation.score import Answer, score
from transduce.evaluation.slices import mean_over
from transduce.recipe import Columns, Mixture, Named, parse_recipe
from transduce.storage import write_json
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.transduce import Output, Transducer, load

RECIPE = """
data:
  train: {source: train.src, target: train.tgt}
  valid: {file: valid.tsv}
  test: {file: test.tsv}
  tokens: {both: {level: character}}
model:
  width: 16
  encoder: {kind: recurrent}
  decoder: {kind: recurrent}
decode: {beam: 1, max_ratio: 1, max_extra: 2}
metrics: [cer]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Transducer:
    parsed = parse_recipe(RECIPE, "tiny", tmp_path_factory.mktemp("data"))
    assert parsed.data.tokens.both is not None
    torch.manual_seed(1)
    tokens = Tokens.train(parsed.data.tokens.both, ["abc"])
    return Transducer.create(parsed, tokens, tokens)


@pytest.fixture
def folder(model: Transducer, tmp_path: Path) -> Path:
    data = model.recipe.data.model_copy(update={"folder": str(tmp_path)})
    recipe = model.recipe.model_copy(update={"data": data})
    Transducer(recipe, model.network, model.source_tokens, model.target_tokens).save(tmp_path)
    (tmp_path / "valid.tsv").write_text("a\tb\nb\ta\n")
    (tmp_path / "test.tsv").write_text("a\tb\nb\ta\nc\tc\n")
    return tmp_path


def pair(source: str, target: str) -> Pair:
    return Pair(source, target, "file", 1)


PAIRS = [pair("a", "1"), pair("b", "2"), pair("a", "3"), pair("b", "2")]


def test_one_item_a_pair() -> None:
    items = items_of(PAIRS, alternatives=False)
    assert [(item.source, item.references) for item in items] == [
        ("a", ["1"]),
        ("b", ["2"]),
        ("a", ["3"]),
        ("b", ["2"]),
    ]


def test_one_item_a_source_with_all_that_is_right() -> None:
    items = items_of(PAIRS, alternatives=True)
    assert [item.source for item in items] == ["a", "b"]
    assert items[0].references == ["1", "3"]
    assert set(items[1].references) == {"2"}


def test_every_item_is_decoded_in_order(model: Transducer) -> None:
    items = [Item("abc", ["abc"]), Item("", ["a"]), Item("b", ["b", "c"])]
    result = evaluate(model, items, ["cer", "exact"], bootstrap=0, beam=2)
    assert [o.text for o in result.outputs] == [model(item.source, beam=2) for item in items]
    assert set(result.metrics) == {"cer", "exact"}
    assert result.metrics["cer"].low is None


def made(*texts: str) -> Evaluation:
    items = [Item("x", ["x"]) for _ in texts]
    outputs = [Output(text, 0.0) for text in texts]
    return Evaluation(measure(["exact"], texts, [["x"]] * len(texts)), items, outputs)


def test_one_line_a_hypothesis_whatever_it_holds(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "test", made("a\nb", "", "c\u2028d\r\x0b", "é"))
    lines = (tmp_path / "test.hypotheses.txt").read_bytes().decode().split("\n")
    assert lines == ["a b", "", "c d ", "é", ""]
    assert len("\n".join(lines).splitlines()) == 4


def test_results_of_other_splits_stay(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"training": {"steps": 5}}')
    write_evaluation(tmp_path, "valid", made("x"))
    write_evaluation(tmp_path, "test", made("x", "y"), beam=3)
    write_evaluation(tmp_path, "valid", made("y"))
    values = json.loads((tmp_path / "metrics.json").read_text())
    assert values["training"] == {"steps": 5}
    assert values["test"]["items"] == 2
    assert values["test"]["beam"] == 3
    assert values["test"]["metrics"]["exact"]["value"] == 50
    assert values["valid"]["metrics"]["exact"]["value"] == 0


@pytest.mark.parametrize("text", ["", "{", '{"test": ', "\x00"])
def test_a_damaged_metrics_file_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    write_evaluation(tmp_path, "test", made("x"))
    assert json.loads((tmp_path / "metrics.json").read_text())["test"]["items"] == 1


def test_a_folder_is_scored_on_a_split_of_its_recipe(folder: Path) -> None:
    evaluation = evaluate_folder(load(folder), folder, beam=2, length_penalty=None)
    assert list(evaluation.metrics) == ["cer"]
    values = json.loads((folder / "metrics.json").read_text())
    # What was asked for is written down; what was not is as in the recipe.
    assert values["test"].keys() == {"items", "beam", "metrics"}
    assert values["test"]["items"] == 3
    evaluate_folder(load(folder), folder, split="valid", metrics=" EXACT, wer,")
    values = json.loads((folder / "metrics.json").read_text())
    assert list(values["valid"]["metrics"]) == ["exact", "wer"]
    assert values["test"]["items"] == 3


def test_further_splits_of_a_corpus_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf" / "multi30k"
    shelf.mkdir(parents=True)
    for split, count in {"test": 1, "test-2017": 2, "test-coco": 3}.items():
        for code in ("en", "de"):
            (shelf / f"{split}.{code}").write_text("a\n" * count)
    write_json(shelf / "corpus.json", metadata_of(shelf))
    monkeypatch.setenv("TRANSDUCE_DATA", str(tmp_path / "shelf"))
    model = load(folder)
    named = Named(name="multi30k", split="test", pair="en-de", limit=1)
    data = model.recipe.data.model_copy(update={"test": named})
    model.recipe = model.recipe.model_copy(update={"data": data})
    for split in ("test", "test-2017", "test-coco", "valid"):
        evaluate_folder(model, folder, split=split)
    values = json.loads((folder / "metrics.json").read_text())
    # The limit is of the recipe's own test set.
    assert {split: result["items"] for split, result in values.items()} == {
        "test": 1,
        "test-2017": 2,
        "test-coco": 3,
        "valid": 2,
    }
    with pytest.raises(TransduceError, match=r"multi30k has no split tset; did you mean test\?"):
        evaluate_folder(model, folder, split="tset")
    both = Mixture(of=[named, named.model_copy(update={"limit": None})])
    data = model.recipe.data.model_copy(update={"test": both})
    model.recipe = model.recipe.model_copy(update={"data": data})
    assert len(evaluate_folder(model, folder, split="test").items) == 2
    assert len(evaluate_folder(model, folder, split="test-coco").items) == 6
    files = Mixture(of=[named, Columns(file="test.tsv")])
    data = model.recipe.data.model_copy(update={"test": files})
    model.recipe = model.recipe.model_copy(update={"data": data})
    with pytest.raises(TransduceError, match="there is no split test-coco"):
        evaluate_folder(model, folder, split="test-coco")


def test_other_files_do_not_pass_for_the_test_set(folder: Path) -> None:
    for name in ("test.src", "test.tgt", "test"):
        (folder / name).write_text("a\n")
    evaluate_folder(load(folder), folder, files=(folder / "test.src", folder / "test.tgt"))
    evaluate_folder(load(folder), folder, files=(folder / "test.src", folder / "test"))
    evaluate_folder(load(folder), folder)
    values = json.loads((folder / "metrics.json").read_text())
    assert {split: result["items"] for split, result in values.items()} == {
        "test.tgt": 1,
        "test.txt": 1,
        "test": 3,
    }
    assert (folder / "test.tgt.hypotheses.txt").is_file()


def test_files_of_one_name_in_two_folders_have_two_results(folder: Path) -> None:
    lines = {"one": "a\n", "two": "a\nb\n", "three": "a\nb\na\n"}
    for name, text in lines.items():
        (folder / name).mkdir()
        for file in ("ref.de", "src.en"):
            (folder / name / file).write_text(text)
    for name in ("one", "two", "three", "two", "one"):
        files = (folder / name / "src.en", folder / name / "ref.de")
        evaluate_folder(load(folder), folder, files=files)
    # Another source of the same target is another test set.
    (folder / "noisy.en").write_text("c\n")
    noisy = (folder / "noisy.en", folder / "one" / "ref.de")
    assert evaluate_folder(load(folder), folder, files=noisy).name == "ref.de-4"
    values = json.loads((folder / "metrics.json").read_text())
    assert {key: result["items"] for key, result in values.items()} == {
        "ref.de": 1,
        "ref.de-2": 2,
        "ref.de-3": 3,
        "ref.de-4": 1,
    }
    assert values["ref.de-2"]["files"] == [
        str(folder / "two" / "src.en"),
        str(folder / "two" / "ref.de"),
    ]
    for key, result in values.items():
        said = (folder / f"{key}.hypotheses.txt").read_text().splitlines()
        assert len(said) == result["items"]


def test_other_ensembles_have_results_of_their_own(folder: Path) -> None:
    model = load(folder)
    for others in (["one"], ["two"], ["one"]):
        evaluate_folder(
            model, folder, ensemble=[load(folder)], with_folders=[folder / n for n in others]
        )
    values = json.loads((folder / "metrics.json").read_text())
    assert list(values) == ["test-2-models", "test-2-models-2"]
    assert values["test-2-models-2"]["with"] == [str(folder / "two")]
    # Of models that were never in a folder, too: they do not take the place of the model alone.
    assert evaluate_folder(model, folder, ensemble=[load(folder)]).name == "test-2-models-3"
    assert evaluate_folder(model, folder, ensemble=[]).name == "test"


def test_a_model_whose_corpus_has_moved_is_reported_where_it_is(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path_factory.mktemp("moved")
    (folder / "test.tsv").rename(moved / "test.tsv")
    model = load(folder)
    with pytest.raises(TransduceError, match=r"there is no file .*test.tsv; .*data.folder=\.\.\."):
        evaluate_folder(model, folder)
    found = evaluate_folder(model, folder, overrides=[f"data.folder={moved}"])
    assert len(found.items) == 3
    monkeypatch.chdir(moved.parent)
    again = evaluate_folder(model, folder, overrides=[f"data.folder={moved.name}", "metrics=[wer]"])
    assert list(again.metrics) == ["wer"]
    values = json.loads((folder / "metrics.json").read_text())
    assert values["test"]["overrides"] == [f"data.folder={moved.name}", "metrics=[wer]"]
    assert model.recipe.data.folder == str(folder)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.width=8", "model.width cannot be changed after training; keys that can"),
        ("data.test={file: x.tsv}", "data.test cannot be changed after training"),
        ("decoder=1", "decoder cannot be changed after training"),
        ("decode.beem=3", "unknown key decode.beem; did you mean decode.beam?"),
        ("metrics=[blue]", "metrics is blue; it must be bleu"),
        ("data.folder", "data.folder' is not of the form"),
    ],
)
def test_what_may_not_be_set_anew_is_reported(folder: Path, override: str, said: str) -> None:
    with pytest.raises(TransduceError, match=said.replace("?", r"\?")):
        evaluate_folder(load(folder), folder, overrides=[override])


def test_decoding_may_be_set_anew(folder: Path) -> None:
    free = evaluate_folder(load(folder), folder)
    short = evaluate_folder(load(folder), folder, overrides=["decode.max_extra=0"])
    assert max(len(out.text) for out in short.outputs) < max(len(out.text) for out in free.outputs)


def test_a_table_alone_has_both_sides(folder: Path) -> None:
    (folder / "more.tsv").write_text("a\tb\nb\ta\n")
    model = load(folder)
    assert len(evaluate_folder(model, folder, files=(folder / "more.tsv", None)).items) == 2
    (folder / "more.jsonl").write_text('{"from": "a", "to": "b"}\n{"from": "b", "to": "c"}\n')
    named = Columns(file="test.jsonl", source="from", target="to", limit=1)
    data = model.recipe.data.model_copy(update={"test": named})
    model.recipe = model.recipe.model_copy(update={"data": data})
    items = evaluate_folder(model, folder, files=(folder / "more.jsonl", None)).items
    # The limit is of the recipe's own test set.
    assert [(item.source, item.references) for item in items] == [("a", ["b"]), ("b", ["c"])]


def test_hypotheses_that_a_person_has_edited_stay(folder: Path) -> None:
    model = load(folder)
    for _ in range(2):
        evaluate_folder(model, folder)
    edited = folder / "test.hypotheses.txt"
    edited.write_text("my own\n")
    with pytest.raises(
        DataError, match=r"test\.hypotheses\.txt was changed since transduce wrote it"
    ):
        evaluate_folder(model, folder)
    assert edited.read_text() == "my own\n"


def test_scores_are_reported_before_they_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, key: str, values: object) -> None:
        raise CheckpointError("no space")

    reported: list[Evaluation] = []
    monkeypatch.setattr("transduce.evaluation.results.update_metrics", full)
    with pytest.raises(CheckpointError):
        evaluate_folder(load(folder), folder, on_measured=reported.append)
    assert list(reported[0].metrics) == ["cer"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"split": "tset"}, "there is no split tset; did you mean test?"),
        ({"split": "training"}, "there is no split training; there are test and valid"),
        ({"metrics": "bleu,crf"}, "there is no metric crf; did you mean chrf?"),
        ({"metrics": " , "}, "--metrics names none"),
        ({"files": (Path("x"), None)}, "--source and --target, or with --source alone if one"),
        ({"files": (None, Path("x.tsv"))}, "--source and --target, or with --source alone if"),
    ],
)
def test_mistakes_are_reported_before_decoding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], said: str
) -> None:
    monkeypatch.delattr(GenerativeModel, "run")
    with pytest.raises(TransduceError, match=said.replace("?", r"\?")):
        evaluate_folder(load(folder), folder, **asked)  # type: ignore[arg-type]
    assert not (folder / "metrics.json").exists()


def test_groups_count_alike_in_the_mean(model: Transducer) -> None:
    def item(source: str, reference: str, group: str) -> Item:
        return Item(source, [reference], group)

    said = [output.text for output in model.run(["a", "b"])]
    items = [item("a", said[0], "x"), *[item("b", "quite another", "y")] * 3]
    found = evaluate(model, items, ["exact"])
    assert found.metrics["exact"].value == 25.0
    assert {name: metrics["exact"].value for name, metrics in found.groups.items()} == {
        "x": 100.0,
        "y": 0.0,
    }
    assert found.mean["exact"].value == 50.0
    one = evaluate(model, items[:1], ["exact"])
    assert (one.groups, one.mean) == ({}, {})


def test_the_interval_of_a_mean_follows_from_those_of_the_groups() -> None:
    def exact(value: float, low: float | None, high: float | None) -> dict[str, Metric]:
        return {"exact": Metric("exact", value, low, high, True)}

    mean = mean_over({"x": exact(50, 47, 54), "y": exact(70, 66, 73)})["exact"]
    assert (mean.value, mean.low, mean.high) == (60.0, 60 - 5 / 2, 60 + 5 / 2)
    assert mean_over({"x": exact(50, None, None)})["exact"].low is None
    assert mean_over({"x": {}, "y": exact(70, 66, 73)})["exact"].value == 70


def test_the_first_tag_is_the_group() -> None:
    pairs = [Pair("<x> <y> a", "1", "file", 1, ("x", "y")), Pair("b", "2", "file", 2)]
    for alternatives in (True, False):
        assert [item.group for item in items_of(pairs, alternatives)] == ["x", ""]


def test_words_that_training_had_are_known() -> None:
    tokens = Tokens.train(recipe.Tokens(level="symbol"), ["the dog runs"])
    model = SimpleNamespace(recipe=SimpleNamespace(task="tag"), source_tokens=tokens)
    items = [Item("the cat runs", ["DET NOUN VERB"]), Item("a dog", ["DET NOUN"])]
    answers = [
        Answer("", ["DET", "VERB", "VERB"], [0.9, 0.9, 0.9]),
        Answer("", ["DET", "VERB"], [0.9, 0.9]),
    ]
    found = score(model, items, answers, ["accuracy", "known", "unknown"], bootstrap=0)  # type: ignore[arg-type]
    assert found["known"].details == {"correct": 2, "positions": 3}  # the, runs, not dog
    assert found["unknown"].details == {"correct": 1, "positions": 2}  # a, not cat
    assert found["accuracy"].value == 60.0
