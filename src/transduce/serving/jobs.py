"""Requests to the engine: their inputs, settings and results."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakValueDictionary

from transduce.decoding.constraints.read import AnyOf
from transduce.decoding.output import Output, Score
from transduce.decoding.settings import Settings
from transduce.errors import TransduceError
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.observer import TokenStep

PLANS = 256  # settings that are remembered as valid
RUN, SCORE, INSPECT, PROMPT = "run", "score", "inspect", "prompt"
CONSTRAINTS = ("prefix", "include", "exclude", "hotwords")
OF_EACH_INPUT = (*CONSTRAINTS, "seed")
"""Settings of each input: requests that differ in them share a batch."""
OTHER_MODELS = ("ensemble", "rerank", "language_model")
"""Settings that name other served models, or an n-gram language model."""
SEARCH = tuple(one.name for one in fields(Settings))
SIZES = {
    "beam": "beam",
    "groups": "beam",
    "nbest": "nbest",
    "samples": "samples",
    "min_length": "length",
    "max_length": "length",
    "top": "alternatives",
}
"""Settings that clients may not raise at will, and their limits."""
PAIRS_A_TOKEN = 64  # comparisons of two samples that take as long as a token of an output, about
KEPT_CHARACTERS = 100  # of a text in the settings of a plan that is remembered


@dataclass(slots=True)
class Inspection:
    """What the page of `transduce look` shows of one input."""

    page: dict[str, Any]
    tokens: list[str]
    source_tokens: list[str]


@dataclass(slots=True)
class PromptScore:
    """The log-probability of each token of a prompt, and the likeliest tokens in its place."""

    tokens: list[str]
    log_probabilities: list[float]
    top: list[list[tuple[str, float]]]
    lengths: list[int]
    """The characters that each token adds to the text."""
    source_tokens: list[str] = field(default_factory=list)


Result = Output | Score | Inspection | PromptScore


@dataclass(slots=True)
class LastStep:
    """The end of a stream: the whole output, and what it adds to the text of the tokens."""

    output: Output
    text: str = ""


# Settings of a run that need all of its hypotheses, or another pass over them.
WHOLE = ("attention", "ensemble", "rerank", "language_model", "mbr")


@dataclass(eq=False)
class Plan:
    """A model with settings; requests with the same plan are decoded together."""

    served: Served
    key: Any
    settings: dict[str, Any]
    """As model.run takes them, other models included."""
    nbest: int = 1
    """Outputs of each input."""
    width: int = 1
    """How many times the work of one hypothesis of one model it is."""
    minimum: int = 0
    """The tokens that each output has at least."""
    call: str = RUN
    """What is called: RUN, SCORE for given targets, INSPECT, or PROMPT for given prompts."""
    continuous: bool = False
    """Whether requests may enter a batch while it is decoded, as far as is known."""

    def __post_init__(self) -> None:
        whole = any(self.settings.get(name) for name in WHOLE) or self.served.members.all
        self.continuous = self.call == RUN and not whole and not self.served.takes_audio

    def check(self, stream: bool, limits: Limits) -> None:
        """Raise BadRequest for settings that the model does not take, TooLarge for those above a
        limit."""
        self._check_sizes(limits)
        model = self.served.model
        if self.call in (SCORE, PROMPT) or not isinstance(model, GenerativeModel):
            return
        asked = {name: value for name, value in self.settings.items() if name in SEARCH}
        if not self.served.takes_audio:  # models of audio have settings of their own
            for name in self.settings.keys() - asked.keys() - {*OTHER_MODELS, "attention"}:
                asked[name] = self.settings[name]  # its error names those that there are
        try:
            chosen = model.settings(**asked)
        except TransduceError as error:
            raise BadRequest(str(error)) from None
        self.nbest, self.minimum = chosen.nbest, chosen.min_length
        # Utilities of samples are computed for each pair of them.
        utilities = chosen.draws**2 // PAIRS_A_TOKEN if chosen.mbr else 0
        others = [self.settings[name] for name in OTHER_MODELS if self.settings.get(name)]
        models = 1 + sum(len(one) if isinstance(one, list) else 1 for one in others)
        if self.settings.get("ensemble") is None:
            models += len(self.served.members.ensemble)
        self.width = (chosen.hypotheses + utilities) * models
        if stream and (chosen.hypotheses > 1 or chosen.mbr):
            raise BadRequest("a stream has a single hypothesis; set beam, nbest and groups to 1")

    def _check_sizes(self, limits: Limits) -> None:
        for name, limit in SIZES.items():
            value = self.settings.get(name)
            if isinstance(value, int):
                limits.check(limit, value, f"{name} is {value:,}")
        for name, value in self.settings.items():
            if isinstance(value, str) or (isinstance(value, list) and name not in OTHER_MODELS):
                check_list(name, [value] if isinstance(value, str) else value, limits)


@dataclass(eq=False, slots=True)
class Job:
    """One request, from its arrival to its answer."""

    served: Served
    inputs: list[Any]
    plan: Plan
    constraints: Mapping[str, list[Any]]
    """prefix, include, exclude, hotwords, seed: of each input."""
    watched: tuple[int, bool] | None
    """For a stream: the number of alternatives of each token, and whether with attention."""
    loop: asyncio.AbstractEventLoop
    costs: list[int] = field(default_factory=list)
    rest: int = 0
    """The work that is still waiting."""
    next: int = 0
    """The first input that is still waiting."""
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    cancelled: bool = False
    error: ServiceError | None = None
    future: asyncio.Future[list[Any]] = field(init=False)
    events: asyncio.Queue[TokenStep | LastStep | Exception] | None = field(init=False, default=None)
    outputs: list[Result | None] = field(init=False)
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()
        if self.watched is not None:
            self.events = asyncio.Queue()
        self.outputs = [None] * len(self.inputs)
        self.missing = len(self.inputs)

    @property
    def finished(self) -> bool:
        return self.ended is not None

    def deliver(self, place: int, output: Result, now: float) -> None:
        """One of its inputs is done."""
        if self.cancelled or self.finished:
            return
        self.outputs[place] = output
        self.missing -= 1
        if self.missing:
            return
        self.ended = now
        outputs = [one for one in self.outputs if one is not None]
        if self.events is not None:
            assert isinstance(outputs[0], Output)
            self.events.put_nowait(LastStep(outputs[0]))
        if not self.future.done():
            self.future.set_result(outputs)

    def show(self, event: TokenStep) -> None:
        if self.events is not None and not self.finished:
            self.events.put_nowait(event)

    def fail(self, error: ServiceError) -> None:
        if self.cancelled or self.finished:
            return
        self.ended, self.error = time.monotonic(), error
        if self.events is not None:
            self.events.put_nowait(error)
        elif not self.future.done():
            self.future.set_exception(error)


def plan_of(
    served: Served,
    settings: Mapping[str, Any],
    watched: tuple[int, bool] | None,
    catalogue: Catalogue,
    call: str,
    limits: Limits,
) -> Plan:
    """The plan of a request, not yet checked. Raises BadRequest and TooLarge."""
    given = dict(settings)
    if watched is not None and isinstance(served.model, GenerativeModel):
        given.setdefault("beam", 1)
        given.setdefault("bidirectional", False)
    attentive = watched is not None and watched[1]  # these are slower: they have their own batches
    try:
        key = (
            served.name,
            attentive,
            call,
            tuple(sorted((n, _frozen(v)) for n, v in given.items())),
        )
        hash(key)
    except TypeError:
        raise BadRequest("the settings must be numbers, texts or lists of texts") from None
    for name in OTHER_MODELS:
        if given.get(name):
            names = [given[name]] if isinstance(given[name], str) else given[name]
            check_list(name, names, limits, "combined")
            given[name] = _models(name, names, catalogue)
    return Plan(served, key, given, call=call)


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(one) for one in value)
    # In Python True == 1: they must not be the same setting.
    return (type(value).__name__, value)


def _models(setting: str, names: Sequence[str], catalogue: Catalogue) -> Any:
    if setting == "language_model" and len(names) == 1:
        return catalogue.language_model(names[0])
    for name in names:
        if name not in catalogue:
            raise BadRequest(
                f"{setting}: there is no model {name[:80]}; there are {', '.join(catalogue)}"
            )
    models = [catalogue[name].model for name in names]
    if setting == "ensemble":
        return models
    if len(models) != 1:
        raise BadRequest(f"{setting} takes one model, not {len(models)}")
    return models[0]


def constraints_of(
    served: Served, settings: Mapping[str, Any], count: int, limits: Limits
) -> dict[str, list[Any]]:
    """prefix, include, exclude, hotwords and seed of each of `count` inputs, where they are given.

    For audio they are the same for all inputs, and stay in the settings. Raises BadRequest.
    """
    found: dict[str, list[Any]] = {}
    if settings.keys().isdisjoint(OF_EACH_INPUT):
        return found
    seed = settings.get("seed")
    if seed is not None:
        if not isinstance(seed, int):
            raise BadRequest(f"seed must be a whole number, not {type(seed).__name__}")
        if settings.get("sample") or settings.get("mbr"):  # it means nothing to others
            found["seed"] = [seed] * count
    for name in CONSTRAINTS:
        value = settings.get(name)
        if not value:
            continue
        nested = isinstance(value, list | tuple) and any(not isinstance(v, str) for v in value)
        if served.takes_audio and (nested or (name == "prefix" and not isinstance(value, str))):
            raise BadRequest(f"for audio, {name} is the same for all inputs")
        if name == "prefix":
            each = [value] * count if isinstance(value, str) else list(value)
        elif nested:
            each = [[one] if isinstance(one, str) else list(one or ()) for one in value]
        else:
            each = [[value] if isinstance(value, str) else list(value)] * count
        if len(each) != count:
            raise BadRequest(f"{name} has {len(each)} entries, but there are {count} inputs")
        for one in {id(one): one for one in each}.values():  # often the same for all
            total = check_list(name, [one] if isinstance(one, str) else one, limits)
            if name == "include":
                limits.check("included_characters", total, f"include has {total:,} characters")
        found[name] = each
    return found


def check_list(name: str, texts: Any, limits: Limits, limit: str = "phrases") -> int:
    """The characters of the texts of a setting together. Raises BadRequest and TooLarge."""
    if not isinstance(texts, list | tuple) or not all(isinstance(t, str | AnyOf) for t in texts):
        raise BadRequest(f"{name} must be text, or a list of texts")
    limits.check(limit, len(texts), f"{name} has {len(texts):,} entries")
    total = sum(len(longest_wording(one)) for one in texts)
    limits.check("characters", total, f"{name} has {total:,} characters")
    return total


def longest_wording(phrase: str | AnyOf) -> str:
    """Of a phrase that an output must have."""
    return max(phrase.wordings, key=len) if isinstance(phrase, AnyOf) else phrase


class Plans:
    """Settings that were checked once are remembered; those with lists or long texts only as long
    as there are requests with them."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.catalogue, self.limits = catalogue, limits
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._in_use: WeakValueDictionary[Any, Plan] = WeakValueDictionary()

    def find(
        self, served: Served, settings: dict[str, Any], watched: tuple[int, bool] | None, call: str
    ) -> Plan:
        """The plan of a request. Raises BadRequest and TooLarge."""
        plan = plan_of(served, settings, watched, self.catalogue, call, self.limits)
        known = self._plans.get(plan.key) or self._in_use.get(plan.key)
        if known is not None:
            return known
        plan.check(watched is not None, self.limits)
        if _is_small(settings):
            self._plans[plan.key] = plan
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        else:
            self._in_use[plan.key] = plan
        return plan


def _is_small(settings: Mapping[str, Any]) -> bool:
    """Whether settings are numbers and short texts."""
    return all(
        len(one) <= KEPT_CHARACTERS if isinstance(one, str) else not isinstance(one, list | tuple)
        for one in settings.values()
    )
