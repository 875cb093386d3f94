/* What layers are made of, row by row; see parts.c. */

#ifndef TRANSDUCE_PARTS
#define TRANSDUCE_PARTS

#include <stdint.h>

typedef struct {
    const float *weight; /* NULL: no norm */
    const float *bias;   /* NULL: over the root mean square, nothing taken off */
    float epsilon;
} Norm;

enum activation { IS_RELU, IS_GELU, IS_SWIGLU };

void normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y);

/* One row's attention to `count` places; the values of a place follow its keys. `scores` has room
 * for each head's, rounded up to whole vectors. */
void attend(const float *query, const float *const *places, int64_t count, int64_t width,
            int64_t heads, float *scores, float *context);

/* Pairs of neighbours turned by angles of which cosine and sine lie side by side. */
void turn(float *x, int64_t width, const float *turns, int64_t size);

/* In place; gate and value become one, and rows half as wide. */
void activate(float *x, int64_t rows, int64_t hidden, int32_t activation);

void log_softmax(float *x, int64_t count);

#endif
