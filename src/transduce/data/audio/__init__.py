"""Audio: files, segments, recordings cut at silence, TextGrid and subtitle files, audio corpora."""
