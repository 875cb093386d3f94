"""What a pair of the training corpus costs: memory while tokenising and planning, and time.

    python benchmarks/scale.py                 a million pairs
    python benchmarks/scale.py --pairs 2000000

Pairs are random words, about 25 characters a side, one token each: what tokens themselves take is
printed beside. Each part runs in a process of its own; memory is what that process cannot give back
(anonymous memory), at its peak, beyond what it had before. Seconds are of the processor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from transduce import recipe
from transduce.data.batches.bucketing import Batches, Position
from transduce.data.cache.tokenised import Encoded, encode_corpus
from transduce.data.tokens.tokenizer import Tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_pairs(path: Path, count: int) -> None:
    random = np.random.default_rng(1)
    letters = np.frombuffer(LETTERS.encode(), np.uint8)
    with path.open("wb") as file:
        for start in range(0, count, 10_000):
            some = min(10_000, count - start)
            sizes = np.clip(random.lognormal(3.2, 0.4, (some, 2)), 1, 200).astype(int)
            text = letters[random.integers(len(letters), size=int(sizes.sum()))].tobytes()
            place = 0
            for one, other in sizes.tolist():
                file.write(text[place : place + one] + b"\t")
                file.write(text[place + one : place + one + other] + b"\n")
                place += one + other


class Peak:
    """The most anonymous memory that this process has while it is open, beyond what it had."""

    def __enter__(self) -> Peak:
        self.maximum = self.before = _anonymous()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.maximum = max(self.maximum, _anonymous())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.held = _anonymous() - self.before
        self.maximum = max(self.maximum, _anonymous()) - self.before


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process has (needs Linux)")


def encode(folder: Path, pairs: int) -> None:
    corpus = recipe.Columns(file="pairs.tsv")
    data = recipe.Data(folder=str(folder), train=corpus, valid=corpus)
    tokens = Tokens.train(recipe.Tokens(level="character"), [LETTERS])
    began = time.process_time()
    with Peak() as peak:
        encoded, _ = encode_corpus(corpus, data, tokens, tokens, folder / "cache")
    took = time.process_time() - began
    ids = 4 * (len(encoded.source_ids) + len(encoded.target_ids))
    print(
        f"tokenise: {took:.1f} s; {peak.maximum / pairs:.0f} B a pair at the peak, "
        f"{peak.held / pairs:.0f} B afterwards; its tokens alone are {ids / pairs:.0f} B"
    )


def plan(folder: Path, pairs: int) -> None:
    random = np.random.default_rng(1)
    offsets = [
        np.concatenate([[0], np.cumsum(np.clip(random.lognormal(3.2, 0.4, pairs), 1, 200))])
        for _ in range(2)
    ]
    none, rows = np.zeros(0, np.int32), np.arange(pairs)
    sides = [(none, ends.astype(np.int64)) for ends in offsets]
    del offsets
    batches = Batches(Encoded(*sides[0], *sides[1], rows, rows), 4096)
    began = time.process_time()
    with Peak() as peak:
        _, planned, _ = next(batches._plans(Position()))
    took = time.process_time() - began
    print(
        f"plan an epoch: {took:.2f} s, {len(planned):,} batches; {peak.maximum / pairs:.0f} B "
        f"a pair at the peak"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--part", choices=["encode", "plan"], help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part is not None:
        {"encode": encode, "plan": plan}[asked.part](asked.output, asked.pairs)
        return
    print(f"{asked.pairs:,} pairs; {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        write_pairs(Path(folder) / "pairs.tsv", asked.pairs)
        for part in ("encode", "plan"):
            arguments = ["--pairs", str(asked.pairs), "--part", part, "--output", folder]
            subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
