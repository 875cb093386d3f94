"""Transcripts of speech: word timestamps, confidence, warnings, subtitles."""
