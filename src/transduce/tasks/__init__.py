"""Tasks: what a trained model does with a source, one file each; see docs/tasks.md."""

from transduce.tasks.classify import Classifier
from transduce.tasks.classify_audio import AudioClassifier
from transduce.tasks.continuing import LanguageModel
from transduce.tasks.hearing import Hearing
from transduce.tasks.listening import Listening
from transduce.tasks.model import Model
from transduce.tasks.tag import Tagger

__all__ = [
    "AudioClassifier",
    "Classifier",
    "Hearing",
    "LanguageModel",
    "Listening",
    "Model",
    "Tagger",
]
