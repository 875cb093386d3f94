"""A trained model: load it, run it, save it. Every upper room goes through here."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.tokens import END, Tokens
from transduce.decoding import search, wishes
from transduce.decoding.choice import least_risk, rescored
from transduce.decoding.decode import Bounds, Request, Task
from transduce.decoding.engine import Engine, Rows
from transduce.decoding.ensemble import Ensemble
from transduce.decoding.fast import FastSearch, has_fast_search
from transduce.decoding.forced import (
    ATTENTION_TO_SOURCE,
    attention_to_source,
    log_probabilities,
)
from transduce.decoding.output import Output, Score
from transduce.decoding.parts import NEVER
from transduce.decoding.settings import FROM_RECIPE, Settings
from transduce.errors import ModelError
from transduce.folder import WEIGHTS, Frame, read_frame, why_no_weights, write_frame
from transduce.hardware import pick_device, pick_precision
from transduce.models import Lens, Network, Vocabulary, build
from transduce.models.levels import unpack_levels
from transduce.models.quantized import quantized
from transduce.models.room import room_of, source_room
from transduce.models.weights import set_weights, weights_of
from transduce.nn.quantized import KINDS, has_bfloat16
from transduce.recipe import Recipe
from transduce.storage import read_tensors, write_tensors

__all__ = ["Output", "Score", "Transducer", "load"]

ONE_STRING = "run takes a list of sources; for one string call the model itself"


class Transducer:
    """A network with its tokens and its recipe.

    model = transduce.load("runs/multi30k-en-de")
    model("A dog runs.")                            # the best output's text
    model.run(sources, beam=5, nbest=3, attention=True)
    """

    def __init__(
        self,
        recipe: Recipe,
        network: Network,
        source_tokens: Tokens,
        target_tokens: Tokens,
        engine: Engine | None = None,
    ) -> None:
        """With an engine the network has shapes alone, on the meta device, and is not asked."""
        self.recipe = recipe
        self.network = network
        self.source_tokens = source_tokens
        self.target_tokens = target_tokens
        self.engine = engine
        self.workers = 1
        """Processes that share the sources of a long list, on a CPU; best one for each core."""
        self._fast: FastSearch | None = None
        self._searched: Network | None = None
        self.compute_in("auto")

    @classmethod
    def create(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> Transducer:
        """An untrained model of the recipe's shape."""
        size = Vocabulary(len(source_tokens), len(target_tokens))
        return cls(recipe, build(recipe.model, size), source_tokens, target_tokens)

    # ------------------------------------------------------------------------------- use

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.engine else next(self.network.parameters()).device

    def compute_in(self, precision: str) -> Transducer:
        """How search computes: auto, float32, bfloat16, or int8 on a CPU.

        auto is float32 on a CPU; on a GPU that has it bfloat16, where nothing but the best output
        is asked for. Scores of given targets and attention maps are always computed in full.
        """
        known = ("auto", "float32", *KINDS)
        if precision not in known:
            raise ModelError(f"precision is {precision}; it must be one of {', '.join(known)}")
        self.precision = precision
        self._fast, self._searched = None, None
        return self

    @property
    def _search_network(self) -> Network:
        """What search multiplies with; the network itself, unless fewer bits are asked for."""
        if self.precision not in KINDS or self.device.type != "cpu":
            if self.precision == "int8":
                raise ModelError(f"int8 is for a CPU, not for {self.device}; try bfloat16")
            return self.network
        if self._searched is None:
            self._searched = quantized(self.network, self.precision)
        return self._searched

    def to(self, device: str | torch.device) -> Transducer:
        self.network.to(device)
        self._fast, self._searched = None, None
        return self

    def __call__(self, source: str, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **{"scores": False, **settings})[0].text

    def run(
        self,
        sources: Sequence[str],
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        include: wishes.Phrases = None,
        exclude: wishes.Phrases = None,
        with_models: Sequence[Transducer] = (),
        rescore: Transducer | None = None,
        **settings: Any,
    ) -> list[Output]:
        """One output a source, in order. Further keywords are those of Settings.

        prefix: what outputs begin with; include, exclude: phrases that they must or must not
        contain; each for all sources, or a list with one entry a source. with_models write together
        with this one; rescore judges the hypotheses a second time. attention: also what the best
        output attended to.

        Sources are sorted by length and packed into batches inside; empty ones come back empty.
        Where something could not be done, the output's `warning` says why.
        """
        sources = _checked(sources)
        chosen = self._settings(settings)
        encoded, warnings = self._encode(sources, with_models)
        starts = wishes.prefixes_of(prefix, len(sources), self.target_tokens)
        phrases = wishes.included(include, len(sources), self.target_tokens)
        banned = wishes.excluded(exclude, len(sources), self.target_tokens)
        if chosen.mbr and rescore:
            raise ModelError("mbr and rescore each choose among the hypotheses: ask for one")
        if chosen.groups > 1 and any(phrases):
            raise ModelError("phrases to include and groups each share out the beam: ask for one")
        filled = [index for index, tokens in enumerate(encoded) if tokens]
        seeds = [_seed(chosen.seed, source) if chosen.draws else 0 for source in sources]
        requests = [Request(encoded[i], seeds[i], starts[i], phrases[i], banned[i]) for i in filled]
        # A second judge is shown the whole beam, and its best are given back.
        searched = replace(chosen, nbest=chosen.hypotheses, scores=True) if rescore else chosen
        task = self._task(searched, with_models)
        if attention and self.engine:
            raise ModelError(f"{self.engine.name} does not show attention: leave out the engine")
        with _ready(self, *with_models):
            found = self.engine.decode(task, requests) if self.engine else task.run(requests)
        if chosen.mbr:
            found = [least_risk(of_one, self._texts(of_one), chosen.mbr) for of_one in found]
        if rescore:
            found = self._rescored(found, [sources[i] for i in filled], rescore, chosen)
        found = [of_one[: chosen.nbest] for of_one in found]
        maps = self._attention([encoded[i] for i in filled], found) if attention else {}
        outputs = [Output("", 0.0)] * len(sources)
        for place, (index, hypotheses) in enumerate(zip(filled, found, strict=True)):
            if hypotheses:
                output = self._output(encoded[index], hypotheses)
                if place in maps or index in warnings:
                    warning = warnings.get(index, "")
                    output = replace(output, attention=maps.get(place), warning=warning)
                outputs[index] = output
            else:
                why = task.failed.get(place) or self._nothing(with_models)
                outputs[index] = Output("", NEVER, warning=why)
        return outputs

    def stream(
        self,
        source: str,
        *,
        prefix: str = "",
        exclude: wishes.Phrases = None,
        with_models: Sequence[Transducer] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """The output of one source, piece by piece as it is written, the prefix first.

        Greedy, or drawn with sample=True: a beam changes its mind, and has nothing to show before
        the end. The pieces joined are the text that `run` gives with beam=1.
        """
        (source,) = _checked([source])
        chosen = self._settings({"beam": 1, **settings})
        if chosen.hypotheses > 1 or chosen.mbr:
            raise ModelError("a stream follows one hypothesis: beam, nbest and groups must be 1")
        (encoded,), _ = self._encode([source], with_models)
        if not encoded:
            return
        (start,) = wishes.prefixes_of(prefix, 1, self.target_tokens)
        (banned,) = wishes.excluded(exclude, 1, self.target_tokens)
        request = Request(encoded, _seed(chosen.seed, source), start, (), banned)
        # What is worth how much shows only at the end: no need to watch attention.
        task = self._task(replace(chosen, coverage=0.0), with_models)
        following = None
        written: list[int] = []
        shown = ""
        while True:
            # The caller's own work between two pieces must not run in inference mode.
            with _ready(self, *with_models):
                following = following or self._follow(task, request)
                token = next(following, END)
            if token == END:
                break
            written.append(token)
            text = self.target_tokens.decode(written)
            # A character of several bytes is not whole yet: wait for the rest.
            if text.startswith(shown) and text != shown and not text.endswith("\ufffd"):
                yield text[len(shown) :]
                shown = text
        text = self.target_tokens.decode(written)
        if text != shown and text.startswith(shown):
            yield text[len(shown) :]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        """What the model thinks of given targets: the log-probability of each of their tokens.

        For a text that a search found it is what the search reported, before the length penalty,
        if the text is cut into the tokens that the search wrote.
        """
        sources, targets = _checked(sources), _checked(targets)
        if len(sources) != len(targets):
            raise ModelError(f"there are {len(sources)} sources, but {len(targets)} targets")
        encoded, warnings = self._encode(sources)
        written = self.target_tokens.encode_batch(targets)
        room = self._room
        for number, ids in enumerate(written):
            too_long = f"target {number + 1} has {len(ids)} tokens; this model has positions for "
            if len(ids) + 1 > room:
                raise ModelError(f"{too_long}{room - 1}: shorten it, or leave it out")
            if number in warnings:
                raise ModelError(f"source {number + 1} cannot be scored: {warnings[number]}")
        found = self._log_probabilities(encoded, written)
        return [
            Score(self.target_tokens.pieces([*ids, END]), values)
            for ids, values in zip(written, found, strict=True)
        ]

    # -------------------------------------------------------------------------- how it is done

    def _settings(self, given: dict[str, Any]) -> Settings:
        """What was asked for, and what the recipe says of the rest."""
        known = [f.name for f in fields(Settings)]
        for name in given:
            if name not in known:
                raise ModelError(f"run knows no setting {name}; it knows {', '.join(known)}")
        chosen = Settings(**given)
        unsaid = [name for name in FROM_RECIPE if getattr(chosen, name) is None]
        return replace(chosen, **{name: getattr(self.recipe.decode, name) for name in unsaid})

    def _task(self, settings: Settings, with_models: Sequence[Transducer]) -> Task:
        decode = self.recipe.decode
        models = [self, *with_models]
        for number, other in enumerate(with_models, start=2):
            self._check_partner(other, number)
        engine = next((model.engine for model in models if model.engine), None)
        if engine and (with_models or settings.coverage):
            what = "write together with other models" if with_models else "count coverage"
            raise ModelError(f"{engine.name} cannot {what}: leave that out, or the engine")
        networks = [model._search_network for model in models]
        watched = list(Lens(networks[0], *ATTENTION_TO_SOURCE).parts.values())
        if settings.coverage and not watched:
            raise ModelError("coverage is counted by attention to the source; this model has none")
        room = min(model._room for model in models)
        return Task(
            model=Ensemble(networks, geometric=settings.geometric) if with_models else networks[0],
            settings=settings,
            bounds=Bounds(decode.max_ratio, decode.max_extra, room),
            device=self.device,
            allowed=wishes.allowed(settings.only, self.target_tokens),
            vocabulary=len(self.target_tokens),
            attention=watched[-1] if watched else None,
            fast=None if with_models else self._fast_search(),
            workers=1 if engine else self.workers,  # an engine has threads of its own
        )

    def _fast_search(self) -> FastSearch | None:
        if not has_fast_search(self.network):
            return None
        if self._fast is None or self._fast.network is not self.network:
            width = self.recipe.model.width
            self._fast = FastSearch(
                self.network, pick_precision(self.precision, self.device, width)
            )
        return self._fast

    def _check_partner(self, other: Transducer, number: int) -> None:
        for side, ours, theirs in (
            ("source", self.source_tokens, other.source_tokens),
            ("target", self.target_tokens, other.target_tokens),
        ):
            if ours.to_json() != theirs.to_json():
                raise ModelError(
                    f"model {number} of the ensemble has other {side} tokens than the first: train "
                    f"them with the same tokens (data.tokens: file)"
                )
        if other.device != self.device:
            raise ModelError(
                f"model {number} of the ensemble is on {other.device}, the first on {self.device}: "
                f"load both on the same device"
            )

    def _encode(
        self, sources: list[str], with_models: Sequence[Transducer] = ()
    ) -> tuple[list[list[int]], dict[int, str]]:
        """The ids of sources, cut where the positions end, and what to say of those cut."""
        longest = min(model._source_room for model in (self, *with_models)) - 1
        encoded = self.source_tokens.encode_batch(sources)
        warnings = {
            index: f"the source has {len(ids)} tokens; this model has positions for {longest}: "
            f"the rest was not read"
            for index, ids in enumerate(encoded)
            if len(ids) > longest
        }
        return [ids[:longest] for ids in encoded], warnings

    def _nothing(self, with_models: Sequence[Transducer]) -> str:
        """Why a search has found nothing. Raises ModelError where weights are no numbers."""
        for model in () if self.engine else (self, *with_models):
            if not all(bool(p.isfinite().all()) for p in model.network.parameters()):
                raise ModelError("the model's weights are damaged: some are no numbers")
        return "no output was found that fulfils all that was asked of it at once"

    def _rescored(
        self,
        found: list[list[search.Hypothesis]],
        sources: list[str],
        judge: Transducer,
        settings: Settings,
    ) -> list[list[search.Hypothesis]]:
        """The hypotheses of each source, judged by a second model too; it reads their texts."""
        repeated = [s for s, of_one in zip(sources, found, strict=True) for _ in of_one]
        encoded, _ = judge._encode(repeated)  # what it has no positions for it does not read
        texts = [text for of_one in found for text in self._texts(of_one)]
        room = judge._room - 1
        targets = [ids[:room] for ids in judge.target_tokens.encode_batch(texts)]
        scores = iter(judge._log_probabilities(encoded, targets))
        weight, power = settings.rescore_weight, settings.length_penalty or 0.0
        return [
            rescored(of_one, [sum(next(scores)) for _ in of_one], weight, power) for of_one in found
        ]

    def _attention(
        self, sources: list[list[int]], found: list[list[search.Hypothesis]]
    ) -> dict[int, NDArray[np.float32]]:
        """What each best hypothesis attends to: one more pass, after search at full speed."""
        places = [place for place, hypotheses in enumerate(found) if hypotheses]
        targets = [found[place][0].tokens for place in places]
        with _ready(self):
            maps = attention_to_source(self.network, [sources[p] for p in places], targets)
        return dict(zip(places, maps or [], strict=False))

    def _log_probabilities(self, sources: Rows, targets: Rows) -> list[list[float]]:
        with _ready(self):
            if self.engine:
                return self.engine.log_probabilities(sources, targets)
            return log_probabilities(self.network, sources, targets)

    def _follow(self, task: Task, request: Request) -> Iterator[int]:
        return self.engine.follow(task, request) if self.engine else task.follow(request)

    @property
    def _source_room(self) -> int:
        room = source_room(self.recipe.model)
        return min(room, self.engine.source_room) if self.engine else room

    @property
    def _room(self) -> int:
        room = room_of(self.recipe.model.decoder)
        return min(room, self.engine.target_room) if self.engine else room

    def _texts(self, hypotheses: list[search.Hypothesis]) -> list[str]:
        return [self.target_tokens.decode(h.tokens) for h in hypotheses]

    def _output(self, source: list[int], hypotheses: list[search.Hypothesis]) -> Output:
        source_pieces = self.source_tokens.pieces([*source, END])
        outputs = [
            Output(
                text=self.target_tokens.decode(h.tokens),
                score=h.score,
                tokens=self.target_tokens.pieces([*h.tokens, END]),
                source_tokens=source_pieces,
                log_probability=h.log_probability,
            )
            for h in hypotheses
        ]
        return replace(outputs[0], alternatives=outputs) if len(outputs) > 1 else outputs[0]

    # ------------------------------------------------------------------------------ disk

    def save(self, folder: str | Path) -> None:
        """Write the model folder: recipe, weights, tokens; each file whole or not at all."""
        self.save_frame(Path(folder))
        self.save_weights(Path(folder))

    def save_frame(self, path: Path) -> None:
        """All but the weights; without them nobody takes the folder for a trained model."""
        write_frame(path, Frame(self.recipe, self.source_tokens, self.target_tokens))

    def save_weights(self, folder: Path) -> None:
        if self.engine:
            raise ModelError(f"the weights are with {self.engine.name}: copy the exported folder")
        write_tensors(folder / WEIGHTS, weights_of(self.network), {"format": "transduce 1"})

    def load_weights(self, path: Path) -> str:
        """Read a file of weights; gives the precision that they were written for."""
        weights, facts = read_tensors(path)
        set_weights(self.network, unpack_levels(weights), path)
        return str(facts.get("precision", "auto"))


def load(folder: str | Path, device: str = "cpu", precision: str = "auto") -> Transducer:
    """The trained model in a folder that `transduce train` wrote; `precision` as in compute_in.

    Of a folder exported in fewer bits, auto is that precision where the CPU has it.

    Raises ModelError that names the file that is missing or does not fit, CheckpointError where
    the weights are damaged, HardwareError where there is no such device.
    """
    path, place = Path(folder), pick_device(device)
    if not (path / WEIGHTS).is_file():
        raise ModelError(why_no_weights(path))
    frame = read_frame(path)
    with torch.random.fork_rng(devices=[]):  # the first weights are thrown away: draw none
        model = Transducer.create(*frame)
    stored = model.load_weights(path / WEIGHTS)
    model.network.eval()
    # Elsewhere numbers of fewer bits are slower, or there are none.
    fast = place.type == "cpu" and (stored != "bfloat16" or has_bfloat16())
    return model.to(place).compute_in(stored if precision == "auto" and fast else precision)


@contextmanager
def _ready(*models: Transducer) -> Iterator[None]:
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


def _checked(sources: Sequence[str]) -> list[str]:
    if isinstance(sources, str):
        raise ModelError(ONE_STRING)
    listed = list(sources)
    for source in listed:
        if not isinstance(source, str):
            raise ModelError(f"a source is text, not {type(source).__name__}: {source!r:.40}")
    return listed


def _seed(seed: int, source: str) -> int:
    """A seed of each sentence's own, so that neighbours do not change what is drawn."""
    return (seed * 1_000_003 + zlib.crc32(source.encode("utf-8", "surrogatepass"))) % 2**62
