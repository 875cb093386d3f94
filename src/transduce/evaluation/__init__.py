"""Evaluation: how good a model is, with intervals."""
