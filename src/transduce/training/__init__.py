"""Training: from a recipe, or from data alone, to a model folder, with checkpoints to resume from
at any time."""

from transduce.training.train import Trained
from transduce.training.train_any import train

__all__ = ["Trained", "train"]
