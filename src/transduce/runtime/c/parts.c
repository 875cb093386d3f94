/* Building blocks of layers: norms, attention, activations. Every row is computed
 * independently, with one order of summation, so its result is the same bit for bit whatever
 * the other rows are. */

#include "parts.h"

#include <math.h>

#include "native.h"
#include "vectors.h"

/* The sum of some numbers, or of their squares about a mean. */
static float sum_of(const float *x, int64_t count) {
    Sums sums = {{{0}}};
    int64_t i = 0;
    for (; i + SPAN <= count; i += SPAN)
        UNROLL for (int p = 0; p < PARTS; p++) sums.part[p] += load(x + i + p * LANES);
    for (int p = 0; i < count; i += LANES, p++)
        sums.part[p] += load_some(x + i, some_at(i, count), 0.0f);
    return total(sums);
}

static float squares_of(const float *x, int64_t count, float mean) {
    Sums sums = {{{0}}};
    int64_t i = 0;
    for (; i + SPAN <= count; i += SPAN)
        UNROLL for (int p = 0; p < PARTS; p++) {
            const Vector apart = load(x + i + p * LANES) - mean;
            sums.part[p] += apart * apart;
        }
    for (int p = 0; i < count; i += LANES, p++) {
        const Vector apart = load_some(x + i, some_at(i, count), mean) - mean;
        sums.part[p] += apart * apart;
    }
    return total(sums);
}

void normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y) {
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        const float mean = norm->bias ? sum_of(x, width) / (float)width : 0.0f;
        const float variance = squares_of(x, width, mean) / (float)width;
        float by = 1.0f / sqrtf(variance + norm->epsilon);
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            Vector z = (load(x + i) - mean) * by * load(norm->weight + i);
            if (norm->bias) z += load(norm->bias + i);
            store(y + i, z);
        }
        if (i < width) {
            const int64_t some = width - i;
            Vector z = (load_some(x + i, some, 0.0f) - mean) * by;
            z *= load_some(norm->weight + i, some, 0.0f);
            if (norm->bias) z += load_some(norm->bias + i, some, 0.0f);
            store_some(y + i, z, some);
        }
    }
}

void softmax(float *scores, int64_t count) {
    const int64_t whole = padded(count, LANES);
    for (int64_t i = count; i < whole; i++) scores[i] = -1e30f;
    Vector most = load(scores);
    Sums sums = {{{0}}};
    for (int64_t i = LANES; i < whole; i += LANES) most = higher(most, load(scores + i));
    const float top = highest(most);
    for (int64_t i = 0; i < whole; i += SPAN)
        UNROLL for (int p = 0; p < PARTS; p++) {
            const int64_t at = i + p * LANES;
            if (at >= whole) break;
            const Vector weight = falling_exponential(load(scores + at) - top);
            store(scores + at, weight);
            sums.part[p] += weight;
        }
    const float by = 1.0f / total(sums);
    for (int64_t i = 0; i < count; i++) scores[i] *= by;
}

#if defined(__wasm_simd128__)
/* The same as `dot` of four others each, times a scale; of a count that is a multiple of 2 * SPAN. */
static Vector four_dots(const float *a, const float *const *others, int64_t offset, int64_t count) {
    const float *b[4];
    Vector pair[2][4];
    UNROLL for (int j = 0; j < 4; j++) b[j] = others[j] + offset;
    UNROLL for (int p = 0; p < 2; p++) {
        Vector part[2][4];
        UNROLL for (int side = 0; side < 2; side++) {
            const int at = (p + 2 * side) * LANES;
            Vector here[4] = {{0}}, there[4] = {{0}};
            for (int32_t i = at; i < (int32_t)count; i += 2 * SPAN) {
                const Vector x = load(a + i), y = load(a + i + SPAN);
                UNROLL for (int j = 0; j < 4; j++) {
                    here[j] += x * load(b[j] + i);
                    there[j] += y * load(b[j] + i + SPAN);
                }
            }
            UNROLL for (int j = 0; j < 4; j++) part[side][j] = here[j] + there[j];
        }
        UNROLL for (int j = 0; j < 4; j++) pair[p][j] = part[0][j] + part[1][j];
    }
    v128_t v[4];
    UNROLL for (int j = 0; j < 4; j++) v[j] = (v128_t)(pair[0][j] + pair[1][j]);
    const v128_t low = wasm_i32x4_shuffle(v[0], v[1], 0, 4, 1, 5), far = wasm_i32x4_shuffle(v[2], v[3], 0, 4, 1, 5);
    const v128_t up = wasm_i32x4_shuffle(v[0], v[1], 2, 6, 3, 7), out = wasm_i32x4_shuffle(v[2], v[3], 2, 6, 3, 7);
    const Vector first = (Vector)wasm_i64x2_shuffle(low, far, 0, 2) + (Vector)wasm_i64x2_shuffle(up, out, 0, 2);
    const Vector second = (Vector)wasm_i64x2_shuffle(low, far, 1, 3) + (Vector)wasm_i64x2_shuffle(up, out, 1, 3);
    return first + second;
}
#endif

