"""The base class of trained models: building, saving and loading; tasks are its subclasses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, Unpack
from weakref import WeakKeyDictionary

import torch

from transduce.adapters import Adapter, AdapterChoice, adapted_copy
from transduce.checksums import listed
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.tags import known_tags, unknown_tag, with_tags
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.encode import Encoding
from transduce.decoding.engine import Engine
from transduce.decoding.output import Output, Score
from transduce.decoding.readings import Reading, ReadRequest
from transduce.decoding.run_lens import TOP, Labels, NextTokens, RunLens, lenses_on
from transduce.decoding.speech.confidence import Calibration
from transduce.decoding_settings import RunKeywords
from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.hooks import is_watched
from transduce.models.lens import Gates, Part, parts_of
from transduce.models.trainable import modules_of
from transduce.models.weights import set_weights, weights_of
from transduce.recipe import Data, Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.runtime.int8_file import dequantize_weights
from transduce.storage import read_tensors, write_tensors
from transduce.tasks.adapter_folder import read_adapter
from transduce.tasks.folder import WEIGHTS, ModelDefinition, format_metadata, write_definition

Change = Callable[[Any], Any]
"""Changes a network in place, or returns another one to use instead."""

ONE_STRING = "run takes a list of sources; for a single string call the model itself"


class Origin(NamedTuple):
    """Where a model was loaded from, and the data that its recipe named there."""

    folder: Path
    data: Data


class Model:
    """A network with its vocabularies and its recipe.

    A task is a subclass: `class Tagger(Model, task="tag")`. It defines which network is built and
    what `run` does; training, validation, resuming and files are the same for all tasks.

    Any number of threads may use a model at once, each with settings, lenses and gates of its own:
    what belongs to a call is passed down with it (`CallContext`). What changes the model itself
    (`to`, `compute_in`, `load_weights`, adapters, training) is for one thread alone.
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
        """Whether the weights are known not to change; see `freeze`."""
        self.origin: Origin | None = None
        self.imported: dict[str, Any] | None = None
        """Of a model being imported: what its folder keeps for an export, as JSON values."""
        self._adapters: AdapterChoice | None = None
        self.calibration: Calibration | None = None
        """The usual confidence, of a model that reads audio; None: not measured."""
        self.changed = ""
        """The name of the function that changed the network after it was built; empty: none."""
        self.workers = 1
        """Worker processes for long lists of sources, on a CPU; best one per core."""
        self.compute_in("auto")

    def __repr__(self) -> str:
        model = self.recipe.model
        sides = {side: getattr(model, side, None) for side in ("encoder", "decoder")}
        kinds = {side: one.kind for side, one in sides.items() if one is not None}
        family = ", ".join(dict.fromkeys(kinds.values()))
        if len(set(kinds.values())) > 1:
            family = ", ".join(f"{kind} {side}" for side, kind in kinds.items())
        parameters = sum(weight.numel() for weight in self.network.parameters())
        size = f"weights in {self.engine.name}" if self.engine else f"{parameters:,} parameters"
        source, target = len(self.source_tokens), len(self.target_tokens)
        one = "encoder" not in kinds or self.recipe.audio is not None
        tokens = f"{target:,} tokens" if one else f"{source:,} source and {target:,} target tokens"
        place = f", from {self.origin.folder}" if self.origin else ""
        place += f"; {together}" if (together := self._together()) else ""
        return (
            f"<{type(self).__name__}, task {self.recipe.task}: {family}, {size}, {tokens}{place}>"
        )

    def _together(self) -> str:
        """The other models that it decodes with, in words."""
        return ""

    @classmethod
    def create(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> Self:
        """An untrained model for a recipe."""
        network = cls.build(recipe, source_tokens, target_tokens)
        return cls(recipe, network, source_tokens, target_tokens)

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> TrainableNetwork:
        """The network for a recipe, initialized with torch's random generator."""
        raise NotImplementedError

    def change(self, change: Change) -> Self:
        """Apply a user's function that changes the network in place or returns another.

        Loading the model later needs the same function. Raises ModelError where the result cannot
        be trained or saved.
        """
        before = _buffers(self.network)
        network = change(self.network)
        network = self.network if network is None else network
        name = f"{change.__module__}.{getattr(change, '__qualname__', type(change).__name__)}"
        if not isinstance(network, TrainableNetwork):
            raise ModelError(
                f"{name} returned a {type(network).__name__}; it must change the network in place "
                f"and return None, or return a transduce.models.TrainableNetwork"
            )
        if new := sorted(_buffers(network) - before):
            raise ModelError(
                f"{name} adds the buffer {new[0]}, which is not saved with the weights; make it a "
                f"parameter with requires_grad=False, or register it with persistent=False"
            )
        self.network, self.changed = network, name
        return self.compute_in(self.precision)

    def prepare_corpus(self, corpus: Encoded, sources: Sequence[str]) -> Encoded:
        """Prepare a validation corpus, given the texts of its sources row by row: a tagger adds
        the characters of unknown words."""
        return corpus

    def set_feature_statistics(self, corpus: Encoded | StreamingDataset) -> None:
        """Collect statistics of the training corpus before the first update."""

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: str, **settings: Unpack[RunKeywords]) -> str:
        """The best output's text for one source."""
        return self.run([source], **settings)[0].text

    def run(self, sources: Sequence[str], **settings: Unpack[RunKeywords]) -> list[Output]:
        """One output per source, in order; the settings depend on the task."""
        raise NotImplementedError

    def show(self, output: Output) -> str:
        """An output as the command line prints it."""
        return output.text

    def stream(self, source: str, **settings: Unpack[RunKeywords]) -> Iterator[str]:
        """Stream the output of one source as it is generated."""
        self._unsupported("stream its output")

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, attention: bool = False
    ) -> list[Score]:
        """Score given targets: the log-probability of each of their tokens."""
        self._unsupported(
            "score targets; `transduce run --scores` prints the score of its own output"
        )

    def encode(self, sources: Sequence[str]) -> Encoding:
        """The encoder's states of each source, in order, with their lengths and mask.

        They hold no gradients; for those, call model.network.encode.
        """
        self._unsupported("encode sources")

    def parts(self) -> list[Part]:
        """What a lens can show: each part's name, kind and shape."""
        return parts_of(self.network)

    def lens(self, *patterns: str, heads: Sequence[int] | None = None, top: int = TOP) -> RunLens:
        """Record what runs compute: `with model.lens("decoder.*.cross") as seen: model.run(texts)`.

        It sees the runs of its own thread, and asyncio task; others may use the model meanwhile.
        A lens costs one more pass over the outputs; the outputs are the same as without it.
        `seen.gate` scales heads, layers and positions while the lens is open.

        Args:
            *patterns: names of parts that `parts` lists, with * for any text; without any, all
                attention.
            heads: numbers of attention heads; None: all.
            top: how many of the likeliest tokens `next_token` has at each step.
        """
        self._refuse_engine("show what it computes")
        return RunLens(self, self.network, patterns, heads, top)

    def gates(self) -> Gates:
        """Scale heads, sublayers, layers or positions in runs of this thread, recording nothing:
        `with model.gates() as gates: gates.gate("decoder.2.cross", head=5, factor=0.0)`.
        """
        self._refuse_engine("take gates")
        return Gates(self.network)

    @property
    def is_watched(self) -> bool:
        """Whether a lens or a gate of this thread, or a forward hook, is on it now."""
        return bool(self._lenses) or is_watched(modules_of(self.network))

    @property
    def _lenses(self) -> list[RunLens]:
        """The lenses that this thread has entered."""
        return lenses_on(self)

    def context_of(self, call: Call) -> CallContext:
        """The context of its network in a call. Raises ModelError for what it cannot do."""
        return NO_CONTEXT

    def tags_of(self, tags: Sequence[str]) -> list[str]:
        """Tags as the model knows them; several may be in one, as in "V;PST".

        Raises ModelError for a tag that it does not know.
        """
        known, found = self.source_tokens.tags, list[str]()
        for given in tags:
            several = known_tags(given, known)
            if not several:
                raise ModelError(unknown_tag(given, known))
            found += several
        return found

    def tagged(self, sources: Sequence[str], tags: Sequence[str]) -> list[str]:
        """Texts with tags before each that is not blank. Raises ModelError for unknown tags."""
        texts = check_sources(sources)
        if not tags:
            return texts
        self.tags_of(tags)
        return [with_tags(text, tags) if text.strip() else text for text in texts]

    def _refuse_engine(self, what: str) -> None:
        if self.engine:
            raise ModelError(f"{self.engine.name} does not {what}; leave out the engine")

    def _record(
        self,
        seen: Sequence[tuple[str, list[int], Output]],
        context: CallContext = NO_CONTEXT,
        forced: bool = False,
    ) -> None:
        """Show the lenses what was returned: the name of a source, its ids, an output for it.

        forced: the outputs are targets that were scored, by the network in full precision.
        """
        lenses = self._lenses
        names = list(dict.fromkeys(name for lens in lenses for name in lens.names))
        top = max(lens.top for lens in lenses)
        sources, targets = [ids for _, ids, _ in seen], [output.ids for *_, output in seen]
        with inference(self):
            found = self._read(ReadRequest(names, sources, targets, top, forced, context))
        for (source, ids, output), reading in zip(seen, found, strict=True):
            labels, next_tokens = self._labels(source, ids, output, context), None
            if (best := reading.likeliest) is not None:
                tokens = [self._pieces_of_head(row, source, ids) for row in best.ids_TN.tolist()]
                next_tokens = NextTokens(tokens, *best)
            for lens in lenses:
                lens.add(source, output, reading.parts, next_tokens, labels)

    def _read(self, asked: ReadRequest) -> list[Reading]:
        """What named parts compute, for each source and what was written for it."""
        self._unsupported("show what it computes")

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        """What the positions of an output are called."""
        return Labels(output.source_tokens, output.tokens, source_ids=list(ids))

    def _pieces_of_head(
        self, numbers: list[int], source: str = "", ids: Sequence[int] = ()
    ) -> list[str]:
        """What the numbers stand for that the network's head tells apart, for this source."""
        return self.target_tokens.pieces(numbers)

    def reject_settings(self, settings: Mapping[str, Any], known: Sequence[str] = ()) -> None:
        """Raise ModelError for a setting that this task does not know."""
        for name in settings:
            about = TASK_RULES[self.recipe.task].about
            choices = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise ModelError(f"{name} is not a setting of a {about}; {choices}")

    def _unsupported(self, what: str) -> NoReturn:
        raise ModelError(f"a {TASK_RULES[self.recipe.task].about} does not {what}")

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return torch.device("cpu") if self.engine else next(self.network.parameters()).device

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of its network, for an optimizer or to count them."""
        self._refuse_engine("show its weights")
        return self.network.parameters()

    def eval(self) -> Self:
        """Set its network to evaluation mode; `run`, `stream` and `score` do that by themselves."""
        self.network.eval()
        return self

    def train(self, mode: bool = True) -> Self:
        """Set its network to training mode, with dropout, or with mode=False to evaluation mode."""
        self._refuse_engine("learn")
        self.network.train(mode)
        return self

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, such as "cuda"."""
        self.network.to(device)
        return self

    def freeze(self) -> Self:
        """Declare that the weights no longer change; sets requires_grad to False.

        Otherwise every `run` on a CPU reads all weights to see whether they have changed, which
        takes noticeable time for single sentences in int8. A model that was loaded from a folder
        also frees the memory of the matrices that its search on a CPU has copies of: what else
        needs them reads them from the folder's file again.
        """
        self.network.requires_grad_(False)
        self.frozen = True
        return self

    def compute_in(self, precision: str) -> Self:
        """Set the precision of inference: auto or float32; some tasks have more."""
        if precision not in ("auto", "float32"):
            self._unsupported(f"support precision {precision}; leave it out")
        self.precision = precision
        return self

    # -------------------------------------------------------------------------- adapters

    @property
    def adapters(self) -> AdapterChoice:
        """The adapters that were added, and the one in use."""
        self._refuse_engine("take adapters")
        if self._adapters is None or self._adapters.network is not self.network:
            self._adapters = AdapterChoice(self.network)
        return self._adapters

    def add_adapter(self, adapter: str | Path | Adapter, name: str | None = None) -> str:
        """Read an adapter of this model; returns its name, by default that of its folder.

        Raises ModelError where it was trained on another model.
        """
        name = self.adapters.add(_read(adapter), name)
        self._weights_changed()
        return name

    def use_adapter(self, name: str | None) -> Self:
        """Use an adapter that was added; None: the model without any."""
        self.adapters.use(name)
        self._weights_changed()
        return self

    @contextmanager
    def adapter(self, adapter: str | Path | Adapter) -> Iterator[Self]:
        """Use an adapter for a while: `with model.adapter(folder): model.run(...)`."""
        before = self.adapters.used
        name = next((n for n in self.adapters.known if n == str(adapter)), None)
        self.use_adapter(name or self.add_adapter(adapter))
        try:
            yield self
        finally:
            self.use_adapter(before)

    def with_adapter(self, adapter: str | Path | Adapter) -> Self:
        """Another model: this one with an adapter; weights that it leaves alone are shared."""
        self._refuse_engine("take adapters")
        read = _read(adapter)
        with self.adapters.base():
            network = adapted_copy(self.network, read)
        made = type(self)(self.recipe, network, self.source_tokens, self.target_tokens)
        made.set_metadata(self.metadata())
        made.frozen, made.origin, made.changed = self.frozen, self.origin, self.changed
        made.workers = self.workers
        return made.compute_in(self.precision)

    def _weights_changed(self) -> None:
        """Called where weights were replaced: copies that search made are out of date."""

    # ------------------------------------------------------------------------------ disk

    def save(self, folder: str | Path) -> None:
        """Write the model folder: recipe, weights, vocabularies; each file atomically."""
        self.save_definition(Path(folder))
        self.save_weights(Path(folder))

    def save_definition(self, path: Path) -> None:
        """Write all but the weights; without these it does not count as a trained model."""
        write_definition(path, ModelDefinition(self.recipe, self.source_tokens, self.target_tokens))

    def save_weights(self, folder: Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Write the weights, with metadata."""
        if self.engine:
            raise ModelError(f"{self.engine.name} has the weights; copy the exported folder")
        whole = {**format_metadata(), **self.metadata(), **(metadata or {})}
        whole |= {"changed": self.changed} if self.changed else {}
        with listed(folder / WEIGHTS) as announce:
            write_tensors(folder / WEIGHTS, weights_of(self.network), whole, announce=announce)

    def load_weights(self, path: Path) -> str:
        """Load the weights of a file; returns the precision that it was exported in, or auto."""
        weights, metadata = read_tensors(path)
        if metadata.get("changed") and not self.changed:
            raise ModelError(needs_change(path.parent, str(metadata["changed"])))
        set_weights(self.network, dequantize_weights(weights), path)
        self.set_metadata(metadata)
        return str(metadata.get("precision", "auto"))

    def metadata(self) -> dict[str, Any]:
        """Metadata to save with the weights, as JSON values."""
        return {} if self.calibration is None else dict(self.calibration.metadata())

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Restore the metadata saved with the weights."""
        self.calibration = Calibration.from_metadata(metadata)


def needs_change(folder: Path, changed: str) -> str:
    """The error message for the weights of a network that was changed in Python."""
    return (
        f"the network of {folder} was changed in Python by {changed}; pass that function to "
        f"transduce.load or transduce.train as change= (the command line cannot)"
    )


def _buffers(network: torch.nn.Module) -> set[str]:
    """The persistent buffers of a network."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return set(network.state_dict()) - parameters


@dataclass
class _EvalMode:
    """A network in eval mode: for how many calls, and the modules that train otherwise."""

    calls: int = 0
    training: list[torch.nn.Module] = field(default_factory=list)


_EVALUATING: WeakKeyDictionary[TrainableNetwork, _EvalMode] = WeakKeyDictionary()
_CHANGING_MODE = threading.Lock()


@contextmanager
def inference(*models: Model) -> Iterator[None]:
    """Inference: eval mode and torch.inference_mode; training mode is restored afterwards, by the
    last of the threads that are within.

    A generator must not yield within: its caller would be in inference mode.
    """
    networks = [model.network for model in models]
    with _CHANGING_MODE:
        for network in networks:
            mode = _EVALUATING.setdefault(network, _EvalMode())
            mode.calls += 1
            for module in modules_of(network):
                if module.training:
                    module.training = False
                    mode.training.append(module)
    try:
        with torch.inference_mode():
            yield
    finally:
        with _CHANGING_MODE:
            for network in networks:
                mode = _EVALUATING[network]
                mode.calls -= 1
                if not mode.calls:
                    del _EVALUATING[network]
                    for module in mode.training:
                        module.training = True


def check_sources(sources: Sequence[str]) -> list[str]:
    """The sources as a list. Raises ModelError where they are not a list of texts."""
    if isinstance(sources, str):
        raise ModelError(ONE_STRING)
    listed = list(sources)
    for source in listed:
        if not isinstance(source, str):
            raise ModelError(
                f"a source must be a string, not {type(source).__name__}: {source!r:.40}"
            )
    return listed


def _read(adapter: str | Path | Adapter) -> Adapter:
    return adapter if isinstance(adapter, Adapter) else read_adapter(Path(adapter))
