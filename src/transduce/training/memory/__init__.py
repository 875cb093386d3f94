"""Memory during training: automatic batch size, and recovery from running out of memory."""
