/* SIMD kernels: dot products of quantized inputs and weights, one implementation for each kind
 * of CPU. A kernel computes those of some rows and some blocks: sums[row][block][16]. `depth`
 * is the padded number of inputs, `levels` the quantized inputs of the first row, `weights`
 * those of the first block. The numbers of rows and blocks must be compile-time constants:
 * their sums are in registers. */

#ifndef TRANSDUCE_KERNELS
#define TRANSDUCE_KERNELS

#include <stdint.h>
#include <string.h>

#include "neon_float32.h"
#include "vectors.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#define BLOCK 16   /* outputs in one block of the layout */
/* Rows at a time. ARM's registers would hold the sums of six, but nothing else; a browser may have
 * 16 registers. */
#if defined(__ARM_FEATURE_DOTPROD)
#define MAX_ROWS 4
#elif defined(__wasm_simd128__)
#define MAX_ROWS 4
#else
#define MAX_ROWS 6
#endif
/* Bytes from one row's levels to those of the next. A browser's kernel may read them in twice the
 * width, or something after them. */
#if defined(__wasm_simd128__)
#define APART(depth) (3 * (depth) + 64)
#else
#define APART(depth) (depth)
#endif
#define AHEAD 2048 /* prefetch distance in bytes; a single row is bound by reading its weights */

#define INLINE static inline __attribute__((always_inline))

INLINE int32_t four_levels(const uint8_t *levels) {
    int32_t four;
    memcpy(&four, levels, 4);
    return four;
}

INLINE void plain(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                  int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)totals;
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++) {
            const int8_t *x = (const int8_t *)levels + r * APART(depth), *w = weights + b * BLOCK * depth;
            int32_t *sum = sums + (r * blocks + b) * BLOCK;
            memset(sum, 0, sizeof(int32_t) * BLOCK);
            for (int64_t k = 0; k < depth; k += 4)
                for (int i = 0; i < BLOCK; i++)
                    for (int j = 0; j < 4; j++) sum[i] += x[k + j] * w[k * BLOCK + 4 * i + j];
        }
}

#if defined(__ARM_FEATURE_DOTPROD)
INLINE void neon(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                 int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)totals;
    int32x4_t sum[MAX_ROWS][2][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 4; v++) sum[r][b][v] = vdupq_n_s32(0);
    for (int64_t k = 0; k < depth; k += 16) {
        int8x16_t x[MAX_ROWS];
        UNROLL for (int r = 0; r < rows; r++)
            x[r] = vld1q_s8((const int8_t *)levels + r * depth + k);
        UNROLL for (int b = 0; b < blocks; b++) {
            const int8_t *w = weights + (b * depth + k) * BLOCK;
            if (rows == 1) __builtin_prefetch(w + AHEAD), __builtin_prefetch(w + AHEAD + 128);
/* The lane is an immediate operand of the instruction: it cannot be a loop variable. */
#define STEP(lane)                                                                  \
    UNROLL for (int v = 0; v < 4; v++) {                                            \
        const int8x16_t four = vld1q_s8(w + 64 * lane + 16 * v);                    \
        UNROLL for (int r = 0; r < rows; r++)                                       \
            sum[r][b][v] = vdotq_laneq_s32(sum[r][b][v], four, x[r], lane);         \
    }
            STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 4; v++)
                vst1q_s32(sums + (r * blocks + b) * BLOCK + 4 * v, sum[r][b][v]);
}
#endif

#if defined(__wasm_relaxed_simd__)
/* What the instruction for four products of each of four outputs does here with numbers of eight
 * bits; it is sure to take seven, without a sign. ARM takes a sign, x86 with AVX-VNNI takes none. */
enum dots { SEVEN_BITS, UNSIGNED, SIGNED };

