"""Long recordings and their texts: which line, word and phone was read when, and how surely."""
