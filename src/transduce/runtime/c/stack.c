/* Transformer layers: a decoding step with a KV cache, or the encoder over whole sources. */

#include <stddef.h>

#include "native.h"
#include "parts.h"
#include "stack.h"
#include "vectors.h"

#define AT_ONCE 128 /* rows of a feed-forward layer computed at once */

/* ------------------------------------------------------------------------------------ all rows */

typedef struct {
    const Stack *stack;
    int64_t rows;
    float *x, *normed, *wide, *scores; /* wide: projections, or the hidden layer */
    const float **places;
    void *product;
} Work;

/* Divide the scratch memory; returns where it ends. */
static int64_t lay_out(Work *work, const Stack *stack, int64_t rows, int64_t places,
                       char *workspace) {
    const int64_t some = rows < AT_ONCE ? rows : AT_ONCE;
    int64_t end = 0, wide = rows * 3 * stack->width;
    int64_t product = product_workspace(rows, stack->width);
    for (int64_t i = 0; i < stack->sublayers; i++) {
        const Sublayer *sublayer = &stack->sublayer[i];
        if (sublayer->kind != FEED_FORWARD) continue;
        const int64_t hidden = some * sublayer->into.outputs;
        const int64_t levels = product_workspace(some, sublayer->out_of.inputs);
        wide = hidden > wide ? hidden : wide;
        product = levels > product ? levels : product;
    }
    *work = (Work){.stack = stack, .rows = rows};
#define TAKE(what, bytes) (what = (void *)(workspace + end), end += padded((int64_t)(bytes), 64))
    TAKE(work->x, rows * stack->width * 4);
    TAKE(work->normed, rows * stack->width * 4);
    TAKE(work->wide, wide * 4);
    const int64_t together = rows < TOGETHER ? rows : TOGETHER;
    TAKE(work->scores,
         together * (stack->width / stack->head_width) * padded(places, LANES) * 4);
    TAKE(work->places, places * (int64_t)sizeof(float *));
    TAKE(work->product, product);
#undef TAKE
    return end;
}

int64_t stack_workspace(const Stack *stack, int64_t rows, int64_t places) {
    Work work;
    return lay_out(&work, stack, rows, places, 0);
}

/* First product of a sublayer, from x to wide. */
static void enter(const Work *work, const Sublayer *sublayer, int32_t then) {
    const Stack *stack = work->stack;
    const float *x = work->x;
    if (sublayer->norm_before) {
        normalise(&sublayer->norm, x, work->rows, stack->width, work->normed);
        x = work->normed;
    }
    multiply(&sublayer->into, x, work->rows, then, 0, work->wide, work->product, stack->kernel);
}

/* Last product of a sublayer, with the residual sum. */
static void leave(const Work *work, const Sublayer *sublayer, const float *y) {
    const Stack *stack = work->stack;
    float *x = work->x;
    multiply(&sublayer->out_of, y, work->rows, ADD, x, x, work->product, stack->kernel);
    if (!sublayer->norm_before) normalise(&sublayer->norm, x, work->rows, stack->width, x);
}

/* Some rows at a time, so that their hidden layer is still in the cache when it is read again. */
static void feed_forward(const Work *work, const Sublayer *sublayer) {
    const int relu = sublayer->activation == IS_RELU && !sublayer->gated;
    for (int64_t first = 0; first < work->rows; first += AT_ONCE) {
        Work some = *work;
        some.x += first * work->stack->width;
        some.rows = work->rows - first < AT_ONCE ? work->rows - first : AT_ONCE;
        enter(&some, sublayer, relu ? RELU : NOTHING);
        if (!relu)
            activate(some.wide, some.rows, sublayer->out_of.inputs, sublayer->activation,
                     sublayer->gated);
        leave(&some, sublayer, some.wide);
    }
}

/* Whether a token is in the vocabulary; always true without an embedding table. */
static int is_known(const Stack *stack, int64_t token) {
    return !stack->table || (token >= 0 && token < stack->tokens);
}

