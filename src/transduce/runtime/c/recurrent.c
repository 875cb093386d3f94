/* Recurrent networks: stacks of cells over whole sequences, and the decoding step of a recurrent
 * decoder with attention to the source. */

#include <math.h>
#include <stddef.h>

#include "native.h"
#include "parts.h"
#include "vectors.h"

enum cell { ELMAN, GRU, LSTM, PEEPHOLE_LSTM };
enum score { NO_ATTENTION, DOT, ADDITIVE, LOCATION };

typedef struct {
    Weight from_input, from_state; /* gates stacked along rows */
    const float *peepholes;        /* [3][width]: peepholes of the input, forget and output gate */
} Cell;

/* A stack of cells, as in nn/recurrent/stack.py. */
typedef struct {
    const Cell *cell; /* [layers][directions] */
    int64_t layers, directions, width;
    int32_t kind, skip; /* skip connections: layers read the input, outputs add up */
    Weight sum;         /* of all layers' outputs, with skip */
    int32_t kernel;
} Recurrent;

typedef struct {
    int64_t sequences, longest;
    const float *x; /* [sequences][longest][inputs] */
    const int64_t *lengths;
    float *outputs; /* [sequences][longest][directions * width], zero beyond an end */
    /* [layers][directions][sequences][width]: the states before the first step, then those after
     * the last; only LSTMs have c. */
    float *h, *c;
    void *workspace;
} Sequences;

typedef struct {
    int32_t score, normalised;
    float scale;         /* of dot products */
    Weight keys;         /* projection of what is attended to, or without outputs: there is none */
    Weight query;        /* projection of the query, for additive and location scores */
    const float *energy; /* vector v of additive scores; NULL: all ones */
} Attention;

/* With tags that it reads and the encoder does not (TagAttention in models/decoders.py), they are
 * the first of a source's places, and attention to the source begins after them. */
typedef struct {
    const Recurrent *stack;
    int32_t context_in_input, context_in_output;
    Attention source, tags;
    Weight tag_values, tag_sum; /* projections of a tag's embedding, and of the sum of them */
    Weight readout;             /* combines context and state */
    Weight bridge; /* from the mean of the source's states to those before the first step */
    const float *table;
    int64_t vocabulary;
    float table_scale;
    int32_t kernel;
} RecurrentDecoder;

typedef struct {
    int64_t sources, longest;
    const float *states; /* of an encoder, [sources][longest][width] */
    const int64_t *lengths;
    float *keys;  /* [sources][longest][width], if they are projected or normalised */
    float *start; /* [sources][outputs of the bridge], if there is one */
    const int64_t *tags; /* how many each source has, or NULL */
    int64_t most_tags;
    const float *embedded_tags;              /* [sources][most_tags][width] */
    float *tag_keys, *tag_values, *tag_input; /* the same, the same, and [sources][width] */
    void *workspace;
} RecurrentStart;

typedef struct {
    int64_t rows;
    const int64_t *tokens;
    float *h, *c;         /* [layers][rows][width]; only LSTMs have c */
    float *query;         /* [rows][width]: the output of the step before */
    const int64_t *source; /* of each row */
    const float *keys, *values; /* [sources][longest][width] */
    int64_t longest;
    const int64_t *lengths; /* of the sources */
    const int64_t *tags;    /* how many each source has, or NULL */
    int64_t most_tags;
    const float *tag_keys, *tag_values, *tag_input; /* as in RecurrentStart */
    Weight head; /* without outputs: as in stack.h */
    float *log_probs;
    float *attention;     /* NULL, or for the attention weights [rows][longest] */
    float *tag_attention; /* NULL, or for those of the tags [rows][most_tags] */
    void *workspace;
} RecurrentStep;

