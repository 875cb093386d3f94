"""Search after a prompt, by rules on which tokens may come next; encoder states are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.attention import Reading
from transduce.decoding.batch.decode import Bounds, FastSearch
from transduce.decoding.cuda.pool import AudioTask
from transduce.decoding.lens import Labels
from transduce.decoding.output import Output
from transduce.decoding.score.given import attention_to_source
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.stepper import Stepper
from transduce.decoding.settings import Settings
from transduce.decoding.whisper.encoder_cache import EncoderCache
from transduce.decoding.whisper.steps import Encode, PromptedSteps, RecordedRules, Rules, Steps
from transduce.errors import ModelError
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build_audio
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.memory import Memory
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import Recipe
from transduce.recipe.audio import Prompt
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.model import inference
from transduce.tasks.speech import SpeechModel


@dataclass(frozen=True)
class PromptContext(CallContext):
    """The context of a call whose outputs come after a prompt."""

    prompt: tuple[int, ...] = ()
    """The tokens before an output, BEGIN among them."""
    encoder: EncoderCache | None = None
    """What was encoded already, of the same call; None: each search encodes for itself."""

    @property
    def before(self) -> list[int]:
        """The tokens between BEGIN and an output; what goes before BEGIN is not shown."""
        return list(self.prompt[self.prompt.index(BEGIN) + 1 :])


def _prompted(context: CallContext) -> PromptContext:
    assert isinstance(context, PromptContext)
    return context


class PromptedSpeechModel(SpeechModel):
    """Base of speech models whose outputs begin with a prompt (audio.prompt in the recipe)."""

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechEncoderDecoder:
        assert recipe.audio is not None
        assert recipe.audio.prompt is not None
        network = build_audio(
            recipe.model, recipe.audio, Vocabulary(len(source_tokens), len(target_tokens))
        )
        if "|notimestamps|" in target_tokens.tags:  # else only its parameters are counted
            known = PromptTokens.of(target_tokens)
            network.unscored = (known.first_special, known.first_timestamp)
        return network

    @cached_property
    def prompt_tokens(self) -> PromptTokens:
        return PromptTokens.of(self.target_tokens, self.prompt_settings.multilingual)

    @property
    def prompt_settings(self) -> Prompt:
        assert self.audio.prompt is not None
        return self.audio.prompt

    def encoder_cache(self) -> EncoderCache:
        """Encodes each recording of a call once, with the weights of now."""
        with inference(self):
            self._check_packed()
            if self.audio_search is not None:
                self.audio_search.copy_weights()
            return EncoderCache(self._steps_and_encode()[1], self.device)

    # ---------------------------------------------------------------------- search

    def _steps_and_encode(self) -> tuple[Steps, Encode]:
        """On a GPU those of the copy for search, which may be in bfloat16."""
        if self.audio_search is not None:
            return self.audio_search.copy, self.audio_search.copy.encode
        steps = self._plain_steps()
        return steps, getattr(steps, "encode", self._encoding_network.encode)

    @property
    def _encoding_network(self) -> SpeechEncoderDecoder:
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        return network

    def _stepper(self, settings: Settings, context: CallContext = NO_CONTEXT) -> Stepper:
        if settings.ctc_weight:
            raise ModelError("ctc_weight needs a model trained with CTC, and Whisper has none")
        own, encode = _prompted(context), self._encoding(context)

        def encoded(source_BS: Tensor, lengths_B: Tensor) -> Memory:
            return self._precise(encode(source_BS, lengths_B), self.network)

        steps = self._plain_steps()
        return PromptedSteps(steps, encoded, own.prompt, self._rules, self.device, context)

    def _fast_search(self, context: CallContext) -> FastSearch | None:
        search = self.audio_search
        if search is None:
            return None
        own, encode = _prompted(context), self._encoding(context)
        timestamps = self.prompt_tokens.no_timestamps not in own.prompt
        if timestamps not in search.rules:
            search.rules[timestamps] = RecordedRules(self._rules, timestamps, self.device)

        def encoded(waves: Sequence[Wave]) -> Memory:
            return self._precise(encode.of_waves(waves), search.copy)

        return AudioTask(search, encoded, own.prompt, search.rules[timestamps])

    @property
    def _rules(self) -> Rules:
        settings = self.prompt_settings
        return Rules(self.prompt_tokens, settings.suppress, settings.suppress_first)

    def _encoding(self, context: CallContext) -> EncoderCache:
        return _prompted(context).encoder or EncoderCache(self._steps_and_encode()[1], self.device)

    def _precise(self, memory: Memory, network: EncoderDecoder) -> Memory:
        """The encoder's states in the precision of a network that reads them."""
        if self.device.type == "cpu":
            return memory
        return replace(memory, states_BSD=memory.states_BSD.to(network.head.bias.dtype))

    def _bounds(
        self, settings: Settings, models: Sequence[GenerativeModel], context: CallContext
    ) -> Bounds:
        """At most half of the decoder's positions, as the other half is for the text before."""
        bounds = super()._bounds(settings, models, context)
        room = bounds.room - len(_prompted(context).prompt) + 1
        return replace(bounds, room=min(room, max(1, bounds.room // 2)))

    # --------------------------------------------- scores, attention and lenses

    def _log_probabilities(
        self, sources: Any, targets: Any, context: CallContext = NO_CONTEXT
    ) -> list[list[float]]:
        before = _prompted(context).before
        whole = [[*before, *ids] for ids in targets]
        found: list[list[float]] = super()._log_probabilities(sources, whole, context)  # type: ignore[misc]
        return [values[len(before) :] for values in found]

    def _target_room(self, context: CallContext) -> int:
        room: int = super()._target_room(context)  # type: ignore[misc]
        return room - len(_prompted(context).before)

    def _read(
        self,
        names: list[str],
        sources: Ids,
        targets: Ids,
        top: int,
        given: bool,
        context: CallContext,
    ) -> list[Reading]:
        whole = [[*_prompted(context).before, *ids] for ids in targets]
        return super()._read(names, sources, whole, top, given, context)

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        labels = super()._labels(source, ids, output, context)
        whole = [*_prompted(context).before, *output.ids]
        pieces = self.target_tokens.pieces
        return replace(
            labels, target_tokens=pieces([*whole, END]), prefix_tokens=pieces([BEGIN, *whole])
        )

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]], context: CallContext
    ) -> dict[int, NDArray[np.float32]]:
        places = [place for place, hypotheses in enumerate(found) if hypotheses]
        before = _prompted(context).before
        targets = [[*before, *found[place][0].tokens] for place in places]
        with inference(self):
            read = [sources[place] for place in places]
            maps = attention_to_source(self.network, read, targets, context)
        return {p: m[:, :, len(before) :] for p, m in zip(places, maps or [], strict=False)}
