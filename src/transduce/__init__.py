"""Train, decode and look inside models that turn one sequence into another.

`train` trains a recipe and `load` loads a trained model, of the class for its task. Tasks and
outputs are in `transduce.tasks`, whole networks in `transduce.models`, layers in `transduce.nn`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transduce.garbage import no_garbage_collection

__version__ = "0.1.0"
__all__ = [
    "Lens",
    "Model",
    "Recipe",
    "Trained",
    "Transducer",
    "build",
    "load",
    "register",
    "train",
]

if TYPE_CHECKING:
    from transduce.models.lens import Lens
    from transduce.recipe import Recipe
    from transduce.registry import register
    from transduce.tasks.transduce import Model, Transducer, build, load
    from transduce.training.train import Trained
    from transduce.training.train_any import train

_WHERE = {
    "Lens": "models.lens",
    "Model": "tasks.transduce",
    "Recipe": "recipe",
    "Trained": "training",
    "Transducer": "tasks.transduce",
    "build": "tasks.transduce",
    "load": "tasks.transduce",
    "register": "registry",
    "train": "training",
}


_PACKAGES = ("models", "nn", "recipe", "tasks")


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted({*own, *__all__, *_PACKAGES})


@no_garbage_collection()
def __getattr__(name: str) -> Any:
    # Imported lazily: torch takes seconds to import, and not every use needs it.
    if name in _WHERE:
        return getattr(import_module(f"transduce.{_WHERE[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"transduce.{name}")
    raise AttributeError(f"module 'transduce' has no attribute {name!r}")
