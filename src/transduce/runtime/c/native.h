/* What products.c gives to step.c, and what both give to Python. */

#ifndef TRANSDUCE_NATIVE
#define TRANSDUCE_NATIVE

#include <stdint.h>
#include <string.h>

/* Ways to the same sums: whole numbers are added, so that every one gives the same to the bit. */
enum kernel { BEST = -1, PLAIN, NEON, AVX2, VNNI, AMX };

/* What follows a product. */
enum then { NOTHING, RELU, ADD };

/* x Wᵀ + b in whole numbers from -127 to 127, each output's with a scale of its own.
 *
 * Outputs are padded to 64 and inputs to 64, with zeros; levels lie as [outputs / 16][inputs / 4]
 * [16][4]: what one step of a dot product reads is one vector, and what an AMX tile reads, 16
 * steps, is 1,024 bytes side by side. The other arrays have the padded outputs. */
typedef struct {
    const int8_t *levels;
    const int32_t *totals; /* of each output's levels */
    const float *scale;
    const float *bias;
    int64_t outputs, inputs;
    const float *numbers; /* in float32, in place of levels: [outputs / 16][inputs][16] */
    int64_t threads;      /* that may share a product in float32 */
} Weight;

static inline int64_t padded(int64_t count, int64_t step) {
    return (count + step - 1) / step * step;
}

/* The bytes that a product of so many rows needs beside its inputs and outputs. */
int64_t product_room(int64_t rows, int64_t inputs);

/* y = x Wᵀ + b, then max(0, y) or y + added, which may be y itself. A row of y depends on that row
 * of x alone, to the bit: in int8 each row has levels of its own, and in float32 the products of a
 * row are added in one order, however many rows there are. `room` begins at a multiple of 64. */
void multiply(const Weight *weight, const float *x, int64_t rows, int32_t then, const float *added,
              float *y, void *room, int32_t kernel);

#endif
