"""Inspection: pictures of what a model attends to and of how it learned, and its card."""
