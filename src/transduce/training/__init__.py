"""Training: from a recipe to a model folder, with checkpoints to resume from at any time."""

from transduce.training.train import Trained, train

__all__ = ["Trained", "train"]
