"""Trained models, one class for each task: transduce, classify, tag, language_modeling.

docs/guides/tasks.md describes the tasks.

`transduce.load` returns an object of one of these classes; for the task transduce over text it is
`transduce.Transducer`. Common to all are `Model`'s methods. Those that write text have the methods
of `GenerativeModel` too, with the keywords of `DecodingSettings`, and return an `Output`.
"""

from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.encode import Encoding
from transduce.decoding.output import Output, Score
from transduce.decoding.settings import Settings as DecodingSettings
from transduce.tasks.classify import Classifier
from transduce.tasks.classify_audio import AudioClassifier
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.model import Model
from transduce.tasks.speech import SpeechModel
from transduce.tasks.tag import Tagger

__all__ = [
    "AudioClassifier",
    "Classifier",
    "DecodingSettings",
    "Encoding",
    "GenerativeModel",
    "LanguageModel",
    "Model",
    "NgramModel",
    "Output",
    "Score",
    "SpeechModel",
    "Tagger",
]

AudioInputModel = SpeechModel | AudioClassifier
"""A model whose sources are recordings."""
