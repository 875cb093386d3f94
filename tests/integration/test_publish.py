"""publish and hf:// against a small hub on this machine, through huggingface_hub itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from command_line import Ended, sentence
from forked import run
from hub_server import TOKEN, HubServer, Repository, hub_server
from tiny_models import WORDS
from transduce import load, recipe
from transduce.checksums import write_listed
from transduce.data.tokens.tokenizer import Tokens
from transduce.interop.huggingface.export import export
from transduce.interop.imports.huggingface import read_weights
from transduce.interop.imports.weights import imported_recipe
from transduce.recipe import dump_recipe, load_recipe
from transduce.recipe.fine_tuning import Start
from transduce.recipe.training import Teacher
from transduce.tasks.folder import WRITTEN, update_metrics
from transduce.tasks.language_model import LanguageModel

pytest.importorskip("huggingface_hub", reason="needs pip install '.[hub]'")
TRANSLATE = Path(__file__).parents[1] / "fixtures" / "models" / "translate"


# Several commands in one process: huggingface_hub reads its settings when it is loaded.
COMMANDS = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from transduce.cli import main as cli
ended = []
for token, *arguments in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    sys.argv = ["transduce", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
    ended.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""


def transduce(home: Path, server: HubServer, *commands: tuple[object, ...]) -> list[Ended]:
    """What becomes of some commands; the first word of each is the token."""
    # HF_HUB_DISABLE_XET: large files go by LFS, which the small hub speaks.
    settings = {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    settings |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    ended = run(
        [sys.executable, "-c", COMMANDS, json.dumps([[*map(str, one)] for one in commands])],
        env=environment | settings,
    )
    assert ended.returncode == 0, ended.stderr
    return [Ended(*one) for one in json.loads(ended.stdout)]


def llama(folder: Path) -> dict[str, bytes]:
    """The files of a Llama with random weights."""
    part = {"layers": 1, "heads": 2, "feed_forward": 20, "norm": "rms", "activation": "swiglu"}
    tokens = Tokens.train(recipe.Tokens(level="subword", size=60), WORDS)
    section = {"width": 16, "tie_embeddings": "none", "output_bias": False}
    settings = imported_recipe(
        "lm",
        {**section, "decoder": {**part, "positions": "rotary"}},
        (tokens, tokens),
        task="language_modeling",
    )
    torch.manual_seed(3)
    export(LanguageModel.create(settings, tokens, tokens), folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put_llamas(tmp_path: Path, server: HubServer) -> None:
    """Models of another toolkit: one with safetensors and more, an older one with a pickle."""
    files = llama(tmp_path / "there")
    strangers = {"pytorch_model.bin": b"a pickle", "modeling.py": b"raise SystemExit"}
    torch.save(read_weights(tmp_path / "there"), tmp_path / "pytorch_model.bin")
    pickled = {name: raw for name, raw in files.items() if name != "model.safetensors"}
    pickled["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    for name, of_it in (("zuko/lm", files | strangers), ("zuko/old", pickled)):
        server.repositories[name] = Repository(private=False)
        server.repositories[name].branches = {"v1": of_it, "main": {"config.json": b"{}"}}


def imports(tmp_path: Path) -> list[tuple[object, ...]]:
    """Commands that import them; the last three are mistakes."""
    return [
        ("", "import", "hf://zuko/lm@v1", "--output", tmp_path / "new"),
        ("", "import", "hf://zuko/old@v1", "--output", tmp_path / "old"),
        ("", "run", tmp_path / "new", "tea", "--max-length", 4),
        ("", "import", "hf://zuko/lm@v2", "--output", tmp_path / "x"),
        ("", "import", "hf://zuko/lm", "--output", tmp_path / "x"),
        (TOKEN, "import", "hf://iroh/tea", "--output", tmp_path / "x"),
    ]


def check_imports(tmp_path: Path, server: HubServer, ended: list[Ended]) -> None:
    new, old, ran, *mistakes = ended
    assert new.status == old.status == ran.status == 0, new.err + old.err + ran.err
    assert ran.out.startswith("tea")
    assert "hf://zuko/lm@v1: a language model of Hugging Face" in new.out
    assert "modeling.py" not in server.downloaded
    assert server.downloaded.count("pytorch_model.bin") == 1  # where there is nothing better
    assert load(tmp_path / "new").recipe.name == "lm"  # not the commit
    one, two = (load(tmp_path / name).network.state_dict() for name in ("new", "old"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    reported = ("no revision v2", "in no format", "as it is")
    for failed, message in zip(mistakes, reported, strict=True):
        assert message in sentence(failed)
    assert not (tmp_path / "x").exists()


def test_models_go_up_come_down_and_are_imported(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TRANSLATE, model)
    recipe = load_recipe(model / "recipe.yaml")
    teacher = Teacher(model="/secret/teacher")
    start = Start.model_validate({"from": "/secret/start"})
    taught = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"teacher": teacher, "start": start})}
    )
    write_listed(model / "recipe.yaml", f"{WRITTEN}\n{dump_recipe(taught)}")
    measured = {"value": 41.25, "low": 40.0, "high": 42.0, "higher_is_better": True}
    update_metrics(
        model, "test", {"items": 7, "metrics": {"bleu": measured}, "files": ["/secret/a"]}
    )
    (model / "evil.bin").write_bytes(b"a pickle")
    (model / "modeling.py").write_text("raise SystemExit")
    (model / "state").mkdir()
    (model / "state" / "training.safetensors").write_bytes(b"a checkpoint")
    (tmp_path / "a.tsv").write_text("ab\tba\n")
    with hub_server() as server:
        # What somebody else has put there is not downloaded.
        server.strangers = {"pytorch_model.bin": b"a pickle", "modeling.py": b"raise SystemExit"}
        put_llamas(tmp_path, server)
        up, down, measured_, exported, branch, *rest = transduce(
            tmp_path,
            server,
            (TOKEN, "publish", model, "iroh/tea", "--private"),
            (TOKEN, "run", "hf://iroh/tea", "abc"),
            (TOKEN, "evaluate", "hf://iroh/tea", "--source", tmp_path / "a.tsv"),
            (TOKEN, "export", "hf://iroh/tea", "--to", "native", "--quantize", "int8"),
            (TOKEN, "publish", model, "iroh/tea", "--revision", "v2"),
            ("wrong", "publish", TRANSLATE, "iroh/coffee"),
            (TOKEN, "publish", TRANSLATE, "tea"),
            (TOKEN, "run", "hf://iroh/coffee", "a"),
            (TOKEN, "run", "hf://iroh/tea@v3", "a"),
            *imports(tmp_path),
        )
        mistakes, imported = rest[:4], rest[4:]
        assert up.status == 0, up.err
        assert "transduce run hf://iroh/tea" in up.out
        repository = server.repositories["iroh/tea"]
        assert repository.private
        files = repository.branches["main"]
        assert all(files.pop(name) for name in server.strangers)
        assert sorted(files) == [
            *("README.md", "model.safetensors", "model.sha256", "recipe.yaml"),
            *("source.tokens.json", "target.tokens.json"),
        ]
        assert files["model.safetensors"] == (model / "model.safetensors").read_bytes()
        assert b"model: teacher\n" in files["recipe.yaml"]
        assert b"from: start\n" in files["recipe.yaml"]
        assert b"/secret" not in b"".join(files.values())
        assert str(tmp_path).encode() not in b"".join(files.values())
        head = yaml.safe_load(files["README.md"].decode().split("---")[1])
        result = head["model-index"][0]["results"][0]["metrics"][0]
        assert (result["type"], result["value"]) == ("bleu", 41.25)
        assert 'transduce.load("hf://iroh/tea")' in files["README.md"].decode()

        assert down.status == 0, down.err
        assert (down.out, len(down.out) > 1) == (load(TRANSLATE)("abc") + "\n", True)
        assert {"model.safetensors", "recipe.yaml"} <= set(server.downloaded)
        assert measured_.status == 0, measured_.err
        assert "no results are kept" in measured_.err
        assert not list(tmp_path.rglob("snapshots/*/metrics.json"))  # the cache stays as it was
        assert "--output" in sentence(exported)
        assert branch.status == 0, branch.err
        assert "hf://iroh/tea@v2" in branch.out
        assert set(files) <= set(repository.branches["v2"])
        messages = [
            "the hub does not know who you are; run `hf auth login`, or set HF_TOKEN",
            "not the address of a model on the hub",
            "there is no such model on the hub",
            "there is no revision v3 of iroh/tea",
        ]
        for ended, message in zip(mistakes, messages, strict=True):
            assert message in sentence(ended)
        assert set(server.repositories) == {"iroh/tea", "zuko/lm", "zuko/old"}
        check_imports(tmp_path, server, imported)  # iroh/tea's own pickle was not downloaded either