static enum dots dots(void) {
    static int known = -1;
    if (known < 0) {
        volatile int8_t most = 127, bits = -1; /* 255 without a sign */
        const int32_t found = wasm_i32x4_extract_lane(
            wasm_i32x4_relaxed_dot_i8x16_i7x16_add(wasm_i8x16_splat(most), wasm_i8x16_splat(bits),
                                                   wasm_i32x4_const_splat(0)), 0);
        known = found == -4 * 127 ? SIGNED : found == 4 * 127 * 255 ? UNSIGNED : SEVEN_BITS;
    }
    return (enum dots)known;
}

#define SHIFTED_BLOCK 8 /* outputs in one block of weights for that instruction */

/* The instruction for two products: other x86 takes no sign either, but its sums saturate. */
static int saturates(void) {
    static int known = -1;
    if (known < 0) {
        volatile int8_t most = 127, bits = -1;
        const v128_t found =
            wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_i8x16_splat(most), wasm_i8x16_splat(bits));
        known = dots() == SEVEN_BITS && wasm_i16x8_extract_lane(found, 0) == INT16_MAX;
    }
    return known;
}

INLINE int simd128_is_exact(void) { return dots() != SEVEN_BITS; }
INLINE int simd128_is_fast(void) { return simd128_is_exact(); }
INLINE int simd128_x86_is_exact(void) { return saturates(); }
INLINE int32_t simd128_offset(void) { return dots() == UNSIGNED ? 128 : 0; }
INLINE int32_t simd128_weight_offset(void) { return saturates() ? 128 : 0; }
INLINE int32_t simd128_weight_block(void) { return saturates() ? SHIFTED_BLOCK : BLOCK; }

