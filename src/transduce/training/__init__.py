"""Training: from a recipe to a model folder, resumable at any moment."""

from transduce.training.train import Trained, train

__all__ = ["Trained", "train"]
