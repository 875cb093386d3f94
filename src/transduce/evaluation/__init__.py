"""Evaluation: metrics of a model, with bootstrap confidence intervals."""
