/* A Transformer's stack of layers over some rows: a decoder's next step, or whole sources.
 *
 * Every row is worked on as if it were alone, in one order of sums, so that it comes out the same to
 * the bit whoever its neighbours are. */

#include "native.h"

#include <math.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif
#endif

typedef struct {
    const float *weight; /* NULL: no norm */
    const float *bias;   /* NULL: over the root mean square, nothing taken off */
    float epsilon;
} Norm;

typedef struct {
    Norm norm;
    Weight into, out_of;
} Sublayer;

typedef struct {
    Sublayer own, cross, position_wise;
} Layer;

enum activation { IS_RELU, IS_GELU, IS_SWIGLU };

typedef struct {
    const Layer *layer;
    int64_t layers, width, heads;
    int32_t norm_before, activation;
    Norm last;
    const float *table; /* of embeddings; NULL: rows come embedded */
    float table_scale;
    int32_t kernel;
} Stack;

/* ------------------------------------------------------------------------ numbers side by side */

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

static inline Vector load(const float *x) {
    Vector v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store(float *x, Vector v) { memcpy(x, &v, sizeof v); }

static inline Vector all(float x) { return x - (Vector){0}; }

static inline Vector pick(Whole where, Vector yes, Vector no) {
    return (Vector)((where & (Whole)yes) | (~where & (Whole)no));
}

static inline Vector higher(Vector a, Vector b) { return pick(a > b, a, b); }

static inline Vector lower(Vector a, Vector b) { return pick(a < b, a, b); }

static inline float total(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return vaddvq_f32((float32x4_t)v);
#else
    float x[LANES];
    memcpy(x, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
#endif
}

static inline float highest(Vector v) {
    float x[LANES];
    memcpy(x, &v, sizeof v);
    for (int i = 1; i < LANES; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
}

/* e^x as 2^n e^r with |r| <= ln 2 / 2, of which a polynomial is right to the last bit or two. */
static inline Vector exponential(Vector x) {
    const float magic = 12582912.0f; /* rounds what it is added to */
    x = lower(higher(x, all(-87.0f)), all(88.0f));
    Vector n = (x * 1.44269504f + magic) - magic;
    Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return y * (Vector)((__builtin_convertvector(n, Whole) + 127) << 23);
}

static float dot(const float *a, const float *b, int64_t count) {
    Vector first = {0}, second = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        first += load(a + i) * load(b + i);
        second += load(a + i + LANES) * load(b + i + LANES);
    }
    for (; i + LANES <= count; i += LANES) first += load(a + i) * load(b + i);
    float sum = total(first + second);
    for (; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* The end of an array that is no whole vector, filled up. */
static inline Vector load_end(const float *x, int64_t count, float fill) {
    Vector v = all(fill);
    memcpy(&v, x, sizeof(float) * (size_t)count);
    return v;
}

/* ----------------------------------------------------------------------------------- its parts */

static void normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y) {
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float mean = 0.0f;
        if (norm->bias) {
            Vector sum = {0};
            int64_t i = 0;
            for (; i + LANES <= width; i += LANES) sum += load(x + i);
            mean = total(sum + load_end(x + i, width - i, 0.0f)) / (float)width;
        }
        Vector squares = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            Vector apart = load(x + i) - mean;
            squares += apart * apart;
        }
        Vector apart = load_end(x + i, width - i, mean) - mean;
        float variance = total(squares + apart * apart) / (float)width;
        float by = 1.0f / sqrtf(variance + norm->epsilon);
        for (i = 0; i < width; i++)
            y[i] = (x[i] - mean) * by * norm->weight[i] + (norm->bias ? norm->bias[i] : 0.0f);
    }
}

/* Scores to weights that sum to one; as many as fill whole vectors may be written. */
static void softmax(float *scores, int64_t count) {
    const int64_t whole = padded(count, LANES);
    for (int64_t i = count; i < whole; i++) scores[i] = -1e30f;
    Vector most = load(scores), sum = {0};
    for (int64_t i = LANES; i < whole; i += LANES) most = higher(most, load(scores + i));
    const float top = highest(most);
    for (int64_t i = 0; i < whole; i += LANES) {
        Vector weight = exponential(load(scores + i) - top);
        store(scores + i, weight);
        sum += weight;
    }
    const float by = 1.0f / total(sum);
    for (int64_t i = 0; i < count; i++) scores[i] *= by;
}

/* One row's attention to `count` places; the values of a place follow its keys. */
static void attend(const float *query, const float *const *places, int64_t count, int64_t width,
                   int64_t heads, float *scores, float *context) {
    const int64_t size = width / heads, stride = padded(count, LANES);
    const float scale = 1.0f / sqrtf((float)size);
    for (int64_t t = 0; t < count; t++)
        for (int64_t h = 0; h < heads; h++)
            scores[h * stride + t] = scale * dot(query + h * size, places[t] + h * size, size);
    for (int64_t h = 0; h < heads; h++) {
        const float *weights = scores + h * stride;
        softmax(scores + h * stride, count);
        int64_t k = h * size;
        const int64_t end = k + size;
        for (; k + 4 * LANES <= end; k += 4 * LANES) {
            Vector a = {0}, b = {0}, c = {0}, d = {0};
            for (int64_t t = 0; t < count; t++) {
                const float *value = places[t] + width + k;
                a += weights[t] * load(value);
                b += weights[t] * load(value + LANES);
                c += weights[t] * load(value + 2 * LANES);
                d += weights[t] * load(value + 3 * LANES);
            }
            store(context + k, a);
            store(context + k + LANES, b);
            store(context + k + 2 * LANES, c);
            store(context + k + 3 * LANES, d);
        }
        for (; k + LANES <= end; k += LANES) {
            Vector a = {0};
            for (int64_t t = 0; t < count; t++) a += weights[t] * load(places[t] + width + k);
            store(context + k, a);
        }
        for (; k < end; k++) {
            context[k] = 0.0f;
            for (int64_t t = 0; t < count; t++) context[k] += weights[t] * places[t][width + k];
        }
    }
}

/* Pairs of neighbours turned by angles of which cosine and sine lie side by side. */
static void turn(float *x, int64_t width, const float *turns, int64_t size) {
    for (int64_t i = 0; i < width; i += 2) {
        const float cosine = turns[i % size], sine = turns[i % size + 1];
        const float even = x[i], odd = x[i + 1];
        x[i] = even * cosine - odd * sine;
        x[i + 1] = even * sine + odd * cosine;
    }
}

static inline Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

/* x Phi(x); the error function after Abramowitz and Stegun, 7.1.26, to 1.5e-7. */
static inline Vector gelu(Vector x) {
    Vector size = higher(x, -x) * 0.70710678f;
    Vector t = 1.0f / (1.0f + 0.3275911f * size);
    Vector y = t * 1.061405429f - 1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t - 0.284496736f;
    y = y * t + 0.254829592f;
    Vector beyond = 0.5f * y * t * exponential(-size * size);
    return x * pick(x > 0.0f, 1.0f - beyond, beyond);
}

/* In place; gate and value become one, and rows half as wide. */
static void activate(float *x, int64_t rows, int64_t hidden, int32_t activation) {
    const int64_t wide = activation == IS_SWIGLU ? 2 * hidden : hidden;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < hidden; i += LANES) {
            const int64_t some = hidden - i < LANES ? hidden - i : LANES;
            Vector y = load_end(x + r * wide + i, some, 0.0f);
            y = activation == IS_GELU ? gelu(y) : silu(y);
            if (activation == IS_SWIGLU) y *= load_end(x + r * wide + hidden + i, some, 0.0f);
            memcpy(x + r * hidden + i, &y, sizeof(float) * (size_t)some);
        }
}

