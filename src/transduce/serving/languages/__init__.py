"""Languages: their English names, and which of them a text is written in."""

from transduce.serving.languages.detect import Detected, Detector
from transduce.serving.languages.names import name_of

__all__ = ["Detected", "Detector", "name_of"]
