"""Networks: embeddings, encoders, decoders and output heads, and whole architectures of these.

All are made of plain numbers. `models/build.py` makes them of recipes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Conformer",
    "ConvolutionalLanguageModel",
    "ConvolutionalSeq2Seq",
    "EncoderDecoder",
    "Labeller",
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
    from transduce.models.architectures.conformer import Conformer
    from transduce.models.architectures.convolutional import (
        ConvolutionalLanguageModel,
        ConvolutionalSeq2Seq,
    )
    from transduce.models.architectures.recurrent import RecurrentLanguageModel, RecurrentSeq2Seq
    from transduce.models.architectures.transformer import (
        Transformer,
        TransformerClassifier,
        TransformerLanguageModel,
        TransformerTagger,
    )
    from transduce.models.encoder_decoder import EncoderDecoder
    from transduce.models.labeller import Labeller
    from transduce.models.language_model import LanguageModelNetwork
    from transduce.models.lens import Lens
    from transduce.models.speech import SpeechEncoderDecoder
    from transduce.models.trainable import TrainableNetwork

# The file of each name: one that nobody asks for is not opened.
_FILES = {
    "architectures.conformer": ("Conformer",),
    "architectures.convolutional": (
        "ConvolutionalLanguageModel",
        "ConvolutionalSeq2Seq",
    ),
    "architectures.recurrent": (
        "RecurrentLanguageModel",
        "RecurrentSeq2Seq",
    ),
    "architectures.transformer": (
        "Transformer",
        "TransformerClassifier",
        "TransformerLanguageModel",
        "TransformerTagger",
    ),
    "encoder_decoder": ("EncoderDecoder",),
    "labeller": ("Labeller",),
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
