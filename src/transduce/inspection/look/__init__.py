"""One page that shows what a model attended to and what it nearly said: `transduce look`."""

from transduce.inspection.look.show import Look, look

__all__ = ["Look", "look"]