/* By the instruction for four products. */
INLINE void simd128(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                    int64_t inputs, const int rows, const int blocks, int32_t *sums) {
    (void)blocks;
    const int32_t depth = (int32_t)inputs, offset = simd128_offset();
    v128_t sum[MAX_ROWS][4];
    UNROLL for (int v = 0; v < 4; v++) {
        const v128_t shift = wasm_i32x4_mul(wasm_v128_load(totals + 4 * v), wasm_i32x4_splat(-offset));
        UNROLL for (int r = 0; r < rows; r++) sum[r][v] = shift;
    }
    for (int32_t k = 0; k < depth; k += 4) {
        v128_t w[4];
        UNROLL for (int v = 0; v < 4; v++) w[v] = wasm_v128_load(weights + k * BLOCK + 16 * v);
        UNROLL for (int r = 0; r < rows; r++) {
            const v128_t x = wasm_v128_load32_splat(levels + r * APART(depth) + k);
            UNROLL for (int v = 0; v < 4; v++)
                sum[r][v] = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(w[v], x, sum[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 4; v++) wasm_v128_store(sums + r * BLOCK + 4 * v, sum[r][v]);
}

/* For x86 without AVX-VNNI, whose instruction for two products takes weights shifted by 128, without
 * a sign, and levels with one. Two products fit into its 16 bits if levels of the same sign add up to
 * no more than 128. Where they do not, only half of them stays in its place; the other half comes after
 * all levels, as a product of its own. */
typedef struct {
    uint8_t levels[4];
    int32_t weights; /* the place of the first in a block */
} Half;

typedef struct {
    int32_t shift; /* what the shifted weights add to every sum, negative */
    int32_t count;
    Half half[];
} Halves;

/* Levels of four rows lie side by side, four of each row after the other; behind them is what is left
 * of each row. */
INLINE Halves *halves_of(const uint8_t *levels, int32_t depth, int32_t row) {
    const int32_t tile = row / MAX_ROWS * MAX_ROWS, behind = (2 * depth + 64) * (row - tile);
    return (Halves *)(levels + tile * APART(depth) + MAX_ROWS * depth + behind);
}

/* Where the levels of a row are before they are prepared: halves that are written never reach those
 * that are still to be read. */
INLINE uint8_t *levels_of(uint8_t *levels, int32_t depth, int32_t row) {
    return (uint8_t *)halves_of(levels, depth, row) + depth + 64;
}

INLINE void prepare_levels(uint8_t *levels, int32_t depth, int32_t row) {
    Halves *halves = halves_of(levels, depth, row);
    const uint8_t *from = levels_of(levels, depth, row);
    const int32_t tile = row / MAX_ROWS * MAX_ROWS;
    uint8_t *to = levels + tile * APART(depth) + 4 * (row - tile);
    const v128_t zero = wasm_i8x16_const_splat(0);
    v128_t total = zero, most = wasm_i16x8_const_splat(128);
    __asm__("" : "+r"(most)); /* as in vectors.h */
    Half *next = halves->half;
    for (int32_t i = 0; i < depth; i += 16) {
        v128_t x = wasm_v128_load(from + i);
        const v128_t above = wasm_u16x8_extadd_pairwise_u8x16(wasm_i8x16_max(x, zero));
        const v128_t below = wasm_u16x8_extadd_pairwise_u8x16(wasm_i8x16_max(wasm_i8x16_neg(x), zero));
        const v128_t large = wasm_i16x8_gt(wasm_i16x8_max(above, below), most);
        total = wasm_i32x4_add(total, wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_sub(above, below)));
        if (wasm_v128_any_true(large)) {
            const v128_t half = wasm_v128_and(wasm_i8x16_shr(x, 1), large);
            x = wasm_i8x16_sub(x, half);
            int32_t taken[4];
            wasm_v128_store(taken, half);
            UNROLL for (int four = 0; four < 4; four++) {
                next->weights = (i + 4 * four) * SHIFTED_BLOCK;
                memcpy(next->levels, taken + four, 4);
                next += taken[four] != 0;
            }
        }
        wasm_v128_store32_lane(to, x, 0);
        wasm_v128_store32_lane(to + 4 * MAX_ROWS, x, 1);
        wasm_v128_store32_lane(to + 8 * MAX_ROWS, x, 2);
        wasm_v128_store32_lane(to + 12 * MAX_ROWS, x, 3);
        to += 16 * MAX_ROWS;
    }
    halves->count = (int32_t)(next - halves->half);
    halves->shift = -128 * (wasm_i32x4_extract_lane(total, 0) + wasm_i32x4_extract_lane(total, 1) +
                            wasm_i32x4_extract_lane(total, 2) + wasm_i32x4_extract_lane(total, 3));
}

/* Four levels times the weights of four outputs. */
INLINE v128_t add_four(v128_t sum, v128_t four, v128_t w, v128_t ones) {
    const v128_t two = wasm_i16x8_relaxed_dot_i8x16_i7x16(four, w);
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(two, ones));
}

/* Of eight outputs. */
INLINE void sum_shifted(const uint8_t *x, const int8_t *weights, int32_t depth, const int rows,
                        v128_t ones, int32_t *sums) {
    const int times = rows < 3 ? 2 : 1; /* one or two rows alone are few sums for a loop */
    v128_t sum[MAX_ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = wasm_i32x4_const_splat(0);
    const int8_t *end = weights + depth * SHIFTED_BLOCK;
    for (const int8_t *w = weights; w < end; w += 32 * times, x += 4 * MAX_ROWS * times)
        UNROLL for (int i = 0; i < times; i++) {
            v128_t four[MAX_ROWS];
            UNROLL for (int r = 0; r < rows; r++)
                four[r] = wasm_v128_load32_splat(x + 4 * (MAX_ROWS * i + r));
            UNROLL for (int v = 0; v < 2; v++) {
                const v128_t some = wasm_v128_load(w + 32 * i + 16 * v);
                UNROLL for (int r = 0; r < rows; r++)
                    sum[r][v] = add_four(sum[r][v], four[r], some, ones);
            }
        }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2; v++) wasm_v128_store(sums + r * BLOCK + 4 * v, sum[r][v]);
}

/* The sums of four rows and eight outputs fit into 16 registers with what else is needed, and weights
 * are read once, in the order in which they are in memory. */
INLINE void simd128_x86(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                        int64_t inputs, const int rows, const int blocks, int32_t *sums) {
    (void)totals, (void)blocks;
    const int32_t depth = (int32_t)inputs;
    const int8_t *others = weights + SHIFTED_BLOCK * depth;
    v128_t ones = wasm_i16x8_const_splat(1);
    __asm__("" : "+r"(ones)); /* as in vectors.h */
    sum_shifted(levels, weights, depth, rows, ones, sums);
    sum_shifted(levels, others, depth, rows, ones, sums + SHIFTED_BLOCK);
    UNROLL for (int r = 0; r < rows; r++, sums += BLOCK) {
        const Halves *halves = halves_of(levels, depth, r);
        const v128_t shift = wasm_v128_load32_splat(&halves->shift);
        v128_t sum[4];
        UNROLL for (int v = 0; v < 4; v++)
            sum[v] = wasm_i32x4_add(shift, wasm_v128_load(sums + 4 * v));
        for (const Half *half = halves->half, *end = half + halves->count; half < end; half++) {
            const v128_t four = wasm_v128_load32_splat(half->levels);
            const int8_t *w[2] = {weights + half->weights, others + half->weights};
            UNROLL for (int v = 0; v < 4; v++)
                sum[v] = add_four(sum[v], four, wasm_v128_load(w[v / 2] + 16 * (v % 2)), ones);
        }
        UNROLL for (int v = 0; v < 4; v++) wasm_v128_store(sums + 4 * v, sum[v]);
    }
}
#elif defined(__wasm_simd128__)
/* Whether this is x86: there, what is no number has a sign. */
static int is_x86(void) {
    volatile float zero = 0.0f;
    const float none = zero / zero;
    int32_t bits;
    memcpy(&bits, &none, 4);
    return bits < 0;
}

INLINE int simd128_is_fast(void) {
    static int known = -1;
    if (known < 0) known = !is_x86();
    return known;
}
INLINE int simd128_is_exact(void) { return 1; }
INLINE int simd128_x86_is_exact(void) { return 1; }
INLINE int32_t simd128_offset(void) { return 0; }
INLINE int32_t simd128_weight_offset(void) { return 0; }
INLINE int32_t simd128_weight_block(void) { return BLOCK; }

/* Four outputs, each the sum of two neighbours. */
INLINE void store_pairs(v128_t a, v128_t b, int32_t *sums) {
    wasm_v128_store(sums, wasm_i32x4_add(wasm_i32x4_shuffle(a, b, 0, 2, 4, 6),
                                         wasm_i32x4_shuffle(a, b, 1, 3, 5, 7)));
}

/* For ARM, which multiplies eight pairs of bytes by one instruction. Two products of at most
 * 127 * 127 fit into 16 bits, then they are added two by two. */
INLINE void simd128(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                    int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)totals, (void)blocks;
    UNROLL for (int half = 0; half < 2; half++) { /* of a block: the sums of all do not fit */
        v128_t sum[MAX_ROWS][4];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < 4; v++) sum[r][v] = wasm_i32x4_const_splat(0);
        for (int32_t k = 0; k < (int32_t)depth; k += 8) {
            const int8_t *place = weights + k * BLOCK + half * 32, *next = place + 4 * BLOCK;
            const v128_t w[2] = {wasm_v128_load(place), wasm_v128_load(place + 16)};
            const v128_t u[2] = {wasm_v128_load(next), wasm_v128_load(next + 16)};
            UNROLL for (int r = 0; r < rows; r++) {
                const uint8_t *at = levels + r * APART((int32_t)depth) + k;
                const v128_t x = wasm_v128_load32_splat(at), y = wasm_v128_load32_splat(at + 4);
                UNROLL for (int v = 0; v < 2; v++) {
                    const v128_t first = wasm_i16x8_add(wasm_i16x8_extmul_low_i8x16(w[v], x),
                                                        wasm_i16x8_extmul_low_i8x16(u[v], y));
                    const v128_t second = wasm_i16x8_add(wasm_i16x8_extmul_high_i8x16(w[v], x),
                                                         wasm_i16x8_extmul_high_i8x16(u[v], y));
                    sum[r][2 * v] =
                        wasm_i32x4_add(sum[r][2 * v], wasm_i32x4_extadd_pairwise_i16x8(first));
                    sum[r][2 * v + 1] =
                        wasm_i32x4_add(sum[r][2 * v + 1], wasm_i32x4_extadd_pairwise_i16x8(second));
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < 4; v += 2)
                store_pairs(sum[r][v], sum[r][v + 1], sums + r * BLOCK + half * 8 + 2 * v);
    }
}

INLINE uint8_t *levels_of(uint8_t *levels, int32_t depth, int32_t row) {
    return levels + row * APART(depth);
}

/* Levels in place, in 16 bits. */
INLINE void prepare_levels(uint8_t *levels, int32_t depth, int32_t row) {
    levels += row * APART(depth);
    for (int32_t i = depth - 16; i >= 0; i -= 16) {
        const v128_t x = wasm_v128_load(levels + i);
        wasm_v128_store(levels + 2 * i, wasm_i16x8_extend_low_i8x16(x));
        wasm_v128_store(levels + 2 * i + 16, wasm_i16x8_extend_high_i8x16(x));
    }
}

/* x86 has no such instruction for bytes, but one for four pairs of products of 16 bits. */
INLINE void simd128_x86(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                        int64_t inputs, const int rows, const int blocks, int32_t *sums) {
    (void)totals, (void)blocks;
    const int32_t depth = (int32_t)inputs;
    UNROLL for (int half = 0; half < 2; half++) { /* of a block, as above */
        v128_t sum[MAX_ROWS][4];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < 4; v++) sum[r][v] = wasm_i32x4_const_splat(0);
        for (int32_t k = 0; k < depth; k += 4) {
            v128_t w[4];
            UNROLL for (int v = 0; v < 4; v++)
                w[v] = wasm_i16x8_load8x8(weights + k * BLOCK + half * 32 + 8 * v);
            UNROLL for (int r = 0; r < rows; r++) {
                const v128_t x = wasm_v128_load64_splat(levels + r * APART(depth) + 2 * k);
                UNROLL for (int v = 0; v < 4; v++)
                    sum[r][v] = wasm_i32x4_add(sum[r][v], wasm_i32x4_dot_i16x8(w[v], x));
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < 4; v += 2)
                store_pairs(sum[r][v], sum[r][v + 1], sums + r * BLOCK + half * 8 + 2 * v);
    }
}
#endif

#if defined(__AVX2__)
/* |w| times sign(w) x: the sum of two products of at most 127 * 127 fits into 16 bits. */
INLINE void avx2(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                 int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)totals;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[MAX_ROWS][1][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 2; v++) sum[r][b][v] = _mm256_setzero_si256();
    for (int64_t k = 0; k < depth; k += 4)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 2; v++) {
                const int8_t *place = weights + (b * depth + k) * BLOCK + 32 * v;
                const __m256i w = _mm256_loadu_si256((const __m256i *)place);
                const __m256i size = _mm256_abs_epi8(w);
                if (rows == 1) __builtin_prefetch(place + AHEAD);
                UNROLL for (int r = 0; r < rows; r++) {
                    const __m256i x = _mm256_set1_epi32(four_levels(levels + r * depth + k));
                    const __m256i two = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
                    sum[r][b][v] = _mm256_add_epi32(sum[r][b][v], _mm256_madd_epi16(two, ones));
                }
            }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 2; v++)
                _mm256_storeu_si256((__m256i *)(sums + (r * blocks + b) * BLOCK + 8 * v),
                                    sum[r][b][v]);
}
#endif

