"""Batching: bucketing by length, padding or packing, from memory or streamed."""
