"""Languages: their English names, and which of them a text is written in."""

from transduce.serving.languages.detect import Detected, Detector, choose_detector
from transduce.serving.languages.names import name_of

__all__ = ["Detected", "Detector", "choose_detector", "name_of"]
