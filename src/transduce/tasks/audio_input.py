"""Audio input for models of any task: files, parts of files, samples; cut at silences."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.cores import count_cores
from transduce.data.audio.corpus import (
    FULL_SCALE,
    AudioCorpus,
    ReadResult,
    Wave,
    read_waves,
    to_int16,
)
from transduce.data.audio.read import (
    audio_blocks,
    audio_from_samples,
    audio_info,
    parse_place,
    place_of,
)
from transduce.data.audio.silence import cut_at_silences
from transduce.data.batches.bucketing import prefetched
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.tags import without_tags
from transduce.decoding.output import Output
from transduce.decoding.run_lens import Labels
from transduce.errors import DataError, ModelError
from transduce.models.call_context import Call, CallContext
from transduce.models.speech import SpeechFrontend, SpeechLabelNetwork, SpeechNetwork
from transduce.nn.speech.feature_norm import Statistics
from transduce.recipe import Audio
from transduce.tasks.model import Model

SECONDS_AT_ONCE = 1200.0  # of audio that are read together; in memory there may be three times that
NORM_SAMPLE = 500  # recordings for the statistics of feature normalization
MIN_SEGMENT_SECONDS = 0.05

AudioSource = str | Path | NDArray[Any] | Tensor
"""An audio file, `talk.flac#t=60,75` for a part of one (in seconds), or samples."""


class AudioSegment(str):
    """A named stretch of audio with its samples: a source that need not be read from a file.

    model.run([AudioSegment.of("spoken", wave)])    # int16 samples at the model's sample rate
    """

    wave: Wave
    remark: str = ""
    """A warning about it, or why it cannot be used."""
    silent: bool = False
    failed: bool = False

    @classmethod
    def of(cls, name: str, wave: Wave) -> Self:
        segment = cls(name)
        segment.wave = wave
        return segment

    @classmethod
    def of_samples(cls, samples: NDArray[Any] | Tensor, native: int, rate: int) -> Self:
        """Samples at any rate, resampled; named by a checksum of their values."""
        if isinstance(samples, Tensor):
            samples = samples.detach().cpu().numpy()
        name = f"audio {zlib.crc32(np.ascontiguousarray(samples).data):08x}"
        try:
            audio = audio_from_samples(samples, native, rate, name)
        except DataError as error:
            segment = cls.of(name, np.zeros(0, np.int16))
            segment.remark, segment.failed = str(error), True
            return segment
        segment = cls.of(name, to_int16(audio.samples))
        segment.remark, segment.silent = audio.remark, audio.silent
        return segment

    def part(self, start: float, end: float, rate: int) -> AudioSegment:
        wave = self.wave[round(start * rate) : round(end * rate)]
        return AudioSegment.of(place_of(Path(self), start, end), wave)


@dataclass
class SegmentedRecording:
    """One source, the segments that it is cut into, and their outputs."""

    source: str
    tags: tuple[str, ...] = ()
    start: float = 0.0
    segments: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = True
    """Whether it is one segment, not cut."""
    error: str = ""
    outputs: list[Output] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def name(self, start: float, end: float, rate: int) -> str:
        """The name of one of its segments."""
        if self.whole:
            return self.source
        if isinstance(self.source, AudioSegment):
            return self.source.part(start, end, rate)
        return place_of(parse_place(self.source)[0], start, end)


Group = list[tuple[SegmentedRecording, float, float]]


class Readable(NamedTuple):
    """Segments with the same tags, and their places in the group."""

    tags: tuple[str, ...]
    segments: list[AudioSegment]
    entries: Group


@dataclass(frozen=True)
class AudioInput:
    """The sources of a model that reads audio: reading, cutting, tags."""

    model: Model

    @property
    def settings(self) -> Audio:
        assert self.model.recipe.audio is not None
        return self.model.recipe.audio

    @property
    def front(self) -> SpeechFrontend:
        network = self.model.network
        assert isinstance(network, SpeechNetwork | SpeechLabelNetwork)
        return network.front

    @property
    def longest(self) -> float:
        """Maximum length of a segment in seconds: as in training, or less."""
        trained = max(1.0, self.model.recipe.data.max_length / self.settings.frames_a_second)
        return min(trained, self.settings.segment or trained)

    def set_feature_statistics(self, corpus: Encoded | StreamingDataset) -> None:
        """Compute the mean and variance of the training features, for audio.normalize: global."""
        front = self.front
        if front.norm is None or not isinstance(corpus, AudioCorpus):
            return
        statistics = Statistics.empty(self.settings.mel_bands)
        step = -(-len(corpus) // NORM_SAMPLE)
        for row in range(0, len(corpus), step):
            waves, lengths = corpus.waves(np.array([row]))
            front.note(statistics, torch.from_numpy(waves), torch.from_numpy(lengths))
        front.norm.set(statistics)

    def split(
        self, sources: Sequence[AudioSource], rate: int | None, tags: Sequence[str]
    ) -> list[SegmentedRecording]:
        """Each source with its tags and the segments that it is cut into.

        Raises ModelError for what is not a list of audio, samples without a rate, unknown tags.
        """
        if isinstance(sources, str | Path | np.ndarray | Tensor):
            raise ModelError("run takes a list of sources; for one of them call the model itself")
        known = self.model.tags_of(tags)

        def cut(source: AudioSource) -> SegmentedRecording:
            own, named = self._named(source, rate)
            return self._cut(named, (*known, *own))

        if len(sources) == 1:
            return [cut(sources[0])]
        with ThreadPoolExecutor(count_cores()) as threads:
            return list(threads.map(cut, sources))

    def _named(self, source: AudioSource, rate: int | None) -> tuple[list[str], str]:
        """The tags that a source begins with, and the rest of it: a name, or an AudioSegment."""
        if isinstance(source, Path):
            return [], str(source)
        if isinstance(source, str):
            return without_tags(source, self.model.source_tokens.tags)[0], self.bare(source)
        if not isinstance(source, np.ndarray | Tensor):
            raise ModelError(
                f"a source must be an audio file or samples with their sample rate, not "
                f"{type(source).__name__}: {source!r:.40}"
            )
        if rate is None:
            raise ModelError("samples need their sample rate; give it, as in rate=16000")
        if rate <= 0:
            raise ModelError(f"rate is {rate}; it must be above 0, the samples per second of audio")
        return [], AudioSegment.of_samples(source, rate, self.settings.sample_rate)

    def bare(self, source: str) -> str:
        """A name, or an AudioSegment, without the tags that it begins with."""
        tags, rest = without_tags(source, self.model.source_tokens.tags)
        if not tags:
            return source
        return AudioSegment.of(rest, source.wave) if isinstance(source, AudioSegment) else rest

    def _cut(self, source: str, tags: tuple[str, ...]) -> SegmentedRecording:
        """Cut audio that is too long for one segment at its silences."""
        rate = self.settings.sample_rate
        if isinstance(source, AudioSegment):
            recording = SegmentedRecording(
                source, tags, error=source.remark if source.failed else ""
            )
            recording.segments = [(0.0, len(source.wave) / rate)]
            if len(source.wave) / rate > self.longest and not source.silent:
                samples = source.wave.astype(np.float32) / np.float32(FULL_SCALE)
                self.cut_at_silences(recording, iter([samples]), 0.0, len(source.wave) / rate)
                recording.remarks += [source.remark] if source.remark else []
            return recording
        path, start, end = parse_place(source)
        recording = SegmentedRecording(source, tags, start)
        try:
            seconds = audio_info(path).seconds
            stop = seconds if end is None else min(end, seconds)
            if stop <= start:
                raise DataError(
                    f"{path} is {seconds:.2f} s long and has nothing at {start:g} s; give an "
                    f"earlier start"
                )
            recording.segments = [(start, stop)]
            if stop - start > self.longest:
                self.cut_at_silences(recording, audio_blocks(path, rate), start, stop)
        except DataError as error:
            recording.error = str(error)
        return recording

    def cut_at_silences(
        self,
        recording: SegmentedRecording,
        blocks: Iterator[NDArray[np.float32]],
        start: float,
        stop: float,
    ) -> None:
        found = cut_at_silences(blocks, self.settings.sample_rate, longest=self.longest)
        within = [(max(a, start), min(b, stop)) for a, b in found]
        recording.segments = [(a, b) for a, b in within if b - a > MIN_SEGMENT_SECONDS]
        recording.whole = False
        if not recording.segments:
            name = parse_place(recording.source)[0]
            recording.remarks.append(f"{name} contains only silence or noise")

    def waves_of(self, names: Sequence[str]) -> list[ReadResult]:
        """Their samples; read from files where a name is not an AudioSegment."""
        known = [
            ReadResult(None if name.silent else name.wave, name.remark, name.silent)
            if isinstance(name, AudioSegment)
            else None
            for name in names
        ]
        missing = [name for name, there in zip(names, known, strict=True) if there is None]
        read = iter(read_waves(missing, self.settings.sample_rate) if missing else ())
        return [there or next(read) for there in known]

    def read(
        self, recordings: Sequence[SegmentedRecording]
    ) -> Iterator[tuple[Group, list[Readable]]]:
        """The segments of recordings, in order, some minutes at a time: the next are read while
        these are used."""
        return prefetched((group, self._readable(group)) for group in groups(recordings))

    def _readable(self, group: Group) -> list[Readable]:
        """The segments of a group that can be used, grouped by tags; why others cannot is noted in
        their recordings."""
        names = [one.name(start, end, self.settings.sample_rate) for one, start, end in group]
        by_tags: dict[tuple[str, ...], tuple[list[AudioSegment], Group]] = {}
        for entry, name, (wave, remark, silent) in zip(
            group, names, self.waves_of(names), strict=True
        ):
            recording = entry[0]
            if wave is not None:
                segments, entries = by_tags.setdefault(recording.tags, ([], []))
                segments.append(AudioSegment.of(name, wave))
                entries.append(entry)
                recording.remarks += [remark] if remark else []
            elif silent:
                recording.remarks += [remark] if recording.whole else []
            else:
                recording.error = remark
        return [Readable(tags, *found) for tags, found in by_tags.items()]

    def labels(self, labels: Labels, source: str, wave: Sequence[int]) -> Labels:
        """The positions of a source are called by their times."""
        first, front = parse_place(source)[1], self.front
        times = [first + front.seconds_of(state) for state in range(front.states_of(len(wave)))]
        return replace(labels, source_tokens=[], times=times)

    def context_of(self, call: Call) -> CallContext:
        """Tags are numbered by the model's own vocabulary; one that was trained without any knows
        nothing of them."""
        known = list(self.model.source_tokens.tags)
        if not known:
            return CallContext()
        return CallContext(tags=tuple(known.index(tag) for tag in self.model.tags_of(call.tags)))


def groups(recordings: Sequence[SegmentedRecording]) -> Iterator[Group]:
    """Segments in order, in groups of at most SECONDS_AT_ONCE."""
    group: Group = []
    seconds = 0.0
    for recording in recordings:
        for start, end in recording.segments if not recording.error else ():
            if group and seconds + end - start > SECONDS_AT_ONCE:
                yield group
                group, seconds = [], 0.0
            group.append((recording, start, end))
            seconds += end - start
    if group:
        yield group
