"""Models that generate text, and their decoder: search with constraints, ensembles and fusion."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.text.tags import without_tags
from transduce.data.text.unicode import stable_prefix
from transduce.data.tokens.bidirectional import right_to_left
from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer
from transduce.data.tokens.tokenizer import END, UNKNOWN
from transduce.decoding.batch.decode import BatchDecoder, Bounds, FastSearch, Request
from transduce.decoding.combine.bidirectional import (
    Directions,
    candidates,
    ensemble_directions,
    ranked,
)
from transduce.decoding.combine.ctc_and_lm import ShallowFusion
from transduce.decoding.combine.ensemble import Ensemble
from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.combine.ngram_fusion import PlaceSteps, scorer_of
from transduce.decoding.combine.rerank import minimum_bayes_risk, reranked
from transduce.decoding.constraints import read as constraints
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.constraints.glossary import Glossary, with_glossary
from transduce.decoding.constraints.hotwords import HOTWORD_BEAM, HotwordTree
from transduce.decoding.constraints.place_terms import Search, place_terms
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.output import Output, Score
from transduce.decoding.search.continuous_batching import Job, decode_feed
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.observer import ChosenToken, SearchObserver
from transduce.decoding.search.stepper import ContextStepper, InContext, Stepper
from transduce.decoding.settings import FROM_RECIPE, Settings
from transduce.decoding.source_limit import TRUNCATED
from transduce.decoding_settings import KINDS, SETTINGS, RunKeywords, Terms
from transduce.errors import ModelError, warn
from transduce.models import TrainableNetwork
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.hooks import is_gated, is_watched, watch_warnings
from transduce.models.lens import attentions, is_to_source
from transduce.models.trainable import modules_of
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.compatibility import (
    check_ensemble_member,
    check_finite,
    check_generates,
    check_language_model,
    check_no_copies,
)
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.members import NO_MEMBERS, Members, shared_out
from transduce.tasks.model import Model, check_sources, inference
from transduce.tasks.observer import NO_OUTPUT, PartObserver, RunObserver, SourceFeed, TokenStep
from transduce.tasks.search_copies import SearchCopies

Ids = list[list[int]]


class GenerativeModel(Model):
    """Base of models that generate token by token: `Transducer`, `LanguageModel`, `SpeechModel`.

    A subclass defines how a source is encoded, how long an output may be, and its text; its
    `decoder` does the rest.
    """

    needs_source: ClassVar[bool] = True
    """Whether the output of an empty source is empty."""
    copies: SearchCopies
    members: Members[GenerativeModel] = NO_MEMBERS
    """Models of its folder that it decodes with: an ensemble, or one for each tag."""
    _warned_of_gates = False

    @property
    def decoder(self) -> Decoder:
        """Search for its outputs."""
        return Decoder(self)

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: str, **settings: Any) -> str:
        """The text of the best output for one source; settings as in `run`."""
        return self.run([source], **{"scores": False, **settings})[0].text

    def run(
        self,
        sources: Sequence[str],
        **asked: Unpack[RunKeywords],
    ) -> list[Output]:
        """Decode sources, batched by length: one output for each, in order.

        Args:
            sources: texts; an empty one gives an empty output, except with a language model.
            **asked: the fields of `DecodingSettings`, such as beam or max_length; `seed` also as a
                list with one for each source. Besides: attention (whether outputs have their
                attention to the source); tags (of all sources, such as `["V;PST"]`; each may also
                have its own before it, as in "<V;PST> sing"); prefix (text that outputs begin with,
                for all sources or a list with one for each); include and exclude (phrases that
                outputs must or must not contain; a list of lists is one list for each source);
                hotwords (phrases, such as names, that outputs are likelier to contain, given
                likewise); glossary (translations of terms, or a file of them, for the sources that
                have these terms); ensemble (further models, whose probabilities are averaged with
                this one's, in place of those of its folder: an empty list for this model alone);
                rerank (a second model that rescores the n-best list); language_model (for shallow
                fusion); observer (is called with the tokens as they are chosen, and may cancel
                sources); and of an imported model with a token for each language source_language
                and target_language.
        """
        return self._run(sources, Call(), **asked)

    def _together(self) -> str:
        return self.members.about()

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter is in use."""
        return self._adapters is not None and self._adapters.used is not None

    def _decodes_alone(self, ensemble: Sequence[GenerativeModel] | None) -> bool:
        """Whether the models of its folder are left out: other ones are asked for, or none, or a
        lens or an adapter is on this one."""
        return ensemble is not None or bool(self._lenses) or self.is_adapted

    def _run(
        self,
        sources: Sequence[str],
        call: Call,
        own: CallContext | None = None,
        *,
        tags: Sequence[str] = (),
        **asked: Any,
    ) -> list[Output]:
        """`run`, where a call asks for tags and the like; own: the context of this model, where it
        is made already. Tags of recordings are in the call, those of texts before them."""
        sources = self.tagged(sources, tags) if tags else sources
        if not self.members.by_tag or self._decodes_alone(asked.get("ensemble")):
            return self.decoder.run(sources, call, own, **asked)
        sources = check_sources(sources)
        outputs = [Output("", 0.0)] * len(sources)
        for model, places in self._shared_out(sources):
            settings = constraints.of_sources(asked, places, len(sources))
            if asked.get("observer") is not None:
                settings["observer"] = PartObserver(asked["observer"], places)
            found = model.decoder.run([sources[place] for place in places], call, **settings)
            for place, output in zip(places, found, strict=True):
                outputs[place] = output
        return outputs

    def _shared_out(self, sources: Sequence[str]) -> list[tuple[GenerativeModel, list[int]]]:
        """The models for sources, by their tags, each with the places of its own."""
        return shared_out(self, self.members.by_tag, self.source_tokens.tags, sources)

    def run_feed(self, feed: SourceFeed, **settings: Any) -> bool:
        """Decode sources as they arrive, until there are none: each as soon as a slot is free,
        while others go on. False, and nothing is done, where this model or these settings have no
        such search."""
        return self.decoder.run_feed(feed, self.settings(**settings))

    def stream(
        self,
        source: str,
        *,
        prefix: str | Sequence[str] | None = "",
        exclude: constraints.Phrases = None,
        ensemble: Sequence[GenerativeModel] | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """Stream the output of one source as it is generated, the prefix first.

        Greedy search, or sampling with sample=True, from left to right; a beam has no final text
        before its end, and neither has bidirectional decoding. The concatenated pieces are the text
        that `run` gives with beam=1 and bidirectional=False. A lens has its entry when
        the last piece has come; its output has no score.
        """
        more = {**settings, "ensemble": ensemble}
        return self._stream(source, Call(), prefix=prefix, exclude=exclude, **more)

    def _stream(
        self,
        source: str,
        call: Call,
        own: CallContext | None = None,
        *,
        tags: Sequence[str] = (),
        **asked: Any,
    ) -> Iterator[str]:
        """`stream`, likewise."""
        (source,) = self.tagged([source], tags) if tags else [source]
        model: GenerativeModel = self
        if self.members.by_tag and not self._decodes_alone(asked.get("ensemble")):
            ((model, _),) = self._shared_out(check_sources([source]))
        return model.decoder.stream(source, call, own if model is self else None, **asked)

    def settings(self, **given: Any) -> Settings:
        """The decoding settings of a run with these keywords; the recipe has the values of those
        that are not given. Raises ModelError."""
        known = [f.name for f in fields(Settings)]
        for name in given:
            if name in known:
                continue
            kind = SETTINGS[name].kind if name in SETTINGS else "all"
            if kind != "all":
                raise ModelError(f"{name} is for {KINDS[kind]}; leave it out")
            raise ModelError(f"unknown setting {name}; choose among {', '.join(known)}")
        chosen = Settings(**given)
        if chosen.ctc_weight and self.recipe.audio is None:
            raise ModelError("ctc_weight needs a speech model, and this is a text model; omit it")
        if chosen.chunk_ms and not self._reads_chunks:
            raise ModelError(
                "chunk_ms needs a model that was trained to read in chunks (model.encoder.chunk); "
                "omit it"
            )
        if chosen.bidirectional and not self.recipe.data.bidirectional:
            raise ModelError(
                "bidirectional needs a model that was trained to write from right to left too "
                "(data.bidirectional); omit it"
            )
        unset = [name for name in FROM_RECIPE if getattr(chosen, name) is None]
        chosen = replace(chosen, **{name: getattr(self.recipe.decode, name) for name in unset})
        if chosen.bidirectional is None:
            chosen = replace(chosen, bidirectional=self.is_bidirectional)
        return chosen

    @property
    def is_bidirectional(self) -> bool:
        """Whether outputs are searched and scored in both directions, unless a call asks for
        another."""
        asked = self.recipe.decode.bidirectional
        return self.recipe.data.bidirectional if asked is None else asked

    @property
    def _reads_chunks(self) -> bool:
        """Whether it was trained to read audio in chunks."""
        return getattr(self.recipe.model.encoder, "chunk", None) is not None

    # ----------------------------------------------------------------- to define in subclasses

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        """The ids of sources, and warnings for those that were truncated."""
        raise NotImplementedError

    def _seed(self, seed: int, source: str) -> int:
        """A seed for each source, so that samples do not depend on the other sources of a batch."""
        return (seed * 1_000_003 + zlib.crc32(source.encode("utf-8", "surrogatepass"))) % 2**62

    def _states(self, source: list[int]) -> int | None:
        """The number of encoder states of a source; None: one per token and END."""
        return None

    def _pieces(self, source: str, ids: list[int]) -> list[str]:
        """The token of each position that attention to the source has; empty: unnamed."""
        return []

    def _text(self, source: str, ids: list[int], tokens: Sequence[int]) -> str:
        """The text of an output."""
        return self.target_tokens.decode(tokens)

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        """The best hypothesis as an output, with all of them as its alternatives."""
        raise NotImplementedError

    def _plain_steps(self) -> Any:
        """The steps of its network, or of the copy that search uses; in any context."""
        raise NotImplementedError

    def _stepper(self, settings: Settings, context: CallContext = NO_CONTEXT) -> Stepper:
        """The model as search uses it in a call: start and step."""
        steps: ContextStepper = self._plain_steps()
        return InContext(steps, context) if context.keywords else steps

    def _fast_search(self, context: CallContext) -> FastSearch | None:
        return None

    def _language_model_stepper(self, settings: Settings) -> tuple[Stepper, bool]:
        """The stepper of a language model for shallow fusion, and whether it never predicts END."""
        raise ModelError(
            f"a {TASK_RULES[self.recipe.task].about} cannot serve as a language model; give a "
            f"model of task: language_modeling"
        )

    def _bounds(
        self, settings: Settings, models: Sequence[GenerativeModel], context: CallContext
    ) -> Bounds:
        """The maximum length of an output."""
        raise NotImplementedError

    def _configure(self, task: BatchDecoder) -> BatchDecoder:
        """Adapt the batch decoder to this kind of model."""
        return task

    def _score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        context: CallContext,
        *,
        attention: bool = False,
    ) -> list[Score]:
        """`score`, in a context."""
        raise NotImplementedError

    def _directions(
        self, sources: Ids, targets: Ids, context: CallContext = NO_CONTEXT
    ) -> Directions:
        """The log-probability of each token of each target in both directions, END included."""
        raise NotImplementedError

    def _score_texts(
        self, sources: list[str], texts: list[str], context: CallContext
    ) -> tuple[list[float | None], dict[int, str]]:
        """The log-probability of each text given its source, to rerank another model's outputs;
        None of a text that is too long for it. And warnings for sources that were truncated."""
        raise NotImplementedError

    def _record_fused(self, seen: Sequence[tuple[str, str, Hypothesis]]) -> None:
        """Show a language model's lenses the outputs that it was fused with: their sources, texts
        and tokens."""
        raise NotImplementedError

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]], context: CallContext
    ) -> dict[int, NDArray[np.float32]]:
        """The attention of each best hypothesis to the source, by index."""
        self._unsupported("attend to a source")

    # ------------------------------------------------- copies of the network for search

    def compute_in(self, precision: str) -> Self:
        """Set the precision of search: auto, float32, bfloat16, or int8 on a CPU.

        auto: float32 on a CPU; on a GPU with bfloat16, bfloat16 for plain search without
        constraints. Scores of given targets and attention weights are always computed in float32.
        """
        self.copies = SearchCopies(precision)
        self.precision = precision
        for one in self.members.all:
            one.compute_in(precision)
        return self

    def to(self, device: str | torch.device) -> Self:
        self._weights_changed()
        for one in self.members.all:
            one.to(device)
        return super().to(device)

    def freeze(self) -> Self:
        for one in self.members.all:
            one.freeze()
        return super().freeze()

    def load_weights(self, path: Path) -> str:
        self._weights_changed()
        return super().load_weights(path)

    def _weights_changed(self) -> None:
        self.copies = SearchCopies(self.precision)

    @property
    def _search_network(self) -> TrainableNetwork:
        """The network that search uses: on a CPU a copy with packed weights."""
        packed = None if self.engine else self.copies.packed(self.network, self._file)
        return self.network if packed is None else packed.network

    def _packed_steps(self, make: Callable[[Any], Any]) -> Any:
        """The steps that `make` makes of the packed copy; None where there is none."""
        return None if self.engine else self.copies.steps(self.network, make, self._file)

    @property
    def _file(self) -> Path | None:
        """Where weights that no longer change were read from."""
        return self.origin.folder / WEIGHTS if self.frozen and self.origin else None

    def _check_packed(self) -> None:
        """Drop the packed copy if the weights have changed."""
        if not (self.frozen and not self.network.training):
            self.copies.check(self.network)

    def _is_watched(self) -> bool:
        """Whether the network has a lens or forward hooks: search then calls every module."""
        modules = modules_of(self.network)
        if not is_watched(modules):
            return False
        for message in watch_warnings(self.network, gates=not self._warned_of_gates):
            warn(message)
        self._warned_of_gates |= is_gated(modules)
        return True


