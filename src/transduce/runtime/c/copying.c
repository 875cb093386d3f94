/* The output of a decoder that copies from its source: the pointer-generator of nn/copying.py. */

#include <math.h>
#include <stddef.h>

#include "native.h"
#include "parts.h"
#include "vectors.h"

typedef struct {
    int64_t rows, heads, longest;
    Weight head, gate;
    const float *features;  /* [rows][width], which the gate reads */
    const float *projected; /* what the head reads: the features, or narrower ones */
    const float *attention; /* to the source, [rows][heads][longest]: the mean of the heads counts */
    const int64_t *source;  /* of each row */
    const int64_t *lengths; /* of the sources */
    /* What each place of a source is in the extended vocabulary, or -1: [sources][longest]. */
    const int64_t *copies;
    float *log_probs; /* [rows][vocabulary + longest] */
    float *gates;     /* scratch memory for [rows], and for the extended vocabulary: */
    float *copied;    /* attention to each of its tokens */
    void *workspace;  /* of a product */
    int32_t kernel;
} Copying;

#define TINY 0x1p-126f /* the smallest number that is not denormal: its logarithm is finite */

static float log_sigmoid(float x) { return (x < 0.0f ? x : 0.0f) - log1pf(expf(-fabsf(x))); }

/* The sum of two probabilities, of logarithms. */
static float log_add(float a, float b) {
    const float top = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? top : top + log1pf(expf(low - top));
}

/* What is NaN becomes -INFINITY, as in log_softmax. */
static float number_or_never(float x) { return x == x ? x : -INFINITY; }

/* How much attention a row has for one place of its source. */
static float attention_of(const Copying *call, int64_t row, int64_t place) {
    const float *weights = call->attention + row * call->heads * call->longest + place;
    float sum = 0.0f;
    for (int64_t h = 0; h < call->heads; h++) sum += weights[h * call->longest];
    return sum / (float)call->heads;
}

/* Mix a row's distribution over the vocabulary, of which the extension follows, with attention. */
static void mix(const Copying *call, int64_t row, float *log_probs) {
    const int64_t vocabulary = call->head.outputs, longest = call->longest;
    const int64_t source = call->source[row], length = call->lengths[source];
    const int64_t *copies = call->copies + source * longest;
    const float generate = log_sigmoid(call->gates[row]), copy = log_sigmoid(-call->gates[row]);
    float *copied = call->copied, left = 0.0f;
    for (int64_t s = 0; s < length; s++)
        if (copies[s] >= 0) copied[copies[s]] = 0.0f;
    for (int64_t s = 0; s < length; s++) {
        const float weight = attention_of(call, row, s);
        if (copies[s] >= 0)
            copied[copies[s]] += weight;
        else
            left += weight; /* what cannot be copied counts for the vocabulary */
    }
    const float of_vocabulary = log_add(generate, copy + logf(left > TINY ? left : TINY));
    for (int64_t v = 0; v < vocabulary; v++) 
        log_probs[v] = number_or_never(log_probs[v] + of_vocabulary);
    for (int64_t x = 0; x < longest; x++) log_probs[vocabulary + x] = -INFINITY;
    for (int64_t s = 0; s < length; s++) {
        if (copies[s] < 0 || copied[copies[s]] < 0.0f) continue;
        float *at = log_probs + copies[s], weight = copied[copies[s]];
        *at = number_or_never(log_add(*at, copy + logf(weight > TINY ? weight : TINY)));
        copied[copies[s]] = -1.0f; /* a token that stands at several places is mixed in once */
    }
}

/* Log-probabilities of all rows over the extended vocabulary; returns 1, without doing anything, if
 * a number is not of it. */
int32_t find_copied(const Copying *call) {
    const int64_t vocabulary = call->head.outputs, extended = vocabulary + call->longest;
    for (int64_t r = 0; r < call->rows; r++)
        for (int64_t s = 0; s < call->lengths[call->source[r]]; s++)
            if (call->copies[call->source[r] * call->longest + s] >= extended) return 1;
    multiply(&call->gate, call->features, call->rows, NOTHING, 0, call->gates, call->workspace,
             call->kernel);
    find_log_probs(&call->head, call->projected, call->rows, call->log_probs, call->workspace,
                   call->kernel);
    /* From the last row on, each is moved to where its extension has room. */
    for (int64_t r = call->rows - 1; r >= 0; r--) {
        memmove(call->log_probs + r * extended, call->log_probs + r * vocabulary,
                sizeof(float) * (size_t)vocabulary);
        mix(call, r, call->log_probs + r * extended);
    }
    return 0;
}

/* As in stack.c, of the structure of structures.py. */
#define AT(field) (int64_t)offsetof(Copying, field)
const int64_t copying_layout[] = {
    sizeof(Copying), AT(rows), AT(heads), AT(longest), AT(head), AT(gate), AT(features),
    AT(projected), AT(attention), AT(source), AT(lengths), AT(copies), AT(log_probs), AT(gates),
    AT(copied), AT(workspace), AT(kernel),
};

int64_t copying_layout_length(void) {
    return (int64_t)(sizeof copying_layout / sizeof copying_layout[0]);
}
