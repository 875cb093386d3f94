"""A writer whose sources are audio: files of any length, cut at their pauses, with times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import torch

from transduce.data.audio.corpus import FULL_SCALE, Recorded, Wave
from transduce.data.audio.segment import parse_place
from transduce.data.audio.silence import HOP, sounding
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import END, Tokens
from transduce.decoding.batch.decode import BatchDecoder
from transduce.decoding.combine.ctc_and_lm import Beginner, CtcScorer
from transduce.decoding.output import Output, Score, TimedWord
from transduce.decoding.search.greedy import Hypothesis, Stepper, penalty
from transduce.decoding.settings import Settings
from transduce.decoding.speech.confidence import geometric_mean
from transduce.decoding.speech.timing import Account, accounts, moved_along, words_of
from transduce.decoding.speech.warnings import find_loop, skipped_stretches, visited_by_tokens
from transduce.errors import DataError, ModelError
from transduce.models.encoder_decoder import Vocabulary
from transduce.models.speech import SpeechEncoderDecoder, build_audio
from transduce.models.speech_labeller import SpeechLabeller
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioInputModel, AudioSource, Group, Piece, groups
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.join_transcripts import LENGTH, joined, placed
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import checked, ready

LISTENED_TO = 64  # recordings, to tell how far attention moves along sounds


class SpeechModel(AudioInputModel, GenerativeModel):
    """What a writer does otherwise whose sources are audio.

    model = transduce.load("runs/asterisk")
    model("prompt.wav")                             # what is said
    model(samples, rate=16000)
    model.run(["talk.flac", "talk.flac#t=60,75"], times=True)
    """

    network: SpeechEncoderDecoder

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechEncoderDecoder:
        assert recipe.audio is not None
        vocabulary = Vocabulary(len(source_tokens), len(target_tokens))
        return build_audio(recipe.model, recipe.audio, vocabulary, len(source_tokens.tags))

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: AudioSource, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **{"scores": False, **settings})[0].text

    def run(
        self,
        sources: Sequence[AudioSource],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        times: bool = False,
        **asked: Any,
    ) -> list[Output]:
        """One output a source, in order; the keywords are those of every writer.

        A source is an audio file; `talk.flac#t=60,75` is a part of one, in seconds. Or samples, a
        NumPy array or a tensor, at `rate` a second: floating point of full scale ±1, or int16.
        What is longer than anything in training is cut at its pauses, and what is said in the
        pieces joined; no more than some minutes are in memory at a time. tags: what all sources
        have as tags. times: also when each word was said, what each judge thought of it, and how
        sure the model is of each token. A file that cannot be used has a `warning`, and is
        `failed`; one of which the model is unusually unsure has a `warning`.
        """
        judge = asked.get("rerank")
        if isinstance(judge, GenerativeModel) and not isinstance(judge, SpeechModel):
            raise ModelError("what hears is judged by what hears: give a language_model instead")
        recordings = self.listen_to(sources, rate, tags)
        for group in groups(recordings):
            self._hear(group, times, asked)
        return [joined(recording, self.calibration) for recording in recordings]

    def _hear(self, group: Group, times: bool, asked: Any) -> None:
        """The pieces of a group through one search for each of their tags."""
        others = [*asked.get("ensemble", ()), asked.get("rerank")]
        lenses = [lens for model in (self, *asked.get("ensemble", ())) for lens in model._lenses]
        before = [len(lens) for lens in lenses]
        place_of = {id(entry): place for place, entry in enumerate(group)} if lenses else {}
        order: dict[int, int] = {}
        for tags, pieces, entries in self.heard(group):
            if lenses:
                order |= {id(p): place_of[id(e)] for p, e in zip(pieces, entries, strict=True)}
            with self.tagged(tags, *(other for other in others if other is not None)):
                outputs = super().run(pieces, **asked)
                # A language model's share is no part of how sure this one is.
                judged = times or asked.get("language_model") is not None
                timed = self._timed(pieces, outputs, asked) if judged else outputs
            for (recording, start, end), plain, full in zip(entries, outputs, timed, strict=True):
                output = full if times else replace(plain, confidence=full.confidence)
                recording.outputs.append(placed(output, start, end))
        for lens, start in zip(lenses, before, strict=True):  # what has other tags came later
            lens.seen[start:] = sorted(lens.seen[start:], key=lambda seen: order[id(seen.source)])

    def score(
        self,
        sources: Sequence[AudioSource],
        targets: Sequence[str],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        **asked: Any,
    ) -> list[Score]:
        """What the model thinks of given targets: the log-probability of each of their tokens.

        Sources, rate and tags are as in `run`; each is heard in one piece.
        """
        recordings, texts = self.listen_to(sources, rate, tags), checked(targets)
        if len(recordings) != len(texts):
            raise ModelError(f"there are {len(recordings)} sources, but {len(texts)} targets")
        for recording in recordings:
            if recording.trouble:
                raise DataError(recording.trouble)
        found: dict[int, Score] = {}
        before = [len(lens) for lens in self._lenses]
        for own in dict.fromkeys(recording.tags for recording in recordings):
            places = [n for n, recording in enumerate(recordings) if recording.tags == own]
            some = [recordings[n].source for n in places]
            with self.tagged(own):
                scores = super().score(some, [texts[n] for n in places], **asked)
            found |= dict(zip(places, scores, strict=True))
        for lens, start in zip(self._lenses, before, strict=True):
            looked = dict(zip(found, lens.seen[start:], strict=True))
            lens.seen[start:] = [looked[n] for n in range(len(recordings))]
        return [found[n] for n in range(len(recordings))]

    def stream(
        self,
        source: AudioSource,
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """The output of one source, piece by piece as it is written; heard in one piece."""
        (recording,) = self.listen_to([source], rate, tags)
        if recording.trouble:
            raise DataError(recording.trouble)
        with self.tagged(recording.tags, *settings.get("ensemble", ())):
            yield from super().stream(recording.source, **settings)

    def _timed(self, pieces: list[Piece], outputs: list[Output], asked: Any) -> list[Output]:
        """The outputs with what each judge thought of them, and when each word was said."""
        known = [one.name for one in fields(Settings)]
        settings = self._settings({name: asked[name] for name in known if name in asked})
        share = settings.ctc_weight or 0.0
        with ready(self):
            told = accounts(
                self.network,
                [cast("list[int]", piece.wave) for piece in pieces],
                [output.ids for output in outputs],
                ctc=self.has_same_ctc,
                follows=self.says_what_is_said,
            )
        judge = asked.get("language_model")
        timed = []
        for piece, output, account in zip(pieces, outputs, told, strict=True):
            parts = {"attention": sum(account.attention)}
            if account.ctc is not None:
                parts["ctc"] = account.ctc
            if isinstance(judge, LanguageModel):
                text = [*output.ids, *([] if judge.endless else [END])]
                parts["language_model"] = float(judge.log_probabilities([text])[0].sum())
            own = (1 - share) * parts["attention"] + share * parts.get("ctc", 0.0)
            power = settings.length_penalty or 0.0
            parts[LENGTH] = float(penalty(len(output.ids) + 1, power))
            tokens = range(len(account.attention))
            warning = output.warning or self._skipped(piece, account) or self._lost(piece, account)
            timed.append(
                replace(
                    output,
                    parts=parts,
                    words=list(self._words(output.ids, account, share)),
                    probabilities=[account.confidence(n, n + 1, share) for n in tokens],
                    confidence=geometric_mean(own, len(output.ids) + 1),
                    warning=warning,
                )
            )
        return timed

    def _words(self, ids: list[int], account: Account, share: float) -> Iterator[TimedWord]:
        if not account.first:
            return
        place = self.network.front.seconds_of
        for start, end in words_of(self.target_tokens, ids):
            yield TimedWord(
                self.target_tokens.decode(ids[start:end]).strip(),
                place(account.first[start]),
                place(account.last[end - 1] + 1),
                account.confidence(start, end, share),
            )

    def _skipped(self, piece: Piece, account: Account) -> str:
        """What to say of speech that was leapt over, as far as the tokens' places can tell."""
        if len(account.first) < len(account.attention) - 1:
            return ""
        file, start, _ = parse_place(piece)
        loud = sounding(
            piece.wave.astype(np.float32) / np.float32(FULL_SCALE), self.audio.sample_rate
        )
        states = self.network.states_of(len(piece.wave))
        seconds = [self.network.front.seconds_of(state) for state in range(states + 1)]
        at = [min(int(second / HOP), len(loud) - 1) for second in seconds[:-1]]
        first_U, last_U = torch.tensor(account.first), torch.tensor(account.last)
        visited_S = visited_by_tokens(first_U, last_U, states)
        found = skipped_stretches(visited_S, torch.from_numpy(loud[at]))
        spans = [f"{start + seconds[a]:.1f} to {start + seconds[b]:.1f} s" for a, b in found]
        return f"{file}: nothing was written of the audio from {', '.join(spans)}" if spans else ""

    def _lost(self, piece: Piece, account: Account) -> str:
        """What to say of attention that did not move along the audio as the text grew."""
        if not self.says_what_is_said or account.diagonal is None or not account.lost:
            return ""
        return (
            f"{parse_place(piece)[0]}: attention did not move along the audio (diagonal "
            f"{100 * account.diagonal:.0f}, of at most 100): what was written may not be what was "
            f"said"
        )

    def diagonal(self, sources: Encoded, most: int = LISTENED_TO) -> float | None:
        """How far attention moves along the audio as the text grows, at most 1; None: untold.

        The mean over some of the recordings, of the head that has the highest.
        """
        if not self.says_what_is_said or not isinstance(sources, Recorded):
            return None
        known = list(self.source_tokens.tags)
        by_tags: dict[tuple[str, ...], list[int]] = {}
        for row in range(min(most, len(sources))):
            there = [] if sources.tags is None else np.flatnonzero(sources.tags[row]).tolist()
            by_tags.setdefault(tuple(known[number] for number in there), []).append(row)
        found = []
        for tags, rows in by_tags.items():
            waves = [cast("list[int]", sources.wave(row)) for row in rows]
            texts = [sources.target(row).tolist() for row in rows]
            with self.tagged(tags), ready(self):
                moved = moved_along(self.network, waves, texts)
            found += [] if moved is None else [(moved, len(rows))]
        return sum(moved * n for moved, n in found) / sum(n for _, n in found) if found else None

    # ------------------------------------------------------------------------- what a task says

    @property
    def says_what_is_said(self) -> bool:
        """Whether what it writes follows the audio: a translation need not."""
        return self.recipe.data.tokens.both is not None

    @property
    def has_same_ctc(self) -> bool:
        """Whether CTC says what is written, in the same tokens."""
        return self.network.ctc is not None and self.says_what_is_said

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        waves: list[Wave] = []
        for wave, trouble, _ in self.waves_of(sources):
            if wave is None:
                raise DataError(trouble)
            waves.append(wave)
        return cast(Ids, waves), {}

    @property
    def networks(self) -> list[SpeechEncoderDecoder | SpeechLabeller]:
        search = self._search_network
        assert isinstance(search, SpeechEncoderDecoder)
        return [self.network, search]

    def _states(self, source: list[int]) -> int:
        return self.network.states_of(len(source))

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        output = super()._output(source, [], hypotheses)
        loop = find_loop(output.ids)
        if loop is None:
            return replace(output, source_tokens=[])
        said = self.target_tokens.decode(output.ids[loop.start : loop.start + loop.length])
        warning = f"{source}: {said.strip()!r} was written {loop.times} times in a row"
        return replace(output, source_tokens=[], warning=warning)

    def _stepper(self, settings: Settings) -> Stepper:
        steps = super()._stepper(settings)
        if not settings.ctc_weight:
            return steps
        if not self.has_same_ctc:
            raise ModelError("ctc needs a model whose CTC has learnt the tokens that it writes")
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        return CtcScorer(network, cast(Beginner, steps), settings.ctc_weight)

    def _shape(self, task: BatchDecoder) -> BatchDecoder:
        if not task.settings.ctc_weight:
            return task
        # CTC's probability of every token and its logarithm, in float32.
        return replace(task, state_bytes=2 * 4 * len(self.source_tokens))

    def _fast_search(self) -> None:
        return None
