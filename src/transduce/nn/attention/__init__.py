"""Attention: alignment scores, multi-head and relative attention, KV caches."""
