"""Speech synthesis with espeak: voices, simulated room acoustics, and corpora of readings."""