#define TAKE(what, size) (what = (void *)(workspace + end), end += padded((int64_t)(size), 64))

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }
static inline Vector tangent(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

/* ------------------------------------------------------------------------------------- cells */

#define EACH(width, i, some)                                              \
    for (int64_t i = 0, some; some = width - i < LANES ? width - i : LANES, i < width; i += LANES)
#define TAKE_SOME(x) load_some((x) + i, some, 0.0f)

/* A step of each cell, in place; x and g: what its input and its state say to the gates. */

static void step_elman(const float *x, const float *g, int64_t width, float *h) {
    EACH(width, i, some) store_some(h + i, tangent(TAKE_SOME(x) + TAKE_SOME(g)), some);
}

/* The recurrent part stays separate: the reset gate applies to it alone. */
static void step_gru(const float *x, const float *g, int64_t width, float *h) {
    EACH(width, i, some) {
        const Vector reset = sigmoid(TAKE_SOME(x) + TAKE_SOME(g));
        const Vector update = sigmoid(TAKE_SOME(x + width) + TAKE_SOME(g + width));
        const Vector fresh = tangent(TAKE_SOME(x + 2 * width) + reset * TAKE_SOME(g + 2 * width));
        store_some(h + i, (1.0f - update) * fresh + update * TAKE_SOME(h), some);
    }
}

static void step_lstm(const float *x, const float *g, const float *peepholes, int64_t width,
                      float *h, float *c) {
    EACH(width, i, some) {
        Vector in = TAKE_SOME(x) + TAKE_SOME(g);
        Vector forget = TAKE_SOME(x + width) + TAKE_SOME(g + width);
        const Vector fresh = TAKE_SOME(x + 2 * width) + TAKE_SOME(g + 2 * width);
        Vector out = TAKE_SOME(x + 3 * width) + TAKE_SOME(g + 3 * width);
        Vector memory = TAKE_SOME(c);
        if (peepholes) {
            in += TAKE_SOME(peepholes) * memory;
            forget += TAKE_SOME(peepholes + width) * memory;
        }
        memory = sigmoid(forget) * memory + sigmoid(in) * tangent(fresh);
        if (peepholes) out += TAKE_SOME(peepholes + 2 * width) * memory;
        store_some(c + i, memory, some);
        store_some(h + i, sigmoid(out) * tangent(memory), some);
    }
}

static void step_cell(const Recurrent *net, const Cell *cell, const float *x, const float *g,
                      float *h, float *c) {
    switch (net->kind) {
    case ELMAN: step_elman(x, g, net->width, h); break;
    case GRU: step_gru(x, g, net->width, h); break;
    default: step_lstm(x, g, cell->peepholes, net->width, h, c);
    }
}

/* Columns of rows, from `first` on. */
static void copy_columns(float *to, int64_t wide, int64_t first, const float *from, int64_t width,
                         int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * wide + first, from + r * width, sizeof(float) * (size_t)width);
}

/* ---------------------------------------------------------------------------- whole sequences */

/* Sequences without padding, the longest first: of step 0 a row of each, then of step 1 of those
 * that have it, and so on. */
typedef struct {
    int64_t rows, *order, *first; /* which sequence; the row that a step begins with */
    float *x, *below, *above, *joined, *every; /* rows: inputs, states, both, those of all layers */
    float *gates, *more, *h, *c;
    void *product;
} Packed;

static int64_t lay_out_sequences(Packed *packed, const Recurrent *net, int64_t rows,
                                 int64_t sequences, int64_t longest, char *workspace) {
    const int64_t inputs = net->cell->from_input.inputs, gates = net->cell->from_input.outputs;
    const int64_t wide = net->directions * net->width, all = net->layers * wide;
    const int64_t joined = net->skip ? inputs + wide : 0, every = net->skip ? all : 0;
    int64_t end = 0, widest = inputs > wide ? inputs : wide;
    widest = joined > widest ? joined : widest;
    widest = every > widest ? every : widest;
    packed->rows = rows;
    TAKE(packed->order, sequences * 8);
    TAKE(packed->first, (longest + 1) * 8);
    TAKE(packed->x, rows * inputs * 4);
    TAKE(packed->below, rows * wide * 4);
    TAKE(packed->above, rows * wide * 4);
    TAKE(packed->joined, rows * joined * 4);
    TAKE(packed->every, rows * every * 4);
    TAKE(packed->gates, rows * gates * 4);
    TAKE(packed->more, sequences * gates * 4);
    TAKE(packed->h, sequences * net->width * 4);
    TAKE(packed->c, sequences * net->width * 4);
    TAKE(packed->product, product_workspace(rows > sequences ? rows : sequences, widest));
    return end;
}

