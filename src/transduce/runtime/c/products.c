/* Matrix products (GEMM) with a packed weight: dynamic int8 quantization, or float32. */

#define _GNU_SOURCE
#include <math.h>

#include "native.h"

#include "kernels.h"
#include "threads.h"
#include "vectors.h"

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BLOCKS 4   /* outputs are padded to so many blocks */
#define TILE 16    /* rows of an AMX tile; quantized inputs are padded to them */
#define AMX_FROM 8 /* rows; for fewer, setting up the tiles costs more than it saves */
#define MIN_WORK 65536 /* multiplications that are worth a thread; in int8 INT8_TIMES as many */
#define INT8_TIMES 4

/* ------------------------------------------------------------------------- quantize inputs */

/* The largest |x|, as bit patterns: these are in the order of the numbers, and the compiler may
 * vectorise an integer maximum. */
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

#if defined(__wasm__)
/* As find_levels does it, of sixteen numbers. */
static inline v128_t sixteen_levels(const float *x, float by, int32_t offset) {
    const v128_t times = wasm_f64x2_splat(by);
    v128_t magic = wasm_f64x2_const_splat(6755399441055744.0), whole[4];
    __asm__("" : "+r"(magic)); /* as in vectors.h */
    UNROLL for (int v = 0; v < 4; v++) {
        const v128_t low = wasm_f64x2_promote_low_f32x4(wasm_v128_load64_zero(x + 4 * v));
        const v128_t high = wasm_f64x2_promote_low_f32x4(wasm_v128_load64_zero(x + 4 * v + 2));
        whole[v] = wasm_i32x4_shuffle(wasm_f64x2_add(wasm_f64x2_mul(low, times), magic),
                                      wasm_f64x2_add(wasm_f64x2_mul(high, times), magic), 0, 2, 4, 6);
    }
    const v128_t levels = wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(whole[0], whole[1]),
                                                  wasm_i16x8_narrow_i32x4(whole[2], whole[3]));
    return wasm_i8x16_add(levels, wasm_i8x16_splat((int8_t)offset));
}
#endif

/* Quantize one row, shifted by `offset`, 128 for kernels with unsigned inputs; returns the
 * scale. */
static float find_levels(const float *x, int64_t inputs, int64_t depth, int32_t offset,
                         uint8_t *levels) {
    float most = largest(x, inputs), by = most > 0.0f ? 127.0f / most : 0.0f;
    /* The product is exact, and rounded once, whatever the CPU and compiler: adding 1.5 * 2^23, or
     * 2^52 in double, leaves the nearest integer in the lowest bits. */
    int64_t i = 0;
#if defined(__wasm__) /* has no fused multiply-add */
    for (; i + 16 <= inputs; i += 16) wasm_v128_store(levels + i, sixteen_levels(x + i, by, offset));
#endif
    for (; i < inputs; i++) {
#if defined(__wasm__)
        const double rounded = (double)x[i] * (double)by + 6755399441055744.0;
#else
        const float rounded = fmaf(x[i], by, 12582912.0f);
#endif
        int32_t bits;
        memcpy(&bits, &rounded, 4);
        levels[i] = (uint8_t)(bits + offset);
    }
    memset(levels + inputs, offset, (size_t)(depth - inputs));
    return most / 127.0f;
}

/* --------------------------------------------------------------------- dequantize outputs */

typedef struct {
    const Weight *weight;
    const float *scale; /* scale of each row of the inputs */
    const float *added;
    float *y;
    int32_t then;
} Ending;

