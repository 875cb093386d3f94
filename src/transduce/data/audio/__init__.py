"""Audio: files, segments, silence detection, TextGrid and subtitle files, audio corpora."""
