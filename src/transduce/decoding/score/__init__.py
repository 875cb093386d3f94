"""Scores of given targets: what a model thinks of texts that it did not write."""
