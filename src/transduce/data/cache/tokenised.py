"""A tokenised corpus: flat arrays of ids, cached on disk and memory-mapped."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from transduce import recipe
from transduce.data.cache.eviction import DAY, evict, note_use
from transduce.data.filters.rules import PairRules, Reason, judge
from transduce.data.text.files import locate
from transduce.data.text.pairs import (
    EXAMPLES,
    Pair,
    PairColumns,
    ReadingCounts,
    corpus_files,
    corpus_name,
    is_running,
    read_pairs,
    resolved,
    warning_of,
)
from transduce.data.tokens.copying import CopiedTokens
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.data.tokens.words import Ids, Offsets, flattened
from transduce.errors import DataError, unreadable
from transduce.recipe import Corpus
from transduce.storage.positions import version_of
from transduce.storage.remote import RemotePath

FORMAT = 4  # format version: increase when the content of a cache file changes
AT_ONCE = 4096  # pairs passed to the Rust tokenizer at a time


@dataclass(frozen=True)
class Encoded:
    """Pairs as ids, without special tokens; row i of a side is ids[offsets[i] : offsets[i + 1]].

    `lines` are line numbers in the pairs' files, for messages; `numbers` are the indices, from 0,
    of the pairs that `read_pairs` gives, to find the text where overlong pairs were skipped.
    """

    source_ids: NDArray[np.int32]
    source_offsets: NDArray[np.int64]
    target_ids: NDArray[np.int32]
    target_offsets: NDArray[np.int64]
    lines: NDArray[np.int64]
    numbers: NDArray[np.int64]

    whole: ClassVar[bool] = True
    """Whether targets are complete and end with END; a block of running text is not."""

    def __len__(self) -> int:
        return len(self.lines)

    def source(self, row: int) -> NDArray[np.int32]:
        """The source ids of a row, a view."""
        return self.source_ids[self.source_offsets[row] : self.source_offsets[row + 1]]

    def target(self, row: int) -> NDArray[np.int32]:
        """The target ids of a row, a view."""
        return self.target_ids[self.target_offsets[row] : self.target_offsets[row + 1]]

    @property
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens of every source and of every target, without special tokens."""
        return np.diff(self.source_offsets), np.diff(self.target_offsets)


MUCH_TEXT = 0.05  # of all target tokens: a few long recordings may have a good part of them


