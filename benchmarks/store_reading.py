"""A streamed corpus in an object store: requests, bytes and pairs per second of an epoch in random
order.

    python benchmarks/store_reading.py [--pairs 400000] [--latency 0.03]

The store is in memory and waits for so many seconds before each answer, as a real one does. The
corpus is read by the code that trains, by one process, without tokenizing: with a cache that it
fits into (the first epoch, and the next), and with one of a tenth of its size, each with pools of
65,536 and of 1,000,000 pairs. Prints all and writes benchmarks/results/store_reading.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec
import torch
from reading import made_up
from systems import metadata

from transduce import recipe
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.text.pairs import ReadingCounts
from transduce.data.tokens.tokenizer import Tokens
from transduce.storage import GB
from transduce.storage.remote.blocks import VARIABLE

RESULTS = Path(__file__).parent / "results" / "store_reading.json"
FILES = {"source": "source.txt", "target": "target.txt"}
DISTINCT = 20_000
TASK = 8  # blocks that are fetched at a time, as in training
BYTES = Tokens.train(recipe.Tokens(level="byte"), [])


class Store:
    """The store of fsspec in memory, which waits and counts."""

    def __init__(self, latency: float) -> None:
        self.requests = self.bytes = 0
        kind: Any = type(fsspec.filesystem("memory"))
        cat_file, info = kind.cat_file, kind.info

        def slow_cat(store: Any, path: str, *place: Any, **more: Any) -> bytes:
            time.sleep(latency)
            found = bytes(cat_file(store, path, *place, **more))
            self.requests, self.bytes = self.requests + 1, self.bytes + len(found)
            return found

        def slow_info(store: Any, path: str, **more: Any) -> Any:
            time.sleep(latency)
            self.requests += 1
            return info(store, path, **more)

        kind.cat_file, kind.info = slow_cat, slow_info


def epoch(store: Store, one: StreamingDataset, number: int, most: int) -> dict[str, float]:
    """What an epoch, or its first blocks of so many pairs, costs."""
    store.requests = store.bytes = 0
    index, counts, pairs = one.reader.index, ReadingCounts(), 0
    order = one.order(number).tolist()
    began = time.perf_counter()
    for place in range(0, len(order), TASK):
        blocks = order[place : place + TASK]
        index.fetch(blocks)
        for block in blocks:
            index.read(block, counts)
        pairs = counts.pairs
        if pairs >= most:
            break
    seconds = time.perf_counter() - began
    return {
        "pairs_per_second": round(pairs / seconds),
        "requests_per_1000_pairs": round(1000 * store.requests / pairs, 2),
        "bytes_per_pair": round(store.bytes / pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400_000)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    distinct = min(DISTINCT, given.pairs)
    copies = given.pairs // distinct
    pairs = copies * distinct
    memory = fsspec.filesystem("memory")
    with tempfile.TemporaryDirectory() as folder:
        made_up(Path(folder), distinct)
        for file in Path(folder).iterdir():
            memory.pipe(f"/corpus/{file.name}", file.read_bytes() * copies)
    size = sum(memory.size(f"/corpus/{name}") for name in FILES.values())
    store = Store(given.latency)
    found: dict[str, Any] = {}
    for pool in (65_536, 1_000_000):
        for cache, gigabytes in (("whole corpus", 2 * size / GB), ("a tenth", 0.1 * size / GB)):
            with tempfile.TemporaryDirectory() as folder:
                os.environ |= {"XDG_CACHE_HOME": folder, VARIABLE: f"{gigabytes:.9f}"}
                values = {"folder": "memory://corpus", "train": FILES, "valid": FILES}
                data = recipe.Data.model_validate(values | {"shuffle_buffer": pool})
                one = StreamingDataset(data.train, data, BYTES, BYTES)
                one.open()
                for block in Path(folder).rglob("*.block"):
                    block.unlink()  # what indexing has left
                most = pairs if cache == "whole corpus" else pairs // 4
                epochs = [epoch(store, one, number, most) for number in range(2)]
            found[f"pool {pool:,}, cache {cache}"] = epochs
            print(f"pool {pool:,}, cache {cache}: {epochs}", flush=True)
    result = metadata(torch.device("cpu")) | {"pairs": pairs, "latency": given.latency}
    result |= {"bytes_per_pair": round(size / pairs, 1), "epochs": found}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