int64_t sequences_workspace(const Recurrent *net, int64_t rows, int64_t sequences,
                            int64_t longest) {
    Packed packed;
    return lay_out_sequences(&packed, net, rows, sequences, longest, 0);
}

static void sort_by_length(const Sequences *all, int64_t *order, int64_t *first) {
    memset(first, 0, sizeof(int64_t) * (size_t)(all->longest + 1));
    for (int64_t b = 0; b < all->sequences; b++) first[all->lengths[b]]++;
    for (int64_t length = all->longest, longer = 0; length >= 0; length--) {
        const int64_t some = first[length];
        first[length] = longer;
        longer += some;
    }
    for (int64_t b = 0; b < all->sequences; b++) order[first[all->lengths[b]]++] = b;
    /* Now of each length how many are that long: as many rows has the step before. */
    int64_t row = 0;
    for (int64_t step = 0; step < all->longest; step++) {
        const int64_t some = first[step + 1];
        first[step] = row;
        row += some;
    }
    first[all->longest] = row;
}

/* One cell over all sequences, forward or from their ends: its states to columns of `above`. */
static void run_cell(const Recurrent *net, const Packed *packed, const Sequences *all,
                     int64_t place, int backward, const float *x) {
    const Cell *cell = &net->cell[place];
    const int64_t width = net->width, gates = cell->from_input.outputs;
    const int64_t wide = net->directions * width, *first = packed->first;
    const size_t bytes = sizeof(float) * (size_t)width;
    float *h = all->h + place * all->sequences * width;
    float *c = all->c ? all->c + place * all->sequences * width : 0;
    multiply(&cell->from_input, x, packed->rows, NOTHING, 0, packed->gates, packed->product,
             net->kernel);
    for (int64_t r = 0; r < all->sequences; r++) {
        memcpy(packed->h + r * width, h + packed->order[r] * width, bytes);
        if (c) memcpy(packed->c + r * width, c + packed->order[r] * width, bytes);
    }
    for (int64_t step = 0; step < all->longest; step++) {
        const int64_t rows = first[step + 1] - first[step];
        if (!rows) break;
        multiply(&cell->from_state, packed->h, rows, NOTHING, 0, packed->more, packed->product,
                 net->kernel);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t from_end = all->lengths[packed->order[r]] - 1 - step;
            const int64_t row = first[backward ? from_end : step] + r;
            float *state = packed->h + r * width;
            step_cell(net, cell, packed->gates + row * gates, packed->more + r * gates, state,
                      packed->c + r * width);
            memcpy(packed->above + row * wide + (backward ? width : 0), state, bytes);
        }
    }
    for (int64_t r = 0; r < all->sequences; r++) {
        memcpy(h + packed->order[r] * width, packed->h + r * width, bytes);
        if (c) memcpy(c + packed->order[r] * width, packed->c + r * width, bytes);
    }
}

/* Whole sequences; lengths must be from 0 to `longest`. */
void read_sequences(const Recurrent *net, const Sequences *all) {
    Packed packed;
    const int64_t inputs = net->cell->from_input.inputs, longest = all->longest;
    const int64_t wide = net->directions * net->width, every = net->layers * wide;
    int64_t rows = 0;
    for (int64_t b = 0; b < all->sequences; b++) rows += all->lengths[b];
    lay_out_sequences(&packed, net, rows, all->sequences, longest, all->workspace);
    sort_by_length(all, packed.order, packed.first);
    for (int64_t r = 0; r < all->sequences; r++)
        for (int64_t b = packed.order[r], step = 0; step < all->lengths[b]; step++)
            memcpy(packed.x + (packed.first[step] + r) * inputs,
                   all->x + (b * longest + step) * inputs, sizeof(float) * (size_t)inputs);
    const float *x = packed.x;
    for (int64_t layer = 0; layer < net->layers; layer++) {
        if (layer && net->skip) { /* the input concatenated with the output of the layer below */
            copy_columns(packed.joined, inputs + wide, 0, packed.x, inputs, rows);
            copy_columns(packed.joined, inputs + wide, inputs, packed.below, wide, rows);
            x = packed.joined;
        } else if (layer) {
            x = packed.below;
        }
        for (int64_t way = 0; way < net->directions; way++)
            run_cell(net, &packed, all, layer * net->directions + way, (int)way, x);
        float *above = packed.above;
        packed.above = packed.below;
        packed.below = above;
        if (net->skip) copy_columns(packed.every, every, layer * wide, packed.below, wide, rows);
    }
    if (net->skip)
        multiply(&net->sum, packed.every, rows, NOTHING, 0, packed.below, packed.product,
                 net->kernel);
    for (int64_t r = 0; r < all->sequences; r++) {
        const int64_t b = packed.order[r], length = all->lengths[b];
        float *outputs = all->outputs + b * longest * wide;
        for (int64_t step = 0; step < length; step++)
            memcpy(outputs + step * wide, packed.below + (packed.first[step] + r) * wide,
                   sizeof(float) * (size_t)wide);
        memset(outputs + length * wide, 0, sizeof(float) * (size_t)((longest - length) * wide));
    }
}

