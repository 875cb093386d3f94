"""Whole networks of plain numbers, by the names of their papers; no recipe is needed."""
