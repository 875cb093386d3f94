"""What is particular to transcripts: word times, confidence, warnings, subtitles."""
