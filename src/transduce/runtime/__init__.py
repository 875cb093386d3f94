"""Inference on a CPU: packed weights, int8 quantization, decoding steps in C (the files in c/)."""

from transduce.runtime.c_library import library, share_threads, why_not
from transduce.runtime.product import Product
from transduce.runtime.top_k import top_k_scores

__all__ = ["Product", "library", "share_threads", "top_k_scores", "why_not"]
