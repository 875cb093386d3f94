"""Live speech: samples in as they arrive, partial and final transcripts out."""

from transduce.tasks.live.session import LiveRecogniser, LiveSession, Transcript
from transduce.tasks.live.settings import Endpointing

__all__ = ["Endpointing", "LiveRecogniser", "LiveSession", "Transcript"]
