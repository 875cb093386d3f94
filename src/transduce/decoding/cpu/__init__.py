"""Continuous batching on a CPU."""
