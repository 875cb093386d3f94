"""A batch job: what is decoded, how, and into which files; its manifest.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from transduce.automatic.given import Trained, trained_on
from transduce.batch_inference.inputs import (
    InputFile,
    Part,
    Shard,
    Table,
    column_of_sources,
    column_of_tags,
    cut,
    find_inputs,
    joined,
    read_table,
    table_given,
)
from transduce.batch_inference.rows import GROUP_LINES
from transduce.batch_inference.writers import ENDINGS, Cells
from transduce.checksums import digest_of
from transduce.decoding.combine.ngram import is_arpa
from transduce.errors import CheckpointError, DataError, ModelError, RecipeError
from transduce.recipe import RECIPE, parse_recipe
from transduce.storage import default_cache_folder, locked, make_folder, remove_stale
from transduce.storage.outputs import write_text_at
from transduce.storage.positions import Place
from transduce.storage.remote import RemotePath
from transduce.tasks.folder import TOKENS, missing_weights_message
from transduce.tasks.members import MemberFolders, member_folders

MANIFEST = "manifest.json"
ERRORS, CLAIMS = "errors", ".claims"
VERSION = 2
WEIGHTS = ("*.safetensors", "*.bin", "*.onnx", "*.onnx.data")
MAX_LINES = 100_000
"""Lines of a shard, at most, where their number is not chosen."""
FEWEST_LINES = 32
"""Lines of a shard for a CPU, at least: fewer are not worth a file."""
SHARDS = 16
"""Shards for each worker: what a kill costs, and how long the last worker is waited for."""


@dataclass(frozen=True)
class Settings:
    """What an output depends on besides the model and the inputs; all of it as JSON values."""

    decode: dict[str, Any] = field(default_factory=dict)
    """Keywords of `run`, without models."""
    tags: list[str] = field(default_factory=list)
    ensemble: list[str] | None = None
    """None: the models that the folder of the model names; empty: none."""
    rerank: str | None = None
    language_model: str | None = None
    precision: str = "auto"
    column: str | None = None
    output_column: str = "output"
    format: str | None = None
    """None: that of the input."""
    scores: bool = False
    shard_lines: int | None = None
    """Lines of a shard at most; None: by the size of the inputs and the number of workers."""

    @property
    def models(self) -> list[str]:
        """The folders of further models."""
        return [*(self.ensemble or ()), *filter(None, (self.rerank, self.language_model))]


@dataclass(frozen=True)
class Job:
    """The content of a manifest, and the folder of outputs that it is in."""

    folder: Place
    model: str
    digests: list[str]
    """SHA-256 of the model, and of each further one."""
    settings: Settings
    table: Table
    inputs: list[InputFile]
    shards: list[Shard]

    @property
    def lines(self) -> int:
        return sum(shard.lines for shard in self.shards)

    @property
    def format(self) -> str:
        return self.settings.format or self.table.kind

    @property
    def cells(self) -> Cells:
        nbest = self.settings.decode.get("nbest", 1) > 1
        return Cells(self.settings.output_column, self.settings.scores, nbest)

    @property
    def work(self) -> Path:
        """Where claims are, and what is being written."""
        return work_folder(self.folder)

    @property
    def claims(self) -> Path:
        return self.work / CLAIMS

    def output(self, shard: Shard) -> Place:
        return self.folder / f"{name_of(shard)}{ENDINGS[self.format]}"

    def errors(self, shard: Shard) -> Place:
        return self.folder / ERRORS / f"{name_of(shard)}.jsonl"

    def claim(self, shard: Shard) -> Path:
        return self.claims / name_of(shard)

    def is_finished(self, shard: Shard) -> bool:
        return self.output(shard).is_file()

    def unfinished(self, shards: Sequence[Shard]) -> list[Shard]:
        """Those that are not finished; a store is asked once for all of them."""
        if not isinstance(self.folder, RemotePath):
            return [shard for shard in shards if not self.is_finished(shard)]
        there = set(self.folder.names()) if shards else set()
        return [shard for shard in shards if self.output(shard).name not in there]

    def names_of_errors(self) -> set[str]:
        """The names of the errors files that there are."""
        folder = self.folder / ERRORS
        if isinstance(folder, RemotePath):
            return set(folder.names())
        return {path.name for path in folder.glob("*.jsonl")}

    def make_folders(self) -> None:
        for name in (ERRORS, CLAIMS):
            make_folder(self.work / name)

    def clean(self) -> None:
        """Remove what killed workers have left half-written."""
        for folder in (self.work, self.work / ERRORS):
            remove_stale(folder)

    def check_model(self) -> None:
        """Raise DataError where a model is not the one that the job was started with."""
        folders = [self.model, *self.settings.models]
        now = digests_of(self.model, self.settings)
        for folder, digest, before in zip(folders, now, self.digests, strict=True):
            if digest != before:
                raise DataError(
                    f"the model {folder} has changed since the job in {self.folder} was started; "
                    f"restore it, or choose another --output"
                )

    def check_input(self, number: int) -> str:
        """The path of an input. Raises DataError where its content has changed."""
        before = self.inputs[number]
        if InputFile.identify(before.path, before) != before:
            raise DataError(
                f"{before.path} has changed since the job in {self.folder} was started; restore "
                f"it, or choose another --output"
            )
        return before.path


def _trained(model: Path) -> Trained | None:
    """The columns that a model was trained on; None: its folder does not say."""
    if not (model / RECIPE).is_file():
        return None
    try:
        recipe = parse_recipe((model / RECIPE).read_text("utf-8"), RECIPE, model)
    except (OSError, UnicodeDecodeError, RecipeError):
        return None  # opening the model says what is wrong
    return trained_on(recipe)


def work_folder(folder: Place) -> Path:
    """The folder of this machine for claims and for what is being written: that of the job, or of
    a job in a store one in the cache.
    """
    if not isinstance(folder, RemotePath):
        return folder
    key = sha256(str(folder).rstrip("/").encode()).hexdigest()[:32]
    return default_cache_folder() / "batch" / key


def digests_of(model: str, settings: Settings) -> list[str]:
    """Of the model, with those of its folder that it decodes with, and of each further one."""
    folder = Path(model)
    found = MemberFolders() if settings.ensemble is not None else member_folders(folder)
    return [
        digest_of_model(found.model or folder, found.all),
        *map(digest_of_model, map(Path, settings.models)),
    ]


def digest_of_model(folder: Path, members: Sequence[Path] = ()) -> str:
    """SHA-256 of recipe, vocabularies and weights, also of an exported model, or of the file of an
    n-gram model. Raises ModelError."""
    weights = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)})
    weights = [folder] if is_arpa(folder) else weights
    if not weights:
        raise ModelError(missing_weights_message(folder))
    weights += [path for one in members for path in sorted(one.glob("*.safetensors"))]
    others = [path for name in (RECIPE, *TOKENS) if (path := folder / name).is_file()]
    found = sha256()
    try:
        for path in [*others, *weights]:
            found.update(f"{digest_of(path)}  {path.name}\n".encode())
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read ({error.strerror})") from None
    return found.hexdigest()


def name_of(shard: Shard) -> str:
    """Sorted by name, the outputs are in the order of the inputs."""
    return f"part-{shard.number:06d}"


def open_job(
    model: Path,
    patterns: Sequence[str],
    folder: Place,
    settings: Settings,
    prepare: Callable[[], object],
    say: Callable[[str], object],
    workers: int = 1,
    fewest: int = FEWEST_LINES,
) -> Job:
    """The job of a folder: planned now, or the one that is there, if it is the same.

    `prepare` is called before a plan is made: it raises an error for a model or settings that
    cannot be used. Without patterns the job must be there, and settings that are not given are its
    own. `workers` is how many processes the plan is made for, `fewest` the lines that a shard has
    at least. Raises DataError where the folder holds something else.
    """
    if isinstance(folder, RemotePath):
        folder.check_writable()
    path = folder / MANIFEST
    if not patterns and not path.is_file():
        raise DataError(f"there is no job in {folder} to continue; give its files with --input")
    if not path.is_file():
        _check_empty(folder)
    digests = digests_of(str(model), settings)
    there = read_job(folder) if path.is_file() else None
    known = {one.path: one for one in there.inputs} if there else {}
    trained = _trained(model)
    given = [table_given(one, trained) for one in (find_inputs(patterns) if patterns else [])]
    inputs: list[InputFile] = []
    for one, _ in given:
        say(f"reading {one}")
        inputs.append(InputFile.identify(one, known.get(one)))
    if there is not None:
        return _continued(there, digests, inputs, settings)
    column = settings.column or column_of_sources(given[0][1], trained)
    tags = None if settings.tags else column_of_tags(given[0][1], trained)
    table = read_table([one.path for one in inputs], column, tags)
    form = settings.format or table.kind
    if form not in ENDINGS:
        raise DataError(f"--format is {form}; it must be one of {', '.join(ENDINGS)}")
    nbest = settings.decode.get("nbest", 1) > 1
    Cells(settings.output_column, settings.scores, nbest).check(table, form)
    prepare()
    work = work_folder(folder)
    make_folder(work)
    with locked(work / MANIFEST):
        if path.is_file():  # another process was faster
            return _continued(read_job(folder), digests, inputs, settings)
        shards = _plan(inputs, table, settings.shard_lines, workers, fewest, say)
        job = Job(folder, str(model.absolute()), digests, settings, table, inputs, shards)
        job.make_folders()
        write_text_at(path, _manifest(job), work)
        return job


def _plan(
    inputs: list[InputFile],
    table: Table,
    maximum: int | None,
    workers: int,
    fewest: int,
    say: Callable[[str], object],
) -> list[Shard]:
    parts: list[list[Part]] = []
    for number, file in enumerate(inputs, start=1):
        say(f"counting the lines of {file.path} ({number} of {len(inputs)} files)")
        parts.append(list(cut(file.path, table, maximum or GROUP_LINES)))
    if maximum is None:
        found = shard_size(sum(part[2] for of_file in parts for part in of_file), workers, fewest)
        if found < GROUP_LINES or table.kind == "parquet":
            parts = [list(cut(file.path, table, found)) for file in inputs]
        else:
            parts = [list(joined(of_file, found // GROUP_LINES)) for of_file in parts]
    placed = [(number, part) for number, of_file in enumerate(parts) for part in of_file]
    if not placed:
        raise DataError(f"{inputs[0].path} has no lines; give files with at least one line")
    return [Shard(count, number, *part) for count, (number, part) in enumerate(placed)]


def shard_size(lines: int, workers: int, fewest: int) -> int:
    """Lines of a shard: several shards for each worker, of whole groups where they are large."""
    found = min(MAX_LINES, max(fewest, math.ceil(lines / (workers * SHARDS))))
    return found if found < GROUP_LINES else found // GROUP_LINES * GROUP_LINES


def _check_empty(folder: Place) -> None:
    """Raise DataError where a folder holds other things than what a killed start leaves."""
    if isinstance(folder, RemotePath):
        others = folder.names()
    elif folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose another --output")
    else:
        others = [one.name for one in folder.glob("*") if not one.name.startswith(".")]
    if [name for name in others if name != ERRORS]:
        raise DataError(
            f"{folder} holds other files ({sorted(others)[0]}) and no {MANIFEST} of a batch job; "
            f"choose a new folder for --output"
        )


def _continued(job: Job, digests: list[str], inputs: list[InputFile], settings: Settings) -> Job:
    """The job that is there, if model, inputs and settings are the same. Raises DataError."""
    if digests[0] != job.digests[0]:
        raise DataError(
            f"{job.folder} holds outputs of another model than this one ({job.model}, or it has "
            f"changed since); choose another --output, or restore that model"
        )
    usual = Settings()
    for one in fields(Settings):
        before, now = (getattr(of, one.name) for of in (job.settings, settings))
        is_given = bool(inputs) or now != getattr(usual, one.name)
        if before != now and is_given:
            name, then, given = _difference(one.name, before, now)
            raise DataError(
                f"{job.folder} holds outputs of other settings ({name}: {then} then, {given} now); "
                f"choose another --output, or give the settings of then"
            )
    job.check_model()
    if inputs and inputs != job.inputs:
        raise DataError(
            f"{job.folder} holds outputs of other inputs: {_changed(job.inputs, inputs)}; choose "
            f"another --output, or give the files of then"
        )
    return job


def _difference(name: str, before: Any, now: Any) -> tuple[str, str, str]:
    if name != "decode":
        return name, json.dumps(before), json.dumps(now)
    key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
    then, given = (json.dumps(of[key]) if key in of else "default" for of in (before, now))
    return key, then, given


def _changed(before: list[InputFile], now: list[InputFile]) -> str:
    then, here = ({one.path: one for one in some} for some in (before, now))
    for path in then:
        if path not in here:
            return f"{path} is missing now"
    for path in here:
        if path not in then:
            return f"{path} is new"
        if then[path] != here[path]:
            return f"{path} has changed"
    return "their order has changed"


def _manifest(job: Job) -> str:
    values = {
        "version": VERSION,
        "model": job.model,
        "digests": job.digests,
        "settings": asdict(job.settings),
        "table": asdict(job.table),
        "inputs": [asdict(one) for one in job.inputs],
        "shards": [],
    }
    # A line for each shard, which a person can read.
    text = json.dumps(values, ensure_ascii=True, indent=2)
    rows = ",\n    ".join(json.dumps(list(shard)) for shard in job.shards)
    return text.removesuffix('"shards": []\n}') + f'"shards": [\n    {rows}\n  ]\n}}\n'


def read_job(folder: Place) -> Job:
    """The job of a folder, from its manifest. Raises CheckpointError where it is damaged."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text("utf-8"))
        if values["version"] != VERSION:
            raise ValueError(f"its version is {values['version']}, not {VERSION}")
        table = values["table"]
        job = Job(
            folder,
            values["model"],
            values["digests"],
            Settings(**values["settings"]),
            Table(**{**table, "names": tuple(table["names"])}),
            [InputFile(**one) for one in values["inputs"]],
            [Shard(*one) for one in values["shards"]],
        )
        job.make_folders()  # of a job in a store, another machine may have made the plan
        return job
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is damaged, or another version of transduce wrote it ({error}); restore it "
            f"from a copy, or choose another --output"
        ) from None
