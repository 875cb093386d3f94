"""Search: greedy search, sampling, beam search and diverse beam search."""
