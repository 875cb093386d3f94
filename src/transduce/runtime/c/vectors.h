/* SIMD vectors of float32, as wide as the registers of the CPU.
 *
 * Results are the same on every CPU: a product and a sum are rounded one after the other (the
 * library is compiled with -ffp-contract=off), and sums are added in one order. Otherwise int8
 * would round an input to another level here and there, as it has another last bit. */

#ifndef TRANSDUCE_VECTORS
#define TRANSDUCE_VECTORS

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif
#endif

#define UNROLL _Pragma("GCC unroll 8")
#define SPAN 16 /* numbers that are added side by side, on every CPU */
#define PARTS (SPAN / LANES)
#if defined(__wasm_simd128__)
#define DOT_PARTS 2 /* at a time: a browser may have 16 registers */
#else
#define DOT_PARTS PARTS
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

static inline Vector load(const float *x) {
    Vector v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store(float *x, Vector v) { memcpy(x, &v, sizeof v); }

static inline Vector all(float x) { return x - (Vector){0}; }

/* The same of a constant. Browsers compile one in a loop to four instructions, each time around: they
 * get a variable in its place. */
static inline Vector constant(float x) {
    Vector v = all(x);
#if defined(__wasm_simd128__)
    __asm__("" : "+r"(v));
#endif
    return v;
}

/* a w + b, rounded once where the CPU has an instruction for it: only for products in float32. */
static inline Vector multiply_add(float a, Vector w, Vector b) {
#if defined(__wasm_relaxed_simd__)
    return (Vector)wasm_f32x4_relaxed_madd((v128_t)all(a), (v128_t)w, (v128_t)b);
#elif defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)all(a), (__m512)w, (__m512)b);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)all(a), (__m256)w, (__m256)b);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (Vector)vfmaq_n_f32((float32x4_t)b, (float32x4_t)w, a);
#else
    return a * w + b;
#endif
}

/* The rest of an array that does not fill a whole vector. */
static inline Vector load_some(const float *x, int64_t count, float fill) {
    if (count == LANES) return load(x);
    Vector v = all(fill);
    memcpy(&v, x, sizeof(float) * (size_t)count);
    return v;
}

/* How many numbers of an array are in the vector that begins at i; none beyond its end. */
static inline int64_t some_at(int64_t i, int64_t count) {
    return count - i > LANES ? LANES : count > i ? count - i : 0;
}

static inline void store_some(float *x, Vector v, int64_t count) {
    if (count == LANES)
        store(x, v);
    else
        memcpy(x, &v, sizeof(float) * (size_t)count);
}

static inline Vector pick(Whole where, Vector yes, Vector no) {
    return (Vector)((where & (Whole)yes) | (~where & (Whole)no));
}

/* Where b is NaN, so is the result, on every CPU; of a NaN in a that is not so. */
static inline Vector higher(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (Vector)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#elif defined(__wasm_simd128__)
    return (Vector)wasm_f32x4_pmax((v128_t)b, (v128_t)a); /* b < a ? a : b, one instruction of x86 */
#else
    return pick(a > b, a, b);
#endif
}

/* The upper half is added to the lower one, until one number is left. */
static inline float total_of(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    const float32x4_t x = (float32x4_t)v;
    return vaddv_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
#else
    float x[LANES];
    memcpy(x, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
#endif
}

/* SPAN sums; the i-th number of an array belongs to the sum i % SPAN. */
typedef struct {
    Vector part[PARTS];
} Sums;

static inline float total(Sums sums) {
    UNROLL for (int half = PARTS / 2; half; half /= 2)
        UNROLL for (int p = 0; p < half; p++) sums.part[p] += sums.part[p + half];
    return total_of(sums.part[0]);
}

static inline float highest(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)v);
#elif defined(__wasm_simd128__) /* without branches, which a CPU could not predict */
    v = higher(v, (Vector)wasm_i32x4_shuffle((v128_t)v, (v128_t)v, 2, 3, 0, 1));
    return higher(v, (Vector)wasm_i32x4_shuffle((v128_t)v, (v128_t)v, 1, 0, 3, 2))[0];
#else
    float x[LANES];
    memcpy(x, &v, sizeof v);
    for (int i = 1; i < LANES; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
#endif
}

/* e^x for x <= 0, as 2^n e^r with |r| <= ln 2 / 2 and a polynomial for e^r, exact to the last
 * bit or two. Clamped at e^-80, as denormal numbers are slow. */
static inline Vector falling_exponential(Vector x) {
    /* Adding it rounds to an integer in the lowest bits; 127 is the exponent of 2^0. */
    const Vector magic = constant(12582912.0f + 127.0f);
    x = higher(constant(-80.0f), x);
    Vector rounded = x * constant(1.44269504f) + magic, n = rounded - magic;
    Vector r = (x - n * constant(0.693359375f)) + n * constant(2.12194440e-4f);
    Vector y = r * constant(1.9875691500e-4f) + constant(1.3981999507e-3f);
    y = y * r + constant(8.3334519073e-3f);
    y = y * r + constant(4.1665795894e-2f);
    y = y * r + constant(1.6666665459e-1f);
    y = y * r + constant(5.0000001201e-1f);
    y = y * (r * r) + (r + constant(1.0f));
    return y * (Vector)((Whole)rounded << 23);
}

/* e^x up to e^88. */
static inline Vector exponential(Vector x) {
    return falling_exponential(-higher(all(-88.0f), -x));
}

static inline float dot(const float *a, const float *b, int64_t count) {
    Sums first = {{{0}}}, second = {{{0}}};
    int64_t left = count;
    UNROLL for (int from = 0; from < PARTS; from += DOT_PARTS) {
        const float *x = a + from * LANES, *y = b + from * LANES;
        Vector *here = first.part + from, *there = second.part + from;
        for (left = count; left >= 2 * SPAN; left -= 2 * SPAN, x += 2 * SPAN, y += 2 * SPAN)
            UNROLL for (int p = 0; p < DOT_PARTS; p++) {
                here[p] += load(x + p * LANES) * load(y + p * LANES);
                there[p] += load(x + SPAN + p * LANES) * load(y + SPAN + p * LANES);
            }
        if (left < SPAN) continue;
        left -= SPAN;
        UNROLL for (int p = 0; p < DOT_PARTS; p++)
            here[p] += load(x + p * LANES) * load(y + p * LANES);
    }
    UNROLL for (int p = 0; p < PARTS; p++) first.part[p] += second.part[p];
    float sum = total(first);
    for (int64_t i = count - left; i < count; i++) sum += a[i] * b[i];
    return sum;
}

#endif
