/* rope.c - see rope.h. */
#include "runtime/rope.h"

#include <math.h>

/* Llama 3.1: wavelengths longer than original/low are divided by `factor`, those shorter than
 * original/high stay, those between are mixed linearly in original/wavelength. */
static double llama3_frequency(const rope_config *rope, double frequency) {
    double turns = (double)rope->original_positions * frequency / (2 * M_PI);
    if (turns < rope->low_freq_factor)
        return frequency / rope->factor;
    if (turns > rope->high_freq_factor)
        return frequency;
    double kept =
        (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - kept) * frequency / rope->factor + kept * frequency;
}

void rope_frequencies(const rope_config *rope, size_t head_dim, double *frequency) {
    for (size_t i = 0; i < head_dim / 2; i++) {
        double plain = pow(rope->theta, -2.0 * (double)i / (double)head_dim);
        switch (rope->kind) {
        case ROPE_DEFAULT:
            frequency[i] = plain;
            break;
        case ROPE_LINEAR:
            frequency[i] = plain / rope->factor;
            break;
        case ROPE_LLAMA3:
            frequency[i] = llama3_frequency(rope, plain);
            break;
        }
    }
}

void rope_table(const double *frequency, size_t half, size_t first, size_t rows, float *cosine,
                float *sine) {
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)(first + row) * frequency[i];
            cosine[row * half + i] = (float)cos(angle);
            sine[row * half + i] = (float)sin(angle);
        }
    }
}
