"""Reading by position: where each block of a corpus begins, found once and kept in the cache."""
