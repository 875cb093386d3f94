"""The language of a text: identification by character n-grams."""

from transduce.data.languages.detect import Detected, Detector, base_of, choose_detector

__all__ = ["Detected", "Detector", "base_of", "choose_detector"]
