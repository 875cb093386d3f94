"""Tasks: what a trained model does with a source, one file each; see docs/tasks.md."""

from transduce.tasks.model import Model

__all__ = ["Model"]
