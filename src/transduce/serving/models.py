"""The models that are served, by name and by language pair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.data.tokens.languages import language_pair
from transduce.decoding.combine.ngram import NgramModel, arpa_name
from transduce.errors import ModelError
from transduce.hub import is_hub_address, parse_address, resolve_model
from transduce.interop.adapters import open_adapter
from transduce.interop.engine import open_model
from transduce.recipe.tasks import TASK_ALIASES
from transduce.serving.errors import BadRequest, NotFound
from transduce.tasks import AudioInputModel
from transduce.tasks.members import NO_MEMBERS, Members
from transduce.tasks.model import Model

CODE = r"[A-Za-z]{2,3}(?:_[A-Za-z0-9]{2,8})?"
EARLIER_NAMES = {name: earlier for earlier, name in TASK_ALIASES.items()}
PAIR = re.compile(f"({CODE})-({CODE})")


@dataclass(frozen=True, eq=False)
class Served:
    """One model under its name."""

    name: str
    model: Model
    task: str
    pair: tuple[str, str] | None = None
    """The language codes of source and target, such as en and de; None: unknown."""
    takes_audio: bool = False

    @property
    def members(self) -> Members[Any]:
        """The models of its folder that it decodes with."""
        return getattr(self.model, "members", NO_MEMBERS)

    @property
    def api_task(self) -> str:
        """The task as the HTTP API names it. Clients know language modeling as "continue"."""
        return EARLIER_NAMES.get(self.task, self.task)

    @classmethod
    def of(cls, name: str, model: Model, pair: tuple[str, str] | None = None) -> Served:
        """A loaded model; without a pair, the languages are those of its recipe."""
        task = model.recipe.task
        audio = isinstance(model, AudioInputModel)
        if task == "transduce" and pair is None:
            pair = language_pair(model.recipe)
        return cls(name, model, task, pair, audio)


class Catalogue(Mapping[str, Served]):
    """The models that are served, in the order in which they were given.

    `ngrams` are n-gram language models, by name: requests may decode with them.
    """

    def __init__(
        self, served: Sequence[Served], ngrams: Sequence[tuple[str, NgramModel]] = ()
    ) -> None:
        if not served:
            raise ModelError("there is no model to serve; give a model folder")
        self._served: dict[str, Served] = {}
        for one in served:
            if one.name in self._served:
                raise ModelError(
                    f"two models are called {one.name}; give one another name: NAME=FOLDER"
                )
            self._served[one.name] = one
        self.ngrams: dict[str, NgramModel] = {}
        for name, model in ngrams:
            if name in self._served or name in self.ngrams:
                raise ModelError(
                    f"two models are called {name}; give one another name: NAME=FILE.arpa"
                )
            self.ngrams[name] = model
        texts = [one for one in reversed(served) if not one.takes_audio]  # the first one counts
        self._by_pair = {_codes(*one.pair): one for one in texts if one.pair}
        self._by_short_pair = {_codes(*one.pair, True): one for one in texts if one.pair}

    def __getitem__(self, name: str) -> Served:
        return self._served[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    @property
    def first(self) -> Served:
        """The model of requests that name none."""
        return next(iter(self._served.values()))

    def find(self, name: str) -> Served:
        """The model of a name. Raises NotFound, which tells the names."""
        if name not in self._served:
            raise NotFound(
                f"there is no model {name[:80]!r}; there are {', '.join(self)}", "model_not_found"
            )
        return self._served[name]

    def language_model(self, name: str) -> Model | NgramModel:
        """What a request names as its language model: a served model, or an n-gram model."""
        if name not in self.ngrams and name not in self._served:
            every = ", ".join([*self, *self.ngrams])
            raise BadRequest(
                f"language_model: there is no model {name[:80]}; there are {every}, and n-gram "
                f"models that transduce serve --language-model loads"
            )
        return self.ngrams[name] if name in self.ngrams else self._served[name].model

    def for_pair(self, source: str, target: str) -> Served | None:
        """The first model of task transduce for a language pair, from text; None: there is none.

        A code without a region finds one with a region, and the other way round: pt finds pt_BR.
        """
        whole = self._by_pair.get(_codes(source, target))
        return whole or self._by_short_pair.get(_codes(source, target, True))

    def pairs(self) -> list[tuple[str, str]]:
        """All language pairs of text models, in order, each once."""
        found = [one.pair for one in self._served.values() if one.pair and not one.takes_audio]
        return list(dict.fromkeys(found))


def _codes(source: str, target: str, shorten: bool = False) -> tuple[str, str]:
    source, target = (code.lower().replace("-", "_") for code in (source, target))
    return (source.partition("_")[0], target.partition("_")[0]) if shorten else (source, target)


def open_models(
    specs: Sequence[str],
    device: str = "auto",
    precision: str = "auto",
    adapters: Sequence[str] = (),
    ngrams: Sequence[str] = (),
) -> Catalogue:
    """Load models: FOLDER, NAME=FOLDER or, with the languages as its name, en-de=FOLDER.

    adapters: of these models, in the same form. Each is a model of its own name that shares the
    weights that it does not change. ngrams: n-gram models in ARPA form, FILE or NAME=FILE. Raises
    ModelError and DataError.
    """
    parsed, added = [parse_spec(spec) for spec in specs], [parse_spec(spec) for spec in adapters]
    names = [name for name, _, _ in [*parsed, *added]]
    Catalogue([Served(name, None, "") for name in names])  # type: ignore[arg-type]  # names
    served = [
        Served.of(name, open_model(folder, None, device, precision).freeze(), pair)
        for name, folder, pair in parsed
    ]
    bases = [one.model for one in served]
    made = [Served.of(name, _adapted(folder, bases), pair) for name, folder, pair in added]
    return Catalogue([*served, *made], [_read_ngrams(spec) for spec in ngrams])


def _read_ngrams(spec: str) -> tuple[str, NgramModel]:
    """The name and the model of FILE or NAME=FILE."""
    name, equals, file = spec.partition("=")
    if not equals or Path(spec).exists():
        return arpa_name(Path(spec)), NgramModel.load(spec)
    if not name or not file:
        raise ModelError(f"{spec!r} is not NAME=FILE; give both, as in words=words.arpa")
    return name, NgramModel.load(file)


def _adapted(folder: Path, bases: Sequence[Model]) -> Model:
    """A model with an adapter: the first of the served ones that it was trained on."""
    problem = None
    for base in bases:
        if base.engine is None:
            try:
                return base.with_adapter(open_adapter(folder, base)).freeze()
            except ModelError as error:
                problem = problem or error
    raise problem or ModelError(f"{folder} is an adapter, and no served model can take it")


def parse_spec(spec: str) -> tuple[str, Path, tuple[str, str] | None]:
    """The name, the folder and the language pair of FOLDER, NAME=FOLDER or en-de=FOLDER; a folder
    may be hf://user/name@revision.
    """
    if is_hub_address(spec):
        return parse_address(spec).repository.rpartition("/")[2], resolve_model(spec), None
    name, equals, folder = spec.partition("=")
    if not equals or Path(spec).exists():
        path = Path(spec)
        return path.resolve().name, path, None
    if not name or not folder:
        raise ModelError(f"{spec!r} is not NAME=FOLDER; give both, as in en-de=runs/multi30k-en-de")
    pair = PAIR.fullmatch(name)
    return name, resolve_model(folder), (pair[1], pair[2]) if pair else None
