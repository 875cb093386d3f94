"""The task transduce over text: an encoder-decoder; that over audio is in speech.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.data.text.pairs import always_tagged
from transduce.data.text.tags import UNKNOWN_TAG, with_tags, without_blank
from transduce.data.tokens.copying import CopiedTokens
from transduce.data.tokens.languages import in_language
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.decoding.batch.decode import Bounds, FastSearch
from transduce.decoding.combine.bidirectional import Directions, score_directions
from transduce.decoding.cuda.pool import has_cuda_search
from transduce.decoding.encode import Encoding, encoder_states, pad_states
from transduce.decoding.engine import Engine, Rows
from transduce.decoding.output import Output, Score
from transduce.decoding.readings import Reading, ReadRequest
from transduce.decoding.run_lens import Labels
from transduce.decoding.score.forced import attention_to_source, log_probabilities, read_forced
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.settings import Settings
from transduce.decoding.source_limit import (
    encode_truncated,
    truncation_warnings,
    unknown_warning,
)
from transduce.errors import ModelError
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary
from transduce.models.build import build as build_network
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.recipe import Recipe
from transduce.recipe.model import max_length_of, max_source_length
from transduce.runtime.fallbacks import warn_of_plain_cuda
from transduce.runtime.steps import steps_of
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.model import check_sources, inference


class Transducer(GenerativeModel, task="transduce"):
    """An encoder-decoder model: translation, pronunciation and the like.

    `transduce.load` returns it for `task: transduce`.

        model = transduce.load("runs/multi30k-en-de")
        model("A dog runs.")                            # the best output's text
        model.run(sources, beam=5, nbest=3, attention=True)
        model.score(sources, targets)                   # log-probabilities of given targets
        model.encode(sources)                           # encoder states
    """

    network: EncoderDecoder

    def __init__(
        self,
        recipe: Recipe,
        network: EncoderDecoder,
        source_tokens: Tokens,
        target_tokens: Tokens,
        engine: Engine | None = None,
    ) -> None:
        """With an engine, the network is on the meta device and is not used."""
        super().__init__(recipe, network, source_tokens, target_tokens)
        self.engine = engine

    @classmethod
    def build(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> EncoderDecoder:
        copied_as = None
        if recipe.model.copies:
            copied_as = CopiedTokens(source_tokens, target_tokens).copied_as()
        sizes, tags = (len(source_tokens), len(target_tokens)), list(source_tokens.tags.values())
        return build_network(recipe.model, Vocabulary(*sizes, copied_as, tags))

    @cached_property
    def _copied(self) -> CopiedTokens | None:
        """The vocabularies of a model that copies from its source."""
        if not self.recipe.model.copies:
            return None
        return CopiedTokens(self.source_tokens, self.target_tokens)

    def _spelt(self, source: str, ids: Sequence[int]) -> list[str]:
        """What stands in a source, as it can be copied; nothing where no model copies."""
        return [] if self._copied is None else self.source_tokens.spelt(source, ids)

    def _text(self, source: str, ids: list[int], tokens: Sequence[int]) -> str:
        return self.target_tokens.decode(tokens, self._spelt(source, ids))

    def _run(
        self,
        sources: Sequence[str],
        call: Call,
        own: CallContext | None = None,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        prefix: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> list[Output]:
        if source_language is not None:
            checked = check_sources(sources)
            sources = in_language(checked, self.source_tokens, source_language, "source")
        if target_language is not None:
            given = [prefix or ""] if isinstance(prefix, str | None) else list(prefix)
            in_language(["x"], self.target_tokens, target_language, "target")
            given = [with_tags(text, [target_language]) for text in given]
            prefix = given[0] if isinstance(prefix, str | None) else given
        return super()._run(sources, call, own, prefix=prefix, **settings)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        tags: Sequence[str] = (),
        attention: bool = False,
    ) -> list[Score]:
        """Score given targets: the log-probability of each of their tokens (teacher forcing); of a
        bidirectional model the mean of both directions. tags: as in `run`.

        For an output of `run` it equals the log-probability reported there, if the text is
        tokenized into the same tokens. attention: also attention to the source, as in `run`. Of an
        ensemble, this model alone scores; of models for each tag, the one for the source's.
        """
        sources = self.tagged(sources, tags) if tags else sources
        if not self.members.by_tag or self._decodes_alone(None):
            return self._score(sources, targets, NO_CONTEXT, attention=attention)
        sources, targets = check_sources(sources), check_sources(targets)
        if len(sources) != len(targets):
            raise ModelError(f"there are {len(sources)} sources, but {len(targets)} targets")
        found: dict[int, Score] = {}
        for model, places in self._shared_out(sources):
            read, written = ([side[place] for place in places] for side in (sources, targets))
            scores = model._score(read, written, NO_CONTEXT, attention=attention)
            found |= dict(zip(places, scores, strict=True))
        return [found[place] for place in range(len(sources))]

    def _score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        context: CallContext,
        *,
        attention: bool = False,
    ) -> list[Score]:
        sources, targets = check_sources(sources), check_sources(targets)
        if len(sources) != len(targets):
            raise ModelError(f"there are {len(sources)} sources, but {len(targets)} targets")
        encoded, warnings = self._encode(sources)
        written, too_long = encode_truncated(
            self.target_tokens.encode_batch, targets, self.recipe, _max_lengths(self)[1] - 1
        )
        written = self._copied_targets(targets, written, sources, encoded)
        for number in range(len(written)):
            if number in too_long:
                raise ModelError(
                    f"target {number + 1} {too_long[number]}; shorten it, or leave it out"
                )
            if number in warnings:
                raise ModelError(f"source {number + 1} cannot be scored: {warnings[number]}")
        if attention and self.engine:
            raise ModelError(f"{self.engine.name} does not show attention; leave out the engine")
        found = self._log_probabilities(encoded, written, context)
        scores = [
            Score(self._pieces_of_head([*ids, END], source, read), values)
            for source, read, ids, values in zip(sources, encoded, written, found, strict=True)
        ]
        if self._lenses:
            self._record_forced(sources, encoded, targets, written, found, context)
        if not attention:
            return scores
        with inference(self):
            maps = attention_to_source(self.network, encoded, written, context)
        if maps is None:
            self._unsupported("have attention to its source")
        pieces = list(map(self._pieces, sources, encoded))
        return [
            replace(score, source_tokens=of_source, attention=map_LHTS)
            for score, of_source, map_LHTS in zip(scores, pieces, maps, strict=True)
        ]

    def encode(self, sources: Sequence[str]) -> Encoding:
        """The encoder's states of each source, with lengths and mask; they hold no gradients."""
        if self.engine:
            raise ModelError(f"{self.engine.name} does not show states; leave out the engine")
        sources = check_sources(sources)
        encoded, warnings = self._encode(sources)
        for number, warning in warnings.items():
            raise ModelError(f"source {number + 1} cannot be encoded: {warning}")
        with inference(self):
            states = encoder_states(self.network.encode, encoded, self.device, ends=True)
        pieces = [
            self._pieces(source, ids)[: len(states_SD)]  # without END, where it is not read
            for source, ids, states_SD in zip(sources, encoded, states, strict=True)
        ]
        return pad_states(states, pieces, self.recipe.model.width)

    def _pieces(self, source: str, ids: list[int]) -> list[str]:
        """The token of each encoder state."""
        pieces, size = self.source_tokens.pieces([*ids, END]), len(self.source_tokens)
        for place, token in enumerate(self._spelt(source, ids)):
            if ids[place] >= size:
                pieces[place] = token
        return pieces

    def _pieces_of_head(
        self, numbers: list[int], source: str = "", ids: Sequence[int] = ()
    ) -> list[str]:
        return self.target_tokens.pieces(numbers, self._spelt(source, ids))

    # ------------------------------------------------------------------------- implementation

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        """The ids of sources, truncated where too long, and warnings for those."""
        capacity = min(_max_lengths(model)[0] for model in (self, *ensemble)) - 1
        if self.recipe.data.bidirectional:
            capacity -= 1  # for the token that asks for the other direction
        given = without_blank(sources)
        encode = self.source_tokens.encode_batch
        rows, lengths = encode_truncated(encode, given, self.recipe, capacity)
        if self._copied is not None:
            rows = list(map(self._copied.source_ids, given, rows))
        return rows, truncation_warnings(lengths)

    def _copied_targets(
        self, texts: Sequence[str], targets: Ids, sources: Sequence[str], encoded: Ids
    ) -> Ids:
        """The ids of targets, whose unknown tokens may stand in their sources."""
        if self._copied is None:
            return targets
        return list(map(self._copied.target_ids, texts, targets, sources, encoded))

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        source_pieces, spelt = self._pieces(source, ids), self._spelt(source, ids)
        outputs = [
            Output(
                text=self.target_tokens.decode(h.tokens, spelt),
                score=h.score,
                tokens=self.target_tokens.pieces([*h.tokens, END], spelt),
                source_tokens=source_pieces,
                log_probability=h.log_probability,
                ids=h.tokens,
                warning=self._source_warning(ids),
            )
            for h in hypotheses
        ]
        return replace(outputs[0], alternatives=outputs) if len(outputs) > 1 else outputs[0]

    def _source_warning(self, ids: list[int]) -> str:
        """A warning for a source unlike all those of training."""
        tags = self.source_tokens.tags
        if self.expects_tags and not (len(ids) and ids[0] in tags.values()):
            return (
                "the source has no tag, but all in training had one or more; give them with --tag, "
                "or before the source as <TAG>"
            )
        if tags.get(UNKNOWN_TAG) in ids:
            return (
                f"the source has a tag that training does not have, which is read as "
                f"<{UNKNOWN_TAG}>; check how its tags are written"
            )
        return unknown_warning(ids)

    @cached_property
    def expects_tags(self) -> bool:
        """Whether every source of training began with tags; those of audio are not in its ids."""
        audio = self.recipe.audio is not None
        return not audio and bool(self.source_tokens.tags) and always_tagged(self.recipe.data.train)

    def _plain_steps(self) -> Any:
        made = self._packed_steps(steps_of)
        return self.network if made is None else made

    def _bounds(
        self, settings: Settings, models: Sequence[GenerativeModel], context: CallContext
    ) -> Bounds:
        decode = self.recipe.decode
        capacity = min(_max_lengths(model)[1] for model in models)
        return Bounds(decode.max_ratio, decode.max_extra, capacity, settings.max_length)

    def _fast_search(self, context: CallContext) -> FastSearch | None:
        if not has_cuda_search(self.network):
            if self.device.type == "cuda":
                warn_of_plain_cuda(self.network)
            return None
        return self.copies.cuda(self.network, self.recipe.model.width)

    def _score_texts(
        self, sources: list[str], texts: list[str], context: CallContext
    ) -> tuple[list[float | None], dict[int, str]]:
        encoded, warnings = self._encode(sources)  # truncated at the last position
        targets = self.target_tokens.encode_batch(texts)
        targets = self._copied_targets(texts, targets, sources, encoded)
        capacity = self._target_capacity(context)
        short = [place for place, ids in enumerate(targets) if len(ids) <= capacity]
        read, written = [encoded[place] for place in short], [targets[place] for place in short]
        found = self._log_probabilities(read, written, context)
        if self._lenses:
            named, said = [sources[place] for place in short], [texts[place] for place in short]
            self._record_forced(named, read, said, written, found, context)
        totals = {place: sum(values) for place, values in zip(short, found, strict=True)}
        return [totals.get(place) for place in range(len(texts))], warnings

    def _target_capacity(self, context: CallContext) -> int:
        """The most tokens of a target, END not counted, that it has positions for."""
        return _max_lengths(self)[1] - 1 - len(self._before(context))

    def _before(self, context: CallContext) -> list[int]:
        """The tokens of a prompt between BEGIN and an output."""
        return []

    def _record_forced(
        self,
        sources: Sequence[str],
        encoded: Ids,
        texts: Sequence[str],
        targets: Ids,
        found: Sequence[Sequence[float]],
        context: CallContext,
    ) -> None:
        """Show the lenses targets that were scored, as if they had been written."""
        seen = []
        for source, ids, text, target, values in zip(
            sources, encoded, texts, targets, found, strict=True
        ):
            pieces = self._pieces_of_head([*target, END], source, ids)
            total = sum(values)
            seen.append((source, ids, Output(text, total, pieces, [], total, ids=target)))
        self._record(seen, context, forced=True)

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]], context: CallContext
    ) -> dict[int, NDArray[np.float32]]:
        """The attention of each best hypothesis: one more pass, after search at full speed."""
        places = [place for place, hypotheses in enumerate(found) if hypotheses]
        before = self._before(context)
        targets = [[*before, *found[place][0].tokens] for place in places]
        with inference(self):
            read = [sources[place] for place in places]
            maps = attention_to_source(self.network, read, targets, context)
        return {p: m[:, :, len(before) :] for p, m in zip(places, maps or [], strict=False)}

    def _read(self, asked: ReadRequest) -> list[Reading]:
        names, sources, targets, top, forced, context = asked
        network = self.network if forced else self._search_network
        assert isinstance(network, EncoderDecoder)
        whole = [[*self._before(context), *ids] for ids in targets]
        return read_forced(network, names, sources, whole, top, context)

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        whole = [*self._before(context), *output.ids]
        written = self._pieces_of_head([*whole, END], source, ids)
        read = self._pieces_of_head([BEGIN, *whole], source, ids)
        return Labels(self._pieces(source, ids), written, read, list(ids))

    def _log_probabilities(
        self, sources: Ids, targets: Ids, context: CallContext = NO_CONTEXT
    ) -> list[list[float]]:
        """The log-probability of each token of each target, END included, as `score` gives it."""
        if self.is_bidirectional:
            return self._directions(sources, targets, context).mean()
        return self._left_to_right(sources, targets, context)

    def _directions(
        self, sources: Ids, targets: Ids, context: CallContext = NO_CONTEXT
    ) -> Directions:
        return score_directions(
            lambda read, written: self._left_to_right(read, written, context), sources, targets
        )

    def _left_to_right(
        self, sources: Rows, targets: Rows, context: CallContext = NO_CONTEXT
    ) -> list[list[float]]:
        before = self._before(context)
        whole = [[*before, *ids] for ids in targets] if before else targets
        with inference(self):
            if self.engine:
                return self.engine.log_probabilities(sources, targets)
            found = log_probabilities(self.network, sources, whole, context)
        return [values[len(before) :] for values in found]


def _max_lengths(model: GenerativeModel) -> tuple[int, int]:
    """The longest source and target, including END, that a model has positions for."""
    source, target = (
        max_source_length(model.recipe.model),
        max_length_of(model.recipe.model.decoder),
    )
    if model.engine:
        return min(source, model.engine.max_source_length), min(
            target, model.engine.max_target_length
        )
    return source, target