/* Positions whose keys, or values, are still in the cache when the next row reads them. */
#define NEAR_PLACES 32

/* One head's context of some positions, added to what is there. Positions are added in their order,
 * whatever their number. */
static void add_values(const float *weights, const float *const *values, int64_t count,
                       int64_t offset, int64_t size, float *context) {
    int64_t k = 0;
    for (; k + 4 * LANES <= size; k += 4 * LANES) {
        Vector a = load(context + k), b = load(context + k + LANES);
        Vector c = load(context + k + 2 * LANES), d = load(context + k + 3 * LANES);
        for (int64_t t = 0; t < count; t++) {
            const float *value = values[t] + offset + k;
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
    for (; k + LANES <= size; k += LANES) {
        Vector a = load(context + k);
        for (int64_t t = 0; t < count; t++) a += weights[t] * load(values[t] + offset + k);
        store(context + k, a);
    }
    for (; k < size; k++)
        for (int64_t t = 0; t < count; t++) context[k] += weights[t] * values[t][offset + k];
}

void attend(const float *query, int64_t rows, int64_t apart, const float *const *places,
            int64_t count, int64_t width, int64_t heads, const float *by_distance, int64_t reach,
            int64_t position, float *scores, float *context) {
    const int64_t size = width / heads, stride = padded(count, LANES), all = heads * stride;
    const float scale = 1.0f / sqrtf((float)size);
    for (int64_t first = 0; first < count; first += NEAR_PLACES) {
        const int64_t last = count - first < NEAR_PLACES ? count : first + NEAR_PLACES;
        for (int64_t r = 0; r < rows; r++) {
            const float *asked = query + r * apart;
            float *found = scores + r * all;
            int64_t t = first;
#if defined(__wasm_simd128__)
            for (; size % (2 * SPAN) == 0 && t + 4 <= last; t += 4)
                for (int64_t h = 0; h < heads; h++)
                    store(found + h * stride + t,
                          scale * four_dots(asked + h * size, places + t, h * size, size));
#endif
            for (; t < last; t++)
                for (int64_t h = 0; h < heads; h++)
                    found[h * stride + t] =
                        scale * dot(asked + h * size, places[t] + h * size, size);
        }
    }
    for (int64_t i = 0; by_distance && i < rows * heads; i++) {
        const float *bias = by_distance + i % heads * (2 * reach + 1) + reach;
        for (int64_t t = 0; t < count; t++) {
            const int64_t away = t - position - i / heads;
            scores[i * stride + t] += bias[away < -reach ? -reach : away > reach ? reach : away];
        }
    }
    for (int64_t i = 0; i < rows * heads; i++) softmax(scores + i * stride, count);
    memset(context, 0, sizeof(float) * (size_t)(rows * width));
    for (int64_t first = 0; first < count; first += NEAR_PLACES) {
        const int64_t some = count - first < NEAR_PLACES ? count - first : NEAR_PLACES;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t h = 0; h < heads; h++)
                add_values(scores + r * all + h * stride + first, places + first, some,
                           width + h * size, size, context + r * width + h * size);
    }
}

void rotate(float *x, int64_t width, const float *rotary, int64_t size) {
    for (int64_t i = 0; i < width; i += 2) {
        const float cosine = rotary[i % size], sine = rotary[i % size + 1];
        const float even = x[i], odd = x[i + 1];
        x[i] = even * cosine - odd * sine;
        x[i + 1] = even * sine + odd * cosine;
    }
}

static inline Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

/* GELU, x Phi(x); the error function after Abramowitz and Stegun, 7.1.26, to 1.5e-7. */
static inline Vector gelu(Vector x) {
    Vector size = higher(x, -x) * 0.70710678f;
    Vector t = 1.0f / (1.0f + 0.3275911f * size);
    Vector y = t * 1.061405429f - 1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t - 0.284496736f;
    y = y * t + 0.254829592f;
    Vector beyond = 0.5f * y * t * falling_exponential(-size * size);
    return x * pick(x > 0.0f, 1.0f - beyond, beyond);
}

/* GELU approximated by tanh, 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)). */
static inline Vector gelu_tanh(Vector x) {
    Vector u = 0.79788456f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-2.0f * u));
}

