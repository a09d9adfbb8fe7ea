/* routing_sums.c - one token's terms of the routing statistics, added to float64 sums. */
#include "kernels/routing_sums.h"

#include "kernels/cpu/vector.h"

#include <math.h>

routing_layout routing_layout_of(size_t heads, size_t sources, bool null_source, bool pairs) {
    routing_layout layout = {.heads = heads, .sources = sources, .null_source = null_source};
    const size_t cells = heads * sources;
    const struct {
        size_t *offset, count;
    } field[] = {
        {&layout.tokens, 1},
        {&layout.mean, cells},
        {&layout.second_moment, cells},
        {&layout.entropy, heads},
        {&layout.effective_sources, heads},
        {&layout.lookback, heads},
        {&layout.oldest_mass, heads},
        {&layout.newest_mass, heads},
        {&layout.top1, heads},
        {&layout.head_divergence, 1},
        {&layout.contribution, cells},
        {&layout.signed_contribution, cells},
        {&layout.site_contribution, sources},
        {&layout.source_rms, sources},
        {&layout.head_js, pairs ? heads * heads : 0},
        {&layout.source_cos, pairs ? sources * sources : 0},
    };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        *field[i].offset = layout.total;
        layout.total += field[i].count;
    }
    if (!pairs)
        layout.head_js = layout.source_cos = NO_FIELD;
    return layout;
}

INLINED void add_floats(double *sum, const float *x, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        sum[i] += (double)x[i];
}

/* Divergences are not negative; rounding may leave -1e-8. NaN stays NaN. */
INLINED double not_negative(float x) {
    return x < 0.0f ? 0.0 : (double)x;
}

/* Lookback, oldest and newest of one head. Without a null source the weights already sum to 1 and
 * are used as they are. */
INLINED void add_ages(const routing_layout *layout, const float *a, double *sums, size_t h) {
    const size_t sources = layout->sources, first = layout->null_source ? 1 : 0;
    if (first == sources) {
        sums[layout->lookback + h] = sums[layout->oldest_mass + h] = NAN;
        sums[layout->newest_mass + h] = NAN;
        return;
    }
    float rest = 0.0f, back = 0.0f;
    for (size_t s = first; s < sources; s++) {
        rest += a[s];
        back += a[s] * (float)(sources - 1 - s);
    }
    const double scale = layout->null_source ? 1.0 / (double)rest : 1.0;
    sums[layout->lookback + h] += (double)back * scale;
    sums[layout->oldest_mass + h] += (double)a[first] * scale;
    sums[layout->newest_mass + h] += (double)a[sources - 1] * scale;
}

/* Jensen-Shannon divergences of head i to the later heads:
 * sum_s [a ln a + b ln b] / 2 - m ln m,  m = (a + b) / 2.   `plogp`: a ln a of all heads. The
 * midpoints of all pairs lie side by side in `middle` so that their logarithms are one loop. */
INLINED void add_head_js(const routing_layout *layout, const float *a, const float *plogp, size_t i,
                         float *middle, double *js) {
    const size_t heads = layout->heads, sources = layout->sources;
    const size_t cells = (heads - 1 - i) * sources, own = i * sources, next = own + sources;
    for (size_t at = 0; at < cells; at += sources)
#pragma omp simd
        for (size_t s = 0; s < sources; s++)
            middle[at + s] = 0.5f * (a[own + s] + a[next + at + s]);
#pragma omp simd
    for (size_t k = 0; k < cells; k++)
        middle[k] *= log_fast(middle[k]);
    for (size_t j = i + 1; j < heads; j++) {
        const float *mlogm = middle + (j - i - 1) * sources;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t s = 0; s < sources; s++)
            sum += 0.5f * (plogp[own + s] + plogp[j * sources + s]) - mlogm[s];
        js[i * heads + j] += not_negative(sum);
        js[j * heads + i] += not_negative(sum);
    }
}

CLONES void routing_sums_add_weights(const routing_layout *layout, const float *a, double *sums,
                                     float *scratch) {
    const size_t heads = layout->heads, sources = layout->sources, cells = heads * sources;
    float *plogp = scratch, *spare = scratch + cells;
    sums[layout->tokens] += 1.0;
    add_floats(sums + layout->mean, a, cells);
    double *second = sums + layout->second_moment;
#pragma omp simd
    for (size_t k = 0; k < cells; k++) {
        second[k] += (double)a[k] * (double)a[k];
        plogp[k] = a[k] * log_fast(a[k]);
    }
    double entropies = 0.0;
    for (size_t h = 0; h < heads; h++) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t s = 0; s < sources; s++)
            sum += plogp[h * sources + s];
        entropies += (double)(0.0f - sum);
        sums[layout->entropy + h] += (double)(0.0f - sum);
        sums[layout->effective_sources + h] += (double)exp_fast(0.0f - sum);
        sums[layout->top1 + h] += (double)largest(a + h * sources, sources);
        add_ages(layout, a + h * sources, sums, h);
    }
    for (size_t s = 0; s < sources; s++)
        spare[s] = a[s];
    for (size_t h = 1; h < heads; h++)
#pragma omp simd
        for (size_t s = 0; s < sources; s++)
            spare[s] += a[h * sources + s];
#pragma omp simd
    for (size_t s = 0; s < sources; s++)
        spare[s] /= (float)heads; /* a division: the mean of H ones is exactly 1 */
    sums[layout->head_divergence] +=
        not_negative((float)((double)entropy(spare, sources) - entropies / (double)heads));
    if (layout->head_js != NO_FIELD)
        for (size_t i = 0; i + 1 < heads; i++)
            add_head_js(layout, a, plogp, i, spare, sums + layout->head_js);
}

CLONES void routing_sums_add_geometry(const routing_layout *layout, const float *a,
                                      const float *norm, const float *dot, const float *mix_square,
                                      const float *rms, double *sums) {
    const size_t heads = layout->heads, sources = layout->sources;
    for (size_t h = 0; h < heads; h++) {
        const float *weight = a + h * sources;
        double *share = sums + layout->contribution + h * sources;
        double *part = sums + layout->signed_contribution + h * sources;
        double total = 0.0;
        for (size_t s = 0; s < sources; s++)
            total += (double)(weight[s] * norm[s * heads + h]);
        const double scale = 1.0 / total, inverse_square = 1.0 / (double)mix_square[h];
        for (size_t s = 0; s < sources; s++) {
            share[s] += (double)(weight[s] * norm[s * heads + h]) * scale;
            part[s] += (double)(weight[s] * dot[s * heads + h]) * inverse_square;
        }
    }
    /* Twice over the sources rather than an array of them: the first pass is for the total. */
    double total = 0.0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t s = 0; s < sources; s++) {
            double square = 0.0;
            for (size_t h = 0; h < heads; h++) {
                const double length = (double)(a[h * sources + s] * norm[s * heads + h]);
                square += length * length;
            }
            if (pass == 0)
                total += sqrt(square);
            else
                sums[layout->site_contribution + s] += sqrt(square) / total;
        }
    add_floats(sums + layout->source_rms, rms, sources);
}
