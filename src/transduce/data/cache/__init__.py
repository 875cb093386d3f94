"""The on-disk cache of tokenised corpora, memory-mapped arrays, and of the vocabularies learned
from them; eviction of old ones.
"""