@dataclass(frozen=True)
class Decoder:
    """Decodes with a model: settings, constraints, search, ensembles, fusion and reranking.

    The model says how its sources are encoded, which steps its network takes and how an output is
    read. What a call asks for is passed; what search keeps between calls is in `model.copies`.
    """

    model: GenerativeModel

    def run(
        self,
        sources: Sequence[str],
        call: Call,
        own: CallContext | None = None,
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        include: constraints.Phrases = None,
        exclude: constraints.Phrases = None,
        hotwords: constraints.Phrases = None,
        glossary: Terms | Glossary = None,
        ensemble: Sequence[GenerativeModel] | None = None,
        rerank: GenerativeModel | None = None,
        language_model: GenerativeModel | NgramModel | None = None,
        observer: RunObserver | None = None,
        **settings: Any,
    ) -> list[Output]:
        """One output for each source, in order, as `GenerativeModel.run` says.

        own: the context of this model, where it is made already.
        """
        sources, ensemble = check_sources(sources), self.ensemble_of(ensemble)
        seeds, settings = _seeds(settings, len(sources))
        chosen = self.model.settings(**settings)
        call = replace(call, chunk_ms=chosen.chunk_ms)
        contexts = self._contexts(call, own, ensemble)
        encoded, warnings = self.model._encode(sources, ensemble)
        if glossary is not None:
            include = self._with_glossary(include, glossary, sources)
        # Samples, and hypotheses of both directions or of groups, begin as they like.
        if not (chosen.draws or chosen.bidirectional or chosen.groups > 1 or self.model.engine):
            others = {"exclude": exclude, "hotwords": hotwords}
            search = partial(
                self._best_with_prefix,
                sources,
                others,
                call,
                own,
                ensemble=ensemble,
                language_model=language_model,
                **settings,
            )
            prefix, include = self._placed(sources, prefix, include, exclude, search)
        starts = constraints.prefixes_of(prefix, len(sources), self.model.target_tokens)
        phrases = constraints.included(include, len(sources), self.model.target_tokens)
        banned = constraints.excluded(exclude, len(sources), self.model.target_tokens)
        trees = self._hotwords(hotwords, len(sources))
        if rerank is not None and any(trees):
            raise ModelError(
                "hotwords and rerank cannot be combined: a reranker would undo them; leave one out"
            )
        second = NO_CONTEXT
        if rerank is not None:
            check_generates(rerank, GenerativeModel, "for reranking")
            second = rerank.context_of(replace(call, timestamps=False, previous=()))
        if chosen.mbr and rerank:
            raise ModelError("mbr and rerank cannot be combined; leave one out")
        if chosen.groups > 1 and any(phrases):
            raise ModelError(
                "include, or glossary, and groups (diverse beam search) cannot be combined; drop "
                "one"
            )
        if chosen.bidirectional:
            given = {
                "prefix": any(starts),
                "include, or glossary,": any(phrases),
                "exclude": any(banned),
                "hotwords": any(tree is not None for tree in trees),
                "a language model": language_model is not None,
                "an observer of tokens": observer is not None and bool(observer.watched),
            }
            self._check_bidirectional(chosen, given, ensemble)
        filled = [
            i for i, tokens in enumerate(encoded) if len(tokens) or not self.model.needs_source
        ]
        drawn = chosen.draws
        requests = [
            Request(
                encoded[i],
                self.model._seed(seeds[i] if seeds else chosen.seed, sources[i]) if drawn else 0,
                starts[i],
                phrases[i],
                banned[i],
                self.model._states(encoded[i]),
                trees[i],
            )
            for i in filled
        ]
        # The whole beam is scored again; the nbest of the order then are returned.
        whole = rerank is not None or chosen.bidirectional
        searched = replace(chosen, nbest=chosen.hypotheses, scores=True) if whole else chosen
        task = self.task(searched, ensemble, language_model, contexts)
        if settings.get("beam") is None:
            task = replace(task, hotword_beam=HOTWORD_BEAM)
        asked = requests
        if chosen.bidirectional:
            asked = requests + [replace(one, source=right_to_left(one.source)) for one in requests]
        if observer is not None:
            seen = TokenSteps(self.model, observer, sources, encoded, contexts[0])
            of_asked = filled * (len(asked) // max(len(requests), 1))
            task = replace(task, observer=seen.of(of_asked), workers=1)
        if attention and self.model.engine:
            raise ModelError(
                f"{self.model.engine.name} does not show attention; leave out the engine"
            )
        extra = [language_model] if isinstance(language_model, GenerativeModel) else []
        with inference(self.model, *ensemble, *extra):
            found = self.model.engine.decode(task, asked) if self.model.engine else task.run(asked)
        if chosen.bidirectional:
            found = self._in_both_directions(found, requests, ensemble, contexts, chosen)
        if chosen.mbr:
            words = bleu_tokenizer(self.model.recipe)
            needed = RunObserver() if observer is None else observer
            found = [
                minimum_bayes_risk(
                    one,
                    [self.model._text(sources[i], encoded[i], h.tokens) for h in one],
                    chosen.mbr,
                    words,
                    partial(needed.drops, i),
                )
                for i, one in zip(filled, found, strict=True)
            ]
        if rerank:
            found, unscored = self._reranked(
                found, [sources[i] for i in filled], rerank, second, chosen
            )
            for place, warning in unscored.items():
                also = warnings.get(filled[place])
                warnings[filled[place]] = f"{also}; {warning}" if also else warning
        found = [of_one[: chosen.nbest] for of_one in found]
        maps: dict[int, NDArray[np.float32]] = {}
        if attention:
            maps = self.model._attention([encoded[i] for i in filled], found, contexts[0])
        outputs = [Output("", 0.0)] * len(sources)
        for place, (index, hypotheses) in enumerate(zip(filled, found, strict=True)):
            if hypotheses:
                output = self.model._output(sources[index], encoded[index], hypotheses)
                output.note_length(task.bounds.limit(requests[place], chosen.min_length))
                if place in maps or index in warnings:
                    warning = warnings.get(index, "") or output.warning
                    output = replace(output, attention=maps.get(place), warning=warning)
                outputs[index] = output
            else:
                why = task.failed.get(place)
                if why is None and not self.model.engine:
                    check_finite([self.model, *ensemble])
                outputs[index] = Output("", NEG_INF, warning=why or NO_OUTPUT)
        for model, context in zip((self.model, *ensemble), contexts, strict=True):
            if model._lenses:
                model._record(
                    [
                        (sources[index], encoded[index], output)
                        for index, of_one in zip(filled, found, strict=True)
                        for output in (outputs[index].alternatives or [outputs[index]])
                        if of_one
                    ],
                    context,
                )
        if isinstance(language_model, GenerativeModel) and language_model._lenses:
            language_model._record_fused(
                [
                    (
                        sources[index],
                        self.model._text(sources[index], encoded[index], one.tokens),
                        one,
                    )
                    for index, of_one in zip(filled, found, strict=True)
                    for one in of_one
                ]
            )
        return outputs

    def run_feed(self, feed: SourceFeed, settings: Settings) -> bool:
        """Decode sources as they arrive, until there are none: each as soon as a slot is free,
        while others go on. False, and nothing is done, where this model or these settings have no
        such search."""
        if self.model.engine or self.model.is_watched or self.model.members.all:
            return False
        if settings.bidirectional:
            return False
        task = self.task(settings, ())
        chosen, search = task.slot_settings, task.pools
        if search is None or chosen is None or not search.takes(chosen):
            return False
        alone = search.turn if isinstance(search, CudaSearch) else nullcontext()
        with inference(self.model), alone:
            decode_feed(search, FeedOfJobs(self.model, task, feed), chosen)
        return True

    def stream(
        self,
        source: str,
        call: Call,
        own: CallContext | None = None,
        *,
        prefix: str | Sequence[str] | None = "",
        exclude: constraints.Phrases = None,
        hotwords: constraints.Phrases = None,
        ensemble: Sequence[GenerativeModel] | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        (source,), ensemble = check_sources([source]), self.ensemble_of(ensemble)
        chosen = self.model.settings(**{"beam": 1, "bidirectional": False, **settings})
        if chosen.bidirectional:
            raise ModelError(
                "stream writes from left to right, and bidirectional decoding has no text before "
                "the end of both searches; omit it"
            )
        contexts = self._contexts(replace(call, chunk_ms=chosen.chunk_ms), own, ensemble)
        if chosen.hypotheses > 1 or chosen.mbr:
            raise ModelError("stream needs a single hypothesis; set beam, nbest and groups to 1")
        (encoded,), _ = self.model._encode([source], ensemble)
        if not len(encoded) and self.model.needs_source:
            return
        (start,) = constraints.prefixes_of(prefix, 1, self.model.target_tokens)
        (banned,) = constraints.excluded(exclude, 1, self.model.target_tokens)
        (tree,) = self._hotwords(hotwords, 1)
        seed, states = self.model._seed(chosen.seed, source), self.model._states(encoded)
        request = Request(encoded, seed, start, (), banned, states, tree)
        # The coverage penalty only matters at the end: no need to compute attention.
        task = self.task(replace(chosen, coverage_penalty=0.0), ensemble, contexts=contexts)
        following, text = None, IncrementalText(self.model, source, encoded)
        while True:
            # The caller's code between two pieces must not run in inference mode.
            with inference(self.model, *ensemble):
                following = following or self._follow(task, request)
                token = next(following, END)
            if token == END:
                break
            if new := text.add(token):
                yield new
        if new := text.rest():
            yield new
        for model, context in zip((self.model, *ensemble), contexts, strict=True):
            if model._lenses:
                unscored = Hypothesis(text.written, math.nan, math.nan)
                output = self.model._output(source, encoded, [unscored])
                model._record([(source, encoded, output)], context)

    def task(
        self,
        settings: Settings,
        ensemble: Sequence[GenerativeModel],
        language_model: GenerativeModel | NgramModel | None = None,
        contexts: Sequence[CallContext] | None = None,
    ) -> BatchDecoder:
        """Search with these settings: by one model or by several, with the constraints of all
        sources."""
        models = [self.model, *ensemble]
        contexts = list(contexts or [NO_CONTEXT] * len(models))
        checked = list(models)
        if language_model is not None and not isinstance(language_model, NgramModel):
            check_generates(language_model, GenerativeModel, "as a language model")
            checked.append(language_model)
        for model in checked:
            model._check_packed()
        engine = next((model.engine for model in models if model.engine), None)
        others = ensemble or language_model
        if engine and (others or settings.coverage_penalty):
            what = "ensembles or shallow fusion" if others else "coverage_penalty"
            raise ModelError(f"{engine.name} does not support {what}; leave it out, or the engine")
        watched = any(not m.engine and m._is_watched() for m in models)
        if settings.coverage_penalty:
            if not any(map(is_to_source, attentions(self.model.network))):
                raise ModelError(
                    "coverage_penalty needs attention to the source, and this model has none; set "
                    "it to 0"
                )
            if settings.ctc_weight == 1:
                raise ModelError(
                    "coverage_penalty needs the decoder's attention, and with ctc_weight 1 the "
                    "decoder is not used; set one of them lower"
                )
            contexts[0] = replace(contexts[0], attention=True)
        steppers = [
            model._stepper(settings, context)
            for model, context in zip(models, contexts, strict=True)
        ]
        stepper = steppers[0]
        if ensemble:
            stepper = Ensemble(steppers, geometric=settings.geometric)
        if language_model is not None:
            stepper = self._with_language_model(stepper, language_model, settings)
        return self.model._configure(
            BatchDecoder(
                model=stepper,
                settings=settings,
                bounds=self.model._bounds(settings, models, contexts[0]),
                device=self.model.device,
                allowed=constraints.allowed(settings.only, self.model.target_tokens),
                vocabulary=len(self.model.target_tokens),
                silent=tuple(self.model.target_tokens.tags.values()),
                fast=None if others or watched else self.model._fast_search(contexts[0]),
                # An engine has its own threads; hooks would not see what another process computes.
                workers=1 if engine or watched else self.model.workers,
            )
        )

    # ------------------------------------------------------------------------- implementation

    def _hotwords(self, phrases: constraints.Phrases, count: int) -> list[HotwordTree | None]:
        """The hotwords of each source. Raises ModelError."""
        found = constraints.hotwords_of(phrases, count, self.model.target_tokens)
        if any(found) and self.model.engine:
            raise ModelError(
                f"{self.model.engine.name} does not support hotwords; leave them out, or the engine"
            )
        return found

    def ensemble_of(self, given: Sequence[GenerativeModel] | None) -> Sequence[GenerativeModel]:
        """The further models of an ensemble: those that are given, else those of its folder."""
        if given is None:
            return () if self.model.is_adapted else self.model.members.ensemble
        return given

    def _contexts(
        self, call: Call, own: CallContext | None, ensemble: Sequence[GenerativeModel]
    ) -> list[CallContext]:
        """The context of this model, and of each other in an ensemble with it."""
        for number, other in enumerate(ensemble, start=2):
            check_ensemble_member(self.model, other, number)
            if call.chunk_ms is not None and not other._reads_chunks:
                raise ModelError(
                    f"chunk_ms needs models that were all trained to read in chunks, and model "
                    f"{number} of the ensemble was not; omit it"
                )
        return [own or self.model.context_of(call), *(other.context_of(call) for other in ensemble)]

    def _with_glossary(
        self, include: constraints.Phrases, glossary: Terms | Glossary, sources: Sequence[str]
    ) -> constraints.Phrases:
        if self.model.recipe.audio is not None or not self.model.needs_source:
            raise ModelError("a glossary is for models from text to text; leave it out")
        tags = self.model.source_tokens.tags
        texts = [without_tags(source, tags)[1] for source in sources]
        return with_glossary(include, glossary, texts, self.model.target_tokens)

    def _placed(
        self,
        sources: Sequence[str],
        prefix: str | Sequence[str] | None,
        include: constraints.Phrases,
        exclude: constraints.Phrases,
        search: Search,
    ) -> tuple[str | Sequence[str] | None, Any]:
        """The prefixes and required phrases of sources, where those of a glossary have become part
        of the prefixes."""
        listed = constraints.phrases_of("include", include, len(sources))
        terms = [
            [one for one in of_one if isinstance(one, constraints.AnyOf) and one.term is not None]
            for of_one in listed
        ]
        if not any(terms):
            return prefix, include
        begun = [prefix or ""] * len(sources) if isinstance(prefix, str | None) else prefix

        banned = constraints.phrases_of("exclude", exclude, len(sources))

        def is_allowed(number: int, text: str) -> bool:
            known = UNKNOWN not in self.model.target_tokens.encode(text)
            return known and not any(str(phrase) in text for phrase in banned[number])

        placed = place_terms(sources, terms, begun, search, is_allowed)
        others = [
            [*(one for one in of_one if one not in of_terms), *unplaced]
            for of_one, of_terms, (_, unplaced) in zip(listed, terms, placed, strict=True)
        ]
        return [one.prefix for one in placed], others

    def _best_with_prefix(
        self,
        sources: Sequence[str],
        others: Mapping[str, Any],
        call: Call,
        own: CallContext | None,
        places: Sequence[int],
        prefixes: Sequence[str],
        **settings: Any,
    ) -> list[Output]:
        """The best output, with attention, of some of the sources, each with a prefix."""
        asked = settings | constraints.of_sources(others, places, len(sources))
        asked |= {"prefix": list(prefixes), "attention": True, "nbest": 1, "scores": True}
        return self.run([sources[place] for place in places], call, own, **asked)

    def _with_language_model(
        self, own: Stepper, language: GenerativeModel | NgramModel, settings: Settings
    ) -> Stepper:
        if isinstance(language, NgramModel):
            check_no_copies(self.model)
            scorer = scorer_of(language, self.model.target_tokens, self.model.device)
            return ShallowFusion(own, PlaceSteps(scorer), settings.lm_weight, scorer.endless)
        stepper, endless = language._language_model_stepper(settings)
        check_language_model(self.model, language)
        return ShallowFusion(own, stepper, settings.lm_weight, endless)

    def _check_bidirectional(
        self, chosen: Settings, given: dict[str, bool], ensemble: Sequence[GenerativeModel]
    ) -> None:
        """Raise ModelError for what cannot be combined with bidirectional decoding."""
        given = {
            **given,
            "sample": chosen.sample,
            "mbr": chosen.mbr is not None,
            "coverage_penalty": bool(chosen.coverage_penalty),
        }
        for name, is_given in given.items():
            if is_given:
                raise ModelError(
                    f"{name} works from left to right, and this model decodes in both directions; "
                    f"leave one out: bidirectional=False, or --no-bidirectional"
                )
        for number, other in enumerate(ensemble, start=2):
            if not other.recipe.data.bidirectional:
                raise ModelError(
                    f"model {number} of the ensemble writes from left to right alone, and the "
                    f"first decodes in both directions; use models that all do "
                    f"(data.bidirectional), or bidirectional=False, --no-bidirectional"
                )

    def _in_both_directions(
        self,
        found: list[list[Hypothesis]],
        requests: Sequence[Request],
        ensemble: Sequence[GenerativeModel],
        contexts: Sequence[CallContext],
        settings: Settings,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each request, found from left to right (the first half of `found`) or
        from right to left, by their score in both directions."""
        halves = found[: len(requests)], found[len(requests) :]
        tokens = [candidates(*both) for both in zip(*halves, strict=True)]
        read = [list(one.source) for one, some in zip(requests, tokens, strict=True) for _ in some]
        written = [ids for some in tokens for ids in some]
        each = [
            model._directions(read, written, context)
            for model, context in zip((self.model, *ensemble), contexts, strict=True)
        ]
        values = ensemble_directions(each, geometric=settings.geometric).mean()
        totals = iter(map(math.fsum, values))
        return [ranked(some, totals, settings.length_penalty or 0.0) for some in tokens]

    def _reranked(
        self,
        found: list[list[Hypothesis]],
        sources: list[str],
        reranker: GenerativeModel,
        context: CallContext,
        settings: Settings,
    ) -> tuple[list[list[Hypothesis]], dict[int, str]]:
        """The hypotheses of each source, reranked by a second model that scores their texts, and
        warnings where it could not: a text that was cut would be likelier than it is."""
        encoded, _ = self.model._encode(sources)
        repeated = [s for s, of_one in zip(sources, found, strict=True) for _ in of_one]
        texts = [
            self.model._text(source, ids, hypothesis.tokens)
            for source, ids, of_one in zip(sources, encoded, found, strict=True)
            for hypothesis in of_one
        ]
        each, cut = reranker._score_texts(repeated, texts, context)
        scores = iter(enumerate(each))
        weight, power = settings.rerank_weight, settings.length_penalty or 0.0
        rescored, warnings = [], {}
        for place, of_one in enumerate(found):
            numbered = [(one, *next(scores)) for one in of_one]
            scored = [(one, score) for one, _, score in numbered if score is not None]
            reported = [
                f"the reranker read its beginning alone: {cut[n].removesuffix(f'; {TRUNCATED}')}"
                for _, n, _ in numbered[:1]
                if n in cut
            ]
            if len(scored) < len(of_one):
                kept = "they are left out" if scored else "the order is that of the first model"
                reported.append(
                    f"{len(of_one) - len(scored)} of its {len(of_one)} hypotheses are too long for "
                    f"the reranker, and {kept}"
                )
            if reported:
                warnings[place] = "; ".join(reported)
            if scored:
                hypotheses, others = zip(*scored, strict=True)
                of_one = reranked(hypotheses, others, weight, power)
            rescored.append(of_one)
        return rescored, warnings

    def _follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        return (
            self.model.engine.follow(task, request) if self.model.engine else task.follow(request)
        )


class IncrementalText:
    """The text of an output that grows by tokens, in pieces that never change again."""

    def __init__(self, model: GenerativeModel, source: str, ids: list[int]) -> None:
        self.model, self.source, self.ids = model, source, ids
        self.written: list[int] = []
        self.shown = ""

    def add(self, token: int) -> str:
        """The text that a token adds; empty while a character is incomplete."""
        self.written.append(token)
        text = self.model._text(self.source, self.ids, self.written)
        if self.model.target_tokens.form is not None:
            text = stable_prefix(text)  # a combining accent may follow the last letter
        # An incomplete multi-byte character: wait for the rest.
        if text.endswith("\ufffd"):
            return ""
        return self._new(text)

    def would_add(self, token: int) -> str:
        """The text that a token would add; empty where that is not a whole character."""
        text = self.model._text(self.source, self.ids, [*self.written, token])
        if text.endswith("\ufffd") or not text.startswith(self.shown):
            return ""
        return text[len(self.shown) :]

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._new(self.model._text(self.source, self.ids, self.written))

    def _new(self, text: str) -> str:
        if text == self.shown or not text.startswith(self.shown):
            return ""
        new, self.shown = text[len(self.shown) :], text
        return new


class TokenSteps(SearchObserver):
    """Shows the tokens of a search as text to the observer of a run."""

    def __init__(
        self,
        model: GenerativeModel,
        observer: RunObserver,
        sources: Sequence[str],
        encoded: Sequence[list[int]],
        context: CallContext,
    ) -> None:
        self.model, self.observer, self.context = model, observer, context
        self.wanted = {place: watch.alternatives for place, watch in observer.watched.items()}
        self.encoded = encoded
        self.texts = {
            place: IncrementalText(model, sources[place], encoded[place]) for place in self.wanted
        }

    def cancelled(self) -> Collection[int]:
        return self.observer.cancelled()

    def chose(self, source: int, chosen: ChosenToken) -> None:
        text = self.texts[source]
        pieces = partial(self.model._pieces_of_head, source=text.source, ids=text.ids)
        attention, source_tokens = None, []
        if self.observer.watched[source].attention:
            so_far = Hypothesis(list(text.written), 0.0, 0.0)
            maps = self.model._attention([self.encoded[source]], [[so_far]], self.context)
            if 0 in maps:
                attention = maps[0].mean(axis=(0, 1), dtype=np.float64)[-1].round(4).tolist()
                if not text.written:
                    source_tokens = self.model._pieces(text.source, text.ids)
        last = chosen.token == END
        numbers = [number for number, _ in chosen.alternatives]
        values = [value for _, value in chosen.alternatives]
        texts = ["" if number == END else text.would_add(number) for number in numbers]
        self.observer.token(
            source,
            TokenStep(
                text=text.rest() if last else text.add(chosen.token),
                token=pieces([chosen.token])[0],
                log_probability=chosen.log_probability,
                alternatives=list(zip(pieces(numbers), values, strict=True)),
                attention=attention,
                last=last,
                alternative_texts=texts,
                source_tokens=source_tokens,
            ),
        )


class FeedOfJobs:
    """Turns the sources of a feed into jobs of the search, and hypotheses into outputs."""

    def __init__(self, model: GenerativeModel, task: BatchDecoder, feed: SourceFeed) -> None:
        self.model, self.task, self.feed = model, task, feed
        self.sources: dict[int, tuple[str, list[int], str, int]] = {}

    def more(self) -> list[tuple[int, Job]]:
        arrived = self.feed.more()
        if not arrived:
            return []
        encoded, warnings = self.model._encode([source for _, source in arrived])
        jobs, empty = [], []
        for place, ((number, source), ids) in enumerate(zip(arrived, encoded, strict=True)):
            if len(ids):
                job = self.task.job(Request(ids))
                self.sources[number] = (source, ids, warnings.get(place, ""), job.limit)
                jobs.append((number, job))
            else:
                empty.append((number, Output("", 0.0)))
        if empty:
            self.feed.done(empty)
        return jobs

    def cancelled(self) -> Collection[int]:
        return self.feed.cancelled()

    def done(self, found: list[tuple[int, list[Hypothesis]]]) -> None:
        outputs = []
        for number, hypotheses in found:
            source, ids, warning, limit = self.sources.pop(number)
            output = self.model._output(source, ids, hypotheses) if hypotheses else None
            if output is None:
                output = Output("", NEG_INF, warning=NO_OUTPUT)
            else:
                output.note_length(limit)
                output.warning = warning or output.warning
            outputs.append((number, output))
        self.feed.done(outputs)


def _seeds(settings: dict[str, Any], count: int) -> tuple[list[int], dict[str, Any]]:
    """The seeds of a list with one for each source, and the settings without it; no seeds where
    there is no list."""
    given = settings.get("seed")
    if not isinstance(given, list | tuple):
        return [], settings
    if len(given) != count:
        raise ModelError(f"seed has {len(given)} entries, but there are {count} sources")
    if not all(isinstance(one, int) for one in given):
        raise ModelError("seed must be a whole number, or a list with one for each source")
    return list(given), {name: value for name, value in settings.items() if name != "seed"}
