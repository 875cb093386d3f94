"""The same networks, faster, on a CPU: packed weights, int8, and decoding steps in C."""
