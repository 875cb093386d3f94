"""The cache of tokenised corpora on disk: memory-mapped arrays, and how old ones are evicted."""
