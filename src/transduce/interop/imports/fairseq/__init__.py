"""Checkpoints of fairseq: https://github.com/facebookresearch/fairseq."""

from transduce.interop.imports.fairseq.model import NAME, read, recognises

__all__ = ["NAME", "read", "recognises"]