@dataclass
class Report:
    """Counts and warnings from reading and tokenising a corpus."""

    counts: ReadingCounts = field(default_factory=ReadingCounts)
    overlong: int = 0
    overlong_examples: list[str] = field(default_factory=list)
    overlong_tokens: int = 0
    """Of recordings, the target tokens that are skipped with them."""
    max_length: int = 0
    overlong_done: Literal["skip", "truncate"] = "skip"
    unit: str = "tokens"
    unaligned: int = 0
    unaligned_examples: list[str] = field(default_factory=list)
    unreadable: int = 0
    unreadable_examples: list[str] = field(default_factory=list)
    source_tokens: int = 0
    target_tokens: int = 0
    source_unknown: int = 0
    target_unknown: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add what was counted in another part of the corpus."""
        self.counts.add(other.counts)
        self.max_length, self.overlong_done = other.max_length, other.overlong_done
        self.overlong_tokens += other.overlong_tokens
        for kind in ("overlong", "unaligned", "unreadable"):
            setattr(self, kind, getattr(self, kind) + getattr(other, kind))
            places = getattr(self, f"{kind}_examples")
            places += getattr(other, f"{kind}_examples")[: EXAMPLES - len(places)]
        for side in ("source", "target"):
            for counted in (f"{side}_tokens", f"{side}_unknown"):
                setattr(self, counted, getattr(self, counted) + getattr(other, counted))
        self.warnings += other.warnings

    def sentences(self) -> list[str]:
        """A warning for each problem, for people."""
        found = self.counts.sentences()
        what = "with another number of labels than of words skipped"
        found += warning_of(self.unaligned, what, self.unaligned_examples)
        what = "whose audio cannot be used skipped"
        found += warning_of(self.unreadable, what, self.unreadable_examples)
        done = "skipped" if self.overlong_done == "skip" else "cut"
        what = f"longer than {self.max_length} {self.unit} {done}"
        lost = self.overlong_tokens / max(self.overlong_tokens + self.target_tokens, 1)
        if lost >= MUCH_TEXT:
            what += f", and with them {lost:.0%} of the text, which a higher data.max_length keeps"
        found += warning_of(self.overlong, what, self.overlong_examples)
        for side, unknown, count in (
            ("source", self.source_unknown, self.source_tokens),
            ("target", self.target_unknown, self.target_tokens),
        ):
            if unknown:
                share = unknown / count
                found.append(f"{unknown:,} {side} tokens are unknown ({share:.2%} of them)")
        return found + self.warnings


def report_json(report: Report | None) -> dict[str, Any] | None:
    return None if report is None else asdict(report)


def report_of(fields: dict[str, Any]) -> Report:
    """From what `report_json` gave. Raises TypeError or KeyError for anything else."""
    return Report(**(fields | {"counts": ReadingCounts(**fields["counts"])}))


Read = tuple[Sequence[Pair], ReadingCounts]
"""All pairs of a corpus, and the counts of their reading."""


def encode_corpus(
    corpus: Corpus,
    data: recipe.Data,
    source_tokens: Tokens,
    target_tokens: Tokens,
    cache_folder: Path | None,
    aligned: bool = False,
    copied: bool = False,
    rules: PairRules | None = None,
    read: Read | None = None,
) -> tuple[Encoded, Report]:
    """A tokenised corpus, from the cache if the same text was tokenised the same way before.

    If `aligned`, each source token needs one target token; other pairs are skipped and counted.
    If `copied`, unknown tokens have the ids of a model that copies (tokens/copying.py). rules:
    which pairs are left out besides; the report says how many. read: what `read_pairs` gave of the
    corpus, where it was read already.
    Without `cache_folder` nothing is cached. A cache that cannot be read is made again; if it
    cannot
    be written, the report says so. Raises DataError if nothing is left to learn from.
    """
    how = (source_tokens, target_tokens, aligned, copied, rules, read)
    if cache_folder is None:
        return _encode_anew(corpus, data, *how)
    filters = [] if rules is None else [rules.settings()]
    settings = json.dumps([FORMAT, data.max_length, data.overlong, aligned, copied, *filters])
    texts = (source_tokens.to_json(), target_tokens.to_json())
    key = content_key(corpus, data.folder, settings, *texts)
    path = Path(cache_folder).expanduser() / f"{key}.safetensors"
    sizes = [len(source_tokens), len(target_tokens)]
    if copied:  # a target's ids go on with the positions of its source, a source's with both
        sizes[1] += data.max_length
        sizes[0] += sizes[1]
    kept = _load(path, *sizes)
    if kept is not None:
        note_use(path)
        return kept
    encoded, report = _encode_anew(corpus, data, *how)
    try:
        _save(path, encoded, report)
    except OSError as error:
        report.warnings.append(
            f"the tokenised corpus could not be cached in {path.parent} ({error}); it will be "
            "tokenised again next time"
        )
        return encoded, report
    # Memory-mapped, its pages can be evicted when another program needs memory.
    encoded, _ = _load(path, *sizes) or (encoded, report)
    report.warnings += evict(path.parent)
    return encoded, report


def encode_pairs(
    pairs: Iterable[Pair],
    data: recipe.Data,
    source_tokens: Tokens,
    target_tokens: Tokens,
    report: Report,
    aligned: bool = False,
    running: bool = False,
    copied: bool = False,
    kept: NDArray[np.bool_] | None = None,
) -> Encoded:
    """Tokenise pairs in batches; overlong ones are skipped or truncated and counted in `report`.

    If `aligned`, pairs with different numbers of tokens on the two sides are skipped as well. The
    targets of `running` text are lines of any length, whose ids are concatenated. `copied`: as in
    `encode_corpus`. kept: of each pair, whether it is used at all; default: all are.
    """
    encode = PairEncoder(data, source_tokens, target_tokens, aligned, running, copied)
    remaining: Iterator[Pair] = iter(pairs)
    source_rows, target_rows, lines, numbers = Rows(), Rows(), GrowingArray(), GrowingArray()
    number = 0
    while some := list(islice(remaining, AT_ONCE)):
        rows = None if kept is None else np.flatnonzero(kept[number : number + len(some)])
        chosen = some if rows is None else [some[row] for row in rows]
        encoded = encode(PairColumns.of(chosen), report, 0)
        source_rows.add_flat(encoded.source_ids, encoded.source_offsets)
        target_rows.add_flat(encoded.target_ids, encoded.target_offsets)
        lines.add(encoded.lines)
        numbers.add(number + (encoded.numbers if rows is None else rows[encoded.numbers]))
        number += len(some)
    return Encoded(
        *source_rows.whole(), *target_rows.whole(), lines=lines.whole(), numbers=numbers.whole()
    )


@dataclass(frozen=True)
class PairEncoder:
    """Tokenises pairs: see `encode_pairs`."""

    data: recipe.Data
    source_tokens: Tokens
    target_tokens: Tokens
    aligned: bool = False
    running: bool = False
    copied: bool = False

    def __call__(self, pairs: PairColumns, report: Report, first_number: int) -> Encoded:
        """The pairs that are not skipped; what is skipped is counted in `report`."""
        longest = self.data.max_length
        report.max_length, report.overlong_done = longest, self.data.overlong
        sources = self.source_tokens.encode_flat(pairs.sources)
        if self.running:
            begins = [line == 1 for line in pairs.lines]
            lined = list(zip(pairs.targets, begins, strict=True))
            targets = flattened(self.target_tokens.encode_lines(lined))
        else:
            targets = self.target_tokens.encode_flat(pairs.targets)
        source_sizes, target_sizes = np.diff(sources[1]), np.diff(targets[1])
        kept = np.ones(len(pairs), bool)
        if self.aligned:
            kept = source_sizes == target_sizes
            _count(report, "unaligned", pairs, ~kept)
        if not self.running:
            long = kept & (np.maximum(source_sizes, target_sizes) > longest)
            _count(report, "overlong", pairs, long)
            if self.data.overlong == "skip":
                kept &= ~long
            sources, targets = (cut_rows(*side, kept, longest) for side in (sources, targets))
        rows = np.flatnonzero(kept)
        if self.copied:
            sources, targets = self._copied(pairs.kept(rows.tolist()), sources, targets)
        for side, (ids, _) in (("source", sources), ("target", targets)):
            setattr(report, f"{side}_tokens", getattr(report, f"{side}_tokens") + len(ids))
            unknown = int(np.count_nonzero(ids == UNKNOWN))
            setattr(report, f"{side}_unknown", getattr(report, f"{side}_unknown") + unknown)
        lines = np.array(pairs.lines, np.int64)[rows]
        return Encoded(*sources, *targets, lines=lines, numbers=first_number + rows)

    def _copied(
        self, pairs: PairColumns, sources: tuple[Ids, Offsets], targets: tuple[Ids, Offsets]
    ) -> tuple[tuple[Ids, Offsets], tuple[Ids, Offsets]]:
        """With the ids of a model that copies, for unknown tokens."""
        copying = CopiedTokens(self.source_tokens, self.target_tokens)
        source_rows, target_rows = [], []
        for row, (source, target) in enumerate(zip(pairs.sources, pairs.targets, strict=True)):
            read, said = (
                ids[offsets[row] : offsets[row + 1]].tolist() for ids, offsets in (sources, targets)
            )
            source_rows.append(copying.source_ids(source, read))
            target_rows.append(copying.target_ids(target, said, source, source_rows[-1]))
        return flattened(source_rows), flattened(target_rows)


def cut_rows(
    ids: Ids, offsets: Offsets, kept: NDArray[np.bool_], longest: int
) -> tuple[Ids, Offsets]:
    """The rows that are kept, of at most `longest` ids each."""
    sizes = np.diff(offsets)
    wanted = np.where(kept, np.minimum(sizes, longest), 0)
    if wanted.sum() < len(ids):
        places = np.arange(len(ids)) - np.repeat(offsets[:-1], sizes)
        ids = ids[places < np.repeat(wanted, sizes)]
    return ids, np.concatenate([np.zeros(1, np.int64), np.cumsum(wanted[kept])])


def _count(report: Report, kind: str, pairs: PairColumns, rows: NDArray[np.bool_]) -> None:
    """Count these of the pairs in a report, with the places of the first ones."""
    found = np.flatnonzero(rows).tolist()
    setattr(report, kind, getattr(report, kind) + len(found))
    places = getattr(report, f"{kind}_examples")
    places += [pairs.place(row) for row in found[: EXAMPLES - len(places)]]


def _encode_anew(
    corpus: Corpus,
    data: recipe.Data,
    source_tokens: Tokens,
    target_tokens: Tokens,
    aligned: bool,
    copied: bool,
    rules: PairRules | None,
    read: Read | None,
) -> tuple[Encoded, Report]:
    report, kept = Report(), None
    if rules is not None:
        reasons, dropped = judge(_in_columns(read_pairs(corpus, data.folder)), rules)
        dropped.check_some_left(rules)
        kept = reasons == Reason.KEPT
        report.warnings += dropped.sentences(rules)
    pairs: Iterable[Pair]
    if read is None:
        pairs = read_pairs(corpus, data.folder, report.counts)
    else:
        pairs, report.counts = read
    how = {"aligned": aligned, "running": is_running(corpus), "copied": copied}
    encoded = encode_pairs(pairs, data, source_tokens, target_tokens, report, **how, kept=kept)
    check_some_left(len(encoded), corpus, report)
    return encoded, report


def _in_columns(pairs: Iterator[Pair]) -> Iterator[PairColumns]:
    while some := list(islice(pairs, AT_ONCE)):
        yield PairColumns.of(some)


def check_some_left(count: int, corpus: Corpus, report: Report) -> None:
    """Raise DataError where every pair of a corpus was skipped."""
    if count:
        return
    reasons = "; ".join(report.sentences()) or "there is none"
    cut = ", or set data.overlong=truncate" if report.unit == "tokens" else ""
    raise DataError(
        f"no pair of {corpus_name(corpus)} is left to use: {reasons}; correct the files, raise "
        f"data.max_length{cut}"
    )


# -------------------------------------------------------------------------------- files on disk


def content_key(corpus: Corpus, folder: str | None, *more: str) -> str:
    """A hash of a corpus, by the contents, not the dates of its files, and of more texts. Files of
    a store and tar archives count by their versions.
    """
    digest = sha256()

    def add(text: str | bytes) -> None:
        raw = text.encode("utf-8") if isinstance(text, str) else text
        digest.update(len(raw).to_bytes(8, "big") + raw)

    settings = corpus.model_dump(
        mode="json",
        exclude={"file", "weight"}
        if isinstance(corpus, recipe.Columns)
        else {"source", "target", "text", "of", "weight"},
    )
    add(json.dumps([type(corpus).__name__, settings]))
    for text in more:
        add(text)
    if isinstance(corpus, recipe.Mixture):
        for one in corpus.of:
            add(content_key(one, folder))
    files, shelf = resolved(corpus, folder)
    if files is not corpus and corpus.limit is None:
        add(content_key(files, shelf))
    elif isinstance(corpus, recipe.Named | recipe.Hub):
        for pair in read_pairs(corpus, folder):
            add(pair.source)
            add(pair.target)
            add(pair.transcript)
    for name in corpus_files(corpus, folder):
        # The names too: the report's examples contain them.
        add(name)
        place = locate(name, folder)
        if isinstance(place, RemotePath) or place.suffix == ".tar":
            # Its version: all of it is long to fetch, or mostly audio.
            add(json.dumps(vars(version_of(place))))
            continue
        try:
            with place.open("rb") as file:
                while block := file.read(1 << 20):
                    add(block)
        except OSError as error:
            raise unreadable(name, error) from None
    return digest.hexdigest()


def _save(path: Path, encoded: Encoded, report: Report) -> None:
    """Write to a temporary file, then rename: another run never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".", suffix=".part") as folder:
        beside = Path(folder) / path.name
        write_arrays(beside, vars(encoded), {"report": json.dumps(report_json(report))})
        beside.replace(path)


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file; the library's own writer would copy all arrays first."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    ordered = sorted(arrays.items(), key=lambda entry: (-entry[1].itemsize, entry[0]))
    start = 0
    for name, values in ordered:
        end = start + values.nbytes
        kind = f"I{8 * values.itemsize}"
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [start, end]}
        start = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, values in ordered:
            file.write(np.ascontiguousarray(values).data)
        file.flush()
        os.fsync(file.fileno())  # so that a power failure leaves no half file under the final name