/* Some rows of one block, or of the `width` outputs that are left. */
INLINE void finish_as(const int32_t then, const Ending *ending, const int32_t *sums, int64_t stride,
                      int64_t row, int64_t rows, int64_t first, const int64_t width) {
    const Weight *weight = ending->weight;
    Vector scales[BLOCK / LANES], bias[BLOCK / LANES];
    UNROLL for (int v = 0; v < BLOCK / LANES; v++) {
        scales[v] = load(weight->scale + first + v * LANES);
        bias[v] = load(weight->bias + first + v * LANES);
    }
    for (int64_t r = row; r < row + rows; r++, sums += stride) {
        const float scale = ending->scale[r];
        const int64_t place = r * weight->outputs + first;
        UNROLL for (int v = 0; v < BLOCK / LANES; v++) {
            const int64_t some = some_at(v * LANES, width);
            if (!some) break;
            Whole whole;
            memcpy(&whole, sums + v * LANES, sizeof whole);
            Vector y = __builtin_convertvector(whole, Vector) * (scale * scales[v]) + bias[v];
            if (then == RELU) y = higher(all(0.0f), y);
            if (then == ADD) y += load_some(ending->added + place + v * LANES, some, 0.0f);
            store_some(ending->y + place + v * LANES, y, some);
        }
    }
}

/* One block of outputs of some rows. Not inlined: all kernels must round by the same code. */
static __attribute__((noinline)) void finish(const Ending *ending, const int32_t *sums,
                                             int64_t stride, int64_t row, int64_t rows,
                                             int64_t block) {
    const int64_t first = block * BLOCK, left = ending->weight->outputs - first;
    if (left < BLOCK)
        finish_as(ending->then, ending, sums, stride, row, rows, first, left);
    else if (ending->then == RELU)
        finish_as(RELU, ending, sums, stride, row, rows, first, BLOCK);
    else if (ending->then == ADD)
        finish_as(ADD, ending, sums, stride, row, rows, first, BLOCK);
    else
        finish_as(NOTHING, ending, sums, stride, row, rows, first, BLOCK);
}

/* The same for float32 sums, which have no scale. */
static __attribute__((noinline)) void finish_float32(const Ending *ending, const float *sums,
                                                     int64_t stride, int64_t row, int64_t rows,
                                                     int64_t block) {
    const Weight *weight = ending->weight;
    const int64_t first = block * BLOCK, left = weight->outputs - first;
    const int64_t width = left < BLOCK ? left : BLOCK;
    for (int64_t i = 0; i < width; i += LANES) {
        const int64_t some = width - i < LANES ? width - i : LANES;
        const Vector bias = load(weight->bias + first + i);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t place = (row + r) * weight->outputs + first + i;
            Vector y = load(sums + r * stride + i) + bias;
            if (ending->then == RELU) y = higher(all(0.0f), y);
            if (ending->then == ADD) y += load_some(ending->added + place, some, 0.0f);
            store_some(ending->y + place, y, some);
        }
    }
}

/* ------------------------------------------------------------------ loop over rows and blocks */

#if MAX_ROWS > 4
#define FOUR_OR_FIVE(kernel, BREADTH)                        \
    case 4: kernel(x, w, t, depth, 4, BREADTH, sums); break; \
    case 5: kernel(x, w, t, depth, 5, BREADTH, sums); break;
#else
#define FOUR_OR_FIVE(kernel, BREADTH)
#endif

/* All rows and blocks of a product, in tiles of the kernel's size, which is a compile-time
 * constant; of MAX_ROWS + 1 rows, FIRST come first. The outer loop is over blocks: each weight is read
 * from main memory once. */
#define WALK(name, kernel, BREADTH, FIRST)                                                       \
    static void name(const Ending *ending, const uint8_t *levels, int64_t rows, int64_t depth,   \
                     int64_t first, int64_t last) {                                              \
        const Weight *weight = ending->weight;                                                   \
        int32_t sums[MAX_ROWS * BREADTH * BLOCK];                                                \
        for (int64_t b = first; b < last; b += BREADTH) {                                        \
            const int8_t *w = weight->levels + b * BLOCK * depth;                                \
            const int32_t *t = weight->totals + b * BLOCK;                                       \
            for (int64_t r = 0, some; r < rows; r += some) {                                     \
                const uint8_t *x = levels + r * APART(depth);                                    \
                const int64_t left = rows - r;                                                   \
                some = left < MAX_ROWS ? left : left == MAX_ROWS + 1 ? FIRST : MAX_ROWS;         \
                switch (some) {                                                                  \
                case 1: kernel(x, w, t, depth, 1, BREADTH, sums); break;                         \
                case 2: kernel(x, w, t, depth, 2, BREADTH, sums); break;                         \
                case 3: kernel(x, w, t, depth, 3, BREADTH, sums); break;                         \
                    FOUR_OR_FIVE(kernel, BREADTH)                                                \
                default: kernel(x, w, t, depth, MAX_ROWS, BREADTH, sums);                        \
                }                                                                                \
                for (int64_t i = 0; i < BREADTH; i++)                                            \
                    finish(ending, sums + i * BLOCK, BREADTH * BLOCK, r, some, b + i);           \
            }                                                                                    \
        }                                                                                        \
    }

