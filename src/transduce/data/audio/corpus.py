"""A corpus of audio: samples of 16 bits in one file of the cache, mapped and never read whole.

Features are made of them on the device, anew for each batch: so the speed of an utterance can
change, and the file is half as large as one of features would be.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.cores import count_cores
from transduce.data.audio.read import audio_facts, read_audio
from transduce.data.audio.recording import Samples
from transduce.data.audio.segment import parse_place
from transduce.data.cache.eviction import evict, note_use
from transduce.data.cache.tokenised import Encoded, Report, check_some_left
from transduce.data.text.pairs import EXAMPLES, Pair, read_pairs, told
from transduce.data.text.tags import without_tags
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import DataError
from transduce.recipe import Audio, Corpus
from transduce.recipe.audio import SUBSAMPLING

FORMAT = 2  # raise when what a file of the cache holds changes
AT_ONCE = 32  # recordings in memory while the file is written
STORED = 60.0  # seconds; recordings up to this are kept whatever data.max_length is
FULL_SCALE = 32768

Wave = NDArray[np.int16]


@dataclass(frozen=True)
class Recorded(Encoded):
    """Pairs whose sources are audio: `source_ids` are samples of 16 bits, of one channel and rate.

    `said_ids` and `said_offsets` are the tokens of what is said, row by row.
    """

    said_ids: NDArray[np.int32]
    said_offsets: NDArray[np.int64]
    hop: int
    """Samples from one frame to the next."""
    rate: int
    starts: NDArray[np.int64] | None = None
    """Where each row begins in `source_ids`, where others lie between them; None: nowhere."""
    tags: NDArray[np.uint8] | None = None
    """Of each row, 1 for the tags that it has, in the tokens' order, else 0; None: no tags."""

    @property
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Frames of every source, and tokens of every target."""
        samples, targets = super().lengths
        return -(-samples // self.hop), targets

    def source(self, row: int) -> NDArray[np.int32]:
        """The samples of a row, a view."""
        start, end = self._places(np.array([row]))
        return self.source_ids[start[0] : end[0]]

    def wave(self, row: int) -> Wave:
        """The same, as what it is."""
        return self.source(row).view(np.int16)

    def _places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where rows begin and end in `source_ids`."""
        starts = self.source_offsets if self.starts is None else self.starts
        sizes = self.source_offsets[rows + 1] - self.source_offsets[rows]
        return starts[rows], starts[rows] + sizes

    def waves(self, rows: NDArray[np.int64]) -> tuple[Wave, NDArray[np.int64]]:
        """The samples of rows side by side, zero beyond their ends, and how many each has."""
        starts, ends = self._places(rows)
        padded = np.zeros((len(rows), int((ends - starts).max(initial=1))), np.int16)
        for row, start, end in zip(padded, starts.tolist(), ends.tolist(), strict=True):
            row[: end - start] = self.source_ids[start:end]
        return padded, ends - starts

    def too_fast(self) -> int:
        """How many sources have fewer states than CTC needs for what is said in them."""
        states = np.maximum(self.lengths[0] // SUBSAMPLING, 1)
        return int((np.diff(self.said_offsets) > states).sum())


def recorded(
    sources: Sequence[Any], targets: Sequence[Sequence[int] | NDArray[Any]] | None
) -> Recorded:
    """Sounds and the ids of their targets, where nothing is learnt from what is said."""
    rows = np.arange(len(sources))
    filled = targets if targets is not None else [[]] * len(sources)
    return Recorded(
        source_ids=np.concatenate([np.zeros(0, np.int16), *sources]),
        source_offsets=np.cumsum([0, *map(len, sources)], dtype=np.int64),
        target_ids=np.array([number for ids in filled for number in ids], np.int32),
        target_offsets=np.cumsum([0, *map(len, filled)], dtype=np.int64),
        lines=rows + 1,
        numbers=rows,
        said_ids=np.zeros(0, np.int32),
        said_offsets=np.zeros(len(sources) + 1, np.int64),
        hop=1,
        rate=1,
    )


def sixteen_bits(samples: Samples) -> Wave:
    """Samples of ±1 as whole numbers; what is louder is cut off."""
    return np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def encode_recordings(
    corpus: Corpus,
    data: recipe.Data,
    audio: Audio,
    source_tokens: Tokens,
    target_tokens: Tokens,
    cache_folder: Path,
) -> tuple[Recorded, Report]:
    """A corpus of audio, its samples from the cache where the same were read before.

    Source tokens are those of what is said. What cannot be read, is silent or is too long is
    skipped and counted in the report. Raises DataError if nothing is left to learn from.
    """
    report = Report(max_length=data.max_length, unit="frames")
    pairs = list(read_pairs(corpus, data.folder, report.tally))
    targets = target_tokens.encode_batch([pair.target for pair in pairs])
    said = targets
    if source_tokens is not target_tokens:
        said = source_tokens.encode_batch([pair.said for pair in pairs])
    places = [untagged(pair) for pair in pairs]
    fitting = []
    for number, pair in enumerate(pairs):
        if max(len(targets[number]), len(said[number])) > data.max_length:
            _count_overlong(report, pair)
        else:
            fitting.append(number)
    # All of them, as what the cache holds must not depend on data.max_length.
    heard = _heard(places, data, audio, cache_folder)
    most = data.max_length * audio.hop_samples
    kept = []
    for number in fitting:
        trouble = heard.troubles.get(number)
        if trouble == TOO_LONG or heard.sizes[number] > most:
            _count_overlong(report, pairs[number])
        elif trouble is not None:
            report.unheard += 1
            if len(report.unheard_examples) < EXAMPLES:
                where = f"{pairs[number].file}:{pairs[number].line}"
                report.unheard_examples.append(f"{where}: {trouble}")
        else:
            kept.append(number)
    check_some_left(len(kept), corpus, report)
    clipped = [f"{pairs[n].file}:{pairs[n].line}" for n in kept if n in heard.clipped]
    what = "with a recording that is clipped or too loud kept"
    report.warnings += told(len(clipped), what, clipped[:EXAMPLES]) + heard.remarks
    sizes = np.array(heard.sizes, np.int64)
    encoded = Recorded(
        source_ids=np.memmap(heard.file, np.int16, mode="r"),
        source_offsets=np.concatenate([[0], np.cumsum(sizes[kept])]),
        starts=(np.cumsum(sizes) - sizes)[kept],
        target_ids=_joined(targets, kept),
        target_offsets=np.cumsum([0, *(len(targets[number]) for number in kept)], dtype=np.int64),
        lines=np.array([pairs[number].line for number in kept], np.int64),
        numbers=np.array(kept, np.int64),
        said_ids=_joined(said, kept),
        said_offsets=np.cumsum([0, *(len(said[number]) for number in kept)], dtype=np.int64),
        hop=audio.hop_samples,
        rate=audio.sample_rate,
        tags=_tags_of_rows([pairs[number] for number in kept], source_tokens),
    )
    report.target_tokens = len(encoded.target_ids)
    report.target_unknown = int((encoded.target_ids == UNKNOWN).sum())
    if source_tokens is not target_tokens:
        report.source_tokens = len(encoded.said_ids)
        report.source_unknown = int((encoded.said_ids == UNKNOWN).sum())
    return encoded, report


def untagged(pair: Pair) -> Pair:
    """A pair of audio whose source is its place alone, without the tags before it."""
    return replace(pair, source=without_tags(pair.source, pair.tags)[1]) if pair.tags else pair


def _tags_of_rows(pairs: Sequence[Pair], source_tokens: Tokens) -> NDArray[np.uint8] | None:
    known = list(source_tokens.tags)
    if not known:
        return None
    return np.array([[tag in pair.tags for tag in known] for pair in pairs], np.uint8)


def _joined(rows: list[list[int]], kept: list[int]) -> NDArray[np.int32]:
    return np.array([number for row in kept for number in rows[row]], np.int32)


def _count_overlong(report: Report, pair: Pair) -> None:
    report.overlong += 1
    if len(report.overlong_examples) < EXAMPLES:
        report.overlong_examples.append(f"{pair.file}:{pair.line}")


# -------------------------------------------------------------------------------- the samples

TOO_LONG = "too long"


class Heard(NamedTuple):
    """Samples in a file, one recording after the other, and what became of those left out."""

    file: Path
    sizes: list[int]
    """Samples of each; 0 where it is not there."""
    troubles: dict[int, str]
    """Why those are not there, by their place."""
    clipped: set[int]
    """The places of those that are clipped or too loud."""
    remarks: list[str]


def _heard(pairs: Sequence[Pair], data: recipe.Data, audio: Audio, folder: Path) -> Heard:
    folder = folder.expanduser()
    longest = STORED
    while longest < data.max_length / audio.frames_a_second:
        longest *= 2
    key = _key([pair.source for pair in pairs], audio.sample_rate, longest)
    file, facts = folder / f"{key}.samples", folder / f"{key}.sounds.json"
    kept = _load(file, facts)
    if kept is not None:
        note_use(file)
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as work:
            made = _write(pairs, audio.sample_rate, longest, Path(work) / file.name)
            made.file.replace(file)
            values = [made.sizes, sorted(made.troubles.items()), sorted(made.clipped)]
            (Path(work) / facts.name).write_text(json.dumps(values), "utf-8")
            (Path(work) / facts.name).replace(facts)
    except OSError as error:
        raise DataError(
            f"the audio of the corpus could not be kept in {folder} ({error.strerror or error}): "
            f"free some space, or set XDG_CACHE_HOME to a folder that has it"
        ) from None
    return made._replace(file=file, remarks=evict(folder))


def _key(sources: Sequence[str], rate: int, longest: float) -> str:
    """A hash over all that the samples depend on; of files their names, sizes and dates."""
    digest = sha256(json.dumps([FORMAT, rate, longest]).encode())
    facts: dict[Path, str] = {}
    for source in sources:
        path = parse_place(source)[0]
        if path not in facts:
            try:
                told = path.stat()
                facts[path] = f"{told.st_size} {told.st_mtime_ns}"
            except OSError:
                facts[path] = "missing"
        digest.update(f"{source}\0{facts[path]}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load(file: Path, facts: Path) -> Heard | None:
    """What was kept; None if it is not there, or not whole."""
    try:
        sizes, troubles, clipped = json.loads(facts.read_text("utf-8"))
        whole = file.stat().st_size == 2 * sum(sizes)
        reasons = {int(n): why for n, why in troubles}
        return Heard(file, sizes, reasons, set(clipped), []) if whole else None
    except (OSError, ValueError, TypeError):
        return None


def _write(pairs: Sequence[Pair], rate: int, longest: float, path: Path) -> Heard:
    made = Heard(path, [], {}, set(), [])
    remaining = iter(enumerate(pairs))
    with path.open("wb") as file, ThreadPoolExecutor(count_cores()) as threads:
        while some := list(islice(remaining, AT_ONCE)):
            read = threads.map(lambda pair: _read(pair.source, rate, longest), [p for _, p in some])
            for (place, _), (wave, said, _) in zip(some, read, strict=True):
                made.sizes.append(0 if wave is None else len(wave))
                if wave is None:
                    made.troubles[place] = said
                    continue
                if said:
                    made.clipped.add(place)
                file.write(wave.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return made


class Heeded(NamedTuple):
    """Samples, and what is odd about them; or none, and why."""

    wave: Wave | None
    said: str
    silent: bool = False
    """Whether the reason is that there is nothing to hear."""


def _read(source: str, rate: int, longest: float) -> Heeded:
    path, start, end = parse_place(source)
    try:
        # By the header first: hours of audio are not read to be thrown away.
        seconds = min(audio_facts(path).seconds, end or float("inf")) - start
        if seconds > longest:
            return Heeded(None, TOO_LONG)
        audio = read_audio(path, rate, start, end)
    except DataError as error:
        return Heeded(None, str(error))
    if audio.silent:
        return Heeded(None, audio.remarks[0], silent=True)
    return Heeded(sixteen_bits(audio.samples), " ".join(audio.remarks))


def read_waves(sources: Sequence[str], rate: int) -> list[Heeded]:
    """What several sources sound like, read at the same time: see `_read`."""
    with ThreadPoolExecutor(count_cores()) as threads:
        return list(threads.map(lambda source: _read(source, rate, float("inf")), sources))