#if defined(__AVX512VNNI__)
/* The first operand is unsigned: inputs are shifted by 128, and the sums are corrected for it. */
INLINE void vnni(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                 int64_t depth, const int rows, const int blocks, int32_t *sums) {
    __m512i sum[MAX_ROWS][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++) {
            const __m512i total = _mm512_loadu_si512(totals + b * BLOCK);
            sum[r][b] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(total, 7));
        }
    for (int64_t k = 0; k < depth; k += 4) {
        __m512i w[4];
        UNROLL for (int b = 0; b < blocks; b++)
            w[b] = _mm512_loadu_si512(weights + (b * depth + k) * BLOCK);
        UNROLL for (int r = 0; r < rows; r++) {
            const __m512i x = _mm512_set1_epi32(four_levels(levels + r * depth + k));
            UNROLL for (int b = 0; b < blocks; b++)
                sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], x, w[b]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            _mm512_storeu_si512(sums + (r * blocks + b) * BLOCK, sum[r][b]);
}

/* One row and one block: weights are read in memory order, into four accumulators. */
INLINE void vnni_of_one(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                        int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)rows, (void)blocks;
    __m512i sum[4];
    UNROLL for (int i = 0; i < 4; i++) sum[i] = _mm512_setzero_si512();
    for (int64_t k = 0; k < depth; k += 16)
        UNROLL for (int i = 0; i < 4; i++) {
            const int8_t *place = weights + (k + 4 * i) * BLOCK;
            const __m512i x = _mm512_set1_epi32(four_levels(levels + k + 4 * i));
            __builtin_prefetch(place + AHEAD);
            sum[i] = _mm512_dpbusd_epi32(sum[i], x, _mm512_loadu_si512(place));
        }
    const __m512i all = _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]),
                                         _mm512_add_epi32(sum[2], sum[3]));
    const __m512i offset = _mm512_slli_epi32(_mm512_loadu_si512(totals), 7);
    _mm512_storeu_si512(sums, _mm512_sub_epi32(all, offset));
}
#endif

