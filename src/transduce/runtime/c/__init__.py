"""Work on a CPU in 8 bits, in C: products, a decoder's step, an encoder; and the best of scores.

The C of this folder is compiled by the machine's own compiler the first time that it is wanted.
Where it cannot be, torch does the work: nobody needs a compiler.
"""

from transduce.runtime.c.compile import library, why_not
from transduce.runtime.c.product import Product
from transduce.runtime.c.top_k import best_places

__all__ = ["Product", "best_places", "library", "why_not"]
