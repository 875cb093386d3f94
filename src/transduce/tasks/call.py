"""What one call asks of all models in it, by name; each makes a context of its own from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """What is asked of every source of a call: of the model, of others in an ensemble with it, and
    of a reranker. Names travel between models, as numbers differ between vocabularies."""

    tags: tuple[str, ...] = ()
    chunk_ms: float | None = None
    language: str | None = None
    """For Whisper, as all that follows."""
    task: str | None = None
    timestamps: bool = False
    previous: tuple[int, ...] = ()
    """Tokens of the text before, in the target vocabulary that an ensemble shares."""