/* ------------------------------------------------------------------------ buffers of a step */

typedef struct {
    float *input, *above, *gates, *more, *context, *of_tags, *asked, *scores;
    void *product;
} Work;

static int64_t lay_out(Work *work, const RecurrentDecoder *net, int64_t rows, int64_t longest,
                       char *workspace) {
    const int64_t width = net->stack->width, layers = net->stack->layers;
    const int64_t bytes = rows * width * (int64_t)sizeof(float);
    const int64_t widest = (layers > 3 ? layers : 3) * width; /* of a product's inputs */
    const int64_t places = net->source.score == LOCATION ? net->source.query.outputs : 0;
    int64_t end = 0;
    TAKE(work->input, 2 * bytes);
    TAKE(work->above, widest * rows * 4);
    TAKE(work->gates, 4 * bytes);
    TAKE(work->more, 4 * bytes);
    TAKE(work->context, bytes);
    TAKE(work->of_tags, bytes);
    TAKE(work->asked, places > width ? rows * places * 4 : bytes);
    TAKE(work->scores, padded(longest, LANES) * 4);
    TAKE(work->product, product_workspace(rows, widest));
    return end;
}

int64_t recurrent_workspace(const RecurrentDecoder *net, int64_t rows, int64_t longest) {
    Work work;
    return lay_out(&work, net, rows, longest, 0);
}

static void add_row(float *sum, const float *x, int64_t width) {
    EACH(width, i, some) store_some(sum + i, TAKE_SOME(sum) + TAKE_SOME(x), some);
}

/* --------------------------------------------------------------------------------- attention */

static float score_additive(const float *query, const float *key, const float *energy,
                            int64_t width) {
    Sums sums = {{{0}}};
    for (int64_t first = 0; first < width; first += SPAN)
        UNROLL for (int p = 0; p < PARTS; p++) {
            const int64_t i = first + p * LANES, some = some_at(i, width);
            if (!some) break;
            Vector term = tangent(TAKE_SOME(query) + TAKE_SOME(key));
            sums.part[p] += energy ? term * TAKE_SOME(energy) : term;
        }
    return total(sums);
}

/* The length of a vector; as torch does, at least 1e-12. */
static float size_of(const float *x, int64_t width) {
    const float size = sqrtf(dot(x, x, width));
    return size > 1e-12f ? size : 1e-12f;
}

/* What is attended to: of each source the places from `first` to its length. */
typedef struct {
    const float *keys, *values; /* [sources][longest][width] */
    int64_t longest;
    const int64_t *first, *lengths; /* first: NULL for the first place of all */
    float *context;                 /* [rows][width] */
    float *weights;                 /* NULL, or [rows][longest] */
} Attended;

