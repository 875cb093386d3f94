"""Trained models in other engines: exported, shown to say the same, and run by them."""
