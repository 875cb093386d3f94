"""Tasks: transduce, classify, tag, continue; one class of trained models each (docs/tasks.md)."""

from transduce.tasks.audio_input import AudioInputModel
from transduce.tasks.classify import Classifier
from transduce.tasks.classify_audio import AudioClassifier
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model
from transduce.tasks.speech import SpeechModel
from transduce.tasks.tag import Tagger

__all__ = [
    "AudioClassifier",
    "AudioInputModel",
    "Classifier",
    "LanguageModel",
    "Model",
    "SpeechModel",
    "Tagger",
]