static void attend_to(const Attention *by, const RecurrentDecoder *net, const Work *work,
                      const RecurrentStep *step, const Attended *to) {
    const int64_t width = net->stack->width, longest = to->longest;
    const float *asked = step->query;
    int64_t stride = width;
    if (by->query.outputs) {
        multiply(&by->query, step->query, step->rows, NOTHING, 0, work->asked, work->product,
                 net->kernel);
        asked = work->asked;
        stride = by->query.outputs;
    }
    for (int64_t r = 0; r < step->rows; r++) {
        const int64_t source = step->source[r], length = to->lengths[source];
        const int64_t first = to->first ? to->first[source] : 0, count = length - first;
        const float *keys = to->keys + source * longest * width;
        const float *values = to->values + source * longest * width;
        const float *query = asked + r * stride;
        float *context = to->context + r * width, *scores = work->scores;
        float scale = by->scale;
        if (by->normalised) scale /= size_of(query, width);
        for (int64_t s = first; s < length; s++) {
            const float *key = keys + s * width;
            switch (by->score) {
            case DOT: scores[s - first] = scale * dot(query, key, width); break;
            case ADDITIVE:
                scores[s - first] = score_additive(query, key, by->energy, width);
                break;
            default: scores[s - first] = query[s];
            }
        }
        if (count > 0) softmax(scores, count);
        if (to->weights) {
            float *weights = to->weights + r * longest;
            memset(weights, 0, sizeof(float) * (size_t)longest);
            if (count > 0) memcpy(weights + first, scores, sizeof(float) * (size_t)count);
        }
        memset(context, 0, sizeof(float) * (size_t)width);
        for (int64_t s = first; s < length; s++)
            EACH(width, i, some) {
                Vector sum = TAKE_SOME(context) + scores[s - first] * TAKE_SOME(values + s * width);
                store_some(context + i, sum, some);
            }
    }
}

static void attend_to_source(const RecurrentDecoder *net, const Work *work,
                             const RecurrentStep *step) {
    const Attended source = {step->keys, step->values,  step->longest,  step->tags,
                             step->lengths, work->context, step->attention};
    attend_to(&net->source, net, work, step, &source);
}

static void attend_to_tags(const RecurrentDecoder *net, const Work *work,
                           const RecurrentStep *step) {
    const Attended tags = {step->tag_keys, step->tag_values, step->most_tags,    0,
                           step->tags,     work->of_tags,    step->tag_attention};
    attend_to(&net->tags, net, work, step, &tags);
}

/* ------------------------------------------------------------------------------------- start */

static int64_t lay_out_start(float **mean, void **product, const RecurrentDecoder *net,
                             int64_t sources, int64_t longest, char *workspace) {
    const int64_t width = net->stack->width, rows = sources * (longest > 1 ? longest : 1);
    int64_t end = 0;
    TAKE(*mean, sources * width * 4);
    TAKE(*product, product_workspace(rows, width));
    return end;
}

int64_t start_workspace(const RecurrentDecoder *net, int64_t sources, int64_t longest) {
    float *mean;
    void *product;
    return lay_out_start(&mean, &product, net, sources, longest, 0);
}

static void make_tangents(float *x, int64_t count) {
    EACH(count, i, some) store_some(x + i, tangent(TAKE_SOME(x)), some);
}

/* What attention to tags reads of each, and what they add to each input: a part of their sum. */
static void start_tags(const RecurrentDecoder *net, const RecurrentStart *call, float *sums,
                       void *product) {
    const int64_t width = net->stack->width, most = call->most_tags, rows = call->sources * most;
    multiply(&net->tag_values, call->embedded_tags, rows, NOTHING, 0, call->tag_values, product,
             net->kernel);
    make_tangents(call->tag_values, rows * width);
    multiply(&net->tags.keys, call->tag_values, rows, NOTHING, 0, call->tag_keys, product,
             net->kernel);
    memset(sums, 0, sizeof(float) * (size_t)(call->sources * width));
    for (int64_t b = 0; b < call->sources; b++)
        for (int64_t t = 0; t < call->tags[b]; t++)
            add_row(sums + b * width, call->embedded_tags + (b * most + t) * width, width);
    multiply(&net->tag_sum, sums, call->sources, NOTHING, 0, call->tag_input, product, net->kernel);
}

