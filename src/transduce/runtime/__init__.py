"""Faster inference on a CPU: packed weights, int8 quantization, and decoding steps in C."""
