"""CTranslate2 as an engine: our requests in its terms, its findings in ours.

Its beam search is its own: it ends when a beam's worth of hypotheses have ended. It is asked for
all of them, without a length penalty of its own, and they are ranked by our rule.

Where it bans tokens it shares their probability out among the others, so that what it finds has to
be scored again. A trained model does not write PAD or BEGIN: they are banned only for the sentences
where it did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.cores import count_cores
from transduce.data.tokens import BEGIN, END, PAD, UNKNOWN, Tokens
from transduce.decoding.decode import Request, Task, pack
from transduce.decoding.engine import Rows
from transduce.decoding.search import Hypothesis
from transduce.decoding.settings import Settings
from transduce.errors import ModelError
from transduce.interop.ctranslate2 import MODEL
from transduce.interop.packages import load_package
from transduce.interop.positions import positions
from transduce.recipe import Recipe

# Source tokens of one batch: enough for full matrices, few enough that all workers have some.
TOKENS = 1024
TOKENS_ON_GPU = 1 << 14


@dataclass
class _Found:
    """One hypothesis of CTranslate2."""

    tokens: list[int]
    log_probability: float | None
    """None where it has to be scored again."""


class Translator:
    """A model that `interop.ctranslate2.export` wrote."""

    name = "CTranslate2"

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        source_tokens: Tokens,
        target_tokens: Tokens,
        device: str = "auto",
    ) -> None:
        package = load_package("ctranslate2", "ctranslate2")
        package.set_log_level(logging.ERROR)  # it tells every time of types it converts
        kind, _, index = device.partition(":")
        if kind == "auto":
            kind = "cuda" if package.get_cuda_device_count() else "cpu"
        self._on_gpu = kind == "cuda"
        # On a CPU, several workers of one thread beat one of several: no step waits for another.
        workers = 1 if self._on_gpu else count_cores()
        try:
            self._translator = package.Translator(
                str(folder),
                device=kind,
                device_index=int(index or 0),
                inter_threads=workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"CTranslate2 cannot load {folder / MODEL} on {device}: {error}"
            ) from None
        self._source_names = source_tokens.names()
        self._target_names = target_tokens.names()
        self._target_ids = {name: number for number, name in enumerate(self._target_names)}
        self.source_room = positions(recipe.model.encoder)
        self.target_room = positions(recipe.model.decoder)

    # --------------------------------------------------------------------------- decoding

    def decode(self, task: Task, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """The hypotheses of each request; ModelError for what CTranslate2 cannot do."""
        _refuse(task.settings, requests)
        limits = [task.bounds.limit(request, task.settings.min_length) for request in requests]
        found: dict[int, list[_Found]] = {}
        possible = task.possible(requests)
        amiss = self._search(task, requests, possible, limits, found, first=True)
        self._search(task, requests, amiss, limits, found, first=False)
        self._score(requests, found)
        power = task.settings.length_penalty or 0.0
        return [_ranked(found.get(place, []), power) for place in range(len(requests))]

    def follow(self, task: Task, request: Request) -> Iterator[int]:
        raise ModelError("CTranslate2 writes whole outputs here, no stream: leave out the engine")

    def _search(
        self,
        task: Task,
        requests: Sequence[Request],
        places: list[int],
        limits: list[int],
        found: dict[int, list[_Found]],
        first: bool,
    ) -> list[int]:
        """Adds to `found`; returns those that need a second search.

        It knows one limit for a batch. At first neighbours share the largest of theirs, hoping that
        no sentence comes near its own; the second time a batch has one limit, and full bans.
        """
        settings, width = task.settings, task.settings.hypotheses
        sizes = [len(request.source) + 1 for request in requests]
        alike: dict[object, list[int]] = {}
        for place in places:
            excluded = tuple(map(tuple, requests[place].exclude))
            alike.setdefault((excluded, first or limits[place]), []).append(place)
        waiting: list[tuple[list[int], Any]] = []
        for group in alike.values():
            for batch in pack(group, sizes, TOKENS_ON_GPU if self._on_gpu else TOKENS):
                longest = max(limits[place] for place in batch)
                results = self._translator.translate_batch(
                    [self._source(requests[place].source) for place in batch],
                    target_prefix=self._prefixes([requests[place].prefix for place in batch]),
                    asynchronous=True,
                    max_decoding_length=max(longest - 1, 1),
                    suppress_sequences=self._banned(task, requests[batch[0]].exclude, first),
                    **_options(settings, len(self._target_names)),
                )
                waiting.append((batch, results))
        amiss = []
        for batch, results in waiting:
            for place, result in zip(batch, results, strict=True):
                most, exact = limits[place] - 1, first and not _shaped(settings, requests[place])
                hypotheses = self._read(result.result(), exact)
                overlong = any(len(hypothesis.tokens) > most for hypothesis in hypotheses)
                if first and overlong and width > 1 and not settings.draws:
                    amiss.append(place)
                    continue
                hypotheses = [_cut(hypothesis, most) for hypothesis in hypotheses]
                found[place] = [h for h in hypotheses if not {PAD, BEGIN} & set(h.tokens)]
                if first and len(found[place]) < min(settings.nbest, len(hypotheses)):
                    amiss.append(place)
        return amiss

    def _read(self, result: Any, exact: bool) -> list[_Found]:
        ids = self._target_ids
        hypotheses = []
        for names, score in zip(result.hypotheses, result.scores, strict=True):
            tokens = [ids[name] for name in names]
            ended = bool(tokens) and tokens[-1] == END
            hypotheses.append(
                _Found(tokens[:-1] if ended else tokens, score if exact and ended else None)
            )
        return hypotheses

    def _score(self, requests: Sequence[Request], found: dict[int, list[_Found]]) -> None:
        """The log-probabilities that are missing."""
        missing = [(place, h) for place, some in found.items() for h in some]
        missing = [(place, h) for place, h in missing if h.log_probability is None]
        scores = self.log_probabilities(
            [requests[place].source for place, _ in missing], [h.tokens for _, h in missing]
        )
        for (_, hypothesis), values in zip(missing, scores, strict=True):
            hypothesis.log_probability = sum(values)

    def log_probabilities(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """The log-probability of each token of each target, END included."""
        if not sources:
            return []
        results = self._translator.score_batch(
            [self._source(source) for source in sources],
            [[self._target_names[number] for number in target] for target in targets],
            max_batch_size=TOKENS_ON_GPU if self._on_gpu else TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]

    # --------------------------------------------------------------------- in its own terms

    def _source(self, ids: Sequence[int]) -> list[str]:
        names = self._source_names
        return [names[number] for number in ids]

    def _prefixes(self, prefixes: Sequence[Sequence[int]]) -> list[list[str]] | None:
        if not any(prefixes):
            return None
        return [[self._target_names[number] for number in prefix] for prefix in prefixes]

    def _banned(
        self, task: Task, excluded: Sequence[Sequence[int]], first: bool
    ) -> list[list[str]] | None:
        if first and not excluded and not _bans(task.settings):
            return None
        phrases: list[Sequence[int]] = [[PAD], [BEGIN], *excluded]
        if task.allowed is not None:
            kept = {END, PAD, BEGIN, UNKNOWN} | set(task.allowed)
            phrases += [[number] for number in range(task.vocabulary) if number not in kept]
            phrases += [] if UNKNOWN in task.allowed else [[UNKNOWN]]
        return [[self._target_names[number] for number in phrase] for phrase in phrases]


def _options(settings: Settings, vocabulary: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "length_penalty": 0.0,
        "min_decoding_length": settings.min_length,
        "no_repeat_ngram_size": settings.no_repeat or 0,
        "disable_unk": not settings.unknown,
        "max_input_length": 0,
        "return_scores": True,
        "return_end_token": True,  # tells what has ended from what was cut
    }
    if settings.draws:
        return options | {
            "beam_size": 1,
            "num_hypotheses": settings.draws,
            "sampling_topk": min(settings.top_k, vocabulary),
            "sampling_topp": settings.top_p,
            "sampling_temperature": settings.temperature,
        }
    # All that have ended, as our rule may like another best.
    return options | {"beam_size": settings.hypotheses, "num_hypotheses": settings.hypotheses}


def _bans(settings: Settings) -> bool:
    """Whether something is banned anyway, or drawn, so that all is scored again."""
    return bool(
        settings.draws
        or settings.no_repeat
        or settings.min_length
        or settings.only is not None
        or not settings.unknown
    )


def _shaped(settings: Settings, request: Request) -> bool:
    """Whether its scores are not the model's: of a prefix it counts nothing at all."""
    return _bans(settings) or bool(request.prefix or request.exclude)


def _refuse(settings: Settings, requests: Sequence[Request]) -> None:
    if settings.groups > 1:
        raise ModelError("CTranslate2 knows no groups in a beam: leave that out, or the engine")
    if any(request.include for request in requests):
        raise ModelError(
            "CTranslate2 cannot be told what to include: leave that out, or the engine"
        )


def _cut(hypothesis: _Found, most: int) -> _Found:
    """On the last step a hypothesis must end, as in our search."""
    return hypothesis if len(hypothesis.tokens) <= most else _Found(hypothesis.tokens[:most], None)


def _ranked(found: list[_Found], power: float) -> list[Hypothesis]:
    ranked = []
    for one in found:
        assert one.log_probability is not None
        score = one.log_probability / ((5 + len(one.tokens) + 1) / 6) ** power  # END counted
        ranked.append(Hypothesis(one.tokens, score, one.log_probability))
    return sorted(ranked, key=lambda hypothesis: -hypothesis.score)