WALK(by_plain, plain, 1, MAX_ROWS / 2)
#if defined(__ARM_FEATURE_DOTPROD)
WALK(by_neon, neon, 1, MAX_ROWS / 2)
#endif
#if defined(__wasm_simd128__)
WALK(by_simd128, simd128, 1, MAX_ROWS / 2)
WALK(by_simd128_x86, simd128_x86, 1, MAX_ROWS)
#endif
#if defined(__AVX2__)
WALK(by_avx2, avx2, 1, MAX_ROWS / 2)
#endif
#if defined(__AVX512VNNI__)
WALK(by_vnni, vnni, 4, MAX_ROWS / 2)
WALK(by_vnni_of_one, vnni_of_one, 1, MAX_ROWS / 2)
#endif

/* The same in float32. CPUs with AVX-512 have the larger caches, and multiply so fast that reading
 * weights from beyond them holds them up. */
#if LANES == 16
#define BREADTH 4            /* 24 of 32 registers are sums */
#define NEAR_BYTES (1 << 20) /* of rows that stay in the cache while all weights are read */
#define DEEP 512             /* inputs at a time: their weights, and the next, stay in the cache too */
#define KEPT MOST            /* rows whose sums over the inputs so far are kept */
#else
#define BREADTH 1
#define NEAR_BYTES (1 << 17)
#define DEEP INT64_MAX
#define KEPT ROWS
#endif
#define NEAR 60  /* rows that are taken together even if they are larger */
#define MOST 252 /* and how many at most; whole tiles */

/* So many rows or fewer are two tiles of about the same size: one row, and two in wide vectors, have
 * too few sums to hide the latency of additions. */
#define TWO_TILES (LANES > 4 ? ROWS + 2 : ROWS + 1)

/* Rows that are computed together: shares of about the same size, in whole tiles. */
static int64_t rows_together(int64_t rows, int64_t depth) {
    const int64_t fit = 4 * depth * MOST <= NEAR_BYTES ? MOST : NEAR_BYTES / (4 * depth);
    const int64_t most = fit < NEAR ? NEAR : fit;
    const int64_t shares = (rows - 1) / most + 1;
    return padded((rows + shares - 1) / shares, ROWS);
}

static void by_float32(const Ending *ending, const float *x, int64_t rows, int64_t first,
                       int64_t last) {
    const Weight *weight = ending->weight;
    const int64_t depth = weight->inputs, together = rows_together(rows, depth);
    float sums[KEPT * BREADTH * BLOCK];
    for (int64_t start = 0; start < rows; start += together) {
        const int64_t stop = rows - start < together ? rows : start + together;
        for (int64_t b = first; b < last; b += BREADTH)
            for (int64_t from = 0, some; from < depth; from += some) {
                some = depth - from < DEEP ? depth - from : DEEP;
                const int ends = from + some == depth;
                const float *w = weight->numbers + (b * depth + from) * BLOCK;
                /* A block of the next weights is fetched with each of the first tiles. */
                const float *next = ends ? weight->numbers + (b + BREADTH) * depth * BLOCK
                                         : w + some * BLOCK;
                int64_t fetched = ends && b + BREADTH >= last ? BREADTH : 0;
                float *sum = sums;
                for (int64_t r = start, tile; r < stop; r += tile, fetched++) {
                    const int64_t left = stop - r;
                    const float *fetch = fetched < BREADTH ? next + fetched * BLOCK * depth : w;
                    tile = left <= ROWS ? left : left <= TWO_TILES ? left / 2 : ROWS;
#define TILE_OF(rows) \
    float32(x + r * depth + from, w, fetch, depth, some, from > 0, rows, BREADTH, sum)
                    switch (tile) {
                    case 1: TILE_OF(1); break;
                    case 2: TILE_OF(2); break;
                    case 3: TILE_OF(3); break;
                    case 4: TILE_OF(4); break;
                    case 5: TILE_OF(5); break;
                    default: TILE_OF(ROWS);
                    }
                    for (int64_t i = 0; ends && i < BREADTH; i++)
                        finish_float32(ending, sum + i * BLOCK, BREADTH * BLOCK, r, tile, b + i);
                    if (depth > DEEP) sum += tile * BREADTH * BLOCK;
                }
            }
    }
}