/* Embedding of a row, with the positional encoding added if given. */
static void embed(Work *work, int64_t row, int64_t token, const float *position) {
    const int64_t width = work->stack->width;
    const float *from = work->stack->table + token * width;
    float *x = work->x + row * width;
    for (int64_t i = 0; i < width; i++)
        x[i] = from[i] * work->stack->table_scale + (position ? position[i] : 0.0f);
}

/* The attention weights of one row, which `attend` has left in its buffer, to where they are
 * wanted: [heads][length]. */
static void copy_weights(const float *scores, int64_t row, int64_t heads, int64_t count, float *to,
                         int64_t length) {
    const int64_t stride = padded(count, LANES);
    for (int64_t h = 0; h < heads; h++)
        memcpy(to + h * length, scores + (row * heads + h) * stride, sizeof(float) * (size_t)count);
}

/* ---------------------------------------------------------------------- a decoder's next step */

static int64_t step_of(const Step *step, int64_t row) {
    return step->steps ? step->steps[row] : step->step;
}

/* The place of a row in the cache, and in the table of origins. */
static int64_t place_of(const Step *step, int64_t row) {
    return step->slots ? step->slots[row] : row;
}

static int32_t *origins_of(const Step *step, int64_t row) {
    return step->origins + place_of(step, row) * (1 + step->max_steps);
}

/* What belongs to the step of a row in a table with so many numbers for each step. */
static const float *at_step_of(const Step *step, int64_t row, const float *table, int64_t size) {
    return table && step->steps ? table + step->steps[row] * size : table;
}

static void attend_to_self(Work *work, const Step *step, const Sublayer *sublayer) {
    const Stack *stack = work->stack;
    const int64_t width = stack->width, slot = step->max_rows * 2 * width;
    const int64_t inner = sublayer->out_of.inputs, size = stack->head_width; /* of kept heads */
    const int64_t all_layers = stack->layers * slot;
    float *past = step->past + sublayer->layer * slot;
    enter(work, sublayer, NOTHING);
    for (int64_t r = 0; r < work->rows; r++) {
        float *query = work->wide + r * 3 * inner;
        const int32_t *origins = origins_of(step, r) + 1;
        const float *rotary = at_step_of(step, r, step->rotary, size);
        const int64_t now = step_of(step, r);
        if (rotary) rotate(query, 2 * inner, rotary, size);
        for (int64_t t = 0; t <= now; t++)
            work->places[t] = past + t * all_layers + origins[t] * 2 * width;
        memcpy((float *)work->places[now], query + inner, sizeof(float) * 2 * (size_t)inner);
        attend(query, 1, 0, work->places, now + 1, inner, inner / size, stack->by_distance,
               stack->reach, now, work->scores, work->normed + r * inner);
        if (step->self_attention) {
            const int64_t row = (sublayer->layer * work->rows + r) * (width / size);
            copy_weights(work->scores, 0, inner / size, now + 1,
                         step->self_attention + row * step->max_steps, step->max_steps);
        }
    }
    leave(work, sublayer, work->normed);
}

static void attend_to_source(Work *work, const Step *step, const Sublayer *sublayer) {
    const Stack *stack = work->stack;
    const int64_t inner = sublayer->out_of.inputs;
    enter(work, sublayer, NOTHING);
    /* Rows of one source are neighbours in beam search, and read it together. */
    for (int64_t r = 0, some; r < work->rows; r += some) {
        const int64_t source = origins_of(step, r)[0];
        for (some = 1; some < TOGETHER && r + some < work->rows; some++)
            if (origins_of(step, r + some)[0] != source) break;
        const float *first = step->memory[sublayer->layer] + source * step->memory_length * 2 * inner;
        const int64_t length = step->lengths[source];
        for (int64_t s = 0; s < length; s++) work->places[s] = first + s * 2 * inner;
        attend(work->wide + r * inner, some, inner, work->places, length, inner,
               inner / stack->head_width, NULL, 0, 0, work->scores, work->normed + r * inner);
        for (int64_t i = 0; step->attention && i < some; i++) {
            const int64_t row =
                (sublayer->layer * work->rows + r + i) * (stack->width / stack->head_width);
            copy_weights(work->scores, i, inner / stack->head_width, length,
                         step->attention + row * step->memory_length, step->memory_length);
        }
    }
    leave(work, sublayer, work->normed);
}

