/* SIMD vectors of float32, as wide as the registers of the CPU. */

#ifndef TRANSDUCE_VECTORS
#define TRANSDUCE_VECTORS

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif
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

/* a w + b, rounded once where the CPU has an instruction for it. */
static inline Vector multiply_add(float a, Vector w, Vector b) {
#if defined(__wasm_relaxed_simd__)
    return (Vector)wasm_f32x4_relaxed_madd((v128_t)all(a), (v128_t)w, (v128_t)b);
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
#else
    return pick(a > b, a, b);
#endif
}

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
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)v);
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
    const float magic = 12582912.0f + 127.0f;
    x = higher(all(-80.0f), x);
    Vector rounded = x * 1.44269504f + magic, n = rounded - magic;
    Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + (r + 1.0f);
    return y * (Vector)((Whole)rounded << 23);
}

/* e^x up to e^88. */
static inline Vector exponential(Vector x) {
    return falling_exponential(-higher(all(-88.0f), -x));
}

static inline float dot(const float *a, const float *b, int64_t count) {
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

#endif
