"""Embeddings: tokens with positions, words by their characters, hashed n-grams."""
