"""Search after a prompt, by rules on which tokens may come next; encoder states are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from transduce.decoding.cuda.audio_search import AudioTask
from transduce.decoding.lens import Labels
from transduce.decoding.output import Output
from transduce.decoding.score.given import attention_to_source
from transduce.decoding.search.greedy import Hypothesis, Stepper
from transduce.decoding.settings import Settings
from transduce.decoding.whisper.encoder_cache import EncoderCache
from transduce.decoding.whisper.steps import Encode, PromptedSteps, RecordedRules, Rules, Steps
from transduce.models.build import Vocabulary, build_audio
from transduce.models.memory import Memory
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import Recipe
from transduce.recipe.audio import Prompt
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.model import inference
from transduce.tasks.speech import SpeechModel


class PromptedSpeechModel(SpeechModel):
    """Base of speech models whose outputs begin with a prompt (audio.prompt in the recipe)."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._prompt: tuple[int, ...] | None = None
        """The prompt of what is being decoded; see `prompted`."""
        self._encoder: EncoderCache | None = None

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

    # ------------------------------------------------------------- within a prompt

    @contextmanager
    def prompted(self, prompt: tuple[int, ...], *others: GenerativeModel) -> Iterator[None]:
        """Within, outputs of this model, and of others in an ensemble, come after a prompt."""
        models = [one for one in (self, *others) if isinstance(one, PromptedSpeechModel)]
        before = [model._prompt for model in models]
        for model in models:
            model._prompt = prompt
        try:
            yield
        finally:
            for model, prompt_before in zip(models, before, strict=True):
                model._prompt = prompt_before

    @contextmanager
    def caching(self) -> Iterator[EncoderCache]:
        """Within, each recording is encoded once."""
        with inference(self):
            self._check_packed()
            if self.audio_search is not None:
                self.audio_search.copy_weights()
            before, self._encoder = (
                self._encoder,
                EncoderCache(self._steps_and_encode()[1], self.device),
            )
            try:
                yield self._encoder
            finally:
                self._encoder = before

    def memory_of(self, wave: Wave) -> Memory:
        """The encoder's states of one window."""
        encode = self._encoder or EncoderCache(self.network.encode, self.device)
        return encode.of_waves([wave])

    # ---------------------------------------------------------------------- search

    def _steps_and_encode(self) -> tuple[Steps, Encode]:
        """On a GPU those of the copy for search, which may be in bfloat16."""
        if self.audio_search is not None:
            return self.audio_search.copy, self.audio_search.copy.encode
        steps: Any = super()._stepper(Settings())
        return steps, getattr(steps, "encode", self._encoding_network.encode)

    @property
    def _encoding_network(self) -> SpeechEncoderDecoder:
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        return network

    def _stepper(self, settings: Settings) -> Stepper:
        steps: Any = super()._stepper(settings)
        assert self._prompt is not None
        encode = self._encoding

        def encoded(source_BS: Tensor, lengths_B: Tensor) -> Memory:
            return self._precise(encode(source_BS, lengths_B), self.network)

        return PromptedSteps(steps, encoded, self._prompt, self._rules, self.device)

    def _fast_search(self) -> FastSearch | None:
        search = self.audio_search
        if search is None:
            return None
        assert self._prompt is not None
        timestamps = self.prompt_tokens.no_timestamps not in self._prompt
        if timestamps not in search.rules:
            search.rules[timestamps] = RecordedRules(self._rules, timestamps, self.device)
        encode = self._encoding

        def encoded(waves: Sequence[Wave]) -> Memory:
            return self._precise(encode.of_waves(waves), search.copy)

        return AudioTask(search, encoded, self._prompt, search.rules[timestamps])

    @property
    def _rules(self) -> Rules:
        settings = self.prompt_settings
        return Rules(self.prompt_tokens, settings.suppress, settings.suppress_first)

    @property
    def _encoding(self) -> EncoderCache:
        return self._encoder or EncoderCache(self._steps_and_encode()[1], self.device)

    def _precise(self, memory: Memory, network: SpeechEncoderDecoder) -> Memory:
        """The encoder's states in the precision of a network that reads them."""
        if self.device.type == "cpu":
            return memory
        return replace(memory, states_BSD=memory.states_BSD.to(network.head.bias.dtype))

    def _bounds(self, settings: Settings, models: Sequence[GenerativeModel]) -> Bounds:
        """At most half of the decoder's positions, as the other half is for the text before."""
        bounds = super()._bounds(settings, models)
        assert self._prompt is not None
        room = bounds.room - len(self._prompt) + 1
        return replace(bounds, room=min(room, max(1, bounds.room // 2)))

    # --------------------------------------------- scores, attention and lenses

    @property
    def _before(self) -> list[int]:
        """The tokens between BEGIN and an output; what goes before BEGIN is not shown."""
        assert self._prompt is not None
        return list(self._prompt[self._prompt.index(BEGIN) + 1 :])

    def _log_probabilities(self, sources: Any, targets: Any) -> list[list[float]]:
        before = self._before
        whole = [[*before, *ids] for ids in targets]
        found: list[list[float]] = super()._log_probabilities(sources, whole)  # type: ignore[misc]
        return [values[len(before) :] for values in found]

    def _read(
        self, names: list[str], sources: Ids, targets: Ids, top: int, given: bool
    ) -> list[Reading]:
        whole = [[*self._before, *ids] for ids in targets]
        return super()._read(names, sources, whole, top, given)

    def _labels(self, source: str, ids: list[int], output: Output) -> Labels:
        labels = super()._labels(source, ids, output)
        whole = [*self._before, *output.ids]
        pieces = self.target_tokens.pieces
        return replace(
            labels, target_tokens=pieces([*whole, END]), prefix_tokens=pieces([BEGIN, *whole])
        )

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]]
    ) -> dict[int, NDArray[np.float32]]:
        places = [place for place, hypotheses in enumerate(found) if hypotheses]
        before = self._before
        targets = [[*before, *found[place][0].tokens] for place in places]
        with inference(self):
            maps = attention_to_source(self.network, [sources[p] for p in places], targets)
        return {p: m[:, :, len(before) :] for p, m in zip(places, maps or [], strict=False)}
