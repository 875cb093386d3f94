"""Input of commands: sources, constraints and prompts, from arguments, stdin or files."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transduce.automatic.given import (
    ADVICE,
    Given,
    Trained,
    given_file,
    given_pair,
    is_request,
    read_as_trained,
)
from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.text.columns import csv_records, without_header
from transduce.data.text.tags import with_tags, without_tags
from transduce.errors import DataError, warn
from transduce.recipe import Columns, nearest
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.tasks.transduce import Output

    Run = Callable[[dict[str, Any]], list[Output]]

BYTES_AT_ONCE = 1 << 16
MAX_LINE_BYTES = 1 << 26
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_sources(arguments: list[str] | None, file: Path | None) -> Iterator[list[str]]:
    """Sources from the arguments, from a file or from standard input, one per line.

    They come in groups: all lines that are available now. So input that is typed or piped gets its
    output without waiting for more, and a long file fills batches.
    """
    if arguments and file:
        raise DataError("give sources as arguments or with --input, not both")
    if arguments:
        yield arguments
    elif file is not None:
        try:
            with open_compressed(file) as stream:
                yield from _groups(stream, str(file))
        except DAMAGED as error:
            raise DataError(
                f"the compressed file {file} is damaged or truncated ({error}); download or "
                f"compress it again"
            ) from None
        except OSError as error:
            raise DataError(
                f"the file {file} cannot be read ({error.strerror}); give one with a source per "
                f"line"
            ) from None
    elif sys.stdin is None:
        raise DataError("there is no standard input; give sources as arguments or with --input")
    else:
        if sys.stdin.isatty():
            print("Type a source and press Enter; Ctrl-D ends.", file=sys.stderr)
        yield from _groups(sys.stdin.buffer, "standard input")


def read_requests(
    arguments: list[str] | None,
    file: Path | None,
    prefix: str,
    include: list[str],
    exclude: list[str],
    trained: Trained | None = None,
    known: Collection[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Keyword arguments for `Transducer.run`, group by group.

    trained: the columns that the model was trained on; a table has its sources where they had them,
    and its tags, of those `known` to the model. Without these, its tags are left out.

    In a .jsonl file each line is an object such as {"source": "A dog.", "prefix": "Ein",
    "include": ["Hund"], "exclude": ["Katze"]}; fields that it lacks take the given values.
    """
    for name in (text for text in arguments or () if Path(text).is_file()):
        say(f"{name} is used as text; to read the file: --input {name}")
    given = None if arguments or file is None else given_file(file, trained)
    by_line = given is not None and is_request(given, trained)
    number = 0
    for group in _groups_of(arguments, file, given, trained, known):
        lines: list[dict[str, Any]] = [
            _object(line, f"{file}:{number + i}") if by_line else {"source": line}
            for i, line in enumerate(group, start=1)
        ]
        number += len(group)
        constraints = {
            "prefix": [line.get("prefix", prefix) for line in lines],
            "include": [include + line.get("include", []) for line in lines],
            "exclude": [exclude + line.get("exclude", []) for line in lines],
        }
        asked = {name: of_lines for name, of_lines in constraints.items() if any(of_lines)}
        yield {"sources": [line["source"] for line in lines], **asked}


def _groups_of(
    arguments: list[str] | None,
    file: Path | None,
    given: Given | None,
    trained: Trained | None,
    known: Collection[str] | None,
) -> Iterator[list[str]]:
    if given is None or given.kind is None or is_request(given, trained):
        return read_sources(arguments, file if given is None else given.path)
    return _column(given, trained, known)


def _column(
    given: Given, trained: Trained | None, known: Collection[str] | None, at_once: int = 1024
) -> Iterator[list[str]]:
    """The sources of a table, in groups."""
    rows = read_as_trained(given, trained, known=known)
    while some := [cell for (cell,) in islice(rows, at_once)]:
        yield some


def read_recordings(
    arguments: list[str] | None,
    file: Path | None,
    trained: Trained | None,
    known: Collection[str] | None = None,
) -> Iterator[list[str]]:
    """The paths of recordings: from the arguments, from lines, or from the column of a table, where
    they start at its folder. known: as in `read_requests`."""
    given = None if arguments or file is None else given_file(file, trained)
    for group in _groups_of(arguments, file, given, trained, known):
        if given is None or given.kind is None:
            yield group
        else:
            parted = [without_tags(name, known or ()) for name in group]
            yield [with_tags(str(given.path.parent / name), tags) for tags, name in parted]


def run_in_order(run: Run, requests: Iterable[dict[str, Any]], at_once: int) -> Iterator[Output]:
    """The outputs of each group, in order, with `at_once` groups running concurrently."""
    if at_once == 1:  # typed input gets its output before the next line is read
        yield from chain.from_iterable(map(run, requests))
        return
    with ThreadPoolExecutor(at_once) as pool:
        pending: deque[Future[list[Output]]] = deque()
        for request in requests:
            pending.append(pool.submit(run, request))
            if len(pending) > at_once:
                yield from pending.popleft().result()
        for group in pending:
            yield from group.result()