void activate(float *x, int64_t rows, int64_t hidden, int32_t activation, int32_t gated) {
    const int64_t wide = gated ? 2 * hidden : hidden;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < hidden; i += LANES) {
            const int64_t some = hidden - i < LANES ? hidden - i : LANES;
            Vector y = load_some(x + r * wide + i, some, 0.0f);
            switch (activation) {
            case IS_RELU: y = higher(all(0.0f), y); break;
            case IS_GELU: y = gelu(y); break;
            case IS_GELU_TANH: y = gelu_tanh(y); break;
            default: y = silu(y);
            }
            if (gated) y *= load_some(x + r * wide + hidden + i, some, 0.0f);
            store_some(x + r * hidden + i, y, some);
        }
}

void log_softmax(float *x, int64_t count) {
    Vector most = all(-INFINITY), sum[4] = {{0}}, plain = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        const Vector a = load(x + i), b = load(x + i + LANES);
        const Vector c = load(x + i + 2 * LANES), d = load(x + i + 3 * LANES);
        most = higher(most, higher(higher(a, b), higher(c, d)));
        plain += (a + b) + (c + d);
    }
    for (; i + LANES <= count; i += LANES) {
        most = higher(most, load(x + i));
        plain += load(x + i);
    }
    const float top = highest(higher(most, load_some(x + i, count - i, -INFINITY)));
    plain += load_some(x + i, count - i, 0.0f);
    /* Four accumulators at a time: one alone is a long chain of dependent operations. */
    for (i = 0; i + 4 * LANES <= count; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            sum[k] += falling_exponential(load(x + i + k * LANES) - top);
    for (; i < count; i += LANES) {
        const int64_t some = count - i < LANES ? count - i : LANES;
        sum[0] += falling_exponential(load_some(x + i, some, -INFINITY) - top);
    }
    const float taken = top + logf(total_of((sum[0] + sum[1]) + (sum[2] + sum[3])));
    i = 0;
    /* The sum of finite numbers is finite, or nearly always. */
    if (total_of(plain - plain) == 0.0f)
        for (; i + 4 * LANES <= count; i += 4 * LANES)
            UNROLL for (int k = 0; k < 4; k++)
                store(x + i + k * LANES, load(x + i + k * LANES) - taken);
    for (; i < count; i += LANES) {
        const int64_t some = count - i < LANES ? count - i : LANES;
        Vector y = load_some(x + i, some, 0.0f) - taken;
        store_some(x + i, pick(y - y == 0.0f, y, all(-INFINITY)), some);
    }
}

#define FEWEST 48 /* minimum number of rows whose log-probabilities are computed together */

void find_log_probs(const Weight *head, const float *x, int64_t rows, float *log_probs,
                    void *workspace, int32_t kernel) {
    const int64_t width = head->inputs, vocabulary = head->outputs;
    /* A multiple of six, as kernels compute six rows at a time. */
    const int64_t at_once = (width / 4 < FEWEST ? FEWEST : width / 4) / 6 * 6;
    for (int64_t first = 0; first < rows; first += at_once) {
        const int64_t some = rows - first < at_once ? rows - first : at_once;
        float *found = log_probs + first * vocabulary;
        multiply(head, x + first * width, some, NOTHING, 0, found, workspace, kernel);
        for (int64_t r = 0; r < some; r++) log_softmax(found + r * vocabulary, vocabulary);
    }
}
