"""Reading pairs: what is read, what is skipped and counted, and each error with its place."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from transduce.data.text.columns import KEY_WITHIN
from transduce.data.text.pairs import EXAMPLES, Pair, ReadingCounts, check_files, read_pairs
from transduce.errors import DataError
from transduce.recipe import Columns, Named, ParallelFiles, Recordings

BOTH = ParallelFiles(source="a.en", target="a.de")


def write(folder: Path, **files: str | bytes) -> str:
    for name, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / name.replace("_", ".")).write_bytes(raw)
    return str(folder)


def texts(corpus: ParallelFiles | Columns | Named, folder: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(corpus, folder)]


def test_parallel_lines_are_pairs(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="one\ntwo\n", a_de="eins\nzwei")
    assert list(read_pairs(BOTH, folder)) == [
        Pair("one", "eins", "a.en", 1),
        Pair("two", "zwei", "a.en", 2),
    ]


@pytest.mark.parametrize(("suffix", "opened"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_files_are_read(tmp_path: Path, suffix: str, opened) -> None:
    for name, content in (("a.en", b"one\n"), ("a.de", b"eins\n")):
        with opened(tmp_path / f"{name}{suffix}", "wb") as file:
            file.write(content)
    corpus = ParallelFiles(source=f"a.en{suffix}", target=f"a.de{suffix}")
    assert texts(corpus, str(tmp_path)) == [("one", "eins")]


def test_windows_ends_and_a_byte_order_mark_are_not_text(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en=b"\xef\xbb\xbfone\r\ntwo\r\n", a_de="eins\nzwei\r\r\n")
    assert texts(BOTH, folder) == [("one", "eins"), ("two", "zwei\r")]


@pytest.mark.parametrize("odd", list("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"))
def test_only_newline_ends_a_line(tmp_path: Path, odd: str) -> None:
    folder = write(tmp_path, a_en=f"one{odd}more\ntwo\n", a_de="eins\nzwei\n")
    counts = ReadingCounts()
    pairs = list(read_pairs(BOTH, folder, counts))
    assert [pair.source for pair in pairs] == [f"one{odd}more", "two"]
    assert (counts.odd_breaks, counts.examples["odd_breaks"]) == (1, ["a.en:1"])
    assert "a.en:1" in counts.sentences()[0]


def test_globs_are_sorted_and_matched(tmp_path: Path) -> None:
    folder = tmp_path / "[odd] folder"
    folder.mkdir()
    write(folder, b_en="2\n", a_en="1\n", a_de="eins\n", b_de="zwei\n")
    corpus = ParallelFiles(source="*.en", target="*.de")
    assert texts(corpus, str(folder)) == [("1", "eins"), ("2", "zwei")]
    assert [(p.file, p.line) for p in read_pairs(corpus, str(folder))] == [("a.en", 1), ("b.en", 1)]
    listed = ParallelFiles(source=["b.en", "a.en"], target=["b.de", "a.de"])
    assert texts(listed, str(folder)) == [("2", "zwei"), ("1", "eins")]
    uneven = ParallelFiles(source="*.en", target="a.de")
    for use in (check_files, lambda c, f: list(read_pairs(c, f))):
        with pytest.raises(DataError, match=r"2 source files.* 1 target files"):
            use(uneven, str(folder))


def test_empty_sides_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="one\n \nthree\n\n", a_de="eins\nzwei\n\t\n\n")
    counts = ReadingCounts()
    assert [pair.line for pair in read_pairs(BOTH, folder, counts)] == [1]
    assert (counts.pairs, counts.empty_source, counts.empty_target) == (1, 2, 1)
    assert counts.sentences() == [
        "2 pairs with an empty source skipped (a.en:2, a.en:4)",
        "1 pair with an empty target skipped (a.en:3)",
    ]


def test_a_limit_counts_pairs_that_are_used(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="1\n\n3\n4\n", a_de="a\nb\nc\n")
    corpus = BOTH.model_copy(update={"limit": 2})
    assert [pair.line for pair in read_pairs(corpus, folder)] == [1, 3]


@pytest.mark.parametrize(
    ("en", "de", "counts"),
    [("1\n2\n3\n4\n", "a\n", ("4", "1")), ("1\n", "a\nb\nc", ("1", "3"))],
)
def test_unequal_files_are_reported(tmp_path: Path, en: str, de: str, counts) -> None:
    folder = write(tmp_path, a_en=en, a_de=de)
    with pytest.raises(DataError, match=rf"a\.en has {counts[0]} lines and a\.de has {counts[1]};"):
        list(read_pairs(BOTH, folder))


def test_reading_streams(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en=b"1\n" * 5000 + b"\xff\n", a_de="a\n" * 5001)
    pairs = read_pairs(BOTH, folder)
    assert next(pairs).source == "1"  # the fault far below has not been met
    with pytest.raises(DataError, match=r"a\.en:5001: byte 1 of the line \(0xff\)"):
        list(pairs)


def test_bad_encoding_names_file_line_and_byte(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="one\ntwo\n", a_de="eins\nfünf\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.de:2: byte 2 of the line \(0xfc\) is not UTF-8"):
        list(read_pairs(BOTH, folder))
    write(tmp_path, a_de="eins\nzwei\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"a\.de:1: .*looks like UTF-16"):
        list(read_pairs(BOTH, folder))


def test_files_that_are_not_there_are_reported_before_work(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="one\n")
    for use in (check_files, lambda c, f: list(read_pairs(c, f))):
        with pytest.raises(DataError, match=rf"no file {tmp_path}/a\.de; .*data\.folder="):
            use(BOTH, folder)
        with pytest.raises(DataError, match=rf"no file matches {tmp_path}/\*\.de; .*data\.folder="):
            use(ParallelFiles(source="a.en", target="*.de"), folder)
        with pytest.raises(DataError, match=f"{tmp_path} is a folder"):
            use(ParallelFiles(source="a.en", target="."), folder)
        with pytest.raises(DataError, match=r"a\.en: the format is not clear.*\.tsv"):
            use(Columns(file="a.en"), folder)
        with pytest.raises(DataError, match=r"no corpus named cmudct; did you mean cmudict\?"):
            use(Named(name="cmudct", split="train"), folder)


def test_checking_reads_nothing(tmp_path: Path) -> None:
    check_files(BOTH, write(tmp_path, a_en=b"\xff", a_de=b""))


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, a_en="", a_de="")
    with pytest.raises(DataError, match=r"a\.en is empty"):
        list(read_pairs(BOTH, folder))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("fault", ["cut", "flipped"])
def test_damaged_compression_is_reported(tmp_path: Path, suffix: str, fault: str) -> None:
    content = "".join(f"line {n} {n * 7919 % 1009}\n" for n in range(5000)).encode()
    packed = gzip.compress(content) if suffix == ".gz" else lzma.compress(content)
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes(b ^ 0xFF for b in packed[middle : middle + 40])
    damaged = {"cut": packed[:middle], "flipped": flipped + packed[middle + 40 :]}
    (tmp_path / f"a.en{suffix}").write_bytes(damaged[fault])
    (tmp_path / "a.de").write_bytes(content)
    corpus = ParallelFiles(source=f"a.en{suffix}", target="a.de")
    # Flipped bits may decompress to bytes that are no text before a checksum tells.
    with pytest.raises(DataError, match=rf"a\.en\{suffix}:\d+: (the compressed file is|byte)"):
        list(read_pairs(corpus, str(tmp_path)))


def test_tsv_by_number_and_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, a_tsv='id\ten\tde\n1\t"one\teins\n')
    assert texts(Columns(file="a.tsv", source="en", target="de"), folder) == [('"one', "eins")]
    assert texts(Columns(file="a.tsv", source="de", target=0), folder) == [("eins", "1")]
    assert texts(Columns(file="a.tsv", source=1, target=2), folder) == [('"one', "eins")]
    whole = texts(Columns(file="a.tsv", source=1, target=2, header=False), folder)
    assert whole == [("en", "de"), ('"one', "eins")]
    assert [
        p.line for p in read_pairs(Columns(file="a.tsv", source="en", target="de"), folder)
    ] == [2]
    with pytest.raises(DataError, match=r"a\.tsv:1: there is no column fr; there are: id, en, de"):
        texts(Columns(file="a.tsv", source="en", target="fr"), folder)


def test_a_short_tsv_line_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, a_tsv="one\teins\ntwo zwei\n")
    with pytest.raises(DataError, match=r"a\.tsv:2: the line has 1 column .* column 1 "):
        texts(Columns(file="a.tsv"), folder)


def test_jsonl_by_key(tmp_path: Path) -> None:
    rows = [
        {"source": "one\u2028", "target": "eins", "en": "1"},
        {"source": "two", "target": "zwei"},
        {"source": "three"},
    ]
    body = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    folder = write(tmp_path, a_jsonl_gz=gzip.compress(body.encode()))
    assert texts(Columns(file="a.jsonl.gz"), folder) == [("one\u2028", "eins"), ("two", "zwei")]
    assert texts(Columns(file="a.jsonl.gz", source="en"), folder) == [("1", "eins")]
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:1: there is no key fr; there are: source"):
        texts(Columns(file="a.jsonl.gz", source="fr"), folder)


def test_a_key_that_no_record_has_is_said_before_all_of_a_file_is_read(tmp_path: Path) -> None:
    rows = [{"source": f"s{n}", "target": "t"} for n in range(KEY_WITHIN)]
    late = {"source": "s", "target": "t", "en": "late"}
    for number, said in ((KEY_WITHIN - 1, False), (KEY_WITHIN, True)):
        body = "\n".join(map(json.dumps, [*rows[:number], late, "not an object"]))
        folder = write(tmp_path, a_jsonl=body)
        with pytest.raises(DataError, match="no key en" if said else "must be a JSON object"):
            texts(Columns(file="a.jsonl", source="en"), folder)


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('{"source": "a", "target"', "not valid JSON"),
        ('["a", "b"]', "must be a JSON object"),
        ('{"source": "a", "target": {"b": null}}', 'the value of target is {"b": null}, not text'),
        ('{"source": 3, "target": "a"}', "the value of source is 3, not text"),
        (r'{"source": "a\ud800", "target": "b"}', "half of a surrogate pair"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_wrong_jsonl_line_is_reported(tmp_path: Path, line: str, reported: str) -> None:
    folder = write(tmp_path, a_jsonl='{"source": "a", "target": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{reported}"):
        texts(Columns(file="a.jsonl"), folder)


def test_parquet_by_name(tmp_path: Path) -> None:
    sources = [f"s{n}" for n in range(20_000)]
    targets: list[str | None] = [f"t{n}" for n in range(20_000)]
    targets[7] = None
    table = pyarrow.table({"source": sources, "target": targets, "n": range(20_000)})
    table = table.append_column("kind", pyarrow.array(["x"] * 20_000).dictionary_encode())
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    counts = ReadingCounts()
    pairs = list(read_pairs(Columns(file="a.parquet"), str(tmp_path), counts))
    assert pairs[-1] == Pair("s19999", "t19999", "a.parquet", 20_000)
    assert (counts.pairs, counts.empty_target) == (19_999, 1)
    assert counts.examples["empty_target"] == ["a.parquet:8"]
    assert texts(Columns(file="a.parquet", target="kind", limit=1), str(tmp_path)) == [("s0", "x")]
    with pytest.raises(DataError, match=r"a\.parquet:1: there is no column de; there are: source"):
        texts(Columns(file="a.parquet", target="de"), str(tmp_path))
    with pytest.raises(DataError, match=r"a\.parquet: the column n holds int64, not text"):
        texts(Columns(file="a.parquet", source="n"), str(tmp_path))


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, a_parquet=b"PAR1 no")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a\.parquet needs the package pyarrow.*'\.\[parquet\]'"):
        texts(Columns(file="a.parquet"), folder)


def test_a_damaged_parquet_file_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, a_parquet=b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file, or it is damaged"):
        texts(Columns(file="a.parquet"), folder)
    write(tmp_path, a_parquet_gz=b"")
    with pytest.raises(DataError, match=r"a\.parquet\.gz: Parquet is compressed by itself"):
        texts(Columns(file="a.parquet.gz"), folder)


def test_named_corpora_are_pairs_too() -> None:
    pairs = list(read_pairs(Named(name="reverse", split="valid", limit=3), None))
    assert [(p.file, p.line) for p in pairs] == [("reverse", 1), ("reverse", 2), ("reverse", 3)]
    assert all(p.target == p.source[::-1] for p in pairs)


def test_a_line_of_millions_of_letters_is_cut_and_reported(tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text("a\tb\n" + "c" * 3_000_000 + "\td\n", "utf-8")
    counts = ReadingCounts()
    pairs = list(read_pairs(Columns(file="long.tsv"), str(tmp_path), counts))
    assert [len(pair.source) for pair in pairs] == [1, 100_000]
    assert counts.sentences() == [
        "1 pair with a side of more than 100,000 characters, truncated there (long.tsv:2)"
    ]


def test_the_home_of_a_user_who_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "speech.tsv").write_text("path\ttext\n~nobody-of-this-name/a.wav\ttea\n", "utf-8")
    corpus = Recordings(file="speech.tsv", audio="path", target="text")
    (pair,) = read_pairs(corpus, str(tmp_path))
    assert pair.source == str(tmp_path / "~nobody-of-this-name" / "a.wav")


def test_counts_of_parts_keep_the_first_places_of_all() -> None:
    whole = ReadingCounts()
    for part in range(2):
        counts = ReadingCounts(pairs=5)
        for line in range(EXAMPLES):
            counts.note("empty_source", f"{part}.txt", line)
        whole.add(counts)
    assert (whole.pairs, whole.empty_source) == (10, 2 * EXAMPLES)
    assert whole.examples["empty_source"] == [f"0.txt:{line}" for line in range(EXAMPLES)]
