/* vector.h - elementary loops of the CPU backend, written so that gcc vectorises them.
 *
 * Everything here is inlined into a tile function marked CLONES, of which gcc makes one copy for
 * AVX2 and one for any x86-64 and picks at load time. ISO C mode (-std=c17) contracts no multiply
 * and add into an fma, so an elementwise loop gives the same bits in every copy; a reduction's
 * order depends on the length and on the copy alone, never on addresses or threads.
 */
#ifndef FATHOM_KERNELS_CPU_VECTOR_H
#define FATHOM_KERNELS_CPU_VECTOR_H

#include "runtime/base/clones.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINED static inline __attribute__((always_inline))

INLINED uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINED float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* `a` where mask is all ones, `b` where it is zero: a branch would keep the loop scalar. */
INLINED float pick(uint32_t mask, float a, float b) {
    return bits_float((float_bits(a) & mask) | (float_bits(b) & ~mask));
}

INLINED uint32_t mask_of(int condition) {
    return 0u - (uint32_t)condition;
}

/* exp(x), relative error below 1e-7 for -87 <= x <= 88; 0 below, exp(88) above; exp(0) is exactly
 * 1; NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2, Taylor series in r, then times 2^n. */
INLINED float exp_fast(float x) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest whole number */
    const uint32_t under = mask_of(x < -87.0f);
    const float bounded = pick(mask_of(x > 88.0f), 88.0f, pick(under, -87.0f, x));
    const float shifted = bounded * 1.44269504f + round;
    const float n = shifted - round;
    /* ln 2 in two parts; n times the first is exact. */
    const float r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return pick(under, 0.0f, p * bits_float((float_bits(shifted) << 23) + 0x3f800000u));
}

/* ln(x), relative error below 3e-7 for finite x >= 2^-126; smaller x, 0 among them, give
 * ln(2^-126), so that x * log_fast(x) is 0 at 0; log_fast(1) is exactly 0. Not for negative or
 * infinite x; NaN gives some number. x = m 2^e with sqrt(1/2) <= m < sqrt(2), and
 * ln m = 2 atanh(z), z = (m - 1) / (m + 1), by its Taylor series. */
INLINED float log_fast(float x) {
    const uint32_t smallest = 0x00800000u, root_half = 0x3f3504f3u;
    const uint32_t given = float_bits(x);
    const uint32_t low = mask_of(given < smallest);
    const uint32_t bits = ((smallest & low) | (given & ~low)) - root_half;
    const float e = (float)((int32_t)bits >> 23);
    const float m = bits_float((bits & 0x007fffffu) + root_half);
    const float z = (m - 1.0f) / (m + 1.0f);
    const float y = z * z;
    float p = 1.0f / 9.0f;
    p = p * y + 1.0f / 7.0f;
    p = p * y + 1.0f / 5.0f;
    p = p * y + 1.0f / 3.0f;
    return e * 0.693359375f + (e * -2.12194440e-4f + (2.0f * z + 2.0f * z * y * p));
}

/* Eight floats. Written out where the order of a sum must be the same in every copy, or where short
 * slices make the ends of a vectorised loop dearer than its middle. */
typedef float lanes __attribute__((vector_size(32)));
enum { LANES = 8 };

INLINED void lanes_load(lanes *to, const float *from) {
    memcpy(to, from, sizeof *to);
}

/* <x, y>: element i is added to lane i mod 16. */
INLINED float dot(const float *x, const float *y, size_t n) {
    lanes even = {0.0f}, odd = {0.0f}, a, b;
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        lanes_load(&a, x + i);
        lanes_load(&b, y + i);
        even += a * b;
        lanes_load(&a, x + i + LANES);
        lanes_load(&b, y + i + LANES);
        odd += a * b;
    }
    if (i + LANES <= n) {
        lanes_load(&a, x + i);
        lanes_load(&b, y + i);
        even += a * b;
        i += LANES;
    }
    even += odd;
    float sum =
        ((even[0] + even[4]) + (even[2] + even[6])) + ((even[1] + even[5]) + (even[3] + even[7]));
    for (; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

INLINED double sum_squares(const float *x, size_t n) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* to[i] += from[0][i] + from[1][i] + ..., one row after the other. */
INLINED void add_rows(float *restrict to, const float *restrict from, size_t rows, size_t stride,
                      size_t n) {
    for (size_t r = 0; r < rows; r++)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            to[i] += from[r * stride + i];
}

/* Backward of out = in r gain with r = 1 / sqrt(mean of in^2 + eps):
 * d_in = r (gain d_out - in r^2 mean(gain d_out in)), and `grad` += d_out in r. `d_in` may be
 * `d_out`. */
INLINED void rms_back(const float *in, const float *gain, const float *d_out, size_t n, float eps,
                      float *d_in, float *grad) {
    const double square = 1.0 / (sum_squares(in, n) / (double)n + (double)eps);
    const float scale = (float)sqrt(square);
    double along = 0.0;
#pragma omp simd reduction(+ : along)
    for (size_t i = 0; i < n; i++)
        along += (double)(gain[i] * d_out[i]) * (double)in[i];
    const float back = (float)(along / (double)n * square);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float x = in[i], d = d_out[i];
        grad[i] += d * (x * scale);
        d_in[i] = scale * (gain[i] * d - x * back);
    }
}

/* The largest element; NaN elements are passed over unless the first is one. */
INLINED float largest(const float *x, size_t n) {
    float most = x[0];
#pragma omp simd reduction(max : most)
    for (size_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Replaces x by its softmax; any NaN makes the whole row NaN. */
INLINED void softmax(float *x, size_t n) {
    const float most = largest(x, n);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        x[i] = exp_fast(x[i] - most);
        sum += x[i];
    }
    const float scale = 1.0f / sum;
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* -sum p ln p in nats. */
INLINED float entropy(const float *p, size_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += p[i] * log_fast(p[i]);
    return 0.0f - sum;
}

#endif
