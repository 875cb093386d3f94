"""Looking inside networks: what their parts compute, by name, and gates that scale them."""

from transduce.models.lens.attention import Lens, attentions
from transduce.models.lens.gates import Gates
from transduce.models.lens.parts import Part, parts_of
from transduce.models.lens.record import Recorder

__all__ = ["Gates", "Lens", "Part", "Recorder", "attentions", "parts_of"]
