/* Log-mel features of a waveform, as nn/speech/mel.py computes them; for browsers, where torch is not.
 *
 * In double precision: bands that are silent beside a loud one are the difference of large numbers. */

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "variant.h"

#define PREEMPHASIS 0.97

/* Fourier transform in place, of a power of two; turns: e^(-2 pi i k / size) for k < size / 2. */
static void transform(double *real, double *imaginary, const double *turns, int64_t size) {
    for (int64_t i = 1, j = 0; i < size; i++) { /* in the order of reversed bits */
        int64_t bit = size >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j |= bit;
        if (i >= j) continue;
        const double re = real[i], im = imaginary[i];
        real[i] = real[j], imaginary[i] = imaginary[j];
        real[j] = re, imaginary[j] = im;
    }
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t first = 0; first < size; first += 2 * half)
            for (int64_t k = 0; k < half; k++) {
                const double *turn = turns + 2 * k * (size / (2 * half));
                const int64_t a = first + k, b = a + half;
                const double re = real[b] * turn[0] - imaginary[b] * turn[1];
                const double im = real[b] * turn[1] + imaginary[b] * turn[0];
                real[b] = real[a] - re, imaginary[b] = imaginary[a] - im;
                real[a] += re, imaginary[a] += im;
            }
}

/* Features [frames][bands]; frame i is samples i * hop ... + size - 1. window [size], filters
 * [padded_frame / 2 + 1][bands], turns as above; workspace: 2 x padded_frame numbers. */
void mel_features(const float *samples, int64_t frames, int64_t size, int64_t hop,
                  int64_t padded_frame, const float *window, const float *filters, int64_t bands,
                  const double *turns, float *features, double *workspace);

void mel_features(const float *samples, int64_t frames, int64_t size, int64_t hop,
                  int64_t padded_frame, const float *window, const float *filters, int64_t bands,
                  const double *turns, float *features, double *workspace) {
    double *real = workspace, *imaginary = real + padded_frame;
    for (int64_t t = 0; t < frames; t++) {
        const float *x = samples + t * hop;
        double mean = 0.0;
        for (int64_t i = 0; i < size; i++) mean += x[i];
        mean /= (double)size;
        for (int64_t i = 0; i < padded_frame; i++) real[i] = imaginary[i] = 0.0;
        for (int64_t i = 0; i < size; i++) {
            const double now = x[i] - mean, before = x[i ? i - 1 : 0] - mean;
            real[i] = (now - PREEMPHASIS * before) * window[i];
        }
        transform(real, imaginary, turns, padded_frame);
        for (int64_t c = 0; c <= padded_frame / 2; c++)
            real[c] = real[c] * real[c] + imaginary[c] * imaginary[c];
        for (int64_t m = 0; m < bands; m++) {
            double energy = 0.0;
            for (int64_t c = 0; c <= padded_frame / 2; c++) energy += real[c] * filters[c * bands + m];
            features[t * bands + m] = (float)log(energy > FLT_EPSILON ? energy : FLT_EPSILON);
        }
    }
}
