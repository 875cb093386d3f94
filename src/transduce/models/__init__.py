"""Networks: embeddings, encoders, decoders and output heads, and whole architectures of these.

`models/build.py` makes them of recipes, `models/architectures.py` of plain numbers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Conformer",
    "ConvolutionalLanguageModel",
    "ConvolutionalSeq2Seq",
    "EncoderDecoder",
    "LabelNetwork",
    "LanguageModelNetwork",
    "Lens",
    "RecurrentLanguageModel",
    "RecurrentSeq2Seq",
    "SpeechEncoderDecoder",
    "TrainableNetwork",
    "Transformer",
    "TransformerClassifier",
    "TransformerLanguageModel",
    "TransformerTagger",
]

if TYPE_CHECKING:
    from transduce.models.architectures import (
        Conformer,
        ConvolutionalLanguageModel,
        ConvolutionalSeq2Seq,
        RecurrentLanguageModel,
        RecurrentSeq2Seq,
        Transformer,
        TransformerClassifier,
        TransformerLanguageModel,
        TransformerTagger,
    )
    from transduce.models.encoder_decoder import EncoderDecoder
    from transduce.models.label_network import LabelNetwork
    from transduce.models.language_model import LanguageModelNetwork
    from transduce.models.lens import Lens
    from transduce.models.speech import SpeechEncoderDecoder
    from transduce.models.trainable import TrainableNetwork

# The file of each name: one that nobody asks for is not opened.
_FILES = {
    "architectures": (
        "Conformer",
        "ConvolutionalLanguageModel",
        "ConvolutionalSeq2Seq",
        "RecurrentLanguageModel",
        "RecurrentSeq2Seq",
        "Transformer",
        "TransformerClassifier",
        "TransformerLanguageModel",
        "TransformerTagger",
    ),
    "encoder_decoder": ("EncoderDecoder",),
    "label_network": ("LabelNetwork",),
    "language_model": ("LanguageModelNetwork",),
    "lens": ("Lens",),
    "speech": ("SpeechEncoderDecoder",),
    "trainable": ("TrainableNetwork",),
}
_WHERE = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'transduce.models' has no attribute {name!r}")
    return getattr(import_module(f"transduce.models.{_WHERE[name]}"), name)
