"""Utterances of live recognition: partial transcripts, and final ones by attention rescoring, with
shallow fusion of a language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unicodedata import combining

import numpy as np
import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, Tokens
from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.combine.ngram_fusion import PlaceScorer, scorer_of
from transduce.decoding.constraints.hotwords import HotwordScores, HotwordTree
from transduce.decoding.constraints.read import hotwords_of
from transduce.decoding.output import TimedWord
from transduce.decoding.speech.confidence import geometric_mean
from transduce.decoding.speech.rescore import attention_scores
from transduce.decoding.speech.timing import TokenTiming, words_of
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.ctc.align_batch import Emissions, Spans, align_batch
from transduce.nn.ctc.prefix_beam import Language, Prefixes
from transduce.nn.transducer.search import Hypotheses
from transduce.tasks.compatibility import check_language_model
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.live.session import Transcript
from transduce.tasks.live.settings import StreamingSettings
from transduce.tasks.model import Model

KNOWN_PREFIXES = 10_000  # hypotheses whose place among the hotwords is remembered


class Fusion:
    """log p of the next token by a language model, times a weight; it reads every new hypothesis
    from its beginning, or the last of it where that is longer than the context window. The end of
    an utterance is free of it, where the model does not know any."""

    def __init__(self, model: Model, language: LanguageModel, weight: float) -> None:
        check_language_model(model, language)
        self.network, self.window, self.weight = language.network, language.window, weight
        self.endless = language.endless

    def scores(self, tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        """Of each token [R, V] after prefixes tokens_RU, of which lengths_R tokens count."""
        first_R = (lengths_R - self.window + 1).clamp(min=0)
        kept_R = lengths_R - first_R
        place_U = torch.arange(int(kept_R.max()), device=tokens_RU.device)
        at_RU = (first_R[:, None] + place_U).clamp(max=max(tokens_RU.shape[1] - 1, 0))
        read_RU = tokens_RU.long().gather(1, at_RU)
        begin_R1 = torch.full_like(lengths_R[:, None], BEGIN)
        features_RTD = self.network(torch.cat((begin_R1, read_RU), dim=1))
        row_R = torch.arange(len(lengths_R), device=tokens_RU.device)
        logits_RV = self.network.head(features_RTD[row_R, kept_R])
        scores_RV = self.weight * torch.log_softmax(logits_RV.float(), dim=-1)
        if self.endless:
            scores_RV[:, END] = 0.0
        return scores_RV


class PrefixScores:
    """What hotwords or an n-gram model add to the score of the next token of hypotheses that CTC
    finds."""

    def __init__(self, scorer: PlaceScorer, weight: float = 1.0) -> None:
        self.scorer, self.weight = scorer, weight
        self._places: dict[tuple[int, ...], Any] = {}

    def scores(self, tokens_RU: Tensor, lengths_R: Tensor) -> Tensor:
        """Of each token [R, V] after prefixes tokens_RU, of which lengths_R tokens count."""
        rows = zip(tokens_RU.tolist(), lengths_R.tolist(), strict=True)
        places = [self._place(tuple(row[:length])) for row, length in rows]
        return self.weight * self.scorer.added(places)

    def _place(self, prefix: tuple[int, ...]) -> Any:
        if not prefix:
            return self.scorer.start
        if prefix not in self._places:
            if len(self._places) >= KNOWN_PREFIXES:
                self._places.clear()
            before = self._places.get(prefix[:-1])
            if before is None:  # of a first token, and after the places were cleared
                before = self.scorer.start
                for token in prefix[:-1]:
                    before = self.scorer.after(before, token)
            self._places[prefix] = self.scorer.after(before, prefix[-1])
        return self._places[prefix]


def added_scores(model: Model, settings: StreamingSettings) -> Language | None:
    """What the settings of live recognition add to the scores of hypotheses. Raises ModelError."""
    (tree,) = hotwords_of(settings.hotwords or None, 1, model.target_tokens)
    language = settings.language_model
    return scores_of(model, language, settings.lm_weight, tree, settings.hotword_bonus)


def scores_of(
    model: Model,
    language: LanguageModel | NgramModel | None,
    weight: float,
    tree: HotwordTree | None,
    bonus: float,
) -> Language | None:
    """What is added to the scores of hypotheses frame by frame: by a language model, and by
    hotwords; None: nothing. Raises ModelError."""
    found: list[Language] = []
    if isinstance(language, NgramModel):
        scorer = scorer_of(language, model.target_tokens, model.device)
        found.append(PrefixScores(scorer, weight).scores)
    elif language is not None:
        found.append(Fusion(model, language, weight).scores)
    if tree is not None:
        scores = HotwordScores([tree], bonus, model.device)
        found.append(PrefixScores(scores).scores)
    if len(found) < 2:
        return found[0] if found else None
    return lambda tokens_RU, lengths_R: (
        found[0](tokens_RU, lengths_R) + found[1](tokens_RU, lengths_R)
    )


Seconds = Callable[["Utterance", float], float]
"""The time of a state of an utterance in its session."""


class BestHypothesis(NamedTuple):
    """The best hypothesis so far."""

    ids: list[int]
    frames: list[int]
    """The encoder state at which each token is most probable."""
    probabilities: list[float]
    agreed: int
    """So many of its tokens are also the first of all other hypotheses."""


def best_hypotheses(prefixes: Prefixes | Hypotheses) -> list[BestHypothesis]:
    """The best hypothesis of each row."""
    lengths_BN = prefixes.lengths_BN
    place_U = torch.arange(prefixes.marks_BNU2.shape[2], device=lengths_BN.device)
    tokens_BNU = prefixes.tokens_BNU
    same_BNU = (tokens_BNU == tokens_BNU[:, :1]) & (place_U < lengths_BN[..., None])
    same_BNU &= (place_U < lengths_BN[:, :1])[:, None]
    agreed_BN = same_BNU.int().cumprod(dim=2).sum(dim=2)
    # Those that do not exist disagree with nobody.
    dead_BN = prefixes.score_BN == -torch.inf
    agreed_B = torch.where(dead_BN, lengths_BN[:, :1], agreed_BN).amin(dim=1)
    maximum = int(lengths_BN[:, 0].max())
    marks = prefixes.marks_BNU2[:, 0, :maximum].tolist()
    spoken = prefixes.spoken_BNU[:, 0, :maximum].exp().tolist()
    rows = zip(marks, spoken, lengths_BN[:, 0].tolist(), agreed_B.tolist(), strict=True)
    return [
        BestHypothesis(
            [token for token, _ in of_one[:length]],
            [frame for _, frame in of_one[:length]],
            values[:length],
            agreed,
        )
        for of_one, values, length, agreed in rows
    ]


class Utterance:
    """The running utterance of a session."""

    def __init__(self, number: int, start: int) -> None:
        """start: its first sample in the session."""
        self.number, self.start = number, start
        self.chunks: list[Tensor] = []
        """Encoder states."""
        self.states = 0
        self.silence = 0
        """States of silence at its end."""
        self.ids: list[int] = []
        self.text = ""
        self.shown: str | None = None
        """The text of the last partial transcript."""
        self.stable = 0

    def add(self, states_TD: Tensor, silent: int) -> None:
        """More states, of which so many at the end are silence."""
        self.chunks.append(states_TD)
        self.states += len(states_TD)
        self.silence = self.silence + silent if silent == len(states_TD) else silent

    def partial(self, best: BestHypothesis, tokens: Tokens, seconds: Seconds) -> Transcript | None:
        """A transcript, where the text has changed."""
        if best.ids != self.ids:
            self.ids, self.text = best.ids, tokens.decode(best.ids).strip()
        if self.text == (self.shown or ""):
            return None
        agreed = _settled(tokens.decode(best.ids[: best.agreed]), tokens.form is not None)
        self.stable = max(self.stable, _same_characters(agreed, self.text))
        self.shown = self.text
        return self.of_best(best, tokens, seconds, final=False)

    def of_best(
        self, best: BestHypothesis, tokens: Tokens, seconds: Seconds, final: bool
    ) -> Transcript:
        """The best hypothesis as a transcript, with words where their tokens were heard."""
        words = [
            TimedWord(
                tokens.decode(best.ids[start:end]).strip(),
                seconds(self, best.frames[start]),
                seconds(self, best.frames[end - 1] + 1),
                _mean(best.probabilities[start:end]),
            )
            for start, end in words_of(tokens, best.ids)
        ]
        confidence = geometric_mean(
            float(np.log(np.maximum(best.probabilities, 1e-9)).sum()), len(best.ids)
        )
        stable = len(self.text) if final else self.stable
        return self._transcript(self.text, final, words, stable, confidence, seconds)

    def final(
        self, text: str, words: list[TimedWord], confidence: float, seconds: Seconds
    ) -> Transcript:
        return self._transcript(text, True, words, len(text), confidence, seconds)

    def _transcript(
        self,
        text: str,
        final: bool,
        words: list[TimedWord],
        stable: int,
        confidence: float,
        seconds: Seconds,
    ) -> Transcript:
        end = seconds(self, self.states)
        start = words[0].start if words else seconds(self, 0)
        end = words[-1].end if words else end
        return Transcript(text, final, self.number, start, end, words, stable, confidence)


class Finals:
    """Final transcripts of utterances that are over."""

    def __init__(
        self,
        network: SpeechEncoderDecoder,
        tokens: Tokens,
        ctc_weight: float,
    ) -> None:
        self.network, self.tokens, self.weight = network, tokens, ctc_weight

    def of(
        self, utterances: Sequence[Utterance], prefixes: Prefixes, seconds: Seconds
    ) -> list[Transcript]:
        """The best of the n-best lists of utterances, with words and their times."""
        states = [torch.cat(utterance.chunks) for utterance in utterances]
        lists = _nbest(prefixes)
        language_BN = prefixes.language_BN
        if prefixes.next_BNV.shape[2]:
            language_BN = language_BN + prefixes.next_BNV[..., END]
        ctc, language = prefixes.ctc_BN.tolist(), language_BN.tolist()
        attention = None
        if self.weight < 1:
            attention = attention_scores(self.network, states, lists)
        chosen, scores = [], []
        for row, hypotheses in enumerate(lists):
            values = [self.weight * ctc[row][n] + language[row][n] for n in range(len(hypotheses))]
            if attention is not None:
                values = [
                    v + (1 - self.weight) * sum(a)
                    for v, a in zip(values, attention[row], strict=True)
                ]
            best = int(np.argmax(values))
            chosen.append(hypotheses[best])
            scores.append((ctc[row][best], [] if attention is None else attention[row][best]))
        spans = align_batch(self._emissions(states, chosen))
        rows = zip(utterances, chosen, scores, spans, strict=True)
        return [
            self._final(utterance, ids, by_ctc, by_attention, found, seconds)
            for utterance, ids, (by_ctc, by_attention), found in rows
        ]

    def _emissions(self, states: list[Tensor], chosen: list[list[int]]) -> list[Emissions]:
        """CTC's probabilities of the labels of each utterance's transcript, and of the blank."""
        lengths = [len(states_SD) for states_SD in states]
        log_probs_XV = self.network.ctc_log_probs_of(torch.cat(states))
        found = []
        for log_probs_SV, ids in zip(torch.split(log_probs_XV, lengths), chosen, strict=True):
            columns = torch.tensor([PAD, *ids], device=log_probs_SV.device)
            values = log_probs_SV.index_select(1, columns).cpu().numpy()
            repeats = np.array([n > 0 and ids[n] == ids[n - 1] for n in range(len(ids))], bool)
            found.append(Emissions(values[:, 1:], values[:, 0], repeats))
        return found

    def _final(
        self,
        utterance: Utterance,
        ids: list[int],
        by_ctc: float,
        by_attention: list[float],
        spans: Spans | None,
        seconds: Seconds,
    ) -> Transcript:
        words, by_label = [], [] if spans is None else spans.confidence_U.tolist()
        # Without the decoder, CTC's probabilities are all there is.
        share = self.weight if by_attention else 1.0
        timing = TokenTiming(by_attention or [0.0] * (len(ids) + 1), by_ctc, [], [], by_label)
        for start, end in words_of(self.tokens, ids):
            if spans is None:
                break
            words.append(
                TimedWord(
                    self.tokens.decode(ids[start:end]).strip(),
                    seconds(utterance, float(spans.first_U[start])),
                    seconds(utterance, float(spans.last_U[end - 1] + 1)),
                    timing.confidence(start, end, share),
                )
            )
        total = (1 - share) * sum(by_attention) + share * by_ctc
        confidence = geometric_mean(total, len(ids) + 1)
        return utterance.final(self.tokens.decode(ids).strip(), words, confidence, seconds)


def _mean(probabilities: Sequence[float]) -> float:
    """The geometric mean."""
    logs = [math.log(max(one, 1e-9)) for one in probabilities]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def _settled(text: str, composed: bool) -> str:
    """What of a text stays however it goes on: not a space at its end, nor bytes of a character
    that is not complete, nor, where characters are composed of several tokens, the last one."""
    text = text.strip().rstrip("\ufffd")
    while composed and text:
        last, text = text[-1], text[:-1]
        if not combining(last):
            break
    return text.rstrip()


def _same_characters(one: str, other: str) -> int:
    """How many characters two texts both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _nbest(prefixes: Prefixes) -> list[list[list[int]]]:
    """The hypotheses of each row that exist, best first."""
    alive = (prefixes.ctc_BN > -torch.inf).sum(dim=1).tolist()
    lengths, tokens = prefixes.lengths_BN.tolist(), prefixes.tokens_BNU.tolist()
    return [
        [tokens[row][n][: lengths[row][n]] for n in range(count)] for row, count in enumerate(alive)
    ]
