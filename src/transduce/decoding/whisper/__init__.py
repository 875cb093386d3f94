"""Decoding as Whisper does: prompts, timestamps, windows of 30 s, word times by attention."""
