"""One module for each corpus that is known by name."""
