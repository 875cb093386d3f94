/* Structures of stack.c: a stack of Transformer layers, and a decoding step. */

#ifndef TRANSDUCE_STACK
#define TRANSDUCE_STACK

#include <stdint.h>

#include "native.h"
#include "parts.h"

enum kind { SELF_ATTENTION, CROSS_ATTENTION, FEED_FORWARD };

/* Kinds of sublayers, as in nn/transformer.py. */
typedef struct {
    int32_t kind, norm_before;
    int32_t activation, gated; /* of a feed-forward layer */
    int64_t layer;             /* index of the layer in the KV cache */
    Norm norm;
    Weight into, out_of;
} Sublayer;

typedef struct {
    const Sublayer *sublayer; /* of all layers, in the order in which they run */
    int64_t sublayers, layers, width, head_width;
    Norm last;
    const float *table; /* embedding table; NULL: rows come embedded */
    int64_t tokens;     /* vocabulary size */
    float table_scale;
    int32_t kernel;
    const float *by_distance; /* of self-attention: see attend */
    int64_t reach;
} Stack;

/* A decoder's next step. */
typedef struct {
    int64_t rows, step;
    /* NULL: all rows are at `step`, and row r has place r in the cache. Or the step of each row, of
     * which `step` is the largest, and its place: rows come and go while others stay. */
    const int64_t *steps, *slots;
    const int64_t *tokens;
    const float *embedded; /* where the stack has no embedding table */
    /* Positional encodings, and cosines and sines of rotary positions, or NULL: of `step`, or where
     * rows have steps of their own, of all steps from 0 on. */
    const float *position, *rotary;
    /* KV cache [steps][layers][maximum rows][2 width]: keys and values stay where they were
     * written when beam search reorders its hypotheses. */
    float *past;
    int64_t max_rows;
    /* [maximum rows][1 + maximum steps]: the source of each row, then the row in which each past
     * step was written. */
    int32_t *origins;
    int64_t max_steps;
    const float *const *memory; /* of each layer: keys, values [sources][length][2 width] */
    int64_t memory_length;
    const int64_t *lengths; /* of the sources */
    Weight head; /* without outputs: the features [rows][width] are written to `log_probs` */
    float *log_probs;
    /* NULL, or where the attention weights are written: to the source [layers][rows][heads][memory
     * length], and to the steps so far [layers][rows][heads][maximum steps]. Heads that were pruned
     * leave the places of the last ones as they are. */
    float *attention, *self_attention;
    void *workspace;
    int64_t refused; /* set to 1 + the first row whose token is not in the vocabulary, else to 0 */
} Step;

/* One decoding step of all rows; none is done if a token is refused. */
void decoder_step(const Stack *stack, Step *step);

#endif