def _sweep(cache_folder: Path) -> None:
    """Remove temporary files of killed runs; those younger than a day may still be in use."""
    for part in cache_folder.glob(".*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > DAY:
                shutil.rmtree(part)


def _load(path: Path, source_size: int, target_size: int) -> tuple[Encoded, Report] | None:
    """A cached corpus, memory-mapped; None if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            fields = json.loads(file.metadata()["report"])
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
        encoded = Encoded(**arrays)
        report = report_of(fields)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return None
    rows = len(encoded.lines)
    audio = rows > 0 and len(encoded.numbers) == rows
    for ids, offsets, size in (
        (encoded.source_ids, encoded.source_offsets, source_size),
        (encoded.target_ids, encoded.target_offsets, target_size),
    ):
        audio = audio and len(offsets) == rows + 1 and offsets[0] == 0
        audio = audio and offsets[-1] == len(ids) and bool((np.diff(offsets) >= 0).all())
        audio = audio and (len(ids) == 0 or (ids.min() >= 0 and ids.max() < size))
    return (encoded, report) if audio else None


# ----------------------------------------------------------------------------------------------
# Growing arrays: appended to in pieces, as concatenating at the end would need twice the memory.


class GrowingArray:
    """A flat, growing array of int32 or int64."""

    def __init__(self, dtype: type[np.int32] | type[np.int64] = np.int64) -> None:
        self._dtype = np.dtype(dtype)
        self._values = array("i" if self._dtype.itemsize == array("i").itemsize else "q")

    def add(self, values: Sequence[int] | NDArray[np.int32] | NDArray[np.int64]) -> None:
        """Append values."""
        self._values.frombytes(np.ascontiguousarray(values, self._dtype).data.cast("B"))

    def whole(self) -> NDArray[np.int64]:
        """The whole array, without a copy; nothing can be appended any more."""
        if not self._values:
            return np.zeros(0, self._dtype)
        return np.frombuffer(self._values, self._dtype)


class Rows:
    """Growing rows of ids, stored as flat ids and offsets: see `Encoded`."""

    def __init__(self) -> None:
        self._ids, self._offsets = GrowingArray(np.int32), GrowingArray()
        self._end = 0
        self._offsets.add([0])

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Append rows."""
        self.add_flat(*flattened(rows))

    def add_flat(self, ids: Ids, offsets: Offsets) -> None:
        """Append rows that are flat already."""
        self._ids.add(ids)
        self._offsets.add(self._end + offsets[1:])
        self._end += len(ids)

    def whole(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """All ids, and the offsets of the rows."""
        return self._ids.whole().view(np.int32), self._offsets.whole()
