"""How fast a corpus is read and tokenised by one core.

    python benchmarks/reading.py [--pairs 60000] [--rounds 5]

A made-up corpus: so many pairs of 21+21 words, drawn from 20,000 by Zipf's law, cut by a BPE of
8,000 tokens. Reading is the corpus line by line, as one in memory is read; streaming is reading,
tokenising and collecting the blocks of a streamed corpus, as its workers do. In seconds of the
processor, so that other programs count little. Prints all and writes
benchmarks/results/reading.json.
"""

from __future__ import annotations

import os

os.environ["RAYON_NUM_THREADS"] = "1"  # before the tokenizers are loaded: one core

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from systems import metadata

from transduce import recipe
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Report, encode_pairs
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.sides import train_tokens

RESULTS = Path(__file__).parent / "results"
WORDS, VOCABULARY = 21, 20_000


def made_up(folder: Path, pairs: int) -> None:
    """The two files of the corpus."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(random.choice(letters, random.integers(2, 10))) for _ in range(VOCABULARY)]
    shares = 1 / np.arange(1, VOCABULARY + 1)
    shares /= shares.sum()
    for side in ("source", "target"):
        drawn = random.choice(VOCABULARY, (pairs, WORDS), p=shares)
        lines = (" ".join(words[word] for word in row) for row in drawn)
        (folder / f"{side}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        made_up(Path(name), asked.pairs)
        files = {"source": "source.txt", "target": "target.txt"}
        data = recipe.Data.model_validate({"folder": name, "train": files, "valid": files})
        tokens = train_tokens(data)
        reading, tokenising, streaming = [], [], []
        stream = StreamingDataset(data.train, data, *tokens, cache_folder=Path(name) / "cache")
        stream.open()
        for _ in range(asked.rounds):
            began = time.process_time()
            pairs = list(read_pairs(data.train, data.folder))
            read = time.process_time()
            encoded = encode_pairs(pairs, data, *tokens, report=Report())
            reading.append(asked.pairs / (read - began))
            tokenising.append(asked.pairs / (time.process_time() - read))
            began = time.process_time()
            streamed = sum(len(pool) for pool, _ in stream.pools(0))
            streaming.append(streamed / (time.process_time() - began))
        size = sum((Path(name) / file).stat().st_size for file in files.values())
    ids = len(encoded.source_ids) + len(encoded.target_ids)
    found = {
        "facts": metadata(torch.device("cpu")),
        "bytes_a_pair": size / asked.pairs,
        "tokens_a_pair": ids / asked.pairs,
        "reading": reading,
        "tokenising": tokenising,
        "streaming": streaming,
    }
    for kind in ("reading", "tokenising", "streaming"):
        rates = sorted(found[kind])
        middle = statistics.median(rates)
        print(f"{kind}: {middle:,.0f} pairs/s, from {rates[0]:,.0f} to {rates[-1]:,.0f}")
    print(f"{found['tokens_a_pair']:.1f} tokens and {found['bytes_a_pair']:.0f} bytes a pair")
    (RESULTS / "reading.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
