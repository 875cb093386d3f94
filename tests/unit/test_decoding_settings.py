"""The decoding settings are declared once: all that is made of them has the same set."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
import typer
from pydantic import ValidationError

from transduce.cli.commands.batch import batch
from transduce.cli.commands.evaluate import NOT_EVALUATED, evaluate
from transduce.cli.commands.options import DecodingOptions, expanded
from transduce.cli.commands.run import run
from transduce.decoding.settings import Settings
from transduce.decoding_settings import KINDS, SETTINGS
from transduce.errors import DataError
from transduce.recipe import Decode

# Keys of a recipe that give the maximum length of an output by its source.
OF_RECIPES_ALONE = {"max_ratio", "max_extra"}
# Options of `run` and `batch` with these names say how input is read and outputs are printed.
OTHER_OPTIONS = {"rate", "times", "scores"}


def plain(annotation: Any) -> set[Any]:
    """The types of a value that is not None."""
    return {one for one in get_args(annotation) or (annotation,) if one is not NoneType}


def test_search_has_the_declared_settings_with_their_types_and_defaults() -> None:
    search = {name: setting for name, setting in SETTINGS.items() if setting.search}
    types = get_type_hints(Settings)
    assert {one.name for one in fields(Settings)} == set(search)
    for name, setting in search.items():
        assert types[name] == setting.type, name
        assert getattr(Settings(), name) == setting.default, name


def test_the_decode_section_has_the_settings_that_are_declared_for_it() -> None:
    kept = {name: setting for name, setting in SETTINGS.items() if setting.in_recipe}
    assert set(Decode.model_fields) - OF_RECIPES_ALONE == set(kept)
    for name, setting in kept.items():
        key = Decode.model_fields[name]
        assert plain(key.annotation) == plain(setting.type), name
        assert key.default == setting.recipe == getattr(Decode(), name)
        assert setting.default is None, f"run takes {name} from the recipe where it is None"
        for limit, step in ((setting.minimum, -1), (setting.maximum, 1)):
            if limit is not None:
                typed = setting.plain_type(limit)
                assert getattr(Decode(**{name: typed}), name) == limit
                with pytest.raises(ValidationError):
                    Decode(**{name: typed + step})
        if setting.above is not None:
            with pytest.raises(ValidationError):
                Decode(**{name: setting.plain_type(setting.above)})


def test_every_setting_says_what_it_is_for() -> None:
    for name, setting in SETTINGS.items():
        assert setting.help.endswith("."), name
        assert setting.kind in KINDS, name
        others = ("tags", "prefix", "include", "exclude", "hotwords", "glossary", "only")
        others += ("observer",)
        assert (setting.plain_type is None) == (setting.model or name in others), name


@pytest.mark.parametrize("command", [run, batch, evaluate])
def test_the_command_line_has_the_settings_that_are_declared_for_it(command: Any) -> None:
    app = typer.Typer()
    app.command()(expanded(command))
    options = {one.name: one for one in typer.main.get_command(app).params}
    wanted = {name for name, setting in SETTINGS.items() if setting.option is not None}
    wanted -= set(NOT_EVALUATED) if command is evaluate else set()
    assert wanted <= set(options)
    assert set(options) & set(SETTINGS) <= wanted | OTHER_OPTIONS
    for name in wanted:
        setting = SETTINGS[name]
        option: Any = options[name]
        assert option.help.startswith(setting.about().removesuffix(".")), name
        assert option.multiple == setting.repeatable, name
        assert option.default == (None if setting.repeatable else setting.default), name
        flag = setting.option or f"--{name.replace('_', '-')}"
        assert flag in option.opts


def test_hotwords_are_phrases_and_the_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Ann Brown\n\n Quilter \n")
    options = DecodingOptions("hotwords", "beam")
    given = ["and/or", str(tmp_path / "names.txt"), "e.g."]
    found = options.collected({"hotwords": given, "beam": None})
    assert found == {"hotwords": ["and/or", "Ann Brown", "Quilter", "e.g."]}
    with pytest.raises(DataError, match=r"--hotwords: there is no file name.txt; .* a phrase"):
        options.collected({"hotwords": ["name.txt"], "beam": None})