/* What depends on the sources alone: prepared keys, the state before the first step, and tags. */
void start_decoder(const RecurrentDecoder *net, const RecurrentStart *call) {
    const int64_t width = net->stack->width, rows = call->sources * call->longest;
    float *mean;
    void *product;
    lay_out_start(&mean, &product, net, call->sources, call->longest, call->workspace);
    if (call->tags) start_tags(net, call, mean, product);
    if (net->source.keys.outputs)
        multiply(&net->source.keys, call->states, rows, NOTHING, 0, call->keys, product,
                 net->kernel);
    for (int64_t r = 0; net->source.normalised && r < rows; r++) {
        const float *state = call->states + r * width;
        const float size = size_of(state, width);
        EACH(width, i, some) store_some(call->keys + r * width + i, TAKE_SOME(state) / size, some);
    }
    if (!net->bridge.outputs) return;
    memset(mean, 0, sizeof(float) * (size_t)(call->sources * width));
    for (int64_t b = 0; b < call->sources; b++) {
        const int64_t length = call->lengths[b], first = call->tags ? call->tags[b] : 0;
        float *sum = mean + b * width;
        for (int64_t s = first; s < length; s++)
            add_row(sum, call->states + (b * call->longest + s) * width, width);
        const float count = length - first > 1 ? (float)(length - first) : 1.0f;
        EACH(width, i, some) store_some(sum + i, TAKE_SOME(sum) / count, some);
    }
    multiply(&net->bridge, mean, call->sources, NOTHING, 0, call->start, product, net->kernel);
    make_tangents(call->start, call->sources * net->bridge.outputs);
}

/* ------------------------------------------------------------------------------------- steps */

static void step_layer(const Recurrent *net, const Work *work, const RecurrentStep *step,
                       int64_t layer, const float *x) {
    const Cell *cell = &net->cell[layer];
    const int64_t width = net->width, gates = cell->from_input.outputs;
    float *h = step->h + layer * step->rows * width;
    float *c = step->c ? step->c + layer * step->rows * width : 0;
    multiply(&cell->from_input, x, step->rows, NOTHING, 0, work->gates, work->product, net->kernel);
    multiply(&cell->from_state, h, step->rows, NOTHING, 0, work->more, work->product, net->kernel);
    for (int64_t r = 0; r < step->rows; r++)
        step_cell(net, cell, work->gates + r * gates, work->more + r * gates, h + r * width,
                  c ? c + r * width : 0);
}

/* One decoding step of all rows; returns 1, without doing anything, if a token is not in the
 * vocabulary. */
int32_t recurrent_step(const RecurrentDecoder *net, const RecurrentStep *step) {
    Work work;
    const Recurrent *stack = net->stack;
    const int64_t rows = step->rows, width = stack->width;
    for (int64_t r = 0; r < rows; r++)
        if (step->tokens[r] < 0 || step->tokens[r] >= net->vocabulary) return 1;
    lay_out(&work, net, rows, step->longest, step->workspace);
    float *embedded = net->context_in_input ? work.above : work.input;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            embedded[r * width + i] = net->table_scale * net->table[step->tokens[r] * width + i];
    int64_t input = width;
    for (int64_t r = 0; step->tags && r < rows; r++)
        add_row(embedded + r * width, step->tag_input + step->source[r] * width, width);
    if (net->context_in_input) {
        attend_to_source(net, &work, step);
        copy_columns(work.input, 2 * width, 0, embedded, width, rows);
        copy_columns(work.input, 2 * width, width, work.context, width, rows);
        input = 2 * width;
    }
    const float *x = work.input;
    for (int64_t layer = 0; layer < stack->layers; layer++) {
        const float *below = layer ? step->h + (layer - 1) * rows * width : 0;
        if (layer && stack->skip) { /* the input concatenated with the output of the layer below */
            copy_columns(work.above, input + width, 0, work.input, input, rows);
            copy_columns(work.above, input + width, input, below, width, rows);
            x = work.above;
        } else if (layer) {
            x = below;
        }
        step_layer(stack, &work, step, layer, x);
    }
    const int64_t every = stack->layers * width;
    if (stack->skip) {
        for (int64_t layer = 0; layer < stack->layers; layer++)
            copy_columns(work.above, every, layer * width, step->h + layer * rows * width, width,
                         rows);
        multiply(&stack->sum, work.above, rows, NOTHING, 0, step->query, work.product, net->kernel);
    } else {
        memcpy(step->query, step->h + (stack->layers - 1) * rows * width,
               sizeof(float) * (size_t)(rows * width));
    }
    const float *output = step->query;
    if (net->context_in_output) {
        const int64_t wide = net->readout.inputs;
        if (!net->context_in_input) attend_to_source(net, &work, step);
        copy_columns(work.above, wide, 0, step->query, width, rows);
        copy_columns(work.above, wide, width, work.context, width, rows);
        if (step->tags) {
            attend_to_tags(net, &work, step);
            copy_columns(work.above, wide, 2 * width, work.of_tags, width, rows);
        }
        multiply(&net->readout, work.above, rows, NOTHING, 0, work.input, work.product, net->kernel);
        make_tangents(work.input, rows * width);
        output = work.input;
    }
    if (step->head.outputs)
        find_log_probs(&step->head, output, rows, step->log_probs, work.product, net->kernel);
    else
        memcpy(step->log_probs, output, sizeof(float) * (size_t)(rows * width));
    return 0;
}

