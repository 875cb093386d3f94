"""Audio corpus: 16-bit samples in one memory-mapped file of the cache.

Features are computed on the device, anew for each batch: so speed perturbation works on samples,
and the file is half as large as one of features would be.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.cores import count_cores
from transduce.data.audio import ffmpeg
from transduce.data.audio.read import audio_info, parse_place, read_audio
from transduce.data.audio.recording import Samples
from transduce.data.cache.eviction import evict, note_use
from transduce.data.cache.tokenised import Encoded, Report, check_some_left
from transduce.data.text.pairs import EXAMPLES, Pair, read_pairs, warning_of
from transduce.data.text.tags import without_tags
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.errors import DataError, MissingPackageError
from transduce.recipe import Audio, Corpus
from transduce.recipe.audio import Prompt
from transduce.storage.members import container
from transduce.storage.positions import Place, version_of

FORMAT = 2  # format version: increase when the content of a cache file changes
AT_ONCE = 32  # recordings in memory at a time while the file is written
STORED = 60.0  # seconds; recordings up to this length are cached whatever data.max_length is
FULL_SCALE = 32768
IN_CACHE = 1 << 14  # samples

Wave = NDArray[np.int16]


@dataclass(frozen=True)
class AudioCorpus(Encoded):
    """Pairs with audio sources: `source_ids` are 16-bit samples, mono, at one rate.

    `transcript_ids` and `transcript_offsets` are the tokens of the transcripts, row by row.
    """

    transcript_ids: NDArray[np.int32]
    transcript_offsets: NDArray[np.int64]
    hop: int
    """Samples from one frame to the next."""
    rate: int
    starts: NDArray[np.int64] | None = None
    """Start of each row in `source_ids`, if the rows are not contiguous; None if they are."""
    padded: int = 0
    """Frames that shorter recordings are padded to, and so take in a batch."""
    tags: NDArray[np.uint8] | None = None
    """Tags of each row, one-hot in the order of the vocabulary; None: no tags."""
    groups: NDArray[np.int64] | None = None
    """The number of each row's group, such as its speaker; None: there are no groups."""

    @property
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Frames of every source, padding to a fixed length included, and tokens of every
        target."""
        samples, targets = super().lengths
        return np.maximum(-(-samples // self.hop), self.padded), targets

    def source(self, row: int) -> NDArray[np.int32]:
        """The samples of a row, a view."""
        starts = self.source_offsets if self.starts is None else self.starts
        size = self.source_offsets[row + 1] - self.source_offsets[row]
        return self.source_ids[starts[row] : starts[row] + size]

    def wave(self, row: int) -> Wave:
        """The samples of a row with the type of samples, a view."""
        return self.source(row).view(np.int16)

    def waves(self, rows: NDArray[np.int64]) -> tuple[Wave, NDArray[np.int64]]:
        """The samples of rows as a batch, padded with zeros, and the length of each."""
        sizes = self.source_offsets[rows + 1] - self.source_offsets[rows]
        padded = np.zeros((len(rows), int(sizes.max(initial=1))), np.int16)
        for place, row, size in zip(padded, rows.tolist(), sizes.tolist(), strict=True):
            place[:size] = self.source(row)
        return padded, sizes


def audio_corpus(
    sources: Sequence[Any], targets: Sequence[Sequence[int] | NDArray[Any]] | None
) -> AudioCorpus:
    """Audio with the ids of its targets, without transcripts."""
    rows = np.arange(len(sources))
    filled = targets if targets is not None else [[]] * len(sources)
    return AudioCorpus(
        source_ids=np.concatenate([np.zeros(0, np.int16), *sources]),
        source_offsets=np.cumsum([0, *map(len, sources)], dtype=np.int64),
        target_ids=np.array([number for ids in filled for number in ids], np.int32),
        target_offsets=np.cumsum([0, *map(len, filled)], dtype=np.int64),
        lines=rows + 1,
        numbers=rows,
        transcript_ids=np.zeros(0, np.int32),
        transcript_offsets=np.zeros(len(sources) + 1, np.int64),
        hop=1,
        rate=1,
    )


def to_int16(samples: Samples) -> Wave:
    """Samples of ±1 as 16-bit integers; louder samples are clipped."""
    made = np.empty(len(samples), np.int16)
    for start in range(0, len(samples), IN_CACHE):  # new memory takes longer than the arithmetic
        part = samples[start : start + IN_CACHE] * FULL_SCALE
        np.rint(part, out=part)
        made[start : start + IN_CACHE] = part.clip(-FULL_SCALE, FULL_SCALE - 1, out=part)
    return made


def encode_recordings(
    corpus: Corpus,
    data: recipe.Data,
    audio: Audio,
    source_tokens: Tokens,
    target_tokens: Tokens,
    cache_folder: Path,
    capacity: float = math.inf,
) -> tuple[AudioCorpus, Report]:
    """An audio corpus, its samples from the cache if the same files were read before.

    Source tokens are those of the transcripts. With audio.prompt, targets begin with a prompt.
    capacity: tokens that the decoder has positions for; longer targets count as too long. Audio
    that cannot be read, is silent or too long is skipped and counted in the report. Raises
    DataError if nothing is left to learn from.
    """
    report = Report(max_length=data.max_length, unit="frames")
    pairs = list(read_pairs(corpus, data.folder, report.counts))
    targets = target_tokens.encode_batch([pair.target for pair in pairs])
    if audio.prompt is not None:
        before = _prompt(audio.prompt, target_tokens)
        targets = [[*before, *ids] for ids in targets]
    transcripts = targets
    if source_tokens is not target_tokens and audio.prompt is None:
        transcripts = source_tokens.encode_batch([pair.transcript for pair in pairs])
    places = [untagged(pair) for pair in pairs]
    fitting = []
    for number, pair in enumerate(pairs):
        length = max(len(targets[number]), len(transcripts[number]))
        if length > data.max_length or len(targets[number]) + 1 > capacity:
            _count_overlong(report, pair, targets[number])
        else:
            fitting.append(number)
    # All of them, as the content of the cache must not depend on data.max_length.
    cached = _cached_samples(places, data, audio, cache_folder)
    maximum = data.max_length * audio.hop_samples
    kept = []
    for number in fitting:
        trouble = cached.troubles.get(number)
        if trouble == TOO_LONG or cached.sizes[number] > maximum:
            _count_overlong(report, pairs[number], targets[number])
        elif trouble is not None:
            report.unreadable += 1
            if len(report.unreadable_examples) < EXAMPLES:
                where = f"{pairs[number].file}:{pairs[number].line}"
                report.unreadable_examples.append(f"{where}: {trouble}")
        else:
            kept.append(number)
    check_some_left(len(kept), corpus, report)
    clipped = [f"{pairs[n].file}:{pairs[n].line}" for n in kept if n in cached.clipped]
    what = "with a recording that is clipped or too loud kept"
    report.warnings += warning_of(len(clipped), what, clipped[:EXAMPLES]) + cached.remarks
    sizes = np.array(cached.sizes, np.int64)
    encoded = AudioCorpus(
        source_ids=np.memmap(cached.file, np.int16, mode="r"),
        source_offsets=np.concatenate([[0], np.cumsum(sizes[kept])]),
        starts=(np.cumsum(sizes) - sizes)[kept],
        target_ids=_joined(targets, kept),
        target_offsets=np.cumsum([0, *(len(targets[number]) for number in kept)], dtype=np.int64),
        lines=np.array([pairs[number].line for number in kept], np.int64),
        numbers=np.array(kept, np.int64),
        transcript_ids=_joined(transcripts, kept),
        transcript_offsets=np.cumsum(
            [0, *(len(transcripts[number]) for number in kept)], dtype=np.int64
        ),
        hop=audio.hop_samples,
        rate=audio.sample_rate,
        padded=round((audio.pad_to or 0.0) * audio.sample_rate / audio.hop_samples),
        tags=None
        if audio.prompt is not None
        else _tags_of_rows([pairs[number] for number in kept], source_tokens),
        groups=_groups_of_rows([pairs[number] for number in kept]),
    )
    report.target_tokens = len(encoded.target_ids)
    report.target_unknown = int((encoded.target_ids == UNKNOWN).sum())
    if source_tokens is not target_tokens:
        report.source_tokens = len(encoded.transcript_ids)
        report.source_unknown = int((encoded.transcript_ids == UNKNOWN).sum())
    return encoded, report


def _prompt(settings: Prompt, tokens: Tokens) -> list[int]:
    """The tokens between BEGIN and the text of a target, which the model is given."""
    known = PromptTokens.of(tokens, settings.multilingual)
    known.check_language(settings.language)
    if settings.language is None and settings.multilingual:
        raise DataError(
            "the language of the recordings is not known: set audio.prompt.language, such as en"
        )
    return list(known.prompt(settings.language, settings.task, timestamps=False)[1:])


def untagged(pair: Pair) -> Pair:
    """A pair with an audio source that is only its location, without the tags before it."""
    return pair._replace(source=without_tags(pair.source, pair.tags)[1]) if pair.tags else pair


def _tags_of_rows(pairs: Sequence[Pair], source_tokens: Tokens) -> NDArray[np.uint8] | None:
    known = list(source_tokens.tags)
    if not known:
        return None
    return np.array([[tag in pair.tags for tag in known] for pair in pairs], np.uint8)


def _groups_of_rows(pairs: Sequence[Pair]) -> NDArray[np.int64] | None:
    names = [pair.group for pair in pairs]
    if not any(names):
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)


def _joined(rows: list[list[int]], kept: list[int]) -> NDArray[np.int32]:
    return np.array([number for row in kept for number in rows[row]], np.int32)


def _count_overlong(report: Report, pair: Pair, target: list[int]) -> None:
    report.overlong += 1
    report.overlong_tokens += len(target)
    if len(report.overlong_examples) < EXAMPLES:
        report.overlong_examples.append(f"{pair.file}:{pair.line}")


# -------------------------------------------------------------------------------- the samples

TOO_LONG = "too long"


class CachedSamples(NamedTuple):
    """Samples in one file, one recording after the other, and why others were skipped."""

    file: Path
    sizes: list[int]
    """Samples of each recording; 0 if skipped."""
    troubles: dict[int, str]
    """The reason of each skipped recording, by index."""
    clipped: set[int]
    """Indices of recordings that are clipped or too loud."""
    remarks: list[str]


def _cached_samples(
    pairs: Sequence[Pair], data: recipe.Data, audio: Audio, folder: Path
) -> CachedSamples:
    folder = folder.expanduser()
    longest = STORED
    while longest < data.max_length / audio.frames_a_second:
        longest *= 2
    key = _key([pair.source for pair in pairs], audio.sample_rate, longest)
    file, metadata = folder / f"{key}.samples", folder / f"{key}.sounds.json"
    kept = _load(file, metadata)
    if kept is not None:
        note_use(file)
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as work:
            made = _write(pairs, audio.sample_rate, longest, Path(work) / file.name)
            made.file.replace(file)
            values = [made.sizes, sorted(made.troubles.items()), sorted(made.clipped)]
            (Path(work) / metadata.name).write_text(json.dumps(values), "utf-8")
            (Path(work) / metadata.name).replace(metadata)
    except OSError as error:
        raise DataError(
            f"the audio of the corpus could not be cached in {folder} ({error.strerror or error}): "
            f"free some space, or set XDG_CACHE_HOME to a folder that has it"
        ) from None
    return made._replace(file=file, remarks=evict(folder))


def _key(sources: Sequence[str], rate: int, longest: float) -> str:
    """A hash of everything the samples depend on; for files: names, sizes and modification
    times. Without ffmpeg some files cannot be read.
    """
    digest = sha256(json.dumps([FORMAT, rate, longest, ffmpeg.is_installed()]).encode())
    metadata: dict[Place, str] = {}
    for source in sources:
        path = container(parse_place(source)[0])
        if path not in metadata:
            try:
                version = version_of(path)
                metadata[path] = f"{version.size} {version.changed}"
            except DataError:
                metadata[path] = "missing"
        digest.update(f"{source}\0{metadata[path]}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load(file: Path, metadata: Path) -> CachedSamples | None:
    """The cached samples; None if they are missing or incomplete."""
    try:
        sizes, troubles, clipped = json.loads(metadata.read_text("utf-8"))
        whole = file.stat().st_size == 2 * sum(sizes)
        reasons = {int(n): why for n, why in troubles}
        return CachedSamples(file, sizes, reasons, set(clipped), []) if whole else None
    except (OSError, ValueError, TypeError):
        return None


def _write(pairs: Sequence[Pair], rate: int, longest: float, path: Path) -> CachedSamples:
    made = CachedSamples(path, [], {}, set(), [])
    remaining = iter(enumerate(pairs))
    with path.open("wb") as file, ThreadPoolExecutor(count_cores()) as threads:
        while some := list(islice(remaining, AT_ONCE)):
            read = threads.map(lambda pair: _read(pair.source, rate, longest), [p for _, p in some])
            for (place, _), (wave, reason, _) in zip(some, read, strict=True):
                made.sizes.append(0 if wave is None else len(wave))
                if wave is None:
                    made.troubles[place] = reason
                    continue
                if reason:
                    made.clipped.add(place)
                file.write(wave.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return made


class ReadResult(NamedTuple):
    """Samples and a warning about them; or no samples and the reason."""

    wave: Wave | None
    reason: str
    silent: bool = False
    """Whether the reason is silence."""


def _read(source: str, rate: int, longest: float) -> ReadResult:
    path, start, end = parse_place(source)
    try:
        # Check the header first: hours of audio should not be read only to be skipped.
        seconds = min(audio_info(path).seconds, end or float("inf")) - start
        if seconds > longest:
            return ReadResult(None, TOO_LONG)
        audio = read_audio(path, rate, start, end)
    except MissingPackageError:
        raise  # it is so of all recordings, and must not be cached
    except DataError as error:
        return ReadResult(None, str(error))
    if audio.silent:
        return ReadResult(None, audio.remarks[0], silent=True)
    return ReadResult(to_int16(audio.samples), audio.remark)


def read_waves(sources: Sequence[str], rate: int) -> list[ReadResult]:
    """Samples of several sources, read in parallel: see `_read`."""
    with ThreadPoolExecutor(count_cores()) as threads:
        return list(threads.map(lambda source: _read(source, rate, float("inf")), sources))
