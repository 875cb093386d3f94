"""Connectionist temporal classification (CTC): the loss, forced alignment, prefix scores."""
