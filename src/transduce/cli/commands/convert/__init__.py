"""Commands that turn models of one form into another."""
