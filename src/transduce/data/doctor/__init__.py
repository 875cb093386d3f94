"""Data checks behind `transduce check`: find problems in a corpus before training."""
