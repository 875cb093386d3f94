"""The task language_modeling: a language model that continues prompts and scores texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transduce.data.text.pairs import is_running
from transduce.data.text.unicode import continued
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.decoding.batch.decode import BatchDecoder, Bounds
from transduce.decoding.output import Output, Score
from transduce.decoding.readings import Reading, ReadRequest
from transduce.decoding.run_lens import Labels
from transduce.decoding.score import language_model as reading
from transduce.decoding.score.context import SlidingWindow
from transduce.decoding.score.language_model import Rows
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.settings import Settings
from transduce.errors import ModelError
from transduce.models.build import build_language_model
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.language_model import LanguageModelNetwork
from transduce.recipe import Recipe
from transduce.runtime.steps import steps_of
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.model import check_sources, inference


@dataclass(frozen=True)
class Continuation:
    """A prompt and its continuation, as ids."""

    prompt: list[int]
    tokens: list[int]


class LanguageModel(GenerativeModel, task="language_modeling"):
    """A decoder-only language model.

    `transduce.load` returns it for `task: language_modeling`.

        model = transduce.load("runs/shakespeare")
        model("ROMEO:", sample=True, temperature=0.8)
        model.score(["To be, or not to be"])
    """

    needs_source = False
    network: LanguageModelNetwork

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> LanguageModelNetwork:
        return build_language_model(recipe.model, len(target_tokens))

    @property
    def window(self) -> int:
        """The context window: the most tokens after BEGIN, as in training."""
        return self.recipe.data.max_length + (not self.endless)  # and END

    @property
    def endless(self) -> bool:
        """Whether it was trained on running text, which has no END tokens."""
        return is_running(self.recipe.data.train)

    # ------------------------------------------------------------------------------- use

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str] | None = None,
        *,
        attention: bool = False,
    ) -> list[Score]:
        """Score texts: the log-probability of each of their tokens.

        With targets, the sources are prompts and the targets their continuations. END is included
        where the model was trained on texts with an end.
        """
        if attention:
            self._unsupported("attend to a source")
        sources = check_sources(sources)
        if targets is None:
            prompts: Ids = [[] for _ in sources]
            written = self.target_tokens.encode_batch(sources)
        else:
            targets = check_sources(targets)
            if len(sources) != len(targets):
                raise ModelError(f"there are {len(sources)} prompts, but {len(targets)} targets")
            prompts = self.target_tokens.encode_batch(sources)
            written = self._encode_following(prompts, targets)
        end = [] if self.endless else [END]
        written = [[*ids, *end] for ids in written]
        found = self.log_probabilities(written, after=prompts)
        scores = [
            Score(self.target_tokens.pieces(ids), values.tolist())
            for ids, values in zip(written, found, strict=True)
        ]
        if self._lenses:
            rows = zip(sources, targets or sources, prompts, written, found, strict=True)
            seen = [(s, p, self._forced(t, w, v)) for s, t, p, w, v in rows]
            self._record(seen, forced=True)
        return scores

    def log_probabilities(self, texts: Rows, after: Ids | None = None) -> list[NDArray[np.float64]]:
        """The log-probability of each token of texts given as ids, each after its prompt."""
        prompts = after or [[] for _ in texts]
        whole = [
            [*prompt, *text] if prompt else text
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        with inference(self):
            found = reading.log_probabilities(self.network, whole, self.window)
        return [values[len(prompt) :] for prompt, values in zip(prompts, found, strict=True)]

    def negative_log_likelihood(
        self, texts: Rows, rank: int = 0, count: int = 1
    ) -> tuple[float, int]:
        """−Σ log p of texts, and the number of tokens; process `rank` of `count` does its share."""
        with inference(self):
            return reading.negative_log_likelihood(self.network, texts, self.window, rank, count)

    def distributions(self, continuations: Sequence[Continuation]) -> list[NDArray[np.float64]]:
        """log p [tokens, vocabulary] at each step of continuations after their prompts."""
        texts = [[*one.prompt, *one.tokens] for one in continuations]
        starts = [len(one.prompt) for one in continuations]
        with inference(self):
            return reading.distributions(self.network, texts, starts, self.window)

    # ------------------------------------------------------------------------- implementation

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        return self.target_tokens.encode_batch(sources), {}

    def _text(self, source: str, ids: list[int], tokens: Sequence[int]) -> str:
        """The prompt as given, so that its unknown characters are kept, and the continuation."""
        target_tokens = self.target_tokens
        read = target_tokens.decode_incremental(ids)
        rest = target_tokens.decode_incremental([*ids, *tokens])[len(read) :]
        return continued(source, rest, target_tokens.form)

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        prompt_pieces = self.target_tokens.pieces(ids)
        outputs = [
            Output(
                text=self._text(source, ids, h.tokens),
                score=h.score,
                tokens=self.target_tokens.pieces(h.tokens),
                source_tokens=prompt_pieces,
                log_probability=h.log_probability,
                ids=h.tokens,
            )
            for h in hypotheses
        ]
        return replace(outputs[0], alternatives=outputs if len(outputs) > 1 else [])

    def _plain_steps(self) -> SlidingWindow:
        def sliding(network: LanguageModelNetwork) -> SlidingWindow:
            return SlidingWindow(steps_of(network), self.window)

        made: SlidingWindow | None = self._packed_steps(sliding)
        return SlidingWindow(self.network, self.window) if made is None else made

    def _stepper(self, settings: Settings, context: CallContext = NO_CONTEXT) -> SlidingWindow:
        return self._plain_steps()

    def _language_model_stepper(self, settings: Settings) -> tuple[SlidingWindow, bool]:
        return self._plain_steps(), self.endless

    def _bounds(
        self, settings: Settings, models: Sequence[GenerativeModel], context: CallContext
    ) -> Bounds:
        # No maximum position: the context window slides.
        tokens = self.recipe.decode.max_extra
        return Bounds(0.0, tokens + 1, sys.maxsize, settings.max_length)

    def _configure(self, task: BatchDecoder) -> BatchDecoder:
        return replace(task, prompted=True, endless=self.endless)

    def _score_texts(
        self, sources: list[str], texts: list[str], context: CallContext
    ) -> tuple[list[float | None], dict[int, str]]:
        prompts = self.target_tokens.encode_batch(sources)
        following = [text[len(source) :] for source, text in zip(sources, texts, strict=True)]
        written = self._encode_following(prompts, following)
        found = self.log_probabilities(written, after=prompts)
        if self._lenses:
            rows = zip(sources, prompts, texts, written, found, strict=True)
            seen = [(s, p, self._forced(t, w, v)) for s, p, t, w, v in rows]
            self._record(seen, forced=True)
        return [float(values.sum()) for values in found], {}

    def _record_fused(self, seen: Sequence[tuple[str, str, Hypothesis]]) -> None:
        end = [] if self.endless else [END]
        written = [[*hypothesis.tokens, *end] for *_, hypothesis in seen]
        found = self.log_probabilities(written)
        rows = zip(seen, written, found, strict=True)
        self._record([(source, [], self._forced(t, w, v)) for (source, t, _), w, v in rows])

    def _forced(self, text: str, ids: list[int], values: NDArray[np.float64]) -> Output:
        """A text that was scored, as if it had been written."""
        total = float(values.sum())
        pieces = self.target_tokens.pieces(ids)
        return Output(text, total, pieces, log_probability=total, ids=ids)

    def _read(self, asked: ReadRequest) -> list[Reading]:
        network = self.network if asked.forced else self._search_network
        assert isinstance(network, LanguageModelNetwork)
        pairs = zip(asked.sources, asked.targets, strict=True)
        texts = [[*prompt, *text] for prompt, text in pairs]
        longest = max(map(len, texts), default=0)
        if longest > self.window:
            raise ModelError(
                f"a lens shows texts of up to {self.window} tokens, the context window, and one "
                f"has {longest} with its prompt; lower max_length, or score shorter texts"
            )
        return reading.read_texts(network, asked.names, texts, asked.top)

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        prompt, text = self.target_tokens.pieces(ids), [*ids, *output.ids]
        read = self.target_tokens.pieces([BEGIN, *text[:-1]])
        return Labels(prompt, self.target_tokens.pieces(text), read, list(ids))

    def _encode_following(self, prompts: Ids, texts: Sequence[str]) -> Ids:
        """The ids of texts that directly follow prompts."""
        begins = [not prompt for prompt in prompts]
        return self.target_tokens.encode_lines(list(zip(texts, begins, strict=True)))