/* One decoding step of all rows; none is done if a token is refused. */
void decoder_step(const Stack *stack, Step *step) {
    Work work;
    const int64_t rows = step->rows, width = stack->width;
    step->refused = 0;
    for (int64_t r = rows; r > 0; r--)
        if (!is_known(stack, step->tokens[r - 1])) step->refused = r;
    if (step->refused) return;
    const int64_t places =
        step->step + 1 > step->memory_length ? step->step + 1 : step->memory_length;
    lay_out(&work, stack, rows, places, step->workspace);
    for (int64_t r = 0; r < rows; r++) {
        origins_of(step, r)[1 + step_of(step, r)] = (int32_t)place_of(step, r);
        if (stack->table)
            embed(&work, r, step->tokens[r], at_step_of(step, r, step->position, width));
    }
    if (!stack->table) memcpy(work.x, step->embedded, sizeof(float) * (size_t)(rows * width));
    for (int64_t i = 0; i < stack->sublayers; i++) {
        const Sublayer *sublayer = &stack->sublayer[i];
        switch (sublayer->kind) {
        case SELF_ATTENTION: attend_to_self(&work, step, sublayer); break;
        case CROSS_ATTENTION: attend_to_source(&work, step, sublayer); break;
        default: feed_forward(&work, sublayer);
        }
    }
    if (stack->last.weight) normalise(&stack->last, work.x, rows, width, work.x);
    if (step->head.outputs)
        find_log_probs(&step->head, work.x, rows, step->log_probs, work.product, stack->kernel);
    else
        memcpy(step->log_probs, work.x, sizeof(float) * (size_t)(rows * width));
}

/* ------------------------------------------------------------------------------- whole sources */

typedef struct {
    int64_t sources, longest;
    const int64_t *tokens; /* [sources][longest] */
    const int64_t *lengths;
    const float *embedded;  /* [sources][longest][width] where the stack has no table */
    const float *positions; /* [longest][width] or NULL */
    const float *rotary;    /* [longest][width of a head] or NULL */
    float *states;          /* [sources][longest][width], zero beyond a source's end */
    float *attention; /* NULL, or for the weights [layers][sources][heads][longest][longest] */
    void *workspace;
    int64_t refused; /* set to 1 + the first source with an invalid length or token, else to 0 */
} Sources;

static void attend_within(Work *work, const Sources *sources, const Sublayer *sublayer) {
    const Stack *stack = work->stack;
    const int64_t inner = sublayer->out_of.inputs, size = stack->head_width;
    enter(work, sublayer, NOTHING);
    float *first = work->wide, *context = work->normed;
    for (int64_t b = 0; b < sources->sources; b++) {
        const int64_t length = sources->lengths[b];
        for (int64_t s = 0; s < length; s++) {
            work->places[s] = first + s * 3 * inner + inner;
            if (sources->rotary)
                rotate(first + s * 3 * inner, 2 * inner, sources->rotary + s * size, size);
        }
        for (int64_t s = 0, some; s < length; s += some) {
            some = length - s < TOGETHER ? length - s : TOGETHER;
            attend(first + s * 3 * inner, some, 3 * inner, work->places, length, inner,
                   inner / size, stack->by_distance, stack->reach, s, work->scores,
                   context + s * inner);
            const int64_t longest = sources->longest, heads = stack->width / size;
            for (int64_t i = 0; sources->attention && i < some; i++) {
                const int64_t source = (sublayer->layer * sources->sources + b) * heads;
                copy_weights(work->scores, i, inner / size, length,
                             sources->attention + (source * longest + s + i) * longest,
                             longest * longest);
            }
        }
        first += length * 3 * inner;
        context += length * inner;
    }
    leave(work, sublayer, work->normed);
}

