"""Imported models: evaluated, looked into, run in batches, served, trained further, adapted.

An opus-mt model has one vocabulary that sources and targets are cut into each in its own way; T5
has relative positions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import optional
from command_line import Transduce, sentence
from hf_models import MODELS, TEXTS, learn_sentencepiece, pieces_of
from served import serving
from slow_params import some_slow
from transduce import load, train
from transduce.data.tokens.tokenizer import END
from transduce.interop.huggingface.export import export
from transduce.interop.huggingface.measure import ids_there
from transduce.interop.imports.registry import import_model
from transduce.tasks.folder import read_definition
from transduce.tasks.transduce import Transducer

transformers = optional.package("transformers")
optional.skip_without("sentencepiece")


def t5(folder: Path) -> None:
    learn_sentencepiece(folder / "learned.model", "unigram", 110)
    listed = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces_of(folder / "learned.model")]
    (folder / "learned.model").unlink()
    tokenizer = transformers.T5Tokenizer(vocab=listed, extra_ids=3)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    network = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, vocab_size=len(tokenizer), decoder_start_token_id=0)
    )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Imported models by name, and files of sources and targets."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    place = tmp_path_factory.mktemp("imported")
    for name, make in (("marian", MODELS["marian"][0]), ("t5", t5)):
        (place / f"{name}-there").mkdir()
        make(place / f"{name}-there")
        import_model(place / f"{name}-there", place / name)
    (place / "a.txt").write_text("\n".join(TEXTS[:2]) + "\n")
    (place / "b.txt").write_text("\n".join(TEXTS[2:4]) + "\n")
    found = ("marian", "t5", "a.txt", "b.txt")
    return {name: place / name for name in found}


def recipe_of(folders: dict[str, Path], name: str, **options: Any) -> dict[str, Any]:
    corpus = {"source": str(folders["a.txt"]), "target": str(folders["b.txt"])}
    start = {"from": str(folders[name]), **options.pop("start", {})}
    return {
        "data": {"train": corpus, "valid": corpus, **options.pop("data", {})},
        "train": {"steps": 2, "warmup": 0, "lr": 0.01, "batch_tokens": 300, "start": start}
        | options,
        "validation": {"every": 2},
    }


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_commands_take_it(
    folders: dict[str, Path], name: str, tmp_path: Path, transduce: Transduce
) -> None:
    model = tmp_path / name
    shutil.copytree(folders[name], model)
    files = ("--source", folders["a.txt"], "--target", folders["b.txt"])
    evaluated = transduce("evaluate", model, *files, "--metrics", "chrf")
    assert (evaluated.status, "chrF" in evaluated.out) == (0, True), evaluated.err
    page = tmp_path / "look.html"
    looked = transduce("look", model, TEXTS[0], "--max-length", 4, "--output", page)
    assert (looked.status, page.stat().st_size > 10_000) == (0, True), looked.err
    job = ("--input", folders["a.txt"], "--output", tmp_path / "job", "--max-length", 4)
    batch = transduce("batch", model, *job)
    assert batch.status == 0, batch.err
    written = (tmp_path / "job" / "part-000000.txt").read_text().splitlines()
    expected = [output.text for output in load(model).run(TEXTS[:2], max_length=4)]
    assert written == expected


def test_they_are_served(folders: dict[str, Path]) -> None:
    models = {name: load(folders[name]) for name in ("marian", "t5")}
    texts: list[str] = []
    with serving(models) as server:
        for name, model in models.items():
            found = server.run(model=name, inputs=TEXTS[:2], min_length=3, max_length=5)
            expected = model.run(TEXTS[:2], min_length=3, max_length=5)
            assert [one["text"] for one in found] == [one.text for one in expected]
            texts += [one["text"] for one in found]
    assert any(texts)


@pytest.mark.parametrize("name", some_slow(["marian", "t5"], quick=["marian"]))
def test_it_is_trained_further(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Sources and targets are cut as before, also after resuming; and it goes back."""
    recipe = recipe_of(folders, name)
    train(recipe, tmp_path / "tuned")
    recipe["train"]["steps"] = 3
    tuned = train(recipe, tmp_path / "tuned", resume=True).model
    before = load(folders[name])
    for side in ("source_tokens", "target_tokens"):
        ours, theirs = (getattr(model, side) for model in (tuned, before))
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
    changed = zip(tuned.network.parameters(), before.network.parameters(), strict=True)
    assert all(0 < (one - other).abs().max() < 0.1 for one, other in changed if one.ndim > 1)
    if name == "t5":
        return  # not exported
    place = tmp_path / "back"
    assert export(tuned, place) == "MarianMTModel"
    assert difference(load(tmp_path / "tuned"), place, tmp_path / "tuned") < 1e-5


