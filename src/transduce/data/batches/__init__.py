"""Batches: examples of similar length together, padded or packed, from memory or as a stream."""
