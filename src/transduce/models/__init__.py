"""Models: front ends, encoders, decoders and heads, put together as a recipe says."""

from transduce.models.encoder_decoder import EncoderDecoder, Vocabulary, build
from transduce.models.labeller import Labeller, build_labeller
from transduce.models.lens import Lens
from transduce.models.trainable import TrainableNetwork

__all__ = [
    "EncoderDecoder",
    "Labeller",
    "Lens",
    "TrainableNetwork",
    "Vocabulary",
    "build",
    "build_labeller",
]
