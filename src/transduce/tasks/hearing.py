"""A writer whose sources are sound: files of any length, cut at their pauses, with times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, cast

import numpy as np
import torch

from transduce.data.audio import sound_blocks, sound_facts
from transduce.data.cache import Encoded
from transduce.data.places import parse_place, place_of
from transduce.data.silence import HOP, cut_at_silences, sounding
from transduce.data.sounds import FULL_SCALE, Heeded, Recorded, Wave, read_waves
from transduce.data.stream import Stream
from transduce.data.tokens import END, Tokens
from transduce.decoding.alarms import find_loop, skipped_stretches, visited_by_tokens
from transduce.decoding.decode import Task
from transduce.decoding.joint import Beginner, WithCtc
from transduce.decoding.output import Output, Spoken
from transduce.decoding.search import Hypothesis, Stepper, penalty
from transduce.decoding.settings import Settings
from transduce.decoding.spoken import Account, accounts, moved_along, words_of
from transduce.errors import DataError, ModelError
from transduce.models.network import Vocabulary
from transduce.models.sound import SoundNetwork, build_sound
from transduce.nn.normalisation import Statistics
from transduce.recipe import Recipe, Sound
from transduce.tasks.continuing import LanguageModel
from transduce.tasks.model import checked, ready
from transduce.tasks.writing import Ids, Writer

SECONDS_AT_ONCE = 1200.0  # of sound in memory
SURVEYED = 500  # recordings by which features are normalised
LISTENED_TO = 64  # recordings, to tell how far attention moves along sounds
LENGTH = "length_penalty"  # of a whole there is none: its pieces are found one by one


class Piece(str):
    """The name of a sound, or of a piece of one, and its samples; a source that need not be read.

    model.run([Piece.of("spoken", wave)])           # samples of 16 bits, at the model's rate
    """

    wave: Wave

    @classmethod
    def of(cls, name: str, wave: Wave) -> Self:
        piece = cls(name)
        piece.wave = wave
        return piece


@dataclass
class _Recording:
    """One source, the pieces it is cut into, and what they became."""

    source: str
    start: float = 0.0
    pieces: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = True
    """Whether its one piece is all of it."""
    trouble: str = ""
    outputs: list[Output] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Hearing(Writer):
    """What a model does otherwise whose sources are sound.

    model = transduce.load("runs/asterisk")
    model("prompt.wav")                             # what is said
    model.run(["talk.flac", "talk.flac#t=60,75"], times=True)
    """

    network: SoundNetwork

    @classmethod
    def build(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> SoundNetwork:
        assert recipe.sound is not None
        vocabulary = Vocabulary(len(source_tokens), len(target_tokens))
        return build_sound(recipe.model, recipe.sound, vocabulary)

    @property
    def sound(self) -> Sound:
        assert self.recipe.sound is not None
        return self.recipe.sound

    @property
    def longest(self) -> float:
        """Seconds of the longest sound that is heard in one piece, as in training."""
        return max(1.0, self.recipe.data.max_length / self.sound.frames_a_second)

    def survey(self, corpus: Encoded | Stream) -> None:
        """Learn by which mean and variance features are normalised, where a corpus's are."""
        front = self.network.front
        if front.norm is None or not isinstance(corpus, Recorded):
            return
        statistics = Statistics.empty(self.sound.bands)
        step = -(-len(corpus) // SURVEYED)
        for row in range(0, len(corpus), step):
            waves, lengths = corpus.waves(np.array([row]))
            front.note(statistics, torch.from_numpy(waves), torch.from_numpy(lengths))
        front.norm.set(statistics)

    # ------------------------------------------------------------------------------- use

    def run(self, sources: Sequence[str], *, times: bool = False, **asked: Any) -> list[Output]:
        """One output a source, in order; the keywords are those of every writer.

        A source is a sound file; `talk.flac#t=60,75` is a part of one, in seconds. What is longer
        than anything in training is cut at its pauses, and what is said in the pieces joined; no
        more than some minutes are in memory at a time. times: also when each word was said, and
        what each judge thought of it. A file that cannot be used has a `warning`, and is `failed`.
        """
        judge = asked.get("rescore")
        if isinstance(judge, Writer) and not isinstance(judge, Hearing):
            raise ModelError("what hears is judged by what hears: give a language_model instead")
        recordings = [self._cut(source) for source in checked(sources)]
        for group in _groups(recordings):
            self._hear(group, times, asked)
        return [_joined(recording) for recording in recordings]

    def _cut(self, source: str) -> _Recording:
        """Where the pieces of a sound begin and end; one, where it is short enough."""
        if isinstance(source, Piece):
            return _Recording(source, pieces=[(0.0, len(source.wave) / self.sound.rate)])
        path, start, end = parse_place(source)
        recording = _Recording(source, start)
        try:
            seconds = sound_facts(path).seconds
            stop = seconds if end is None else min(end, seconds)
            if stop <= start:
                raise DataError(f"{path} lasts {seconds:.2f} s: there is nothing at {start:g} s")
            recording.pieces = [(start, stop)]
            if stop - start > self.longest:
                rate = self.sound.rate
                found = cut_at_silences(sound_blocks(path, rate), rate, longest=self.longest)
                within = [(max(a, start), min(b, stop)) for a, b in found]
                recording.pieces = [(a, b) for a, b in within if b - a > 0.05]
                recording.whole = False
                if not recording.pieces:
                    recording.remarks.append(f"{path} has nothing but silence or noise")
        except DataError as error:
            recording.trouble = str(error)
        return recording

    def _hear(self, group: list[tuple[_Recording, float, float]], times: bool, asked: Any) -> None:
        """The pieces of a group through one search."""
        names = [
            place_of(parse_place(one.source)[0], start, end) if not one.whole else one.source
            for one, start, end in group
        ]
        pieces, heard = [], []
        for entry, name, (wave, said, silent) in zip(group, names, self._waves(names), strict=True):
            recording = entry[0]
            if wave is not None:
                pieces.append(Piece.of(name, wave))
                heard.append(entry)
                recording.remarks += [said] if said else []
            elif silent:
                recording.remarks += [said] if recording.whole else []
            else:
                recording.trouble = said
        outputs = super().run(pieces, **asked)
        if times:
            outputs = self._timed(pieces, outputs, asked)
        for (recording, start, end), output in zip(heard, outputs, strict=True):
            recording.outputs.append(_placed(output, start, end))

    def _waves(self, names: list[str]) -> list[Heeded]:
        """What they sound like; read, where they do not bring it along."""
        known = [Heeded(name.wave, "") if isinstance(name, Piece) else None for name in names]
        missing = [name for name, there in zip(names, known, strict=True) if there is None]
        read = iter(read_waves(missing, self.sound.rate) if missing else ())
        return [there or next(read) for there in known]

    def _timed(self, pieces: list[Piece], outputs: list[Output], asked: Any) -> list[Output]:
        """The outputs with what each judge thought of them, and when each word was said."""
        known = [one.name for one in fields(Settings)]
        settings = self._settings({name: asked[name] for name in known if name in asked})
        share = settings.ctc or 0.0
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
            power = settings.length_penalty or 0.0
            parts[LENGTH] = float(penalty(len(output.ids) + 1, power))
            sure = account.confidence(0, len(output.ids), share)
            warning = output.warning or self._skipped(piece, account) or self._lost(piece, account)
            timed.append(
                replace(
                    output,
                    parts=parts,
                    words=list(self._words(output.ids, account, share)),
                    stretches=[Spoken(output.text, 0.0, 0.0, sure)],
                    warning=warning,
                )
            )
        return timed

    def _words(self, ids: list[int], account: Account, share: float) -> Iterator[Spoken]:
        if not account.first:
            return
        place = self.network.front.seconds_of
        for start, end in words_of(self.target_tokens, ids):
            yield Spoken(
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
        loud = sounding(piece.wave.astype(np.float32) / np.float32(FULL_SCALE), self.sound.rate)
        states = self.network.states_of(len(piece.wave))
        seconds = [self.network.front.seconds_of(state) for state in range(states + 1)]
        at = [min(int(second / HOP), len(loud) - 1) for second in seconds[:-1]]
        first_U, last_U = torch.tensor(account.first), torch.tensor(account.last)
        visited_S = visited_by_tokens(first_U, last_U, states)
        found = skipped_stretches(visited_S, torch.from_numpy(loud[at]))
        spans = [f"{start + seconds[a]:.1f} to {start + seconds[b]:.1f} s" for a, b in found]
        return f"{file}: nothing was written of the sound from {', '.join(spans)}" if spans else ""

    def _lost(self, piece: Piece, account: Account) -> str:
        """What to say of attention that did not move along the sound as the text grew."""
        if not self.says_what_is_said or account.diagonal is None or not account.lost:
            return ""
        return (
            f"{parse_place(piece)[0]}: attention did not move along the sound (diagonal "
            f"{100 * account.diagonal:.0f}, of at most 100): what was written may not be what was "
            f"said"
        )

    def diagonal(self, sources: Encoded, most: int = LISTENED_TO) -> float | None:
        """How far attention moves along the sound as the text grows, at most 1; None: untold.

        The mean over some of the recordings, of the head that has the highest.
        """
        if not self.says_what_is_said or not isinstance(sources, Recorded):
            return None
        rows = range(min(most, len(sources)))
        waves = [cast("list[int]", sources.wave(row)) for row in rows]
        with ready(self):
            return moved_along(self.network, waves, [sources.target(row).tolist() for row in rows])

    # ------------------------------------------------------------------------- what a task says

    @property
    def says_what_is_said(self) -> bool:
        """Whether what it writes follows the sound: a translation need not."""
        return self.recipe.data.tokens.both is not None

    @property
    def has_same_ctc(self) -> bool:
        """Whether CTC says what is written, in the same tokens."""
        return self.network.ctc is not None and self.says_what_is_said

    def _encode(
        self, sources: list[str], with_models: Sequence[Writer] = ()
    ) -> tuple[Ids, dict[int, str]]:
        waves: list[Wave] = []
        for wave, trouble, _ in self._waves(sources):
            if wave is None:
                raise DataError(trouble)
            waves.append(wave)
        return cast(Ids, waves), {}

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
        if not settings.ctc:
            return steps
        if not self.has_same_ctc:
            raise ModelError("ctc needs a model whose CTC has learnt the tokens that it writes")
        network = self._search_network
        assert isinstance(network, SoundNetwork)
        return WithCtc(network, cast(Beginner, steps), settings.ctc)

    def _shape(self, task: Task) -> Task:
        if not task.settings.ctc:
            return task
        # CTC's probability of every token and its logarithm, in float32.
        return replace(task, state_bytes=2 * 4 * len(self.source_tokens))

    def _fast_search(self) -> None:
        return None


def _groups(recordings: list[_Recording]) -> Iterator[list[tuple[_Recording, float, float]]]:
    """Pieces in order, some minutes of them at a time."""
    group: list[tuple[_Recording, float, float]] = []
    seconds = 0.0
    for recording in recordings:
        for start, end in recording.pieces if not recording.trouble else ():
            if group and seconds + end - start > SECONDS_AT_ONCE:
                yield group
                group, seconds = [], 0.0
            group.append((recording, start, end))
            seconds += end - start
    if group:
        yield group


def _placed(output: Output, start: float, end: float) -> Output:
    """Times that count from the piece's beginning, from the recording's."""
    words = [
        replace(word, start=min(start + word.start, end), end=min(start + word.end, end))
        for word in output.words
    ]
    sure = math.exp(output.log_probability / (len(output.ids) + 1))
    if output.stretches:
        sure = output.stretches[0].confidence
    elif math.isinf(output.score):  # nothing was found
        sure = 0.0
    return replace(output, words=words, stretches=[Spoken(output.text, start, end, sure)])


def _joined(recording: _Recording) -> Output:
    """What is said in all pieces, one after the other."""
    if recording.trouble:
        return Output("", float("-inf"), warning=recording.trouble, failed=True)
    told = [*recording.remarks, *(o.warning for o in recording.outputs if o.warning)]
    remarks = "; ".join(dict.fromkeys(told))
    if len(recording.outputs) == 1:
        return replace(recording.outputs[0], warning=remarks)
    outputs = recording.outputs
    names = dict.fromkeys(name for output in outputs for name in output.parts)
    return Output(
        text=" ".join(output.text for output in outputs if output.text),
        score=sum(output.score for output in outputs),
        tokens=[token for output in outputs for token in output.tokens],
        log_probability=sum(output.log_probability for output in outputs),
        warning=remarks,
        ids=[number for output in outputs for number in output.ids],
        parts={n: sum(o.parts.get(n, 0.0) for o in outputs) for n in names if n != LENGTH},
        stretches=[one for output in outputs for one in output.stretches],
        words=[word for output in outputs for word in output.words],
    )
