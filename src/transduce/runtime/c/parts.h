/* Building blocks of layers, row by row; see parts.c. */

#ifndef TRANSDUCE_PARTS
#define TRANSDUCE_PARTS

#include <stdint.h>

#include "native.h"

typedef struct {
    const float *weight; /* NULL: no norm */
    const float *bias;   /* NULL: RMSNorm */
    float epsilon;
} Norm;

enum activation { IS_RELU, IS_GELU, IS_SILU, IS_GELU_TANH }; /* the functions of nn/activation.py */

void normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y);

#define TOGETHER 8 /* rows that may attend together */

/* Attention of up to TOGETHER rows to the same `count` positions; keys and values of a position are
 * contiguous. Queries are `apart` from row to row, contexts `width`. `scores` is a buffer for the
 * scores of each row and head, rounded up to whole vectors. A row's result does not depend on the
 * others. `by_distance` is NULL, or added to the scores: of each head the numbers of the distances
 * from -reach to reach, which stand for those beyond too; the rows are at `position` and after it. */
void attend(const float *query, int64_t rows, int64_t apart, const float *const *places,
            int64_t count, int64_t width, int64_t heads, const float *by_distance, int64_t reach,
            int64_t position, float *scores, float *context);

/* Rotary positions: neighbouring pairs rotated; cosine and sine of an angle are contiguous. */
void rotate(float *x, int64_t width, const float *rotary, int64_t size);

/* In place. Gated: the function of the first half times the second, so rows become half as
 * wide. */
void activate(float *x, int64_t rows, int64_t hidden, int32_t activation, int32_t gated);

/* Softmax; may write up to the end of a whole vector. */
void softmax(float *scores, int64_t count);

/* In place; what is NaN or infinite becomes -INFINITY. */
void log_softmax(float *x, int64_t count);

/* Log-probabilities of the next token, some rows at a time so that scores are still in the
 * cache when they are read again; enough rows that reading the weights, once for all of them,
 * is no more than reading the scores. */
void find_log_probs(const Weight *head, const float *x, int64_t rows, float *log_probs,
                    void *workspace, int32_t kernel);

#endif