static void log_softmax(float *x, int64_t count) {
    Vector most = all(-INFINITY), sum = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) most = higher(most, load(x + i));
    const float top = highest(higher(most, load_end(x + i, count - i, -INFINITY)));
    for (i = 0; i + LANES <= count; i += LANES) sum += exponential(load(x + i) - top);
    sum += exponential(load_end(x + i, count - i, -INFINITY) - top);
    const float taken = top + logf(total(sum));
    for (i = 0; i < count; i++) x[i] -= taken;
}

/* ------------------------------------------------------------------------------------ all rows */

typedef struct {
    const Stack *stack;
    int64_t rows;
    float *x, *normed, *wide, *scores; /* wide: projections, or the hidden layer */
    const float **places;
    void *product;
} Work;

/* Where everything lies in the room that there is; returns where it ends. */
static int64_t lay_out(Work *work, const Stack *stack, int64_t rows, int64_t places, char *room) {
    int64_t end = 0, widest = 3 * stack->width, deepest = stack->width;
    for (int64_t i = 0; i < stack->layers; i++) {
        const Sublayer *last = &stack->layer[i].position_wise;
        widest = last->into.outputs > widest ? last->into.outputs : widest;
        deepest = last->out_of.inputs > deepest ? last->out_of.inputs : deepest;
    }
    *work = (Work){.stack = stack, .rows = rows};
#define TAKE(what, bytes) (what = (void *)(room + end), end += padded((int64_t)(bytes), 64))
    TAKE(work->x, rows * stack->width * 4);
    TAKE(work->normed, rows * stack->width * 4);
    TAKE(work->wide, rows * widest * 4);
    TAKE(work->scores, stack->heads * padded(places, LANES) * 4);
    TAKE(work->places, places * (int64_t)sizeof(float *));
    TAKE(work->product, product_room(rows, deepest));
#undef TAKE
    return end;
}