/* A single row needs many accumulators to hide the latency of its additions. */
static void by_float32_of_one(const Ending *ending, const float *x, int64_t first, int64_t last) {
    const int64_t depth = ending->weight->inputs;
    float sums[BLOCKS * BLOCK];
    for (int64_t b = first; b < last; b += BLOCKS) {
        const float *w = ending->weight->numbers + b * BLOCK * depth;
        float32(x, w, w, depth, depth, 0, 1, BLOCKS, sums);
        for (int64_t i = 0; i < BLOCKS; i++)
            finish_float32(ending, sums + i * BLOCK, BLOCK, 0, 1, b + i);
    }
}

/* The first block of an item, BLOCKS each; past the last item, the number of blocks. */
static int64_t first_block(const Ending *ending, int64_t item) {
    const int64_t blocks = padded(ending->weight->outputs, BLOCK) / BLOCK;
    return item * BLOCKS < blocks ? item * BLOCKS : blocks;
}

/* A product in float32 and its rows; its blocks are shared by threads, BLOCKS at a time. */
typedef struct {
    const Ending *ending;
    const float *x;
    int64_t rows;
} Float32;

static void float32_task(const void *context, int64_t first, int64_t last) {
    const Float32 *all = context;
    first = first_block(all->ending, first);
    last = first_block(all->ending, last);
    if (all->rows == 1)
        by_float32_of_one(all->ending, all->x, first, last);
    else
        by_float32(all->ending, all->x, all->rows, first, last);
}

/* ---------------------------------------------------------------------------------------- AMX */

#if defined(__AMX_INT8__) && defined(__linux__)
/* Linux grants a process the use of AMX tiles only on request. */
static int amx_is_granted(void) {
    static int granted = -1;
    if (granted < 0) granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return granted;
}

/* The compiler does not know that tile loads read memory: earlier writes must be done. */
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

/* Two tiles of rows, two blocks: tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights. */
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