static int is_source(const Stack *stack, const Sources *sources, int64_t source) {
    const int64_t length = sources->lengths[source];
    if (length < 0 || length > sources->longest) return 0;
    for (int64_t s = 0; s < length; s++)
        if (!is_known(stack, sources->tokens[source * sources->longest + s])) return 0;
    return 1;
}

/* Encoder states; sources are packed one after the other, without padding, during the
 * computation. None is done if a source is refused. */
void encode(const Stack *stack, Sources *sources) {
    Work work;
    const int64_t width = stack->width, longest = sources->longest;
    int64_t rows = 0;
    sources->refused = 0;
    for (int64_t b = sources->sources; b > 0; b--)
        if (!is_source(stack, sources, b - 1)) sources->refused = b;
    if (sources->refused) return;
    for (int64_t b = 0; b < sources->sources; b++) rows += sources->lengths[b];
    lay_out(&work, stack, rows, longest, sources->workspace);
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
    for (int64_t i = 0; i < stack->sublayers; i++) {
        const Sublayer *sublayer = &stack->sublayer[i];
        if (sublayer->kind == FEED_FORWARD)
            feed_forward(&work, sublayer);
        else
            attend_within(&work, sources, sublayer);
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

/* ----------------------------------------------------------------------------------- structures */

/* The size of each structure and the offset of each of its fields, in the order of stack.py, which
 * has the same structures: a difference is found when the library is opened. */
#define AT(type, field) (int64_t)offsetof(type, field)
const int64_t layout[] = {
    sizeof(Weight), AT(Weight, levels), AT(Weight, totals), AT(Weight, scale), AT(Weight, bias),
    AT(Weight, outputs), AT(Weight, inputs), AT(Weight, numbers), AT(Weight, threads),
    sizeof(Norm), AT(Norm, weight), AT(Norm, bias), AT(Norm, epsilon),
    sizeof(Sublayer), AT(Sublayer, kind), AT(Sublayer, norm_before), AT(Sublayer, activation),
    AT(Sublayer, gated), AT(Sublayer, layer), AT(Sublayer, norm), AT(Sublayer, into),
    AT(Sublayer, out_of),
    sizeof(Stack), AT(Stack, sublayer), AT(Stack, sublayers), AT(Stack, layers), AT(Stack,
    width), AT(Stack, head_width), AT(Stack, last), AT(Stack, table), AT(Stack, tokens), AT(Stack,
    table_scale), AT(Stack, kernel), AT(Stack, by_distance), AT(Stack, reach),
    sizeof(Step), AT(Step, rows), AT(Step, step), AT(Step, steps), AT(Step, slots), AT(Step,
    tokens), AT(Step, embedded), AT(Step, position), AT(Step, rotary), AT(Step, past), AT(Step,
    max_rows), AT(Step, origins), AT(Step, max_steps), AT(Step, memory), AT(Step, memory_length),
    AT(Step, lengths), AT(Step, head), AT(Step, log_probs), AT(Step, attention),
    AT(Step, self_attention), AT(Step, workspace), AT(Step, refused),
    sizeof(Sources), AT(Sources, sources), AT(Sources, longest), AT(Sources, tokens),
    AT(Sources, lengths), AT(Sources, embedded), AT(Sources, positions), AT(Sources, rotary),
    AT(Sources, states), AT(Sources, attention), AT(Sources, workspace), AT(Sources, refused),
};

int64_t layout_length(void) { return (int64_t)(sizeof layout / sizeof layout[0]); }
