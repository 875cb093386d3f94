"""Languages: their English names, and which of them a text is written in."""

from transduce.data.languages.detect import Detected, Detector, base_of, choose_detector
from transduce.serving.languages.names import NAMES, code_of, name_of

__all__ = ["NAMES", "Detected", "Detector", "base_of", "choose_detector", "code_of", "name_of"]
