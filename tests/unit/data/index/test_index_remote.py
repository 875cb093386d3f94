"""A corpus in a store is streamed as one on this machine is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from transduce import recipe
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.text.columns import format_of
from transduce.data.text.files import find_files
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.recipe.read import resolve_data_folder
from transduce.storage.remote import RemotePath, blocks
from transduce.storage.versions import Version

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
ROWS = [(f"source {n}", f"target {n} ü") for n in range(70)]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The same files in a folder and in a store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part, rows in enumerate([ROWS[:40], ROWS[40:]]):
        (folder / f"{part}.en").write_text("".join(f"{one}\n" for one, _ in rows))
        (folder / f"{part}.de").write_text("".join(f"{other}\n" for _, other in rows))
        (folder / f"{part}.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows))
        lines = [json.dumps({"source": one, "target": other}) for one, other in rows]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
        table = pyarrow.table({"source": [o for o, _ in rows], "target": [t for _, t in rows]})
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet", row_group_size=8)
        for name in (f"{part}.en", f"{part}.de"):
            (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    store = fsspec.filesystem("memory")
    for file in folder.iterdir():
        store.pipe(f"/corpus/{file.name}", file.read_bytes())
    yield store
    store.store.clear()


def stream(folder: str, corpus: object, pool: int = 1280) -> StreamingDataset:
    values = {"folder": folder, "train": corpus, "valid": corpus, "shuffle_buffer": pool}
    data = recipe.Data.model_validate(values)
    return StreamingDataset(data.train, data, BYTES, BYTES)


def pools(one: StreamingDataset, epoch: int = 0) -> list[tuple[list[int], list[int], list[int]]]:
    return [
        (pool.source_ids.tolist(), pool.target_ids.tolist(), pool.lines.tolist())
        for pool, _ in one.pools(0, epoch)
    ]


CORPORA = {
    "parallel": {"source": "*.en", "target": "*.de"},
    "compressed": {"source": "*.en.gz", "target": "*.de.gz"},
    "tsv": {"file": ["0.tsv", "1.tsv"]},
    "jsonl": {"file": "*.jsonl"},
    "parquet": {"file": "*.parquet"},
    "limit": {"file": "*.jsonl", "limit": 50},
}


@pytest.mark.parametrize("kind", CORPORA)
def test_the_same_pools_as_of_files_here(tmp_path: Path, kind: str) -> None:
    here = stream(str(tmp_path / "corpus"), CORPORA[kind])
    there = stream("memory://corpus", CORPORA[kind])
    for epoch in range(2):
        assert pools(there, epoch) == pools(here, epoch)
    whole = [(pair.source, pair.target) for pair in read_pairs(there.corpus, "memory://corpus")]
    assert whole == ROWS[: 50 if kind == "limit" else 70]


def test_addresses_may_stand_beside_files_of_this_machine(tmp_path: Path) -> None:
    corpus = {"source": "memory://corpus/0.en", "target": "0.de"}
    found = list(read_pairs(stream(str(tmp_path), corpus).corpus, str(tmp_path / "corpus")))
    assert [(pair.source, pair.target) for pair in found] == ROWS[:40]


def test_the_folder_of_a_recipe_may_be_an_address(tmp_path: Path) -> None:
    data = {"folder": "memory://corpus", "train": CORPORA["tsv"], "valid": {"file": "1.jsonl"}}
    made = recipe.parse_recipe(json.dumps({"name": "x", "data": data}), "x", tmp_path)
    assert resolve_data_folder(made, tmp_path).data.folder == "memory://corpus"


def test_blocks_are_fetched_once_and_a_corpus_is_not_reread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = stream("memory://corpus", CORPORA["parallel"])
    one.open()  # all of it is read, and kept as it fits
    kind = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(kind, "cat_file", lambda *_, **__: pytest.fail("fetched again"))
    assert sum(len(pool[2]) for pool in pools(one)) == len(ROWS)


def test_resuming_fetches_nothing_that_comes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 8)
    one = stream("memory://corpus", CORPORA["parallel"], pool=10)
    whole = [pool.lines.tolist() for pool, _ in one.pools(0)]
    for block in (tmp_path / "cache").rglob("*.block"):
        block.unlink()
    fetched: list[int] = []
    fetch = RemotePath._fetch

    def noted(path: RemotePath, start: int, end: int, version: Version) -> bytes:
        fetched.append(end - start)
        return fetch(path, start, end, version)

    monkeypatch.setattr(RemotePath, "_fetch", noted)
    again = stream("memory://corpus", CORPORA["parallel"], pool=10)
    assert [pool.lines.tolist() for pool, _ in again.pools(6)] == whole[6:]
    corpus = sum(file.stat().st_size for file in (tmp_path / "corpus").glob("*.[ed][ne]"))
    assert 0 < sum(fetched) < corpus / 2


def test_a_file_that_changes_ends_the_run(store: Any, tmp_path: Path) -> None:
    one = stream("memory://corpus", CORPORA["parallel"])
    one.open()
    pools(one)
    for block in (tmp_path / "cache").rglob("*.block"):
        block.unlink()
    store.pipe("/corpus/1.de", b"another\n" * 30)
    with pytest.raises(DataError, match=r"memory://corpus/1\.de has changed since it was first re"):
        pools(one, 1)
    again: list[str] = []
    fresh = stream("memory://corpus", CORPORA["parallel"])
    fresh.open(again.append)
    assert again == ["memory://corpus/1.de has changed since it was indexed; it is indexed again"]


def test_files_that_are_not_there_are_said(tmp_path: Path) -> None:
    for corpus, sentence in [
        ({"file": "none.tsv"}, "there is no file memory://corpus/none.tsv"),
        ({"file": "none*.tsv"}, r"no file matches memory://corpus/none\*.tsv"),
        ({"file": "ftp://corpus/0.tsv"}, "files cannot be read from ftp://"),
    ]:
        with pytest.raises(DataError, match=sentence):
            stream("memory://corpus", corpus).open()


def test_the_query_of_a_web_address_is_no_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores sign addresses so: the format is that of the name, and a missing file no pattern."""
    address = "https://host/a.tsv.gz?signature=x.y"
    assert format_of(address) == ".tsv"
    assert format_of("s3://bucket/a?.jsonl") == ".jsonl"
    monkeypatch.setattr(RemotePath, "info", lambda path: None)
    with pytest.raises(DataError, match=r"there is no file https://host/a\.tsv\.gz\?signature"):
        find_files(address, None)
    with pytest.raises(DataError, match="a web server does not list its files"):
        find_files("https://host/*.tsv?signature=x", None)
