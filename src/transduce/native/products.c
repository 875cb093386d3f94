/* Products of rows with a weight, both in whole numbers of 8 bits. */

#define _GNU_SOURCE
#include "native.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BLOCK 16 /* outputs whose levels lie together */
#define BLOCKS 4 /* that outputs are padded to */
#define TILE 16  /* rows of an AMX tile; levels of inputs are padded to them */
#define MOST 6   /* rows that a kernel has in registers */
#define AMX_FROM 8 /* rows; fewer are done before the tiles are set up */
#define AHEAD 2048 /* bytes; a single row waits for nothing but its weights */

/* ------------------------------------------------------------------------- levels of inputs */

/* The largest |x|, found among the bits: these are in the order of the numbers, and the compiler may
 * compare whole numbers in any order. */
static float largest(const float *x, int64_t count) {
    int32_t highest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        highest = bits > highest ? bits : highest;
    }
    float found;
    memcpy(&found, &highest, 4);
    return found;
}

/* One row as levels, moved up by `offset`, 128 for kernels that take them without a sign; returns
 * the scale. */
static float find_levels(const float *x, int64_t inputs, int64_t depth, int32_t offset,
                         uint8_t *levels) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds, into the lowest bits */
    float most = largest(x, inputs), by = most > 0.0f ? 127.0f / most : 0.0f;
    for (int64_t i = 0; i < inputs; i++) {
        float rounded = x[i] * by + magic;
        int32_t bits;
        memcpy(&bits, &rounded, 4);
        levels[i] = (uint8_t)(bits + offset);
    }
    memset(levels + inputs, offset, (size_t)(depth - inputs));
    return most / 127.0f;
}

/* --------------------------------------------------------------------- levels back to numbers */

typedef struct {
    const Weight *weight;
    const float *scale; /* of each row of the inputs */
    const float *added;
    float *y;
    int32_t then;
} Ending;

