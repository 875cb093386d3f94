"""A trained model of any task: made, saved, filled with weights; what it does, its task says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import torch

from transduce.checksums import listed
from transduce.data.batches.stream import Stream
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.attention import Reading
from transduce.decoding.encode import Encoding
from transduce.decoding.engine import Engine
from transduce.decoding.lens import TOP, Labels, NextTokens, RunLens
from transduce.decoding.output import Output, Score
from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.lens import Gates, Part, parts_of
from transduce.models.weights import set_weights, weights_of
from transduce.recipe import Data, Recipe
from transduce.recipe.tasks import RULES
from transduce.runtime.int8_file import unpack_levels
from transduce.storage import read_tensors, write_tensors
from transduce.tasks.folder import WEIGHTS, Frame, write_frame

Change = Callable[[Any], Any]
"""Changes a network in place, or gives another one in its stead."""

ONE_STRING = "run takes a list of sources; for one string call the model itself"


class Origin(NamedTuple):
    """Where a model was loaded from, and the data that its recipe named there."""

    folder: Path
    data: Data


class Model:
    """A network with its tokens and its recipe.

    A task is a subclass: `class Tagger(Model, task="tag")`. It says which network is built and
    what `run` makes of sources; training, validation, resuming and files are the same for all.
    """

    tasks: ClassVar[dict[str, type[Model]]] = {}
    """The class of each task that a recipe may name."""

    def __init_subclass__(cls, task: str | None = None) -> None:
        super().__init_subclass__()
        if task is not None:
            Model.tasks[task] = cls

    def __init__(
        self,
        recipe: Recipe,
        network: TrainableNetwork,
        source_tokens: Tokens,
        target_tokens: Tokens,
    ) -> None:
        self.recipe = recipe
        self.network = network
        self.source_tokens = source_tokens
        self.target_tokens = target_tokens
        self.engine: Engine | None = None
        self.frozen = False
        """Whether the weights are known to stay as they are; see `freeze`."""
        self.origin: Origin | None = None
        self._lenses: list[RunLens] = []
        self.changed = ""
        """What has changed the network after it was built, by name; empty: nothing."""
        self.workers = 1
        """Processes that share the sources of a long list, on a CPU; best one for each core."""
        self.compute_in("auto")

    @classmethod
    def create(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> Self:
        """An untrained model of the recipe's shape."""
        network = cls.build(recipe, source_tokens, target_tokens)
        return cls(recipe, network, source_tokens, target_tokens)

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> TrainableNetwork:
        """The network of the recipe's shape, its weights drawn from torch's generator."""
        raise NotImplementedError

    def change(self, change: Change) -> Self:
        """Let a function of somebody's own change the network, in place or by giving another.

        Who loads the model later needs the same function. Raises ModelError where what it gives
        cannot be trained or stored.
        """
        before = _buffers(self.network)
        network = change(self.network)
        network = self.network if network is None else network
        name = f"{change.__module__}.{getattr(change, '__qualname__', type(change).__name__)}"
        if not isinstance(network, TrainableNetwork):
            raise ModelError(
                f"{name} gave a {type(network).__name__}; it must change the network in place and "
                f"give None, or give a transduce.models.TrainableNetwork"
            )
        if new := sorted(_buffers(network) - before):
            raise ModelError(
                f"{name} adds the buffer {new[0]}, which is not stored with the weights: make it a "
                f"parameter with requires_grad=False, or register it with persistent=False"
            )
        self.network, self.changed = network, name
        return self.compute_in(self.precision)

    def adopt(self, corpus: Encoded, sources: Sequence[str]) -> Encoded:
        """A corpus that its loss is to be measured on, with what ids alone do not say of the
        sources; row by row, these are its texts."""
        return corpus

    def survey(self, corpus: Encoded | Stream) -> None:
        """Look at what is to be learnt from, before the first update."""

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: str, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **settings)[0].text

    def run(self, sources: Sequence[str], **settings: Any) -> list[Output]:
        """One output a source, in order; the settings are the task's own."""
        raise NotImplementedError

    def show(self, output: Output) -> str:
        """An output as the command line prints it."""
        return output.text

    def stream(self, source: str, **settings: Any) -> Iterator[str]:
        """The output of one source, piece by piece as it is written."""
        self._cannot("write piece by piece")

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, attention: bool = False
    ) -> list[Score]:
        """What the model thinks of given targets: the log-probability of each of their tokens."""
        self._cannot("score targets")

    def encode(self, sources: Sequence[str]) -> Encoding:
        """The encoder's states of each source, in order, with their lengths and mask.

        They hold no gradients; for those, call model.network.encode.
        """
        self._cannot("encode sources")

    def parts(self) -> list[Part]:
        """What a lens can show: each part's name, kind and shape."""
        return parts_of(self.network)

    def lens(self, *patterns: str, heads: Sequence[int] | None = None, top: int = TOP) -> RunLens:
        """What runs compute inside: `with model.lens("decoder.*.cross") as seen:` around them.

        The patterns name parts that `parts` lists, * for any text; without any it is all
        attention. heads: of attention, these alone. top: how many of the likeliest tokens
        next_token has at each step. It is one more pass over what was returned: the outputs are
        those of a run without it. `seen.gate` scales heads, layers and positions meanwhile. Raises
        ModelError where no part is called so.
        """
        self._refuse_engine("show what it computes")
        return RunLens(self._lenses, self.network, patterns, heads, top)

    def gates(self) -> Gates:
        """Scale heads, sublayers, layers or positions while runs compute, and look at nothing:
        `with model.gates() as gates: gates.gate("decoder.2.cross", head=5, factor=0.0)`."""
        self._refuse_engine("take gates")
        return Gates(self.network)

    def _refuse_engine(self, what: str) -> None:
        if self.engine:
            raise ModelError(f"{self.engine.name} does not {what}: leave out the engine")

    def _look(self, seen: Sequence[tuple[str, list[int], Output]], given: bool = False) -> None:
        """Show the lenses what was returned: the name of a source, its ids, an output for it.

        given: the outputs are targets that were scored, by the network in full precision.
        """
        names = list(dict.fromkeys(name for lens in self._lenses for name in lens.names))
        top = max(lens.top for lens in self._lenses)
        sources, targets = [ids for _, ids, _ in seen], [output.ids for *_, output in seen]
        with ready(self):
            found = self._read(names, sources, targets, top, given)
        for (source, ids, output), reading in zip(seen, found, strict=True):
            labels, next_tokens = self._labels(source, ids, output), None
            if (best := reading.likeliest) is not None:
                tokens = [self._pieces_of_head(row) for row in best.ids_TN.tolist()]
                next_tokens = NextTokens(tokens, *best)
            for lens in self._lenses:
                lens.add(source, output, reading.parts, next_tokens, labels)

    def _read(
        self,
        names: list[str],
        sources: list[list[int]],
        targets: list[list[int]],
        top: int,
        given: bool,
    ) -> list[Reading]:
        """What named parts compute, for each source and what was written for it."""
        self._cannot("show what it computes")

    def _labels(self, source: str, ids: list[int], output: Output) -> Labels:
        """What the positions of an output are called."""
        return Labels(output.source_tokens, output.tokens, source_ids=list(ids))

    def _pieces_of_head(self, ids: list[int]) -> list[str]:
        """What the numbers stand for that the network's head tells apart."""
        return self.target_tokens.pieces(ids)

    def refuse(self, settings: Mapping[str, Any], known: Sequence[str] = ()) -> None:
        """Raise ModelError for a setting that this task does not know."""
        for name in settings:
            knows = f"knows {' and '.join(known)} alone" if known else "has no settings"
            raise ModelError(f"{name} is not for a {RULES[self.recipe.task].about}: it {knows}")

    def _cannot(self, what: str) -> NoReturn:
        raise ModelError(f"a {RULES[self.recipe.task].about} does not {what}")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.engine else next(self.network.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        self.network.to(device)
        return self

    def freeze(self) -> Self:
        """Say that the weights stay as they are: none of them learns from now on.

        Otherwise every `run` on a CPU reads all weights once to see whether they have changed,
        which counts where single sentences are searched in int8.
        """
        self.network.requires_grad_(False)
        self.frozen = True
        return self

    def compute_in(self, precision: str) -> Self:
        """How it is used computes: auto or float32, and what more a task offers."""
        if precision not in ("auto", "float32"):
            self._cannot(f"compute in {precision}: leave the precision out")
        self.precision = precision
        return self

    # ------------------------------------------------------------------------------ disk

    def save(self, folder: str | Path) -> None:
        """Write the model folder: recipe, weights, tokens; each file whole or not at all."""
        self.save_frame(Path(folder))
        self.save_weights(Path(folder))

    def save_frame(self, path: Path) -> None:
        """All but the weights; without them nobody takes the folder for a trained model."""
        write_frame(path, Frame(self.recipe, self.source_tokens, self.target_tokens))

    def save_weights(self, folder: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write the weights, with what else is to be known of them."""
        if self.engine:
            raise ModelError(f"the weights are with {self.engine.name}: copy the exported folder")
        whole = {"format": "transduce 1", **self.facts(), **(facts or {})}
        whole |= {"changed": self.changed} if self.changed else {}
        with listed(folder / WEIGHTS) as announce:
            write_tensors(folder / WEIGHTS, weights_of(self.network), whole, announce=announce)

    def load_weights(self, path: Path) -> str:
        """Fill the network from a file; gives the precision that it was exported in, or auto."""
        weights, facts = read_tensors(path)
        if facts.get("changed") and not self.changed:
            raise ModelError(needs_change(path.parent, str(facts["changed"])))
        set_weights(self.network, unpack_levels(weights), path)
        self.take_facts(facts)
        return str(facts.get("precision", "auto"))

    def facts(self) -> dict[str, Any]:
        """What a file of weights is to carry beside them, as JSON can say it."""
        return {}

    def take_facts(self, facts: Mapping[str, Any]) -> None:
        """What such a file carried."""


def needs_change(folder: Path, changed: str) -> str:
    """What to say where a folder has the weights of a network that was changed."""
    return (
        f"the network of {folder} was changed in Python by {changed}: give that function to "
        f"transduce.load or transduce.train as change=; the command line cannot"
    )


def _buffers(network: torch.nn.Module) -> set[str]:
    """What a network's state_dict has besides its parameters."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return set(network.state_dict()) - parameters


@contextmanager
def ready(*models: Model) -> Iterator[None]:
    """Networks made fit to be used, and left as they were."""
    training = [model.network.training for model in models]
    for model in models:
        model.network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for model, before in zip(models, training, strict=True):
            model.network.train(before)


def checked(sources: Sequence[str]) -> list[str]:
    """The sources as a list. Raises ModelError where they are not a list of texts."""
    if isinstance(sources, str):
        raise ModelError(ONE_STRING)
    listed = list(sources)
    for source in listed:
        if not isinstance(source, str):
            raise ModelError(f"a source is text, not {type(source).__name__}: {source!r:.40}")
    return listed