def difference(model: Any, exported: Path, folder: Path, adapter: Path | None = None) -> float:
    """The largest between log-probabilities of ours and of an export of `folder` in transformers,
    which has PEFT's adapter if one is given."""
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    start = network.config.decoder_start_token_id
    if adapter is not None:
        peft = pytest.importorskip("peft", reason="the package peft is not installed")
        network = peft.PeftModel.from_pretrained(network, str(adapter)).eval()
    ids = ids_there(folder, read_definition(folder))
    source, target = "A dog runs.", "Ein Hund"
    written = ids.theirs([*model.target_tokens.encode(target), END])
    with torch.inference_mode():
        logits_1TV = network(
            **tokenizer([source], return_tensors="pt"),
            decoder_input_ids=torch.tensor([[start, *written[:-1]]]),
        ).logits
    theirs = logits_1TV[0].log_softmax(-1)[torch.arange(len(written)), written]
    ours = torch.tensor(model.score([source], [target])[0].token_log_probabilities)
    return float((ours - theirs).abs().max())


def test_an_adapter_of_it_in_all_commands(
    folders: dict[str, Path], tmp_path: Path, transduce: Transduce
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(folders["marian"], base)
    recipe = recipe_of(folders | {"marian": base}, "marian", lr=0.1, adapter={"rank": 2})
    trained = train(recipe, adapter).model
    assert isinstance(trained, Transducer)

    files = ("--source", folders["a.txt"], "--target", folders["b.txt"])
    assert transduce("evaluate", base, *files, "--metrics", "chrf").status == 0
    ended = transduce("evaluate", base, *files, "--metrics", "chrf", "--adapter", adapter)
    assert ended.status == 0, ended.err
    kept = json.loads((base / "metrics.json").read_text())
    assert set(kept) == {"b.txt", "b.txt-adapter"}  # each has results of its own
    written = (base / "b.txt-adapter.hypotheses.txt").read_text().splitlines()
    adapted = load(base)
    with adapted.adapter(adapter):
        assert written == [output.text for output in adapted.run(TEXTS[:2])]
    assert written != (base / "b.txt.hypotheses.txt").read_text().splitlines()

    pages = {}
    for name, more in (("with", ("--adapter", adapter)), ("without", ())):
        page = tmp_path / f"{name}.html"
        looked = transduce("look", base, TEXTS[0], "--target", TEXTS[2], "--output", page, *more)
        assert looked.status == 0, looked.err
        pages[name] = page.read_text()
    assert pages["with"] != pages["without"]

    refused = sentence(transduce("export", base, "--adapter", adapter, "--to", "huggingface"))
    assert f"transduce merge {adapter} --base {base}" in refused
    whole, beneath = tmp_path / "whole", tmp_path / "beneath"
    export(load(adapter), whole)  # merged
    assert difference(trained, whole, adapter) < 1e-5
    export(load(base), beneath)
    assert difference(trained, beneath, base) > 1e-3
    transduce("export", adapter, "--to", "peft", "--output", tmp_path / "peft")
    assert difference(trained, beneath, base, tmp_path / "peft") < 1e-5


def test_tokens_are_added_to_it_and_go_to_hugging_face(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Symbols, a tag and learned pieces: one token each here and in transformers, and the export
    computes the same with them."""
    words = tmp_path / "words.tsv"
    words.write_text("zigzag [NAME] 5µm\tzigzag [NAME]\nzigzag\tzigzag\n")
    before = load(folders["marian"])
    recipe = recipe_of(
        folders, "marian", start={"tokens": "extend", "add_tokens": ["[NAME]", "µm"]}
    )
    corpus = {"file": str(words), "tag": "fra"}
    recipe["data"] = {
        "train": corpus,
        "valid": corpus,
        "tokens": {"both": {"size": len(before.source_tokens) + 6}},
    }
    tuned = train(recipe, tmp_path / "tuned").model
    source, target = tuned.source_tokens, tuned.target_tokens
    text = "<fra> A dog [NAME]s 5μm zig."
    assert source.decode(source.encode(text)) == "A dog [NAME]s 5μm zig."
    for tokens in (source, target):
        pieces = tokens.pieces(tokens.encode("A [NAME]s 5µm"))
        assert {"[NAME]", "μm"} < set(pieces)  # as the rules of SentencePiece write µ
        old = before.source_tokens if tokens is source else before.target_tokens
        assert [tokens.pieces(tokens.encode(text)) for text in TEXTS] == [
            old.pieces(old.encode(text)) for text in TEXTS
        ]
    place = tmp_path / "there"
    assert export(tuned, place) == "MarianMTModel"
    assert difference(load(tmp_path / "tuned"), place, tmp_path / "tuned") < 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    for one in (text, "x[NAME]y", *TEXTS[:2]):
        assert tokenizer(one).input_ids == [*source.encode(one), END]
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(place)
    inputs = tokenizer([text], return_tensors="pt")
    (theirs,) = network.generate(**inputs, max_new_tokens=6, num_beams=1, do_sample=False)
    (ours,) = tuned.run([text], beam=1, max_length=5)
    assert theirs.tolist()[1 : 1 + len(ours.ids)] == ours.ids


def test_t5_takes_tokens_and_tags(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its special tokens, which come last, move; every row goes with its token."""
    before = load(folders["t5"])
    recipe = recipe_of(
        folders, "t5", start={"tokens": "extend", "add_tokens": ["[NAME]"]}, lr=1e-12
    )
    recipe["data"]["tokens"] = {"both": {"size": len(before.source_tokens) + 4}}
    tuned = train(recipe, tmp_path / "tuned").model
    old, new = before.source_tokens, tuned.source_tokens
    assert len(new) > len(old)
    table, there = (m.network.front.table.weight for m in (tuned, before))
    numbers = {name: number for number, name in enumerate(old.names())}
    kept = [number for number, name in enumerate(new.names()) if name in numbers]
    assert len(kept) == len(old)
    order = torch.tensor([numbers[new.names()[number]] for number in kept])
    torch.testing.assert_close(table[torch.tensor(kept)], there[order], rtol=0, atol=1e-6)
    assert new.pieces(new.encode("<extra_id_1> x[NAME]"))[0] == "<extra_id_1>"
    number = new.names().index("[NAME]")
    pieces = [one for one in old.encode("a[NAME]")[1:] if one > 3 and old.names()[one] != "a"]
    mean = there[torch.tensor(pieces)].mean(dim=0) if pieces else None
    assert mean is None or torch.allclose(table[number], mean, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"tokens": "extend"}, "or name tokens in train.start.add_tokens"),
        ({"tokens": "extend", "add_tokens": ["two words"]}, "is a text without spaces"),
        ({"add_tokens": ["x"]}, "train.start.add_tokens needs tokens: extend beside it"),
    ],
)
def test_tokens_that_cannot_be_added_say_what_to_do(
    folders: dict[str, Path],
    tmp_path: Path,
    transduce: Transduce,
    start: dict[str, Any],
    message: str,
) -> None:
    values = recipe_of(folders, "marian", start=start)
    values["data"]["tokens"] = {"both": {"size": 10}}
    (tmp_path / "r.yaml").write_text(json.dumps(values))
    ended = transduce("train", tmp_path / "r.yaml", "--output", tmp_path / "x")
    assert message in sentence(ended)
