"""Training data: pairs from files, tokenisation, batching, and the on-disk cache."""

from transduce.data.batches.batch import Batch, collate
from transduce.data.batches.bucketing import Batches, Position, RankBatches, ordered
from transduce.data.batches.streaming_dataset import RankShard, StreamingDataset
from transduce.data.cache.tokenised import Encoded, Report, encode_corpus
from transduce.data.text.pairs import Pair, ReadingCounts, check_files, read_pairs
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN, Tokens

__all__ = [
    "BEGIN",
    "END",
    "PAD",
    "UNKNOWN",
    "Batch",
    "Batches",
    "Encoded",
    "Pair",
    "Position",
    "RankBatches",
    "RankShard",
    "ReadingCounts",
    "Report",
    "StreamingDataset",
    "Tokens",
    "check_files",
    "collate",
    "encode_corpus",
    "ordered",
    "read_pairs",
    "train_tokens",
]
