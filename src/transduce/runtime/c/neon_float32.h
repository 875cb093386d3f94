/* float32 products of six rows and one block on ARM, in assembly: 24 sums, six inputs and two
 * weights take all 32 registers, which compilers do not manage without spilling sums. */

#ifndef TRANSDUCE_NEON_FLOAT32
#define TRANSDUCE_NEON_FLOAT32

#include <stdint.h>

#if defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
#define HAS_SIX_ROWS 1

/* Inputs are read four at a time and multiplied as lanes of a register, since a broadcast would
 * take a turn of the units that multiply. v0 to v23: sums, four of each row; v24 to v29: inputs;
 * v30 and v31: weights, the next loaded while one is used. */
#define SIX_TIMES(w, lane, s0, s1, s2, s3, s4, s5)                                             \
    "fmla v" #s0 ".4s, v" #w ".4s, v24.s[" #lane "]\n\tfmla v" #s1 ".4s, v" #w ".4s, v25.s[" #lane \
    "]\n\tfmla v" #s2 ".4s, v" #w ".4s, v26.s[" #lane "]\n\tfmla v" #s3 ".4s, v" #w               \
    ".4s, v27.s[" #lane "]\n\tfmla v" #s4 ".4s, v" #w ".4s, v28.s[" #lane "]\n\tfmla v" #s5        \
    ".4s, v" #w ".4s, v29.s[" #lane "]\n\t"
#define NEXT_WEIGHT(w) "ldr q" #w ", [%[w]], #16\n\t"
#define BLOCK_TIMES(lane, next)                                                    \
    NEXT_WEIGHT(31) SIX_TIMES(30, lane, 0, 4, 8, 12, 16, 20)                       \
    NEXT_WEIGHT(30) SIX_TIMES(31, lane, 1, 5, 9, 13, 17, 21)                       \
    NEXT_WEIGHT(31) SIX_TIMES(30, lane, 2, 6, 10, 14, 18, 22)                      \
    next SIX_TIMES(31, lane, 3, 7, 11, 15, 19, 23)
#define ZERO(a, b, c, d) \
    "movi v" #a ".4s, #0\n\tmovi v" #b ".4s, #0\n\tmovi v" #c ".4s, #0\n\tmovi v" #d ".4s, #0\n\t"
#define STORE(a, b, c, d) \
    "stp q" #a ", q" #b ", [%[sums]], #32\n\tstp q" #c ", q" #d ", [%[sums]], #32\n\t"

/* depth must be a positive multiple of four. */
static inline void six_rows(const float *x, const float *weights, int64_t depth, float *sums) {
    const float *x1 = x + depth, *x2 = x1 + depth, *x3 = x2 + depth, *x4 = x3 + depth,
                *x5 = x4 + depth;
    int64_t left = depth / 4;
    __asm__ volatile(
        ZERO(0, 1, 2, 3) ZERO(4, 5, 6, 7) ZERO(8, 9, 10, 11)
        ZERO(12, 13, 14, 15) ZERO(16, 17, 18, 19) ZERO(20, 21, 22, 23)
        "0:\n\t"
        NEXT_WEIGHT(30)
        "ldr q24, [%[x0]], #16\n\tldr q25, [%[x1]], #16\n\tldr q26, [%[x2]], #16\n\t"
        "ldr q27, [%[x3]], #16\n\tldr q28, [%[x4]], #16\n\tldr q29, [%[x5]], #16\n\t"
        BLOCK_TIMES(0, NEXT_WEIGHT(30)) BLOCK_TIMES(1, NEXT_WEIGHT(30))
        BLOCK_TIMES(2, NEXT_WEIGHT(30)) BLOCK_TIMES(3, "")
        "subs %[left], %[left], #1\n\tb.ne 0b\n\t"
        STORE(0, 1, 2, 3) STORE(4, 5, 6, 7) STORE(8, 9, 10, 11)
        STORE(12, 13, 14, 15) STORE(16, 17, 18, 19) STORE(20, 21, 22, 23)
        : [x0] "+r"(x), [x1] "+r"(x1), [x2] "+r"(x2), [x3] "+r"(x3), [x4] "+r"(x4), [x5] "+r"(x5),
          [w] "+r"(weights), [left] "+r"(left), [sums] "+r"(sums)
        :
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",
          "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
          "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
#endif

#endif