int64_t stack_room(const Stack *stack, int64_t rows, int64_t places) {
    Work work;
    return lay_out(&work, stack, rows, places, 0);
}

/* Into a sublayer, from x to wide. */
static void enter(Work *work, const Sublayer *sublayer, int32_t then) {
    const Stack *stack = work->stack;
    const float *x = work->x;
    if (stack->norm_before) {
        normalise(&sublayer->norm, x, work->rows, stack->width, work->normed);
        x = work->normed;
    }
    multiply(&sublayer->into, x, work->rows, then, 0, work->wide, work->product, stack->kernel);
}

/* Out of it, onto what went in. */
static void leave(Work *work, const Sublayer *sublayer, const float *y) {
    const Stack *stack = work->stack;
    float *x = work->x;
    multiply(&sublayer->out_of, y, work->rows, ADD, x, x, work->product, stack->kernel);
    if (!stack->norm_before) normalise(&sublayer->norm, x, work->rows, stack->width, x);
}

static void feed_forward(Work *work, const Sublayer *sublayer) {
    const int32_t activation = work->stack->activation;
    enter(work, sublayer, activation == IS_RELU ? RELU : NOTHING);
    if (activation != IS_RELU)
        activate(work->wide, work->rows, sublayer->out_of.inputs, activation);
    leave(work, sublayer, work->wide);
}

/* A row's embedding, with the position added that is given. */
static void embed(Work *work, int64_t row, int64_t token, const float *position) {
    const int64_t width = work->stack->width;
    const float *from = work->stack->table + token * width;
    float *x = work->x + row * width;
    for (int64_t i = 0; i < width; i++)
        x[i] = from[i] * work->stack->table_scale + (position ? position[i] : 0.0f);
}

/* ------------------------------------------------------------------------- a decoder's next step */

typedef struct {
    int64_t rows, step;
    const int64_t *tokens;
    const float *embedded; /* where the stack has no table */
    const float *position; /* what is added to embeddings at this step, or NULL */
    const float *turns;    /* what queries and keys are turned by, or NULL */
    /* [steps][layers][rows at most][2 width]: keys and values where they were written, wherever the
     * hypotheses that they belong to have gone since. */
    float *past;
    int64_t most_rows;
    /* [rows][1 + steps at most]: the source of each row, then where each step of its past lies. */
    int32_t *origins;
    int64_t most_steps;
    const float *const *memory; /* of each layer: keys and values [sources][length][2 width] */
    int64_t memory_length;
    const int64_t *lengths; /* of the sources */
    Weight head;
    float *log_probs;
    void *room;
} Step;

static void attend_to_self(Work *work, const Step *step, int64_t layer) {
    const Stack *stack = work->stack;
    const int64_t width = stack->width, slot = step->most_rows * 2 * width;
    const int64_t all_layers = stack->layers * slot;
    float *past = step->past + layer * slot;
    enter(work, &stack->layer[layer].own, NOTHING);
    for (int64_t r = 0; r < work->rows; r++) {
        float *query = work->wide + r * 3 * width;
        const int32_t *origins = step->origins + r * (1 + step->most_steps) + 1;
        if (step->turns) turn(query, 2 * width, step->turns, width / stack->heads);
        for (int64_t t = 0; t <= step->step; t++)
            work->places[t] = past + t * all_layers + origins[t] * 2 * width;
        memcpy((float *)work->places[step->step], query + width, sizeof(float) * 2 * (size_t)width);
        attend(query, work->places, step->step + 1, width, stack->heads, work->scores,
               work->normed + r * width);
    }
    leave(work, &stack->layer[layer].own, work->normed);
}

