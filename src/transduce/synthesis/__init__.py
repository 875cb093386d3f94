"""Speech made here: espeak's voices, the rooms they speak in, and a corpus of their readings."""
