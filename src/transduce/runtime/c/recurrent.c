/* Decoding step of a recurrent decoder: stacked cells with attention to the source. */

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

typedef struct {
    const Cell *cell;
    int64_t layers, width;
    int32_t kind, skip; /* skip connections: layers read the input, outputs add up */
    int32_t score, normalised;
    float scale; /* of dot products */
    int32_t context_in_input, context_in_output;
    Weight query;        /* projection of the query, for additive and location scores */
    const float *energy; /* vector v of additive scores; NULL: all ones */
    Weight readout;      /* combines context and state */
    Weight sum;          /* of all layers' outputs, with skip */
    const float *table;
    int64_t vocabulary;
    float table_scale;
    int32_t kernel;
} Recurrent;

typedef struct {
    int64_t rows;
    const int64_t *tokens;
    float *h, *c;         /* [layers][rows][width]; only LSTMs have c */
    float *query;         /* [rows][width]: the output of the step before */
    const int64_t *source; /* of each row */
    const float *keys, *values; /* [sources][longest][width] */
    int64_t longest;
    const int64_t *lengths; /* of the sources */
    Weight head; /* without outputs: as in stack.h */
    float *log_probs;
    float *attention; /* NULL, or for the attention weights [rows][longest] */
    void *workspace;
} RecurrentStep;

typedef struct {
    float *input, *above, *gates, *more, *context, *asked, *scores;
    void *product;
} Work;

static int64_t lay_out(Work *work, const Recurrent *net, int64_t rows, int64_t longest,
                       char *workspace) {
    const int64_t width = net->width, bytes = rows * width * (int64_t)sizeof(float);
    const int64_t widest = (net->layers > 3 ? net->layers : 3) * width; /* of a product's inputs */
    const int64_t asked = net->score == LOCATION ? rows * net->query.outputs * 4 : bytes;
    int64_t end = 0;
#define TAKE(what, size) (what = (void *)(workspace + end), end += padded((int64_t)(size), 64))
    TAKE(work->input, 2 * bytes);
    TAKE(work->above, widest * rows * 4);
    TAKE(work->gates, 4 * bytes);
    TAKE(work->more, 4 * bytes);
    TAKE(work->context, bytes);
    TAKE(work->asked, asked);
    TAKE(work->scores, padded(longest, LANES) * 4);
    TAKE(work->product, product_workspace(rows, widest));
#undef TAKE
    return end;
}

