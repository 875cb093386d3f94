"""The on-disk cache of tokenised corpora: memory-mapped arrays, and eviction of old ones."""