/* One block of outputs of some rows. Not inlined: whatever found the sums, the same code rounds. */
static __attribute__((noinline)) void finish(const Ending *ending, const int32_t *sums,
                                             int64_t stride, int64_t row, int64_t rows,
                                             int64_t block) {
    const Weight *weight = ending->weight;
    const int64_t outputs = weight->outputs, first = block * BLOCK;
    if (first >= outputs) return;
    const int64_t width = outputs - first < BLOCK ? outputs - first : BLOCK;
    const float *scale = weight->scale + first, *bias = weight->bias + first;
    for (int64_t r = 0; r < rows; r++) {
        const float of_row = ending->scale[row + r];
        const int64_t place = (row + r) * outputs + first;
        float found[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            found[i] = (float)sums[r * stride + i] * (of_row * scale[i]) + bias[i];
        if (ending->then == RELU)
            for (int i = 0; i < BLOCK; i++) found[i] = found[i] > 0.0f ? found[i] : 0.0f;
        if (width == BLOCK && ending->then == ADD) /* the number of turns known: in vectors */
            for (int i = 0; i < BLOCK; i++) found[i] += ending->added[place + i];
        else if (ending->then == ADD)
            for (int i = 0; i < width; i++) found[i] += ending->added[place + i];
        if (width == BLOCK)
            memcpy(ending->y + place, found, sizeof found);
        else
            memcpy(ending->y + place, found, sizeof(float) * (size_t)width);
    }
}

/* ------------------------------------------------------------------------------------ kernels
 *
 * A kernel finds the sums of some rows and some blocks: sums[row][block][16]. `depth` is the padded
 * inputs, `levels` those of the first row, `weights` those of the first block. */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

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
            const int8_t *x = (const int8_t *)levels + r * depth, *w = weights + b * BLOCK * depth;
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
    int32x4_t sum[MOST][2][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            UNROLL for (int v = 0; v < 4; v++) sum[r][b][v] = vdupq_n_s32(0);
    for (int64_t k = 0; k < depth; k += 16) {
        int8x16_t x[MOST];
        UNROLL for (int r = 0; r < rows; r++) x[r] = vld1q_s8((const int8_t *)levels + r * depth + k);
        UNROLL for (int b = 0; b < blocks; b++) {
            const int8_t *w = weights + (b * depth + k) * BLOCK;
            if (rows == 1) __builtin_prefetch(w + AHEAD), __builtin_prefetch(w + AHEAD + 128);
/* The lane is part of the instruction: it cannot be a loop's. */
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

#if defined(__AVX2__)
/* |w| times x with the sign of w: two products of at most 127 * 127 fit into 16 bits. */
INLINE void avx2(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                 int64_t depth, const int rows, const int blocks, int32_t *sums) {
    (void)totals;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[MOST][1][2];
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
/* Its first factor has no sign: what 128 adds to each level of the inputs is taken off at once. */
INLINE void vnni(const uint8_t *levels, const int8_t *weights, const int32_t *totals,
                 int64_t depth, const int rows, const int blocks, int32_t *sums) {
    __m512i sum[MOST][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++) {
            const __m512i total = _mm512_loadu_si512(totals + b * BLOCK);
            sum[r][b] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(total, 7));
        }
    for (int64_t k = 0; k < depth; k += 4) {
        __m512i w[4];
        UNROLL for (int b = 0; b < blocks; b++) {
            const int8_t *place = weights + (b * depth + k) * BLOCK;
            w[b] = _mm512_loadu_si512(place);
            if (rows == 1) __builtin_prefetch(place + AHEAD);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const __m512i x = _mm512_set1_epi32(four_levels(levels + r * depth + k));
            UNROLL for (int b = 0; b < blocks; b++) sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], x, w[b]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int b = 0; b < blocks; b++)
            _mm512_storeu_si512(sums + (r * blocks + b) * BLOCK, sum[r][b]);
}
#endif

/* All rows and blocks of a product, a kernel's at a time; what is in registers must be known when it
 * is compiled. Blocks without, so that each weight is read from far away once. */
#define WALK(name, kernel, BREADTH)                                                              \
    static void name(const Ending *ending, const uint8_t *levels, int64_t rows, int64_t depth) { \
        const Weight *weight = ending->weight;                                                   \
        int32_t sums[MOST * BREADTH * BLOCK];                                                    \
        for (int64_t b = 0; b * BLOCK < weight->outputs; b += BREADTH) {                         \
            const int8_t *w = weight->levels + b * BLOCK * depth;                                \
            const int32_t *t = weight->totals + b * BLOCK;                                       \
            for (int64_t r = 0, some; r < rows; r += some) {                                     \
                const uint8_t *x = levels + r * depth;                                           \
                const int64_t left = rows - r;                                                   \
                some = left < MOST ? left : left == MOST + 1 ? MOST / 2 : MOST;                  \
                switch (some) {                                                                  \
                case 1: kernel(x, w, t, depth, 1, BREADTH, sums); break;                         \
                case 2: kernel(x, w, t, depth, 2, BREADTH, sums); break;                         \
                case 3: kernel(x, w, t, depth, 3, BREADTH, sums); break;                         \
                case 4: kernel(x, w, t, depth, 4, BREADTH, sums); break;                         \
                case 5: kernel(x, w, t, depth, 5, BREADTH, sums); break;                         \
                default: kernel(x, w, t, depth, MOST, BREADTH, sums);                            \
                }                                                                                \
                for (int64_t i = 0; i < BREADTH; i++)                                            \
                    finish(ending, sums + i * BLOCK, BREADTH * BLOCK, r, some, b + i);           \
            }                                                                                    \
        }                                                                                        \
    }

WALK(by_plain, plain, 1)
#if defined(__ARM_FEATURE_DOTPROD)
WALK(by_neon, neon, 1)
#endif
#if defined(__AVX2__)
WALK(by_avx2, avx2, 1)
#endif
#if defined(__AVX512VNNI__)
WALK(by_vnni, vnni, 4)
#endif

/* ---------------------------------------------------------------------------------------- AMX */

#if defined(__AMX_INT8__) && defined(__linux__)
/* The system keeps the tiles of a process only if it is asked to. */
static int amx_is_granted(void) {
    static int granted = -1;
    if (granted < 0) granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return granted;
}

/* The compiler does not know that tiles are read from memory: what was written must be there. */
#define WRITTEN(place) __asm__ volatile("" ::"r"(place) : "memory")

static void set_up_tiles(void) {
    struct {
        uint8_t palette, first, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = 64;
        shape.rows[i] = TILE;
    }
    WRITTEN(&shape);
    _tile_loadconfig(&shape);
}

static void zero_tiles(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static void store_tiles(int32_t sums[4][TILE * BLOCK]) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    WRITTEN(sums);
}

/* Two tiles of rows, two blocks: tiles 0 to 3 have the sums, 4 and 5 the rows, 6 and 7 the weights. */
static void two_by_two(const uint8_t *x, const int8_t *w, int64_t depth) {
    const uint8_t *lower = x + TILE * depth;
    const int8_t *other = w + BLOCK * depth;
    for (int64_t k = 0; k < depth; k += 64) {
        _tile_loadd(4, x + k, depth);
        _tile_loadd(6, w + k * BLOCK, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, other + k * BLOCK, 64);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, lower + k, depth);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
}

/* One tile of rows, four blocks. */
static void one_by_four(const uint8_t *x, const int8_t *w, int64_t depth) {
    const int64_t next = BLOCK * depth;
    for (int64_t k = 0; k < depth; k += 64) {
        const int8_t *first = w + k * BLOCK;
        _tile_loadd(4, x + k, depth);
        _tile_loadd(5, first, 64);
        _tile_dpbssd(0, 4, 5);
        _tile_loadd(6, first + next, 64);
        _tile_dpbssd(1, 4, 6);
        _tile_loadd(7, first + 2 * next, 64);
        _tile_dpbssd(2, 4, 7);
        _tile_loadd(5, first + 3 * next, 64);
        _tile_dpbssd(3, 4, 5);
    }
}

static void by_amx(const Ending *ending, const uint8_t *levels, int64_t rows, int64_t depth) {
    const Weight *weight = ending->weight;
    int32_t sums[4][TILE * BLOCK] __attribute__((aligned(64)));
    WRITTEN(levels);
    set_up_tiles();
    for (int64_t b = 0; b * BLOCK < weight->outputs; b += BLOCKS) {
        const int8_t *w = weight->levels + b * BLOCK * depth;
        int64_t r = 0;
        for (; rows - r > TILE; r += 2 * TILE) {
            const int64_t second = rows - r < 2 * TILE ? rows - r - TILE : TILE;
            for (int64_t half = 0; half < BLOCKS; half += 2) {
                zero_tiles();
                two_by_two(levels + r * depth, w + half * BLOCK * depth, depth);
                store_tiles(sums);
                for (int i = 0; i < 2; i++) {
                    finish(ending, sums[i], BLOCK, r, TILE, b + half + i);
                    finish(ending, sums[2 + i], BLOCK, r + TILE, second, b + half + i);
                }
            }
        }
        if (r < rows) {
            zero_tiles();
            one_by_four(levels + r * depth, w, depth);
            store_tiles(sums);
            for (int i = 0; i < BLOCKS; i++) finish(ending, sums[i], BLOCK, r, rows - r, b + i);
        }
    }
    _tile_release();
}
#endif

/* ---------------------------------------------------------------------------------- a product */

int32_t has_kernel(int32_t kernel) {
    switch (kernel) {
    case PLAIN: return 1;
#if defined(__ARM_FEATURE_DOTPROD)
    case NEON: return 1;
#endif
#if defined(__AVX2__)
    case AVX2: return 1;
#endif
#if defined(__AVX512VNNI__)
    case VNNI: return 1;
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
    case AMX: return amx_is_granted();
#endif
    default: return 0;
    }
}

static int32_t best_kernel(int64_t rows) {
    for (int32_t kernel = AMX; kernel > PLAIN; kernel--)
        if (has_kernel(kernel) && (kernel != AMX || rows >= AMX_FROM)) return kernel;
    return PLAIN;
}

static int64_t room_for_levels(int64_t rows, int64_t depth) { return padded(rows, TILE) * depth; }

int64_t product_room(int64_t rows, int64_t inputs) {
    return room_for_levels(rows, padded(inputs, 64)) + padded(rows * (int64_t)sizeof(float), 64);
}

void multiply(const Weight *weight, const float *x, int64_t rows, int32_t then, const float *added,
              float *y, void *room, int32_t kernel) {
    const int64_t depth = padded(weight->inputs, 64);
    uint8_t *levels = room;
    float *scale = (float *)(levels + room_for_levels(rows, depth));
    kernel = kernel == BEST ? best_kernel(rows) : kernel;
    for (int64_t r = 0; r < rows; r++)
        scale[r] = find_levels(x + r * weight->inputs, weight->inputs, depth,
                               kernel == VNNI ? 128 : 0, levels + r * depth);
    const Ending ending = {weight, scale, added, y, then};
    switch (kernel) {
#if defined(__ARM_FEATURE_DOTPROD)
    case NEON: by_neon(&ending, levels, rows, depth); break;
#endif
#if defined(__AVX2__)
    case AVX2: by_avx2(&ending, levels, rows, depth); break;
#endif
#if defined(__AVX512VNNI__)
    case VNNI: by_vnni(&ending, levels, rows, depth); break;
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
    case AMX: by_amx(&ending, levels, rows, depth); break;
#endif
    default: by_plain(&ending, levels, rows, depth);
    }
}
