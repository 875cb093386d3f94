"""Live speech: samples in as they arrive, partial and final transcripts out."""

from transduce.tasks.live.endpoint import Endpointing
from transduce.tasks.live.session import LiveRecogniser, LiveSession, Transcript

__all__ = ["Endpointing", "LiveRecogniser", "LiveSession", "Transcript"]
