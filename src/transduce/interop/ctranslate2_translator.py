"""CTranslate2 as an inference engine: converts our requests to its options, and its results to
ours.

It has its own beam search, which ends when as many hypotheses as the beam size have ended. It is
asked for all of them, without its length penalty, and they are ranked by our rule.

If tokens are banned, it renormalises the probabilities of the others, so its hypotheses have to be
scored again. A trained model does not generate PAD or BEGIN: they are banned only for the sentences
where it did.

In greedy search a score costs it a softmax over the vocabulary at every step, a fifth of its time
or more: it is requested only if needed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from transduce.cores import count_cores
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN, Tokens
from transduce.decoding.batch.decode import BatchDecoder, Request
from transduce.decoding.batch.token_budget import pack, pack_evenly
from transduce.decoding.engine import Rows
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.settings import Settings
from transduce.errors import ModelError, load_package
from transduce.interop.ctranslate2 import MODEL
from transduce.interop.positions import positions
from transduce.recipe import Recipe

# Source tokens of one batch: enough for full matrices, fewer in int8, and so few that each worker
# has several batches, as the last ones do not end at the same time.
MIN_TOKENS, MAX_TOKENS, MAX_ON_GPU = 512, 1024, 1 << 14
BATCHES = 4  # batches for each worker, at least, unless they would be too small


@dataclass(slots=True)
class _Found:
    """One hypothesis of CTranslate2."""

    tokens: list[int]
    log_probability: float | None
    """None if it is not known, or not the model's."""


