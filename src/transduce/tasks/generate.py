"""A model that writes by search: greedy, by a beam or drawn; as it is told, alone or not."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.text.unicode import settled
from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer
from transduce.data.tokens.tokenizer import END
from transduce.decoding.batch.decode import BatchDecoder, Bounds, Request
from transduce.decoding.combine.ctc_and_lm import ShallowFusion
from transduce.decoding.combine.ensemble import Ensemble
from transduce.decoding.combine.rerank import minimum_bayes_risk, reranked
from transduce.decoding.constraints import read as wishes
from transduce.decoding.constraints.constraint import NEVER
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.output import Output
from transduce.decoding.score.given import ATTENTION_TO_SOURCE
from transduce.decoding.search.greedy import Hypothesis, Stepper
from transduce.decoding.settings import FROM_RECIPE, Settings
from transduce.errors import ModelError
from transduce.models import Lens, TrainableNetwork
from transduce.models.hooks import is_gated, is_watched, silent_hooks
from transduce.models.trainable import modules_of
from transduce.recipe.tasks import RULES
from transduce.runtime.c_transformer import has_steps
from transduce.runtime.packed_copy import PackedCopy
from transduce.runtime.packed_weight import KINDS
from transduce.tasks.model import Model, checked, ready

Ids = list[list[int]]
WATCHED = (
    "a lens or forward hooks are on the network, so search calls its modules one by one: slower, "
    "and the same but for rounding; model.lens shows the attention of outputs at full speed"
)
GATED = (
    "gates are set, so search calls the network's modules one by one: slower, and with factors of "
    "1 the same but for rounding"
)


class GenerativeModel(Model):
    """What tasks have in common that write an output token by token.

    A task says how a source is read, how far an output goes and what it looks like as text.
    """

    needs_source: ClassVar[bool] = True
    """Whether nothing is written where a source is empty."""
    _told_of_gates = False

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: str, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **{"scores": False, **settings})[0].text

    def compute_in(self, precision: str) -> Self:
        """How search computes: auto, float32, bfloat16, or int8 on a CPU.

        auto is float32 on a CPU; on a GPU that has it bfloat16, where nothing but the best output
        is asked for. Scores of given targets and attention maps are always computed in full.
        """
        known = ("auto", *KINDS)
        if precision not in known:
            raise ModelError(f"precision is {precision}; it must be one of {', '.join(known)}")
        self.precision = precision
        self._forget()
        return self

    def to(self, device: str | torch.device) -> Self:
        self._forget()
        return super().to(device)

    def load_weights(self, path: Path) -> str:
        self._forget()
        return super().load_weights(path)

    def _forget(self) -> None:
        """What search made of a network that has changed."""
        self._fast: CudaSearch | None = None
        self._packed: PackedCopy[TrainableNetwork] | None = None
        self._steps: Stepper | None = None

    def run(
        self,
        sources: Sequence[str],
        *,
        attention: bool = False,
        prefix: str | Sequence[str] | None = None,
        include: wishes.Phrases = None,
        exclude: wishes.Phrases = None,
        ensemble: Sequence[GenerativeModel] = (),
        rerank: GenerativeModel | None = None,
        language_model: GenerativeModel | None = None,
        **settings: Any,
    ) -> list[Output]:
        """One output a source, in order. Further keywords are those of Settings.

        prefix: what outputs begin with; include, exclude: phrases that they must or must not
        contain; each for all sources, or a list with one entry a source. ensemble write together
        with this one; rerank judges the hypotheses a second time, language_model every token as
        it is written. attention: also what the best output attended to.

        Sources are sorted by length and packed into batches inside; empty ones come back empty,
        unless there is something to write after nothing. Where something could not be done, the
        output's `warning` says why.
        """
        sources = checked(sources)
        chosen = self._settings(settings)
        encoded, warnings = self._encode(sources, ensemble)
        starts = wishes.prefixes_of(prefix, len(sources), self.target_tokens)
        phrases = wishes.included(include, len(sources), self.target_tokens)
        banned = wishes.excluded(exclude, len(sources), self.target_tokens)
        if rerank is not None:
            check_generates(rerank, "to judge hypotheses")
        if chosen.mbr and rerank:
            raise ModelError("mbr and rerank each choose among the hypotheses: ask for one")
        if chosen.groups > 1 and any(phrases):
            raise ModelError("phrases to include and groups each share out the beam: ask for one")
        filled = [i for i, tokens in enumerate(encoded) if len(tokens) or not self.needs_source]
        drawn = chosen.draws
        requests = [
            Request(
                encoded[i],
                _seed(chosen.seed, sources[i]) if drawn else 0,
                starts[i],
                phrases[i],
                banned[i],
                self._states(encoded[i]),
            )
            for i in filled
        ]
        # A second judge is shown the whole beam, and its best are given back.
        searched = replace(chosen, nbest=chosen.hypotheses, scores=True) if rerank else chosen
        task = self._task(searched, ensemble, language_model)
        if attention and self.engine:
            raise ModelError(f"{self.engine.name} does not show attention: leave out the engine")
        judges = [] if language_model is None else [language_model]
        with ready(self, *ensemble, *judges):
            found = self.engine.decode(task, requests) if self.engine else task.run(requests)
        if chosen.mbr:
            words = bleu_tokenizer(self.recipe)
            found = [minimum_bayes_risk(one, self._texts(one), chosen.mbr, words) for one in found]
        if rerank:
            found = self._reranked(found, [sources[i] for i in filled], rerank, chosen)
        found = [of_one[: chosen.nbest] for of_one in found]
        maps = self._attention([encoded[i] for i in filled], found) if attention else {}
        outputs = [Output("", 0.0)] * len(sources)
        for place, (index, hypotheses) in enumerate(zip(filled, found, strict=True)):
            if hypotheses:
                output = self._output(sources[index], encoded[index], hypotheses)
                if place in maps or index in warnings:
                    warning = warnings.get(index, "") or output.warning
                    output = replace(output, attention=maps.get(place), warning=warning)
                outputs[index] = output
            else:
                why = task.failed.get(place) or self._nothing(ensemble)
                outputs[index] = Output("", NEVER, warning=why)
        for model in (self, *ensemble):
            if model._lenses:
                model._look(
                    [
                        (sources[index], encoded[index], output)
                        for index, of_one in zip(filled, found, strict=True)
                        for output in (outputs[index].alternatives or [outputs[index]])
                        if of_one
                    ]
                )
        return outputs

    def stream(
        self,
        source: str,
        *,
        prefix: str = "",
        exclude: wishes.Phrases = None,
        ensemble: Sequence[GenerativeModel] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """The output of one source, piece by piece as it is written, the prefix first.

        Greedy, or drawn with sample=True: a beam changes its mind, and has nothing to show before
        the end. The pieces joined are the text that `run` gives with beam=1.
        """
        (source,) = checked([source])
        chosen = self._settings({"beam": 1, **settings})
        if chosen.hypotheses > 1 or chosen.mbr:
            raise ModelError("a stream follows one hypothesis: beam, nbest and groups must be 1")
        (encoded,), _ = self._encode([source], ensemble)
        if not len(encoded) and self.needs_source:
            return
        (start,) = wishes.prefixes_of(prefix, 1, self.target_tokens)
        (banned,) = wishes.excluded(exclude, 1, self.target_tokens)
        seed, states = _seed(chosen.seed, source), self._states(encoded)
        request = Request(encoded, seed, start, (), banned, states)
        # What is worth how much shows only at the end: no need to watch attention.
        task = self._task(replace(chosen, coverage_penalty=0.0), ensemble)
        following = None
        written: list[int] = []
        shown = ""
        while True:
            # The caller's own work between two pieces must not run in inference mode.
            with ready(self, *ensemble):
                following = following or self._follow(task, request)
                token = next(following, END)
            if token == END:
                break
            written.append(token)
            text = self._text(source, encoded, written)
            if self.target_tokens.form is not None:
                text = settled(text)  # an accent may follow the last letter
            # A character of several bytes is not whole yet: wait for the rest.
            if text.startswith(shown) and text != shown and not text.endswith("\ufffd"):
                yield text[len(shown) :]
                shown = text
        text = self._text(source, encoded, written)
        if text != shown and text.startswith(shown):
            yield text[len(shown) :]

    # ------------------------------------------------------------------------- what a task says

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        """The ids of sources, and what to say of those that are not read whole."""
        raise NotImplementedError

    def _states(self, source: list[int]) -> int | None:
        """How many states a source becomes; None: as its tokens say."""
        return None

    def _text(self, source: str, ids: list[int], tokens: Sequence[int]) -> str:
        """An output as text; the tokens are what was written."""
        return self.target_tokens.decode(tokens)

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        """The best of the hypotheses, and the others as its alternatives."""
        raise NotImplementedError

    def _stepper(self, settings: Settings) -> Stepper:
        """What search steps through."""
        raise NotImplementedError

    def _as_language(self, settings: Settings) -> tuple[Stepper, bool]:
        """The same of a language model that judges another's words, and whether it is endless."""
        raise ModelError(
            f"a {RULES[self.recipe.task].about} is no language model: give one of task: continue"
        )

    def _bounds(self, settings: Settings, models: Sequence[GenerativeModel]) -> Bounds:
        """How long an output may become."""
        raise NotImplementedError

    def _shape(self, task: BatchDecoder) -> BatchDecoder:
        """The task as it is to be searched."""
        return task

    def _worth(self, sources: list[str], texts: list[str]) -> list[float]:
        """The log-probability of each source's output, of which another model has the text."""
        raise NotImplementedError

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]]
    ) -> dict[int, NDArray[np.float32]]:
        """What each best hypothesis attends to, by its place."""
        self._cannot("attend to a source")

    # -------------------------------------------------------------------------- how it is done

    @property
    def _search_network(self) -> TrainableNetwork:
        """What search multiplies with: on a CPU a copy that is packed for it."""
        if self.device.type != "cpu":
            if self.precision == "int8":
                raise ModelError(f"int8 is for a CPU, not for {self.device}; try bfloat16")
            return self.network
        if self.engine:  # it searches by itself
            return self.network
        kind = "float32" if self.precision == "auto" else self.precision
        if kind == "float32" and not (self.network.as_built and has_steps(self.network)):
            return self.network
        if kind != "float32" and not self.network.as_built:
            raise ModelError(
                f"{kind} is for networks as the recipe builds them, and this one was changed: use "
                f"float32"
            )
        if self._packed is None:
            self._packed = PackedCopy(self.network, kind)
        return self._packed.network

    def _check_packed(self) -> None:
        """Forget what was packed from weights that are others now. Once a search: it reads all."""
        if self._packed is None or (self.frozen and not self.network.training):
            return
        if not self._packed.fits(self.network):
            self._packed = self._steps = None

    def _settings(self, given: dict[str, Any]) -> Settings:
        """What was asked for, and what the recipe says of the rest."""
        known = [f.name for f in fields(Settings)]
        for name in given:
            if name not in known:
                raise ModelError(f"run knows no setting {name}; it knows {', '.join(known)}")
        chosen = Settings(**given)
        if chosen.ctc_weight and self.recipe.audio is None:
            raise ModelError("ctc judges what is heard, and this model reads: leave it out")
        unsaid = [name for name in FROM_RECIPE if getattr(chosen, name) is None]
        return replace(chosen, **{name: getattr(self.recipe.decode, name) for name in unsaid})

    def _task(
        self,
        settings: Settings,
        ensemble: Sequence[GenerativeModel],
        language_model: GenerativeModel | None = None,
    ) -> BatchDecoder:
        models = [self, *ensemble]
        for number, other in enumerate(ensemble, start=2):
            self._check_partner(other, number)
        if language_model is not None:
            check_generates(language_model, "as a language model")
        for model in [*models, *([] if language_model is None else [language_model])]:
            model._check_packed()
        engine = next((model.engine for model in models if model.engine), None)
        others = ensemble or language_model
        if engine and (others or settings.coverage_penalty):
            what = "write together with other models" if others else "count coverage"
            raise ModelError(f"{engine.name} cannot {what}: leave that out, or the engine")
        watched = any(not m.engine and m._is_watched() for m in models)
        steppers = [model._stepper(settings) for model in models]
        stepper = steppers[0]
        attention = None
        if settings.coverage_penalty:
            parts = list(Lens(self._search_network, *ATTENTION_TO_SOURCE).parts.values())
            if not parts:
                raise ModelError(
                    "coverage_penalty counts attention to the source; this model has none"
                )
            attention = parts[-1]
        if ensemble:
            stepper = Ensemble(steppers, geometric=settings.geometric)
        if language_model is not None:
            stepper = self._with_language(stepper, language_model, settings)
        return self._shape(
            BatchDecoder(
                model=stepper,
                settings=settings,
                bounds=self._bounds(settings, models),
                device=self.device,
                allowed=wishes.allowed(settings.only, self.target_tokens),
                vocabulary=len(self.target_tokens),
                attention=attention,
                fast=None if others or watched else self._fast_search(),
                # An engine has threads of its own; what another process sees, nobody here does.
                workers=1 if engine or watched else self.workers,
            )
        )

    def _is_watched(self) -> bool:
        """Whether a lens or forward hooks are on the network: search then calls every module."""
        if not is_watched(modules_of(self.network)):
            return False
        if is_gated(modules_of(self.network)):
            if not self._told_of_gates:
                warnings.warn(GATED, stacklevel=5)
            self._told_of_gates = True
        else:
            warnings.warn(WATCHED, stacklevel=5)
        if silent := silent_hooks(self.network):
            named = ", ".join(silent[:3]) + (", …" if len(silent) > 3 else "")
            warnings.warn(
                f"search never calls {named}, and forward hooks there see nothing: put them on the "
                f"encoder, the decoder or the head, on their blocks, or on an attention or "
                f"feed-forward module in these",
                stacklevel=5,
            )
        return True

    def _with_language(
        self, own: Stepper, language: GenerativeModel, settings: Settings
    ) -> Stepper:
        stepper, endless = language._as_language(settings)
        if language.target_tokens.to_json() != self.target_tokens.to_json():
            raise ModelError(
                "the language model has other tokens than what is written: train it with the same "
                "(data.tokens: {both: {file: MODEL/target.tokens.json}})"
            )
        if language.device != self.device:
            raise ModelError(
                f"the language model is on {language.device}, the other on {self.device}: load "
                f"both on the same device"
            )
        return ShallowFusion(own, stepper, settings.lm_weight, endless)

    def _fast_search(self) -> CudaSearch | None:
        return None

    def _check_partner(self, other: GenerativeModel, number: int) -> None:
        if other.recipe.task != self.recipe.task:
            raise ModelError(
                f"model {number} of the ensemble does the task {other.recipe.task}, the first "
                f"{self.recipe.task}: they must do the same"
            )
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

    def _nothing(self, ensemble: Sequence[GenerativeModel]) -> str:
        """Why a search has found nothing. Raises ModelError where weights are no numbers."""
        for model in () if self.engine else (self, *ensemble):
            if not all(bool(p.isfinite().all()) for p in model.network.parameters()):
                raise ModelError("the model's weights are damaged: some are no numbers")
        return "no output was found that fulfils all that was asked of it at once"

    def _reranked(
        self,
        found: list[list[Hypothesis]],
        sources: list[str],
        judge: GenerativeModel,
        settings: Settings,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source, judged by a second model too; it reads their texts."""
        encoded, _ = self._encode(sources)
        repeated = [s for s, of_one in zip(sources, found, strict=True) for _ in of_one]
        texts = [
            self._text(source, ids, hypothesis.tokens)
            for source, ids, of_one in zip(sources, encoded, found, strict=True)
            for hypothesis in of_one
        ]
        worth = iter(judge._worth(repeated, texts))
        weight, power = settings.rerank_weight, settings.length_penalty or 0.0
        return [reranked(of_one, [next(worth) for _ in of_one], weight, power) for of_one in found]

    def _follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        return self.engine.follow(task, request) if self.engine else task.follow(request)

    def _texts(self, hypotheses: list[Hypothesis]) -> list[str]:
        return [self.target_tokens.decode(h.tokens) for h in hypotheses]


def check_generates(model: Model, use: str) -> None:
    """Raise ModelError where a model cannot score the tokens of another."""
    if not isinstance(model, GenerativeModel):
        about = RULES[model.recipe.task].about
        raise ModelError(f"a {about} cannot be used {use}: it writes no tokens")


def _seed(seed: int, source: str) -> int:
    """A seed of each sentence's own, so that neighbours do not change what is drawn."""
    return (seed * 1_000_003 + zlib.crc32(source.encode("utf-8", "surrogatepass"))) % 2**62
