/* depth_logits.h - the weights of one token at one site, inlined into the tile functions that read
 * a site with its own query (depth_read.c) and with others (depth_alternative.c). */
#ifndef FATHOM_KERNELS_CPU_DEPTH_LOGITS_H
#define FATHOM_KERNELS_CPU_DEPTH_LOGITS_H

#include "kernels/cpu/depth.h"
#include "kernels/cpu/vector.h"

INLINED const value_state *depth_source(const depth *axis, const depth_site *planned, size_t s) {
    return &axis->value[planned->source[s]];
}

/* Where one token's source rows are, [sources]. */
INLINED void depth_rows(const depth *axis, const depth_site *planned, size_t row, const float **v) {
    for (size_t s = 0; s < (size_t)planned->sources; s++) {
        const value_state *source = depth_source(axis, planned, s);
        v[s] = source->row + row * source->stride;
    }
}

/* Logits of one token, [heads, sources], for a folded query [width]. Unless it is the `last` of its
 * tile, the next token's rows are fetched meanwhile: S rows far apart are more streams than the
 * hardware foresees. */
INLINED void depth_logits(const depth *axis, const depth_site *planned, const float *folded,
                          size_t row, bool last, const float *const *v, float *logit) {
    const size_t width = axis->plan->width, heads = axis->plan->heads, slice = width / heads;
    const size_t sources = (size_t)planned->sources, line = 64 / sizeof(float);
    for (size_t s = 0; s < sources; s++) {
        const value_state *source = depth_source(axis, planned, s);
        const float scale = source->inverse_rms[row * source->step];
        for (size_t i = 0; !last && i < width; i += line)
            __builtin_prefetch(v[s] + source->stride + i);
        for (size_t h = 0; h < heads; h++)
            logit[h * sources + s] = dot(folded + h * slice, v[s] + h * slice, slice) * scale;
    }
}

/* A softmax per head; the exponentials of all heads are one loop. */
INLINED void depth_softmaxes(float *x, size_t heads, size_t sources) {
    for (size_t h = 0; h < heads; h++) {
        float *row = x + h * sources;
        const float most = largest(row, sources);
#pragma omp simd
        for (size_t s = 0; s < sources; s++)
            row[s] -= most;
    }
#pragma omp simd
    for (size_t i = 0; i < heads * sources; i++)
        x[i] = exp_fast(x[i]);
    for (size_t h = 0; h < heads; h++) {
        float *row = x + h * sources, sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t s = 0; s < sources; s++)
            sum += row[s];
        const float scale = 1.0f / sum;
#pragma omp simd
        for (size_t s = 0; s < sources; s++)
            row[s] *= scale;
    }
}

#endif