static void attend_to_source(Work *work, const Step *step, int64_t layer) {
    const Stack *stack = work->stack;
    const int64_t width = stack->width;
    enter(work, &stack->layer[layer].cross, NOTHING);
    for (int64_t r = 0; r < work->rows; r++) {
        const int64_t source = step->origins[r * (1 + step->most_steps)];
        const float *first = step->memory[layer] + source * step->memory_length * 2 * width;
        const int64_t length = step->lengths[source];
        for (int64_t s = 0; s < length; s++) work->places[s] = first + s * 2 * width;
        attend(work->wide + r * width, work->places, length, width, stack->heads, work->scores,
               work->normed + r * width);
    }
    leave(work, &stack->layer[layer].cross, work->normed);
}

/* The log-probabilities of the tokens that may come next. */
void decoder_step(const Stack *stack, const Step *step) {
    Work work;
    const int64_t rows = step->rows, width = stack->width, vocabulary = step->head.outputs;
    const int64_t places =
        step->step + 1 > step->memory_length ? step->step + 1 : step->memory_length;
    lay_out(&work, stack, rows, places, step->room);
    for (int64_t r = 0; r < rows; r++) {
        step->origins[r * (1 + step->most_steps) + 1 + step->step] = (int32_t)r;
        if (stack->table) embed(&work, r, step->tokens[r], step->position);
    }
    if (!stack->table) memcpy(work.x, step->embedded, sizeof(float) * (size_t)(rows * width));
    for (int64_t layer = 0; layer < stack->layers; layer++) {
        attend_to_self(&work, step, layer);
        attend_to_source(&work, step, layer);
        feed_forward(&work, &stack->layer[layer].position_wise);
    }
    if (stack->last.weight) normalise(&stack->last, work.x, rows, width, work.x);
    multiply(&step->head, work.x, rows, NOTHING, 0, step->log_probs, work.product, stack->kernel);
    for (int64_t r = 0; r < rows; r++) log_softmax(step->log_probs + r * vocabulary, vocabulary);
}

/* ------------------------------------------------------------------------------- whole sources */

typedef struct {
    int64_t sources, longest;
    const int64_t *tokens; /* [sources][longest] */
    const int64_t *lengths;
    const float *embedded;  /* [sources][longest][width] where the stack has no table */
    const float *positions; /* [longest][width] or NULL */
    const float *turns;     /* [longest][width of a head] or NULL */
    float *states;          /* [sources][longest][width], zero beyond a source's end */
    void *room;
} Sources;

static void attend_within(Work *work, const Sources *sources, int64_t layer) {
    const Stack *stack = work->stack;
    const int64_t width = stack->width, size = width / stack->heads;
    enter(work, &stack->layer[layer].own, NOTHING);
    float *first = work->wide, *context = work->normed;
    for (int64_t b = 0; b < sources->sources; b++) {
        const int64_t length = sources->lengths[b];
        for (int64_t s = 0; s < length; s++) {
            work->places[s] = first + s * 3 * width + width;
            if (sources->turns)
                turn(first + s * 3 * width, 2 * width, sources->turns + s * size, size);
        }
        for (int64_t s = 0; s < length; s++)
            attend(first + s * 3 * width, work->places, length, width, stack->heads, work->scores,
                   context + s * width);
        first += length * 3 * width;
        context += length * width;
    }
    leave(work, &stack->layer[layer].own, work->normed);
}

/* An encoder's states; sources lie one after the other, nothing padded, while it works. */
void encode(const Stack *stack, const Sources *sources) {
    Work work;
    const int64_t width = stack->width, longest = sources->longest;
    int64_t rows = 0;
    for (int64_t b = 0; b < sources->sources; b++) rows += sources->lengths[b];
    lay_out(&work, stack, rows, longest, sources->room);
    for (int64_t b = 0, row = 0; b < sources->sources; b++)
        for (int64_t s = 0; s < sources->lengths[b]; s++, row++) {
            const int64_t place = b * longest + s;
            const float *position = sources->positions ? sources->positions + s * width : 0;
            if (stack->table)
                embed(&work, row, sources->tokens[place], position);
            else
                memcpy(work.x + row * width, sources->embedded + place * width,
                       sizeof(float) * (size_t)width);
        }
    for (int64_t layer = 0; layer < stack->layers; layer++) {
        attend_within(&work, sources, layer);
        feed_forward(&work, &stack->layer[layer].position_wise);
    }
    if (stack->last.weight) normalise(&stack->last, work.x, rows, width, work.x);
    const float *state = work.x;
    for (int64_t b = 0; b < sources->sources; b++) {
        const int64_t length = sources->lengths[b];
        float *states = sources->states + b * longest * width;
        memcpy(states, state, sizeof(float) * (size_t)(length * width));
        memset(states + length * width, 0, sizeof(float) * (size_t)((longest - length) * width));
        state += length * width;
    }
}
