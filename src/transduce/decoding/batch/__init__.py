"""Batched decoding: many sources of any length in bounded batches, on one or several processes."""
