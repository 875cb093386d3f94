"""Train, decode and look inside models that turn one sequence into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "Transducer", "load"]

if TYPE_CHECKING:
    from transduce.transducer import Model, Transducer, load


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: only those wait for it who use a model.
    if name in __all__:
        from transduce import transducer

        return getattr(transducer, name)
    raise AttributeError(f"module 'transduce' has no attribute {name!r}")
