"""Decoding on a GPU: continuous batching over slots of a fixed size, each step one CUDA graph."""
