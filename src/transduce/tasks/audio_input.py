"""What models of any task have in common whose sources are audio: files, parts of them, samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import FULL_SCALE, Heeded, Recorded, Wave, read_waves, sixteen_bits
from transduce.data.audio.read import audio_blocks, audio_facts, audio_from_samples
from transduce.data.audio.segment import parse_place, place_of
from transduce.data.audio.silence import cut_at_silences
from transduce.data.batches.stream import Stream
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.tags import without_tags
from transduce.decoding.lens import Labels
from transduce.decoding.output import Output
from transduce.decoding.speech.confidence import Calibration
from transduce.errors import DataError, ModelError
from transduce.models.speech import SpeechEncoderDecoder
from transduce.models.speech_labeller import SpeechLabeller
from transduce.nn.speech.feature_norm import Statistics
from transduce.recipe import Audio
from transduce.tasks.model import Model, ready

SECONDS_AT_ONCE = 1200.0  # of audio in memory
SURVEYED = 500  # recordings by which features are normalised
SHORTEST = 0.05  # seconds of a piece that is worth hearing

AudioSource = str | Path | NDArray[Any] | Tensor
"""An audio file, `talk.flac#t=60,75` for a part of one, or samples."""


class Piece(str):
    """The name of an audio, or of a piece of one, and its samples; a source that need not be read.

    model.run([Piece.of("spoken", wave)])           # samples of 16 bits, at the model's rate
    """

    wave: Wave
    remark: str = ""
    """What is odd about it, or why it cannot be used."""
    silent: bool = False
    failed: bool = False

    @classmethod
    def of(cls, name: str, wave: Wave) -> Self:
        piece = cls(name)
        piece.wave = wave
        return piece

    @classmethod
    def of_samples(cls, samples: NDArray[Any] | Tensor, native: int, rate: int) -> Self:
        """Samples at hand, at another rate; named after what they hold."""
        if isinstance(samples, Tensor):
            samples = samples.detach().cpu().numpy()
        name = f"audio {zlib.crc32(samples.tobytes()):08x}"
        try:
            audio = audio_from_samples(samples, native, rate, name)
        except DataError as error:
            piece = cls.of(name, np.zeros(0, np.int16))
            piece.remark, piece.failed = str(error), True
            return piece
        piece = cls.of(name, sixteen_bits(audio.samples))
        piece.remark, piece.silent = " ".join(audio.remarks), audio.silent
        return piece

    def part(self, start: float, end: float, rate: int) -> Piece:
        wave = self.wave[round(start * rate) : round(end * rate)]
        return Piece.of(place_of(Path(self), start, end), wave)


@dataclass
class CutRecording:
    """One source, the pieces it is cut into, and what they became."""

    source: str
    tags: tuple[str, ...] = ()
    start: float = 0.0
    pieces: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = True
    """Whether its one piece is all of it."""
    trouble: str = ""
    outputs: list[Output] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def name(self, start: float, end: float, rate: int) -> str:
        """Of one of its pieces."""
        if self.whole:
            return self.source
        if isinstance(self.source, Piece):
            return self.source.part(start, end, rate)
        return place_of(parse_place(self.source)[0], start, end)


Group = list[tuple[CutRecording, float, float]]


class AudioInputModel(Model):
    """What a model does otherwise whose sources are audio."""

    network: SpeechEncoderDecoder | SpeechLabeller
    calibration: Calibration | None = None
    """What confidence is usual, as validation told; None: nobody knows."""

    @property
    def audio(self) -> Audio:
        assert self.recipe.audio is not None
        return self.recipe.audio

    @property
    def longest(self) -> float:
        """Seconds of the longest audio that is heard in one piece, as in training."""
        return max(1.0, self.recipe.data.max_length / self.audio.frames_a_second)

    def survey(self, corpus: Encoded | Stream) -> None:
        """Learn by which mean and variance features are normalised, where a corpus's are."""
        front = self.network.front
        if front.norm is None or not isinstance(corpus, Recorded):
            return
        statistics = Statistics.empty(self.audio.mel_bands)
        step = -(-len(corpus) // SURVEYED)
        for row in range(0, len(corpus), step):
            waves, lengths = corpus.waves(np.array([row]))
            front.note(statistics, torch.from_numpy(waves), torch.from_numpy(lengths))
        front.norm.set(statistics)

    def calibrate(self, confidences: Sequence[float]) -> None:
        """Take the confidences of outputs on validation data for what is usual."""
        self.calibration = Calibration.of(confidences)

    def facts(self) -> dict[str, Any]:
        return {} if self.calibration is None else dict(self.calibration.facts())

    def take_facts(self, facts: Mapping[str, Any]) -> None:
        self.calibration = Calibration.from_facts(facts)

    # ---------------------------------------------------------------------------- sources

    def listen_to(
        self, sources: Sequence[AudioSource], rate: int | None, tags: Sequence[str]
    ) -> list[CutRecording]:
        """Each source, its tags, and where the pieces begin and end that it is cut into.

        Raises ModelError for what is no list of audio, samples without a rate, unknown tags.
        """
        if isinstance(sources, str | Path | np.ndarray | Tensor):
            raise ModelError("run takes a list of sources; for one of them call the model itself")
        self._check_tags(tags)
        found = []
        for source in sources:
            own, named = self._named(source, rate)
            found.append(self._cut(named, (*tags, *own)))
        return found

    def _check_tags(self, tags: Sequence[str]) -> None:
        known = self.source_tokens.tags
        for tag in tags:
            if tag not in known:
                there = f"it knows {', '.join(known)}" if known else "it knows none"
                raise ModelError(f"the model knows no tag {tag}; {there}")

    def _named(self, source: AudioSource, rate: int | None) -> tuple[list[str], str]:
        """The tags that a source begins with, and the rest of it: a name, or a Piece."""
        if isinstance(source, Path):
            return [], str(source)
        if isinstance(source, str):
            tags, rest = without_tags(source, self.source_tokens.tags)
            if tags and isinstance(source, Piece):
                rest = Piece.of(rest, source.wave)
            return tags, source if not tags else rest
        if not isinstance(source, np.ndarray | Tensor):
            raise ModelError(
                f"a source is the name of an audio file, or samples with their rate, not "
                f"{type(source).__name__}: {source!r:.40}"
            )
        if rate is None or rate <= 0:
            raise ModelError("samples need their rate: name it, as in rate=16000")
        return [], Piece.of_samples(source, rate, self.audio.sample_rate)

    def _cut(self, source: str, tags: tuple[str, ...]) -> CutRecording:
        """Where the pieces of an audio begin and end; one, where it is short enough."""
        rate = self.audio.sample_rate
        if isinstance(source, Piece):
            recording = CutRecording(source, tags, trouble=source.remark if source.failed else "")
            recording.pieces = [(0.0, len(source.wave) / rate)]
            if len(source.wave) / rate > self.longest and not source.silent:
                samples = source.wave.astype(np.float32) / np.float32(FULL_SCALE)
                self._cut_at_pauses(recording, iter([samples]), 0.0, len(source.wave) / rate)
            return recording
        path, start, end = parse_place(source)
        recording = CutRecording(source, tags, start)
        try:
            seconds = audio_facts(path).seconds
            stop = seconds if end is None else min(end, seconds)
            if stop <= start:
                raise DataError(f"{path} lasts {seconds:.2f} s: there is nothing at {start:g} s")
            recording.pieces = [(start, stop)]
            if stop - start > self.longest:
                self._cut_at_pauses(recording, audio_blocks(path, rate), start, stop)
        except DataError as error:
            recording.trouble = str(error)
        return recording

    def _cut_at_pauses(
        self,
        recording: CutRecording,
        blocks: Iterator[NDArray[np.float32]],
        start: float,
        stop: float,
    ) -> None:
        found = cut_at_silences(blocks, self.audio.sample_rate, longest=self.longest)
        within = [(max(a, start), min(b, stop)) for a, b in found]
        recording.pieces = [(a, b) for a, b in within if b - a > SHORTEST]
        recording.whole = False
        if not recording.pieces:
            name = parse_place(recording.source)[0]
            recording.remarks.append(f"{name} has nothing but silence or noise")

    def waves_of(self, names: Sequence[str]) -> list[Heeded]:
        """What they sound like; read, where they do not bring it along."""
        known = [
            Heeded(None if name.silent else name.wave, name.remark, name.silent)
            if isinstance(name, Piece)
            else None
            for name in names
        ]
        missing = [name for name, there in zip(names, known, strict=True) if there is None]
        read = iter(read_waves(missing, self.audio.sample_rate) if missing else ())
        return [there or next(read) for there in known]

    def heard(self, group: Group) -> Iterator[tuple[tuple[str, ...], list[Piece], Group]]:
        """The pieces of a group that can be heard, by the tags that they have; what is odd about
        the others is noted in their recordings."""
        names = [one.name(start, end, self.audio.sample_rate) for one, start, end in group]
        by_tags: dict[tuple[str, ...], tuple[list[Piece], Group]] = {}
        for entry, name, (wave, said, silent) in zip(
            group, names, self.waves_of(names), strict=True
        ):
            recording = entry[0]
            if wave is not None:
                pieces, entries = by_tags.setdefault(recording.tags, ([], []))
                pieces.append(Piece.of(name, wave))
                entries.append(entry)
                recording.remarks += [said] if said else []
            elif silent:
                recording.remarks += [said] if recording.whole else []
            else:
                recording.trouble = said
        for tags, (pieces, entries) in by_tags.items():
            yield tags, pieces, entries

    def _labels(self, source: str, ids: list[int], output: Output) -> Labels:
        first, front = parse_place(source)[1], self.network.front
        times = [first + front.seconds_of(state) for state in range(front.states_of(len(ids)))]
        return replace(super()._labels(source, [], output), source_tokens=[], times=times)

    @contextmanager
    def tagged(self, tags: Sequence[str], *others: Model) -> Iterator[None]:
        """Within, this model and others hear everything with these tags. Raises ModelError."""
        self._check_tags(tags)
        if not self.source_tokens.tags:
            yield
            return
        numbers = [list(self.source_tokens.tags).index(tag) for tag in tags]
        # In training, what search multiplies with is made anew for each use: not in here.
        with ready(self, *others), ExitStack() as held:
            listening = [model for model in (self, *others) if isinstance(model, AudioInputModel)]
            for network in [network for model in listening for network in model.networks]:
                held.enter_context(network.front.tagged(numbers))
            yield

    @property
    def networks(self) -> list[SpeechEncoderDecoder | SpeechLabeller]:
        """Its own, and those that are used in its place."""
        return [self.network]


def groups(recordings: Sequence[CutRecording]) -> Iterator[Group]:
    """Pieces in order, some minutes of them at a time."""
    group: Group = []
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
