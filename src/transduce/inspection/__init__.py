"""Inspection: attention heat maps, training curves, prompt comparison, and the model card."""
