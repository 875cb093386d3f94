"""Limits of the service: what one request may ask for, and what may wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Work is counted in source tokens times hypotheses, as estimated before tokenization."""

    queue_tokens: int = 200_000
    """Work that may wait, over all requests; above, requests are rejected with 429."""
    queue_seconds: float = 30.0
    """Time that work may wait, at the speed measured so far; above, 429 as well."""
    batch_tokens: int = 4096
    """Work of one batch on a CPU."""
    batch_tokens_on_gpu: int = 1 << 16
    texts: int = 1000
    """Texts of one request."""
    characters: int = 20_000
    """Characters of one text, a prefix or a phrase."""
    inspected_characters: int = 2000
    """Characters of a text whose attention is shown: a map of each head is sent."""
    body_bytes: int = 8 << 20
    """Bytes of a JSON or form body."""
    upload_bytes: int = 1 << 30
    """Bytes of a body with files."""
    seconds: float = 120.0
    """Time of one request, from its arrival to its answer."""
    idle_seconds: float = 20.0
    """Time in which a client must send the next part of its request."""
    connections: int = 1000
    """Requests that are open at the same time."""
    alternatives: int = 50
    """Alternatives of each token of a stream."""