/* ---------------------------------------------------------------------------------- float32 */

#define VECTORS (BLOCK / LANES) /* SIMD vectors in one block of outputs */
#define ROWS 6 /* rows at a time: their sums fill most registers */

/* float32 dot products of some rows and blocks, each summed over the inputs in order: of `count`
 * inputs of `depth`, added to the sums of those before where they are `begun`. `next`: weights that
 * are fetched into the cache meanwhile. */
INLINE void float32(const float *x, const float *weights, const float *next, int64_t depth,
                    int64_t count, const int begun, const int rows, const int blocks, float *sums) {
    (void)next;
#if defined(HAS_SIX_ROWS)
    if (rows == 6 && blocks == 1 && depth % 4 == 0 && depth > 0) {
        six_rows(x, weights, depth, sums);
        return;
    }
#endif
    Vector sum[ROWS][4][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                sum[r][b][v] =
                    begun ? load(sums + (r * blocks + b) * BLOCK + v * LANES) : (Vector){0};
    for (int64_t k = 0; k < count; k++) {
        if (rows > 1 && blocks > 1) __builtin_prefetch(next + k * BLOCK, 0, 2);
        UNROLL for (int b = 0; b < blocks; b++) {
            const float *place = weights + (b * depth + k) * BLOCK;
            Vector w[VECTORS];
            if (rows == 1) __builtin_prefetch(place + AHEAD / 4);
            UNROLL for (int v = 0; v < VECTORS; v++) w[v] = load(place + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int v = 0; v < VECTORS; v++)
                    sum[r][b][v] = multiply_add(x[r * depth + k], w[v], sum[r][b][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                store(sums + (r * blocks + b) * BLOCK + v * LANES, sum[r][b][v]);
}

#endif
