"""Constraints on outputs: prefixes, required and banned phrases, no repeated n-grams, lengths."""