static void by_amx(const Ending *ending, const uint8_t *levels, int64_t rows, int64_t depth,
                   int64_t first, int64_t last) {
    const Weight *weight = ending->weight;
    int32_t sums[4][TILE * BLOCK] __attribute__((aligned(64)));
    WRITTEN(levels);
    set_up_tiles();
    for (int64_t b = first; b < last; b += BLOCKS) {
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

#if defined(__wasm_simd128__)
/* By how much levels of weights are to be shifted for the kernels of this browser. */
int32_t weight_offset(void);
int32_t weight_offset(void) { return simd128_weight_offset(); }

/* How many outputs are in a block of their layout. */
int32_t weight_block(void);
int32_t weight_block(void) { return simd128_weight_block(); }
#endif

int32_t has_kernel(int32_t kernel) {
    switch (kernel) {
#if defined(__wasm_simd128__)
    case PLAIN: return !weight_offset();
#else
    case PLAIN: return 1;
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    case NEON: return 1;
#endif
#if defined(__wasm_simd128__)
    case SIMD128: return simd128_is_exact();
    case SIMD128_X86: return simd128_x86_is_exact();
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
#if defined(__wasm_simd128__)
    (void)rows;
    return simd128_is_fast() ? SIMD128 : simd128_x86_is_exact() ? SIMD128_X86 : PLAIN;
#else
    for (int32_t kernel = AMX; kernel > PLAIN; kernel--)
        if (has_kernel(kernel) && (kernel != AMX || rows >= AMX_FROM)) return kernel;
    return PLAIN;
#endif
}

/* By how much a kernel wants the levels of inputs to be shifted. */
static int32_t level_offset(int32_t kernel) {
#if defined(__wasm_simd128__)
    if (kernel == SIMD128) return simd128_offset();
#endif
    return kernel == VNNI ? 128 : 0;
}

static int64_t levels_size(int64_t rows, int64_t depth) { return padded(rows, TILE) * APART(depth); }

int64_t product_workspace(int64_t rows, int64_t inputs) {
    return levels_size(rows, padded(inputs, 64)) + padded(rows * (int64_t)sizeof(float), 64);
}

/* A product in int8; its blocks are shared by threads, BLOCKS at a time. */
typedef struct {
    const Ending *ending;
    const uint8_t *levels;
    int64_t rows, depth;
    int32_t kernel;
} Int8;

static void int8_task(const void *context, int64_t first, int64_t last) {
    const Int8 *all = context;
    first = first_block(all->ending, first);
    last = first_block(all->ending, last);
    switch (all->kernel) {
#if defined(__ARM_FEATURE_DOTPROD)
    case NEON: by_neon(all->ending, all->levels, all->rows, all->depth, first, last); break;
#endif
#if defined(__wasm_simd128__)
    case SIMD128: by_simd128(all->ending, all->levels, all->rows, all->depth, first, last); break;
    case SIMD128_X86:
        by_simd128_x86(all->ending, all->levels, all->rows, all->depth, first, last);
        break;
#endif
#if defined(__AVX2__)
    case AVX2: by_avx2(all->ending, all->levels, all->rows, all->depth, first, last); break;
#endif
#if defined(__AVX512VNNI__)
    case VNNI:
        (all->rows > 1 ? by_vnni : by_vnni_of_one)(all->ending, all->levels, all->rows, all->depth,
                                                   first, last);
        break;
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
    case AMX: by_amx(all->ending, all->levels, all->rows, all->depth, first, last); break;
#endif
    default: by_plain(all->ending, all->levels, all->rows, all->depth, first, last);
    }
}

void multiply(const Weight *weight, const float *x, int64_t rows, int32_t then, const float *added,
              float *y, void *workspace, int32_t kernel) {
    const int64_t parts = padded(weight->outputs, BLOCK * BLOCKS) / (BLOCK * BLOCKS);
    int64_t useful = rows * weight->inputs * weight->outputs / MIN_WORK;
    if (weight->numbers) {
        const Ending ending = {weight, 0, added, y, then};
        const Float32 all = {&ending, x, rows};
        divide(float32_task, &all, parts, useful < weight->threads ? useful : weight->threads);
        return;
    }
    const int64_t depth = padded(weight->inputs, 64);
    uint8_t *levels = workspace;
    float *scale = (float *)(levels + levels_size(rows, depth));
    kernel = kernel == BEST ? best_kernel(rows) : kernel;
    const int32_t offset = level_offset(kernel);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *row = levels + r * APART(depth);
#if defined(__wasm_simd128__)
        const int prepared = kernel == SIMD128_X86;
        if (prepared) row = levels_of(levels, (int32_t)depth, (int32_t)r);
#endif
        scale[r] = find_levels(x + r * weight->inputs, weight->inputs, depth, offset, row);
#if defined(__wasm_simd128__)
        if (prepared) prepare_levels(levels, (int32_t)depth, (int32_t)r);
#endif
    }
    const Ending ending = {weight, scale, added, y, then};
    const Int8 all = {&ending, levels, rows, depth, kernel};
    useful /= INT8_TIMES;
    divide(int8_task, &all, parts, useful < weight->threads ? useful : weight->threads);
}
