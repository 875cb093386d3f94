"""Losses: cross-entropy with label smoothing, and R-Drop."""
