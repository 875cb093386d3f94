"""Memory during training: the automatic batch size, and what happens when memory runs out."""