int64_t recurrent_workspace(const Recurrent *net, int64_t rows, int64_t longest) {
    Work work;
    return lay_out(&work, net, rows, longest, 0);
}

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }
static inline Vector tangent(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

/* ------------------------------------------------------------------------------------- cells */

#define EACH(width, i, some)                                              \
    for (int64_t i = 0, some; some = width - i < LANES ? width - i : LANES, i < width; i += LANES)
#define TAKE_SOME(x) load_some((x) + i, some, 0.0f)

static void step_elman(const float *gates, int64_t width, float *h) {
    EACH(width, i, some) store_some(h + i, tangent(TAKE_SOME(gates)), some);
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

static void step_lstm(const float *gates, const float *peepholes, int64_t width, float *h,
                      float *c) {
    EACH(width, i, some) {
        Vector in = TAKE_SOME(gates), forget = TAKE_SOME(gates + width);
        Vector out = TAKE_SOME(gates + 3 * width);
        Vector memory = TAKE_SOME(c);
        if (peepholes) {
            in += TAKE_SOME(peepholes) * memory;
            forget += TAKE_SOME(peepholes + width) * memory;
        }
        memory = sigmoid(forget) * memory + sigmoid(in) * tangent(TAKE_SOME(gates + 2 * width));
        if (peepholes) out += TAKE_SOME(peepholes + 2 * width) * memory;
        store_some(c + i, memory, some);
        store_some(h + i, sigmoid(out) * tangent(memory), some);
    }
}

static void step_cell(const Recurrent *net, const Work *work, const RecurrentStep *step,
                      int64_t layer, const float *x) {
    const Cell *cell = &net->cell[layer];
    const int64_t width = net->width, gates = cell->from_input.outputs;
    float *h = step->h + layer * step->rows * width;
    float *c = step->c ? step->c + layer * step->rows * width : 0;
    const int apart = net->kind == GRU;
    multiply(&cell->from_input, x, step->rows, NOTHING, 0, work->gates, work->product, net->kernel);
    multiply(&cell->from_state, h, step->rows, apart ? NOTHING : ADD, work->gates,
             apart ? work->more : work->gates, work->product, net->kernel);
    for (int64_t r = 0; r < step->rows; r++) {
        const float *of_row = work->gates + r * gates;
        switch (net->kind) {
        case ELMAN: step_elman(of_row, width, h + r * width); break;
        case GRU: step_gru(of_row, work->more + r * gates, width, h + r * width); break;
        default: step_lstm(of_row, cell->peepholes, width, h + r * width, c + r * width);
        }
    }
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

/* Concatenation, [rows][two widths]. */
static void join(float *to, const float *left, const float *right, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + 2 * r * width, left + r * width, sizeof(float) * (size_t)width);
        memcpy(to + (2 * r + 1) * width, right + r * width, sizeof(float) * (size_t)width);
    }
}

static void attend_to_source(const Recurrent *net, const Work *work, const RecurrentStep *step) {
    const int64_t width = net->width;
    const float *asked = step->query;
    int64_t stride = width;
    if (net->query.outputs) {
        multiply(&net->query, step->query, step->rows, NOTHING, 0, work->asked, work->product,
                 net->kernel);
        asked = work->asked;
        stride = net->query.outputs;
    }
    for (int64_t r = 0; r < step->rows; r++) {
        const int64_t source = step->source[r], length = step->lengths[source];
        const float *keys = step->keys + source * step->longest * width;
        const float *values = step->values + source * step->longest * width;
        const float *query = asked + r * stride;
        float *context = work->context + r * width, *scores = work->scores;
        float scale = net->scale;
        if (net->normalised) { /* as torch does, at least 1e-12 */
            const float size = sqrtf(dot(query, query, width));
            scale /= size > 1e-12f ? size : 1e-12f;
        }
        for (int64_t s = 0; s < length; s++) {
            const float *key = keys + s * width;
            switch (net->score) {
            case DOT: scores[s] = scale * dot(query, key, width); break;
            case ADDITIVE: scores[s] = score_additive(query, key, net->energy, width); break;
            default: scores[s] = query[s];
            }
        }
        if (length) softmax(scores, length);
        if (step->attention)
            memcpy(step->attention + r * step->longest, scores, sizeof(float) * (size_t)length);
        memset(context, 0, sizeof(float) * (size_t)width);
        for (int64_t s = 0; s < length; s++)
            EACH(width, i, some) {
                Vector sum = TAKE_SOME(context) + scores[s] * TAKE_SOME(values + s * width);
                store_some(context + i, sum, some);
            }
    }
}

/* ------------------------------------------------------------------------------------- steps */

/* One decoding step of all rows; returns 1, without doing anything, if a token is not in the
 * vocabulary. */
int32_t recurrent_step(const Recurrent *net, const RecurrentStep *step) {
    Work work;
    const int64_t rows = step->rows, width = net->width;
    for (int64_t r = 0; r < rows; r++)
        if (step->tokens[r] < 0 || step->tokens[r] >= net->vocabulary) return 1;
    lay_out(&work, net, rows, step->longest, step->workspace);
    float *embedded = net->context_in_input ? work.above : work.input;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            embedded[r * width + i] = net->table_scale * net->table[step->tokens[r] * width + i];
    int64_t input = width;
    if (net->context_in_input) {
        attend_to_source(net, &work, step);
        join(work.input, embedded, work.context, rows, width);
        input = 2 * width;
    }
    const float *x = work.input;
    for (int64_t layer = 0; layer < net->layers; layer++) {
        if (layer && net->skip) { /* the input concatenated with the output of the layer below */
            const float *below = step->h + (layer - 1) * rows * width;
            for (int64_t r = 0; r < rows; r++) {
                float *to = work.above + r * (input + width);
                memcpy(to, work.input + r * input, sizeof(float) * (size_t)input);
                memcpy(to + input, below + r * width, sizeof(float) * (size_t)width);
            }
            x = work.above;
        } else if (layer) {
            x = step->h + (layer - 1) * rows * width;
        }
        step_cell(net, &work, step, layer, x);
    }
    const float *output = step->h + (net->layers - 1) * rows * width;
    if (net->skip) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t layer = 0; layer < net->layers; layer++)
                memcpy(work.above + (r * net->layers + layer) * width,
                       step->h + (layer * rows + r) * width, sizeof(float) * (size_t)width);
        multiply(&net->sum, work.above, rows, NOTHING, 0, step->query, work.product, net->kernel);
    } else {
        memcpy(step->query, output, sizeof(float) * (size_t)(rows * width));
    }
    output = step->query;
    if (net->context_in_output) {
        if (!net->context_in_input) attend_to_source(net, &work, step);
        join(work.above, step->query, work.context, rows, width);
        multiply(&net->readout, work.above, rows, NOTHING, 0, work.input, work.product, net->kernel);
        for (int64_t r = 0; r < rows; r++)
            EACH(width, i, some) {
                float *at = work.input + r * width;
                store_some(at + i, tangent(TAKE_SOME(at)), some);
            }
        output = work.input;
    }
    if (step->head.outputs)
        find_log_probs(&step->head, output, rows, step->log_probs, work.product, net->kernel);
    else
        memcpy(step->log_probs, output, sizeof(float) * (size_t)(rows * width));
    return 0;
}

/* As in stack.c, of the structures of recurrent.py. */
#define AT(type, field) (int64_t)offsetof(type, field)
const int64_t recurrent_layout[] = {
    sizeof(Cell), AT(Cell, from_input), AT(Cell, from_state), AT(Cell, peepholes),
    sizeof(Recurrent), AT(Recurrent, cell), AT(Recurrent, layers), AT(Recurrent, width),
    AT(Recurrent, kind), AT(Recurrent, skip), AT(Recurrent, score), AT(Recurrent, normalised),
    AT(Recurrent, scale), AT(Recurrent, context_in_input), AT(Recurrent, context_in_output),
    AT(Recurrent, query), AT(Recurrent, energy), AT(Recurrent, readout), AT(Recurrent, sum),
    AT(Recurrent, table), AT(Recurrent, vocabulary), AT(Recurrent, table_scale), AT(Recurrent,
    kernel),
    sizeof(RecurrentStep), AT(RecurrentStep, rows), AT(RecurrentStep, tokens), AT(RecurrentStep,
    h), AT(RecurrentStep, c), AT(RecurrentStep, query), AT(RecurrentStep, source),
    AT(RecurrentStep, keys), AT(RecurrentStep, values), AT(RecurrentStep, longest),
    AT(RecurrentStep, lengths), AT(RecurrentStep, head), AT(RecurrentStep, log_probs),
    AT(RecurrentStep, attention), AT(RecurrentStep, workspace),
};

int64_t recurrent_layout_length(void) {
    return (int64_t)(sizeof recurrent_layout / sizeof recurrent_layout[0]);
}
