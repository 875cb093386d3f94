"""Reading pairs: a stream of source and target text from files, by name, or from the hub."""

from __future__ import annotations

import glob
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, cast

from transduce.corpora import FETCHED, MADE, check_named, files_of, listing_of
from transduce.data.conllu import COLUMNS, read_sentences
from transduce.data.hub import check_hub, hub_name, hub_rows
from transduce.errors import DataError
from transduce.recipe import (
    Column,
    Columns,
    Corpus,
    Hub,
    Named,
    ParallelFiles,
    Recipe,
    Recordings,
    Text,
)

EXAMPLES = 5
FORMATS = (".tsv", ".jsonl", ".parquet", ".conllu")
PARQUET_ROWS = 8192

# What str.splitlines and many editors take for the end of a line; here only \n and \r\n end one,
# or the two sides would slip against each other.
ODD_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its target, and where they stand: file as the recipe has it, line from 1.

    A source of sound is the name of its file, and of its seconds where it is a part: `place_of`.
    """

    source: str
    target: str
    file: str
    line: int
    said: str = ""
    """What is said in a source of sound."""


@dataclass
class Tally:
    """What was seen while reading, with the first few places of each oddity as file:line."""

    pairs: int = 0
    empty_source: int = 0
    empty_target: int = 0
    odd_breaks: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, oddity: str, file: str, line: int) -> None:
        """Count one more of `empty_source`, `empty_target` or `odd_breaks`."""
        setattr(self, oddity, getattr(self, oddity) + 1)
        places = self.examples.setdefault(oddity, [])
        if len(places) < EXAMPLES:
            places.append(f"{file}:{line}")

    def sentences(self) -> list[str]:
        """A warning for each oddity that was seen."""
        oddities = {
            "empty_source": "with an empty source skipped",
            "empty_target": "with an empty target skipped",
            "odd_breaks": "with a line break other than \\n inside kept as they are",
        }
        found = []
        for oddity, what in oddities.items():
            found += told(getattr(self, oddity), what, self.examples.get(oddity, []))
        return found


def text_of(corpus: Corpus) -> Text | None:
    """The text that a corpus is, whether or not it is on this machine; None where it has sources.

    A trained model asks this of its recipe, far from what it was trained on.
    """
    if isinstance(corpus, Named) and (listing := FETCHED.get(corpus.name)):
        files = listing.read(corpus.split, listing.example)
        return files if isinstance(files, Text) else None
    return corpus if isinstance(corpus, Text) else None


def sound_of(corpus: Corpus) -> Recordings | None:
    """The recordings that a corpus is, whether or not they are on this machine."""
    if isinstance(corpus, Named) and (listing := FETCHED.get(corpus.name)):
        files = listing.read(corpus.split, listing.example)
        if isinstance(files, Recordings) and corpus.language is not None:
            files = listing.read(corpus.split, corpus.language)
        return files if isinstance(files, Recordings) else None
    return corpus if isinstance(corpus, Recordings) else None


def is_running(corpus: Corpus) -> bool:
    """Whether the lines of a corpus are one running text, line breaks and empty lines included."""
    text = text_of(corpus)
    return text is not None and text.running


def check_kind(corpus: Corpus, recipe: Recipe) -> None:
    """Raise DataError if a corpus by name is not what the task of a recipe learns from.

    Of files the recipe knows it by itself.
    """
    continued = recipe.task == "continue"
    sound = sound_of(corpus)
    if (sound is not None) != (recipe.sound is not None):
        what = "is sound" if sound else "is text"
        mend = "write sound: {} into the recipe" if sound else "leave sound out of the recipe"
        raise DataError(f"{called(corpus)} {what}, but the recipe takes it for other: {mend}")
    if sound is not None and sound.said is not None and recipe.data.tokens.both is not None:
        raise DataError(
            f"{called(corpus)} has one text that is said and another that is written: give each "
            f"its tokens, data.tokens.source and data.tokens.target"
        )
    if continued and text_of(corpus) is None:
        what, wanted = "has sources and targets", "learns from text alone"
    elif not continued and text_of(corpus) is not None:
        what, wanted = "is text alone", "learns from sources and targets"
    elif is_running(corpus) != is_running(recipe.data.train):
        lines = "joined" if is_running(corpus) else "apart"
        what, wanted = f"has its lines {lines}", "needs them as in data.train"
    else:
        return
    raise DataError(f"{called(corpus)} {what}, but task: {recipe.task} {wanted}")


def told(count: int, what: str, places: list[str]) -> list[str]:
    """A warning of so many pairs, and where the first of them are; none of none."""
    if not count:
        return []
    noun = "pair" if count == 1 else "pairs"
    more = ", …" if count > len(places) else ""
    where = f" ({', '.join(places)}{more})" if places else ""
    return [f"{count:,} {noun} {what}{where}"]


def read_pairs(corpus: Corpus, folder: str | None, tally: Tally | None = None) -> Iterator[Pair]:
    """Stream the pairs of a corpus; `folder` is where relative paths start.

    Pairs with an empty side are skipped and counted in `tally`; `corpus.limit` counts the others.
    A line of text is a target without a source; of running text, with its line break.
    Raises DataError, with file and line, for all that cannot be read.
    """
    tally = tally if tally is not None else Tally()
    limit = corpus.limit
    corpus, folder = resolved(corpus, folder)
    if isinstance(corpus, Text):
        pairs = _text_pairs(corpus, folder)
    elif isinstance(corpus, ParallelFiles):
        pairs = _parallel_pairs(corpus, folder)
    elif isinstance(corpus, Columns):
        pairs = _column_pairs(corpus, folder)
    elif isinstance(corpus, Recordings):
        pairs = _recording_pairs(corpus, folder)
    elif isinstance(corpus, Hub):
        pairs = _numbered(hub_rows(corpus), corpus.hub)
    else:
        pairs = _numbered(MADE[corpus.name](corpus.split), corpus.name)
    read = 0
    for pair in pairs:
        if not pair.source.strip() and not isinstance(corpus, Text):
            tally.note("empty_source", pair.file, pair.line)
            continue
        if not pair.target.strip() and not is_running(corpus):
            tally.note("empty_target", pair.file, pair.line)
            continue
        if ODD_BREAK.search(pair.source) or ODD_BREAK.search(pair.target):
            tally.note("odd_breaks", pair.file, pair.line)
        tally.pairs += 1
        read += 1
        yield pair
        if read == limit:
            return


def resolved(corpus: Corpus, folder: str | None) -> tuple[Corpus, str | None]:
    """A fetched corpus as the files that it is, and where their names start; others as they are.

    Raises DataError where there is no such corpus, or it is not on this machine.
    """
    if not isinstance(corpus, Named):
        return corpus, folder
    check_named(corpus)
    listing = listing_of(corpus.name)
    if listing is None:
        return corpus, folder
    files, shelf = files_of(corpus, listing)
    return files, str(shelf)


def _numbered(rows: Iterable[tuple[str, str]], name: str) -> Iterator[Pair]:
    return (Pair(source, target, name, line) for line, (source, target) in enumerate(rows, start=1))


def check_files(corpus: Corpus, folder: str | None) -> None:
    """Raise DataError if a file of the corpus is not there; nothing is read."""
    if isinstance(corpus, ParallelFiles):
        _matched(corpus, folder)
    elif isinstance(corpus, Text):
        corpus_files(corpus, folder)
    elif isinstance(corpus, Columns | Recordings):
        for name in corpus_files(corpus, folder):
            _format(name)
    elif isinstance(corpus, Named):
        check_named(corpus)
    else:
        check_hub(corpus)


def corpus_files(corpus: Corpus, folder: str | None) -> list[str]:
    """The files that a recipe names, globs resolved, sources first; none of a corpus by name."""
    if isinstance(corpus, ParallelFiles):
        return _files(corpus.source, folder) + _files(corpus.target, folder)
    if isinstance(corpus, Text):
        return _files(corpus.text, folder)
    return _files(corpus.file, folder) if isinstance(corpus, Columns | Recordings) else []


def called(corpus: Corpus) -> str:
    """What sentences call a corpus: its files, or its name and split."""
    if isinstance(corpus, Named):
        chosen = corpus.pair or corpus.language
        return " ".join(filter(None, [corpus.name, chosen, f"({corpus.split})"]))
    if isinstance(corpus, Hub):
        return hub_name(corpus)
    if isinstance(corpus, ParallelFiles):
        return f"{_listed(corpus.source)} and {_listed(corpus.target)}"
    return _listed(corpus.text if isinstance(corpus, Text) else corpus.file)


def _listed(names: str | list[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


def locate(name: str, folder: str | None) -> Path:
    """Where a file of a recipe is: relative names start at `folder`, ~ is the home folder."""
    return Path(folder or ".") / Path(name).expanduser()


def _files(given: str | list[str], folder: str | None) -> list[str]:
    """Names as given, globs resolved and sorted. Raises DataError for a file that is not there."""
    found: list[str] = []
    for name in [given] if isinstance(given, str) else given:
        path = locate(name, folder)
        if path.is_file():
            found.append(name)
        elif path.is_dir():
            raise DataError(
                f"{path.absolute()} is a folder where a file is needed; name the files in it, "
                f"for example {name.rstrip('/')}/*.txt"
            )
        elif glob.has_magic(name):
            pattern = str(Path(name).expanduser())
            # root_dir keeps brackets in the folder's own name from being read as a pattern.
            matches = glob.glob(pattern, root_dir=folder or ".", recursive=True)  # noqa: PTH207
            files = sorted(match for match in matches if locate(match, folder).is_file())
            if not files:
                raise DataError(
                    f"no file matches {path.absolute()}; mend the pattern, or say where the files "
                    "are with data.folder=..."
                )
            found += files
        else:
            raise DataError(
                f"there is no file {path.absolute()}; mend the name, or say where the files are "
                "with data.folder=..."
            )
    return found


def _matched(corpus: ParallelFiles, folder: str | None) -> list[tuple[str, str]]:
    sources, targets = _files(corpus.source, folder), _files(corpus.target, folder)
    if len(sources) != len(targets):
        raise DataError(
            f"{corpus.source} gives {len(sources)} source files, {corpus.target} gives "
            f"{len(targets)} target files; they must be as many, matched in order"
        )
    return list(zip(sources, targets, strict=True))


def _parallel_pairs(corpus: ParallelFiles, folder: str | None) -> Iterator[Pair]:
    for source_name, target_name in _matched(corpus, folder):
        sources, targets = read_lines(source_name, folder), read_lines(target_name, folder)
        for line, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None or target is None:
                more = 1 + sum(1 for _ in (sources if target is None else targets))
                counts = (line - 1 + more, line - 1)
                of_source, of_target = counts if target is None else counts[::-1]
                raise DataError(
                    f"{source_name} has {of_source:,} lines and {target_name} has {of_target:,}; "
                    "line n of one must belong to line n of the other, so make them equal"
                )
            yield Pair(source, target, source_name, line)


def _text_pairs(corpus: Text, folder: str | None) -> Iterator[Pair]:
    for name in _files(corpus.text, folder):
        for line, text in enumerate(read_lines(name, folder, breaks=corpus.running), start=1):
            yield Pair("", text, name, line)


def read_lines(name: str, folder: str | None, breaks: bool = False) -> Iterator[str]:
    """The lines of a text file without their ends, or with a \\n for each. Raises DataError."""
    line = 0
    try:
        with _open(locate(name, folder)) as file:
            # A binary file is cut at \n only, and says which byte of which line is wrong.
            for line, raw in enumerate(file, start=1):
                bare = raw[:-1] if raw.endswith(b"\n") else raw
                bare = bare[:-1] if bare.endswith(b"\r") else bare
                if line == 1:
                    bare = bare.removeprefix(b"\xef\xbb\xbf")
                text = bare.decode("utf-8")
                yield text + "\n" if breaks and raw.endswith(b"\n") else text
    except UnicodeDecodeError as error:
        start, bad = error.start, error.object[error.start]
        if line == 1 and error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = f"it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 {name}`"
        else:
            hint = "convert the file, for example with `iconv -f LATIN1 -t UTF-8`"
        raise DataError(
            f"{name}:{line}: byte {start + 1} of the line (0x{bad:02x}) is not UTF-8; {hint}"
        ) from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name}:{line + 1}: the compressed file is damaged or cut short here ({error}); "
            "fetch or compress it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None
    if line == 0:
        raise DataError(f"{name} is empty; give a file with at least one line")


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path))
    return path.open("rb")


def _format(name: str) -> str:
    packed = Path(name).suffix in (".gz", ".xz")
    suffix = Path(Path(name).stem if packed else name).suffix
    if suffix not in FORMATS:
        raise DataError(
            f"{name}: cannot tell the format from the name; it must end in {', '.join(FORMATS)} "
            "(and .gz or .xz where it is compressed)"
        )
    if packed and suffix == ".parquet":
        raise DataError(f"{name}: Parquet compresses within; unpack the file")
    return suffix


def _column_pairs(corpus: Columns, folder: str | None) -> Iterator[Pair]:
    for name in _files(corpus.file, folder):
        if _format(name) == ".conllu":
            yield from _conllu_pairs(name, folder, corpus)
            continue
        wanted = (corpus.source, corpus.target) if _format(name) == ".tsv" else _names(corpus)
        for line, (source, target) in _rows(name, folder, wanted):
            yield Pair(source, target, name, line)


Rows = Iterator[tuple[int, list[str]]]
"""Lines from 1, and the text of each column that is wanted."""


def _rows(name: str, folder: str | None, wanted: Sequence[Column], numbers: bool = False) -> Rows:
    """The wanted columns of a table; with `numbers`, JSONL and Parquet may hold them too."""
    if _format(name) == ".tsv":
        return _tsv_rows(name, folder, wanted)
    keys = [str(column) for column in wanted]
    if _format(name) == ".jsonl":
        return _jsonl_rows(name, folder, keys, numbers)
    return _parquet_rows(name, folder, keys, numbers)


def _tsv_rows(name: str, folder: str | None, wanted: Sequence[Column]) -> Rows:
    header = any(isinstance(column, str) for column in wanted)
    places: list[int] = [] if header else [int(column) for column in wanted]
    for line, text in enumerate(read_lines(name, folder), start=1):
        fields = text.split("\t")
        if line == 1 and header:
            places = [
                column if isinstance(column, int) else _column(name, column, fields)
                for column in wanted
            ]
            continue
        for place in places:
            if not 0 <= place < len(fields):
                raise DataError(
                    f"{name}:{line}: the line has {len(fields)} "
                    f"{'column' if len(fields) == 1 else 'columns'} (separated by tabs), but "
                    f"column {place} (counted from 0) is asked for; mend the line or the number"
                )
        yield line, [fields[place] for place in places]


def _jsonl_rows(name: str, folder: str | None, keys: list[str], numbers: bool) -> Rows:
    for line, text in enumerate(read_lines(name, folder), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{name}:{line}: this is not valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{name}:{line}: each line must be a JSON object, as in {{...}}")
        found = []
        for key in keys:
            if key not in record:
                there = ", ".join(record) or "none"
                raise DataError(f"{name}:{line}: there is no key {key}; there are: {there}")
            value = record[key]
            if numbers and isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)
            if not isinstance(value, str):
                raise DataError(
                    f"{name}:{line}: the value of {key} is {json.dumps(value)[:40]}, not text"
                )
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise DataError(
                    f"{name}:{line}: the value of {key} holds half of a surrogate pair, which is "
                    "no character; mend the \\u escape"
                )
            found.append(value)
        yield line, found


def _parquet_rows(name: str, folder: str | None, keys: list[str], numbers: bool) -> Rows:
    import pyarrow
    import pyarrow.parquet

    line = 0
    kinds = pyarrow.types
    try:
        with pyarrow.parquet.ParquetFile(locate(name, folder)) as file:
            schema = file.schema_arrow
            for key in keys:
                _column(name, key, schema.names)
                kind = schema.field(key).type
                inner = kind.value_type if kinds.is_dictionary(kind) else kind
                text = kinds.is_string(inner) or kinds.is_large_string(inner)
                number = numbers and (kinds.is_floating(inner) or kinds.is_integer(inner))
                if not text and not number:
                    raise DataError(f"{name}: the column {key} holds {kind}, not text")
            for batch in file.iter_batches(PARQUET_ROWS, columns=list(dict.fromkeys(keys))):
                columns = [batch.column(key).to_pylist() for key in keys]
                for values in zip(*columns, strict=True):
                    line += 1
                    yield line, ["" if value is None else str(value) for value in values]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{name}: row {line + 1}: this is no Parquet file that can be read, or it is damaged "
            f"({' '.join(str(error).split())})"
        ) from None
    if line == 0:
        raise DataError(f"{name} is empty; give a file with at least one row")


def _recording_pairs(corpus: Recordings, folder: str | None) -> Iterator[Pair]:
    """Sound files by their places, and what is written and said of them."""
    wanted = [corpus.audio, corpus.target]
    optional = [corpus.said, corpus.start, corpus.end]
    wanted += [column for column in optional if column is not None]
    for name in _files(corpus.file, folder):
        beside = locate(name, folder).absolute().parent
        for line, (audio, target, *others) in _rows(name, folder, wanted, numbers=True):
            rest = iter(others)
            said = target if corpus.said is None else next(rest)
            start = _seconds(next(rest), name, line) if corpus.start is not None else None
            end = _seconds(next(rest), name, line) if corpus.end is not None else None
            file = beside / Path(audio).expanduser()
            source = place_of(file, start, end) if audio.strip() else ""
            yield Pair(source, target, name, line, said)


def place_of(file: Path, start: float | None = None, end: float | None = None) -> str:
    """A sound file, or its seconds from `start` to `end`, as a text: a.wav#t=1.5,2.25.

    https://www.w3.org/TR/media-frags/#naming-time
    """
    if start is None and end is None:
        return str(file)
    times = [f"{seconds:.6f}".rstrip("0").rstrip(".") for seconds in (start or 0.0, end or 0.0)]
    return f"{file}#t={times[0]}" + ("" if end is None else f",{times[1]}")


_PART = re.compile(r"(?P<file>.*)#t=(?P<start>\d*\.?\d*)(?:,(?P<end>\d+\.?\d*))?", re.DOTALL)


def parse_place(source: str) -> tuple[Path, float, float | None]:
    """What `place_of` made a text of: the file, and the seconds where a part begins and ends."""
    part = _PART.fullmatch(source)
    if part is None or part["start"] == ".":
        return Path(source), 0.0, None
    end = float(part["end"]) if part["end"] else None
    return Path(part["file"]), float(part["start"] or 0), end


def _seconds(text: str, name: str, line: int) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise DataError(f"{name}:{line}: {text!r} is not a number of seconds; mend the line")
    return seconds


def _conllu_pairs(name: str, folder: str | None, corpus: Columns) -> Iterator[Pair]:
    """The words of each sentence, and a column of theirs; numbers mean form and upos."""
    source = corpus.source if isinstance(corpus.source, str) else "form"
    target = corpus.target if isinstance(corpus.target, str) else "upos"
    for column in (source, target):
        _column(name, column, list(COLUMNS))
    for sentence in read_sentences(read_lines(name, folder), name):
        sides = [" ".join(sentence.column(column)) for column in (source, target)]
        yield Pair(sides[0], sides[1], name, sentence.line)


def _names(corpus: Columns) -> tuple[str, str]:
    """Keys of JSONL and Parquet; the numbers that TSV defaults to mean `source` and `target`."""
    source = corpus.source if isinstance(corpus.source, str) else "source"
    return source, corpus.target if isinstance(corpus.target, str) else "target"


def _column(name: str, wanted: str, there: list[str]) -> int:
    if wanted not in there:
        raise DataError(f"{name}:1: there is no column {wanted}; there are: {', '.join(there)}")
    return there.index(wanted)
