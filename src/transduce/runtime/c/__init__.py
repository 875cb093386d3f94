"""int8 inference on a CPU in C with SIMD: GEMM, a decoder step, an encoder; and top-k.

The C sources of this folder are compiled by the machine's own compiler when they are first needed.
Where that is not possible, torch does the work: no compiler is required.
"""

from transduce.runtime.c.compile import library, share_threads, why_not
from transduce.runtime.c.product import Product
from transduce.runtime.c.top_k import top_k_scores

__all__ = ["Product", "library", "share_threads", "top_k_scores", "why_not"]