class Translator:
    """A model that `interop.ctranslate2.export` wrote."""

    name = "CTranslate2"
    # calls in parallel: the next call's batches are queued before the last of this one is done
    at_once = 2

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        source_tokens: Tokens,
        target_tokens: Tokens,
        device: str = "auto",
    ) -> None:
        package = load_package("ctranslate2", "ctranslate2")
        package.set_log_level(logging.ERROR)  # it logs every type conversion otherwise
        kind, _, index = device.partition(":")
        if kind == "auto":
            kind = "cuda" if package.get_cuda_device_count() else "cpu"
        self._on_gpu = kind == "cuda"
        # On a CPU, several workers with one thread each are faster than one with several threads.
        self._workers = 1 if self._on_gpu else count_cores()
        try:
            self._translator = package.Translator(
                str(folder),
                device=kind,
                device_index=int(index or 0),
                inter_threads=self._workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"CTranslate2 cannot load {folder / MODEL} on {device}: {error}"
            ) from None
        self._maximum = MIN_TOKENS if "int8" in self._translator.compute_type else MAX_TOKENS
        self._source_names = source_tokens.names()
        self._target_names = target_tokens.names()
        self._target_ids = {name: number for number, name in enumerate(self._target_names)}
        self.max_source_length = positions(recipe.model.encoder)
        self.max_target_length = positions(recipe.model.decoder)

    # --------------------------------------------------------------------------- decoding

    def decode(self, task: BatchDecoder, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """The hypotheses of each request; ModelError for what CTranslate2 does not support."""
        _refuse(task.settings, requests)
        limits = [task.bounds.limit(request, task.settings.min_length) for request in requests]
        found: dict[int, list[_Found]] = {}
        possible = task.possible(requests)
        amiss = self._search(task, requests, possible, limits, found, first=True)
        if amiss:
            self._search(task, requests, amiss, limits, found, first=False)
        if _scored(task.settings):
            self._score(requests, found)
        power = task.settings.length_penalty or 0.0
        return [_ranked(found.get(place, []), power) for place in range(len(requests))]

    def follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        raise ModelError("CTranslate2 does not stream outputs here: leave out the engine")

    def _search(
        self,
        task: BatchDecoder,
        requests: Sequence[Request],
        places: list[int],
        limits: list[int],
        found: dict[int, list[_Found]],
        first: bool,
    ) -> list[int]:
        """Adds to `found`; returns those that need a second search.

        It has one length limit for a batch. At first a batch uses its largest limit, which most
        sentences do not reach; the second time all sentences of a batch have the same limit, and
        all bans apply.
        """
        settings = task.settings
        options = _options(settings, len(self._target_names))
        sizes = [len(request.source) for request in requests]
        alike: dict[object, list[int]] = {}
        for place in places:
            banned = requests[place].exclude
            excluded = tuple(map(tuple, banned)) if banned else ()
            alike.setdefault((excluded, first or limits[place]), []).append(place)
        waiting: list[tuple[list[int], Any]] = []
        for group in alike.values():
            for batch in self._packed(group, sizes):
                longest = max(limits[place] for place in batch)
                results = self._translator.translate_batch(
                    [self._source(requests[place].source) for place in batch],
                    target_prefix=self._prefixes([requests[place].prefix for place in batch]),
                    asynchronous=True,
                    max_decoding_length=max(longest - 1, 1),
                    suppress_sequences=self._banned(task, requests[batch[0]].exclude, first),
                    **options,
                )
                waiting.append((batch, results))
        amiss = []
        exact = first and _scored(settings) and not _bans(settings)
        beam, nbest = settings.hypotheses > 1 and not settings.draws, settings.nbest
        for batch, results in waiting:
            for place, result in zip(batch, results, strict=True):
                hypotheses = self._read(result.result(), exact and requests[place].plain)
                maximum = limits[place] - 1
                if max([len(one.tokens) for one in hypotheses]) > maximum:
                    if first and beam:
                        amiss.append(place)
                        continue
                    hypotheses = [_cut(one, maximum) for one in hypotheses]
                kept = [one for one in hypotheses if not _has_specials(one.tokens)]
                if first and len(kept) < min(nbest, len(hypotheses)):
                    amiss.append(place)
                found[place] = kept
        return amiss

    def _packed(self, places: list[int], sizes: list[int]) -> list[list[int]]:
        """Batches of about the same size, the same number for each worker."""
        if self._on_gpu:
            return list(pack(places, sizes, MAX_ON_GPU))
        tokens = sum(sizes[place] for place in places)
        maximum = self._workers * max(BATCHES, -(-tokens // (self._maximum * self._workers)))
        return list(pack_evenly(places, sizes, maximum, MIN_TOKENS))

    def _read(self, result: Any, exact: bool) -> list[_Found]:
        """`exact`: the scores are the model's. With bans they are not, and do not include a
        prefix.
        """
        ids = self._target_ids
        scores = result.scores if exact else repeat(None)
        hypotheses = []
        for names, score in zip(result.hypotheses, scores, strict=False):
            tokens = list(map(ids.__getitem__, names))
            if tokens and tokens[-1] == END:
                tokens.pop()
                hypotheses.append(_Found(tokens, score))
            else:
                hypotheses.append(_Found(tokens, None))
        return hypotheses

    def _score(self, requests: Sequence[Request], found: dict[int, list[_Found]]) -> None:
        """Compute missing log-probabilities."""
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
            max_batch_size=MAX_ON_GPU if self._on_gpu else MAX_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]

    # --------------------------------------------------------------------- in its own terms

    def _source(self, ids: Sequence[int]) -> list[str]:
        return list(map(self._source_names.__getitem__, ids))

    def _prefixes(self, prefixes: Sequence[Sequence[int]]) -> list[list[str]] | None:
        if not any(prefixes):
            return None
        return [[self._target_names[number] for number in prefix] for prefix in prefixes]

    def _banned(
        self, task: BatchDecoder, excluded: Sequence[Sequence[int]], first: bool
    ) -> list[list[str]] | None:
        if first and not excluded and not _bans(task.settings):
            return None
        phrases: list[Sequence[int]] = [[PAD], [BEGIN], *excluded]
        if excluded:  # an unknown token between the tokens of a phrase would not be seen in a text
            phrases.append([UNKNOWN])
        if task.allowed is not None:
            kept = {END, PAD, BEGIN, UNKNOWN} | set(task.allowed)
            phrases += [[number] for number in range(task.vocabulary) if number not in kept]
            phrases += [] if UNKNOWN in task.allowed else [[UNKNOWN]]
        return [[self._target_names[number] for number in phrase] for phrase in phrases]


def _options(settings: Settings, vocabulary: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "length_penalty": 0.0,
        "min_decoding_length": settings.min_length,
        "no_repeat_ngram_size": settings.no_repeat_ngram or 0,
        "disable_unk": not settings.unknown,
        "max_input_length": 0,
        "return_scores": _scored(settings),
        "return_end_token": True,  # distinguishes complete from truncated outputs
    }
    if settings.draws:
        return options | {
            "beam_size": 1,
            "num_hypotheses": settings.draws,
            "sampling_topk": min(settings.top_k, vocabulary),
            "sampling_topp": settings.top_p,
            "sampling_temperature": settings.temperature,
        }
    # All that have ended, as our ranking may prefer another one.
    return options | {"beam_size": settings.hypotheses, "num_hypotheses": settings.hypotheses}


def _scored(settings: Settings) -> bool:
    """Whether scores are needed; several hypotheses are ranked by them."""
    return settings.scores or settings.hypotheses > 1


def _bans(settings: Settings) -> bool:
    """Whether tokens are banned or sampled, so that everything is scored again."""
    return bool(
        settings.draws
        or settings.no_repeat_ngram
        or settings.min_length
        or settings.only is not None
        or not settings.unknown
    )


def _refuse(settings: Settings, requests: Sequence[Request]) -> None:
    if settings.groups > 1:
        raise ModelError(
            "CTranslate2 has no diverse beam search: leave out the groups, or the engine"
        )
    if any(request.include for request in requests):
        raise ModelError(
            "CTranslate2 has no required phrases: leave out include and glossary, or the engine"
        )


def _has_specials(tokens: list[int]) -> bool:
    return PAD in tokens or BEGIN in tokens


def _cut(hypothesis: _Found, maximum: int) -> _Found:
    """At the length limit a hypothesis must end, as in our search."""
    return (
        hypothesis
        if len(hypothesis.tokens) <= maximum
        else _Found(hypothesis.tokens[:maximum], None)
    )


def _ranked(found: list[_Found], power: float) -> list[Hypothesis]:
    ranked = []
    for one in found:
        worth = math.nan if one.log_probability is None else one.log_probability
        score = worth / ((5 + len(one.tokens) + 1) / 6) ** power if power else worth  # with END
        ranked.append(Hypothesis(one.tokens, score, worth))
    if len(ranked) > 1:
        ranked.sort(key=lambda hypothesis: -hypothesis.score)
    return ranked
