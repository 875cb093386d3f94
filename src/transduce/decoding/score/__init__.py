"""Scores of given targets (teacher forcing), language model windows, label probabilities."""
