"""Data: pairs from files, their tokens, and the batches a model learns from."""

from transduce.data.batches.batch import Batch, Batches, Portion, Position, collate, ordered
from transduce.data.batches.stream import Share, Stream
from transduce.data.cache.tokenised import Encoded, Report, encode_corpus
from transduce.data.text.pairs import Pair, Tally, check_files, read_pairs
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
    "Portion",
    "Position",
    "Report",
    "Share",
    "Stream",
    "Tally",
    "Tokens",
    "check_files",
    "collate",
    "encode_corpus",
    "ordered",
    "read_pairs",
    "train_tokens",
]
