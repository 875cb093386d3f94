/* Functions and structures of products.c, used by the other files and by Python. */

#ifndef TRANSDUCE_NATIVE
#define TRANSDUCE_NATIVE

#include <stdint.h>
#include <string.h>

#include "variant.h"

/* SIMD kernels. They add integers, so all of them give the same result bit for bit. */
enum kernel { BEST = -1, PLAIN, NEON, AVX2, VNNI, AMX, SIMD128, SIMD128_X86 };

/* The operation fused after a product. */
enum then { NOTHING, RELU, ADD };

/* A packed weight for x Wᵀ + b, quantized to integers from -127 to 127 with a scale for each
 * output. Outputs and inputs are padded with zeros to multiples of 64; levels are laid out as
 * [outputs / 16][inputs / 4][16][4]: one step of a dot product reads one vector, and an AMX
 * tile, 16 steps, reads 1,024 contiguous bytes. The other arrays have the padded number of
 * outputs. */
typedef struct {
    const int8_t *levels;
    const int32_t *totals; /* sum of each output's levels */
    const float *scale;
    const float *bias;
    int64_t outputs, inputs;
    const float *numbers; /* float32 weights, in place of levels: [outputs / 16][inputs][16] */
    int64_t threads;      /* that may share a product */
} Weight;

static inline int64_t padded(int64_t count, int64_t step) {
    return (count + step - 1) / step * step;
}

/* Bytes of scratch memory that a product of so many rows needs. */
int64_t product_workspace(int64_t rows, int64_t inputs);

/* y = x Wᵀ + b, then max(0, y) or y + added, which may be y itself. A row of y depends on that
 * row of x alone, bit for bit: in int8 each row is quantized by itself, and in float32 the
 * products of a row are added in one order, however many rows there are. `workspace` is scratch
 * memory aligned to 64 bytes. */
void multiply(const Weight *weight, const float *x, int64_t rows, int32_t then, const float *added,
              float *y, void *workspace, int32_t kernel);

#endif
