"""Tiny models with random weights, for commands to use."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import TINY
from language import language_model
from tiny_models import tiny
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Columns, parse_recipe
from transduce.tasks.transduce import Transducer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny model with random weights, and a validation set."""
    import torch

    path = tmp_path_factory.mktemp("runs") / "tiny"
    path.mkdir()
    (path / "valid.tsv").write_text("ab\tA B\nba\tB A\nc\tC\n")
    recipe = parse_recipe(TINY, "tiny", path)
    both = recipe.data.tokens
    assert both.source is not None
    assert both.target is not None
    torch.manual_seed(1)
    source = Tokens.train(both.source, ["abc \u2028"])
    Transducer.create(recipe, source, Tokens.train(both.target, ["A B C"])).save(path)
    return path


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "speaker"
    model = language_model()
    model.network.float()
    model.save(path)
    return path


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose training had a column of tags."""
    path = tmp_path_factory.mktemp("runs") / "tagged"
    model = tiny(tags=["V", "N", "PST"])
    table = Columns(file="forms.tsv", source="lemma", target="form", tags="features")
    data = model.recipe.data.model_copy(update={"train": table, "valid": table})
    model.recipe = model.recipe.model_copy(update={"data": data})
    model.save(path)
    return path
