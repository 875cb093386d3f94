/* What layers are made of, row by row; see parts.c. */

#ifndef TRANSDUCE_PARTS
#define TRANSDUCE_PARTS

#include <stdint.h>

#include "native.h"

typedef struct {
    const float *weight; /* NULL: no norm */
    const float *bias;   /* NULL: over the root mean square, nothing taken off */
    float epsilon;
} Norm;

enum activation { IS_RELU, IS_GELU, IS_SILU }; /* the functions of nn/activation.py */

void normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y);

/* One row's attention to `count` places; the values of a place follow its keys. `scores` has room
 * for each head's, rounded up to whole vectors. */
void attend(const float *query, const float *const *places, int64_t count, int64_t width,
            int64_t heads, float *scores, float *context);

/* Pairs of neighbours turned by angles of which cosine and sine lie side by side. */
void turn(float *x, int64_t width, const float *turns, int64_t size);

/* In place. Gated: the function of the first half times the second, and rows become half as wide. */
void activate(float *x, int64_t rows, int64_t hidden, int32_t activation, int32_t gated);

/* Scores to weights that sum to one; as many as fill whole vectors may be written. */
void softmax(float *scores, int64_t count);

void log_softmax(float *x, int64_t count);

/* The log-probabilities of the tokens that may come next, of some rows at a time: scores are still
 * near when they are read again. So many rows that the weights, which are read for all of them
 * once, are no more than their scores. */
void find_log_probs(const Weight *head, const float *x, int64_t rows, float *log_probs, void *room,
                    int32_t kernel);

#endif
