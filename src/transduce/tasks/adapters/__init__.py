"""Adapters of trained models: their folders, and models that use them."""
