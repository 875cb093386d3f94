"""The run directory: checkpoints, resuming, signals, and the best model so far."""
