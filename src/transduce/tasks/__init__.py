"""Tasks: what a trained model does with a source, one file each; see docs/tasks.md."""

from transduce.tasks.continuing import LanguageModel
from transduce.tasks.model import Model

__all__ = ["LanguageModel", "Model"]
