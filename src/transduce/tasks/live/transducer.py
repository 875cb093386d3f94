"""Live recognition with a transducer: what it writes depends on nothing that comes later.

With greedy search a transcript only grows. At the end of an utterance nothing is scored again: the
final transcript is the last partial one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.transducer import SpeechTransducer
from transduce.nn.transducer.search import Hypotheses, TransducerSearch
from transduce.tasks.audio_input import AudioInput
from transduce.tasks.live.session import Transcript
from transduce.tasks.live.settings import StreamingSettings
from transduce.tasks.live.streaming import StreamingRecogniser
from transduce.tasks.live.utterance import Utterance, best_hypotheses


class TransducerRecogniser(StreamingRecogniser[Hypotheses]):
    """A transducer with a streaming encoder."""

    def __init__(self, recordings: AudioInput, settings: StreamingSettings) -> None:
        super().__init__(recordings, settings)
        network, tokens = self.model.network, self.model.target_tokens
        assert isinstance(network, SpeechTransducer)
        banned = (BEGIN, END, *tokens.tags.values())
        self.search = TransducerSearch(network, settings.beam, PAD, banned=banned)

    def _start(self, count: int) -> Hypotheses:
        return self.search.start(count, self.model.device)

    def _search(
        self, beams: Hypotheses, states_BTD: Tensor, counts_B: Tensor
    ) -> tuple[Hypotheses, Tensor]:
        return self.search.advance(beams, states_BTD, counts_B, self.added)

    def _finals(self, utterances: Sequence[Utterance], beams: Hypotheses) -> list[Transcript]:
        found = zip(utterances, best_hypotheses(beams), strict=True)
        tokens = self.model.target_tokens
        return [
            utterance.of_best(best, tokens, self._seconds, final=True) for utterance, best in found
        ]