def _object(line: str, where: str) -> dict[str, Any]:
    """The object of one line of a .jsonl file, its fields checked. Raises DataError."""
    kinds = {"source": str, "prefix": str, "include": list, "exclude": list}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: not valid JSON; write one object per line") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f'{where}: each line must be an object with a string "source"')
    for name, value in found.items():
        if name not in kinds:
            raise DataError(f"{where}: unknown field {name}{nearest(name, kinds, '')}")
        if not isinstance(value, kinds[name]):
            kind = "a string" if kinds[name] is str else "a list of strings"
            raise DataError(f"{where}: {name} must be {kind}")
    return found


def read_lines_of(
    source: Path,
    target: Path | None,
    at_once: int = 1024,
    trained: Trained | None = None,
    known: Collection[str] | None = None,
) -> Iterator[tuple[list[str], list[str]]]:
    """Groups of sources and targets, from two files or from the two columns of one. trained, known:
    as in `read_requests`.

    Files are streamed. The lines of two files are counted first, so that a mismatch is found at
    once and not after hours.
    """
    pairs = _of_columns(source, trained, known) if target is None else _of_files(source, target)
    while some := list(islice(pairs, at_once)):
        yield [one for one, _ in some], [other for _, other in some]


def _of_columns(
    file: Path, trained: Trained | None, known: Collection[str] | None
) -> Iterator[tuple[str, str]]:
    given = given_file(file, trained, pairs=True)
    if given.kind is not None and isinstance(trained, Columns):
        pairs = read_as_trained(given, trained, target=True, known=known)
        yield from ((one, other) for one, other in pairs)
        return
    file = given.path
    lines = chain.from_iterable(read_sources(None, file))
    if file.suffix == ".csv":
        rows = csv_records(lines, str(file))
    else:
        rows = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    _, rows = without_header(str(file), rows, None, warn, ADVICE)
    for number, fields in rows:
        if len(fields) != 2:
            raise DataError(
                f"{file}:{number}: {len(fields)} columns instead of two, source and target; "
                f"or give targets in a second file"
            )
        yield fields[0], fields[1]


def _of_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    if (paired := given_pair(source, target)) is not None:
        table = Given(Path(str(paired.file)), "tsv")
        yield from ((one, other) for one, other in read_as_trained(table, paired, target=True))
        return
    source, target = (given_file(file, None).path for file in (source, target))
    if source.is_file() and target.is_file():  # a pipe can be read once only
        _check_lines(source, _count(source), target, _count(target))
    lines = [chain.from_iterable(read_sources(None, file)) for file in (source, target)]
    for number, (one, other) in enumerate(zip_longest(*lines)):
        if one is None or other is None:
            rest = 1 + sum(1 for _ in chain(*lines))
            _check_lines(
                source, number + rest * (other is None), target, number + rest * (one is None)
            )
        yield one, other


def _check_lines(source: Path, of_source: int, target: Path, of_target: int) -> None:
    if of_source != of_target:
        raise DataError(
            f"{source} has {of_source} lines, but {target} has {of_target}; parallel files must "
            f"have the same number of lines"
        )


def _count(file: Path) -> int:
    """Number of lines of a file, as `read_sources` reads them."""
    return sum(map(len, read_sources(None, file)))


def _groups(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """Lines in groups, as many as are available. Only \\n ends a line, as in corpora."""
    number, size, waiting = 1, 1 << 10, 0
    rest: list[bytes] = []
    while chunk := stream.read1(size):  # type: ignore[attr-defined]
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        waiting += len(first)
        if waiting > MAX_LINE_BYTES:
            raise DataError(
                f"{name}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MB; split it"
            )
        if lines:
            whole = [b"".join(rest), *lines[:-1]]
            rest, waiting = [lines[-1]], len(lines[-1])
            yield _decode(whole, number, name)
            number += len(whole)
        size = min(2 * size, BYTES_AT_ONCE)  # small at first, for early results
    if waiting:
        yield _decode([b"".join(rest)], number, name)


def _decode(lines: list[bytes], first: int, name: str) -> list[str]:
    texts = []
    for number, line in enumerate(lines, start=first):
        bare = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        try:
            texts.append(bare.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            raise DataError(f"{name}:{number}: this line is not UTF-8; convert it first") from None
    return texts


def conllu_input(arguments: list[str] | None, file: Path | None) -> Path | None:
    """The CoNLL-U file to tag, given with --input or as the only argument; None: no such file."""
    from transduce.data.text.conll import is_conllu

    alone = Path(arguments[0]) if arguments and len(arguments) == 1 and file is None else file
    if alone is None or not is_conllu(alone) or (file is None and not alone.is_file()):
        return None
    return alone


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file, one per line."""
    return list(chain.from_iterable(read_sources(None, file)))
