"""The data doctor behind `transduce check`: finds what is odd in a corpus before training."""
