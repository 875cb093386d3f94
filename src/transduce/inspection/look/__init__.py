"""`transduce look`: an HTML page of attention, next-token alternatives and the beam."""

from transduce.inspection.look.show import Look, look

__all__ = ["Look", "look"]
