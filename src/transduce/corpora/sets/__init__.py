"""One file for each corpus that is known by name."""
