"""Arguments and options shared by several commands."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

import typer

from transduce.cores import count_cores
from transduce.decoding_settings import SETTINGS, Setting
from transduce.errors import DataError
from transduce.garbage import no_garbage_collection

if TYPE_CHECKING:
    from transduce.tasks import Model


def model_folder(place: str) -> Path:
    """The folder of a model that a person named: a path, or hf://user/name@revision."""
    if not place.startswith("hf://"):
        return Path(place)
    from transduce.hub import resolve_model

    return resolve_model(place)


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A YAML file, or the name of a shipped recipe; or data of your own: a table, a text, "
        "two parallel files, a folder.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Overrides, e.g. train.lr=3e-4 model.width=256."),
]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.05, help="Minutes of training; of a recipe, train.minutes."),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        help="Overrides of the model's recipe, e.g. data.folder=../corpora if files have moved.",
    ),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A model folder, written by `transduce train`, or hf://user/name@revision.",
        parser=model_folder,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Worker processes for a long input, on a CPU. Default: one per core."),
]
Precision = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or (on a CPU) int8: precision of decoding.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="ctranslate2 or onnx, after export. Default: transduce's own."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
AdapterOption = Annotated[
    Path | None, typer.Option("--adapter", help="An adapter of the model: its folder, or PEFT's.")
]
Base = Annotated[
    Path | None, typer.Option(help="Of an adapter: the model that it was trained on, if moved.")
]
NONE_GIVEN: Mapping[str, Any] = {}
NO_MODEL = Path("none")
"""As the only one of an ensemble: the model alone, without those of its folder."""


class OptionGroup(Protocol):
    """In the annotation of a parameter of a command: the options that it stands for."""

    def parameters(self) -> list[inspect.Parameter]: ...

    def collected(self, values: dict[str, Any]) -> Any:
        """The value of the parameter, from those of the options."""


class OptionsOf:
    """The fields of a dataclass as options; the parameter is an object of it."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def parameters(self) -> list[inspect.Parameter]:
        types = get_type_hints(self.kind, include_extras=True)
        return [option(one.name, types[one.name], one.default) for one in fields(self.kind)]

    def collected(self, values: dict[str, Any]) -> Any:
        return self.kind(**values)


class DecodingOptions:
    """Decoding settings as options. The parameter has those that differ from their defaults: models
    of other tasks have other settings."""

    def __init__(self, *names: str) -> None:
        self.settings = [SETTINGS[name] for name in names]

    def parameters(self) -> list[inspect.Parameter]:
        return [_setting_option(setting) for setting in self.settings]

    def collected(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            one.name: _given(one, values[one.name])
            for one in self.settings
            if values[one.name] != one.default and values[one.name] is not None
        }


def _given(setting: Setting, value: Any) -> Any:
    """The value of an option: with the lines of files, and none for no model."""
    if value == [NO_MODEL]:
        return []
    return _with_lines(setting.name, value) if setting.lines else value


def _with_lines(name: str, values: list[str]) -> list[str]:
    """The values of a setting, those of files among them. Raises DataError."""
    found: list[str] = []
    for value in values:
        path = Path(value)
        if not path.is_file():
            if path.suffix == ".txt":
                raise DataError(
                    f"--{name}: there is no file {path}; check its name, or give a phrase"
                )
            found.append(value)
            continue
        try:
            text = path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--{name} {path} cannot be read as text in UTF-8: {error}") from None
        found += [line.strip() for line in text.splitlines() if line.strip()]
    return found


def _setting_option(setting: Setting) -> inspect.Parameter:
    flags = [setting.option] if setting.option else []
    more: dict[str, Any] = {}
    kind, default = setting.type, setting.default
    if setting.model:
        kind, more = Path | None, {"metavar": "MODEL", "parser": model_folder}
    elif setting.plain_type is bool:
        flag = setting.name.replace("_", "-")
        flags = [f"--{flag}" if default is False else f"--{flag}/--no-{flag}"]
    elif setting.plain_type is None:
        kind = str | None
    if setting.repeatable:
        kind, default = list[Path] | None if setting.model else list[str] | None, None
    help = setting.about()
    if setting.lines:
        help = f"{help.removesuffix('.')}; or a file with one on each line."
    help = f"{help.removesuffix('.')}; repeatable." if setting.repeatable else help
    help += " Default: as in the recipe." if setting.in_recipe else ""
    return option(setting.name, Annotated[kind, typer.Option(*flags, help=help, **more)], default)


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


OPTIONS = tuple(name for name, setting in SETTINGS.items() if setting.option is not None)
AllSettings = Annotated[Mapping[str, Any], DecodingOptions(*OPTIONS)]
SAMPLING = ("sample", "temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class Loading:
    """How a model is opened: options of several commands."""

    adapter: AdapterOption = None
    base: Base = None
    engine: EngineOption = None
    device: Device = "auto"
    precision: Precision = "auto"
    workers: Workers = 0

    @no_garbage_collection()
    def open(self, folder: Path, many: bool, settings: Mapping[str, Any] = NONE_GIVEN) -> Model:
        """The model in a folder, with its worker processes; many: whether sources may be many.
        settings: of decoding. An ensemble among them is in place of the models of the folder."""
        processes = count_processes(self.workers, many)  # before torch is loaded
        from transduce.interop.engine import open_model
        from transduce.tasks.members import NO_MEMBERS

        adapter, base = self.adapter, self.base
        model = open_model(
            folder,
            self.engine,
            self.device,
            self.precision,
            adapter=adapter,
            base=base,
            members="ensemble" not in settings,
        )
        for one in (model, *getattr(model, "members", NO_MEMBERS).all):
            one.workers = processes
        return model


LoadingOptions = Annotated[Loading, OptionsOf(Loading)]


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter that stands for several options is these."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, OptionGroup] = {
        name: one
        for name, parameter in signature.parameters.items()
        for one in getattr(parameter.annotation, "__metadata__", ())
        if hasattr(one, "collected")
    }
    if not groups:
        return command
    of_groups = {name: group.parameters() for name, group in groups.items()}
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        for one in of_groups.get(name, [parameter])
    ]

    def with_options(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group.collected(
                {one.name: given.pop(one.name) for one in of_groups[name]}
            )
        command(**given)

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__module__ = command.__module__
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def count_processes(asked: int, many: bool) -> int:
    """The number of worker processes on a CPU.

    With several, each has one OpenMP thread, which must be set before torch is loaded.
    """
    count = asked or (count_cores() if many else 1)
    if count > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    return count