/* As in stack.c, of the structures of structures.py. */
#define AT(type, field) (int64_t)offsetof(type, field)
const int64_t recurrent_layout[] = {
    sizeof(Cell), AT(Cell, from_input), AT(Cell, from_state), AT(Cell, peepholes),
    sizeof(Recurrent), AT(Recurrent, cell), AT(Recurrent, layers), AT(Recurrent, directions),
    AT(Recurrent, width), AT(Recurrent, kind), AT(Recurrent, skip), AT(Recurrent, sum),
    AT(Recurrent, kernel),
    sizeof(Sequences), AT(Sequences, sequences), AT(Sequences, longest), AT(Sequences, x),
    AT(Sequences, lengths), AT(Sequences, outputs), AT(Sequences, h), AT(Sequences, c),
    AT(Sequences, workspace),
    sizeof(Attention), AT(Attention, score), AT(Attention, normalised), AT(Attention, scale),
    AT(Attention, keys), AT(Attention, query), AT(Attention, energy),
    sizeof(RecurrentDecoder), AT(RecurrentDecoder, stack), AT(RecurrentDecoder, context_in_input),
    AT(RecurrentDecoder, context_in_output), AT(RecurrentDecoder, source),
    AT(RecurrentDecoder, tags), AT(RecurrentDecoder, tag_values), AT(RecurrentDecoder, tag_sum),
    AT(RecurrentDecoder, readout), AT(RecurrentDecoder, bridge), AT(RecurrentDecoder, table),
    AT(RecurrentDecoder, vocabulary), AT(RecurrentDecoder, table_scale),
    AT(RecurrentDecoder, kernel),
    sizeof(RecurrentStart), AT(RecurrentStart, sources), AT(RecurrentStart, longest),
    AT(RecurrentStart, states), AT(RecurrentStart, lengths), AT(RecurrentStart, keys),
    AT(RecurrentStart, start), AT(RecurrentStart, tags), AT(RecurrentStart, most_tags),
    AT(RecurrentStart, embedded_tags), AT(RecurrentStart, tag_keys), AT(RecurrentStart, tag_values),
    AT(RecurrentStart, tag_input), AT(RecurrentStart, workspace),
    sizeof(RecurrentStep), AT(RecurrentStep, rows), AT(RecurrentStep, tokens), AT(RecurrentStep,
    h), AT(RecurrentStep, c), AT(RecurrentStep, query), AT(RecurrentStep, source),
    AT(RecurrentStep, keys), AT(RecurrentStep, values), AT(RecurrentStep, longest),
    AT(RecurrentStep, lengths), AT(RecurrentStep, tags), AT(RecurrentStep, most_tags),
    AT(RecurrentStep, tag_keys), AT(RecurrentStep, tag_values), AT(RecurrentStep, tag_input),
    AT(RecurrentStep, head), AT(RecurrentStep, log_probs), AT(RecurrentStep, attention),
    AT(RecurrentStep, tag_attention), AT(RecurrentStep, workspace),
};

int64_t recurrent_layout_length(void) {
    return (int64_t)(sizeof recurrent_layout / sizeof recurrent_layout[0]);
}
