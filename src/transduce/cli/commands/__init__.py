"""The commands, one per module: each parses its options, calls one function, prints."""
