/* routing_sums.h - sums over tokens of every accumulated routing statistic of one site.
 *
 * Formulas: the statistics page of the documentation (probes/README.md); symbols: a[h,s] the
 * weights of one token, v_s the sources, H heads, S sources, natural logarithms. Terms of one token
 * are computed in fp32 or better, sums are float64 and belong to ONE sequence: dividing by `tokens`
 * gives that sequence's means, adding sequences gives the whole recording's.
 *
 * The layout is a flat array of doubles, so that a backend can return it in one transfer.
 */
#ifndef FATHOM_ROUTING_SUMS_H
#define FATHOM_ROUTING_SUMS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Offsets into the flat array; `total` is its length. Fields absent from the layout (pairs not
 * asked for) have the offset NO_FIELD. */
#define NO_FIELD ((size_t)-1)
typedef struct routing_layout {
    size_t heads, sources;
    bool null_source;         /* source 0 is the null source */
    size_t tokens;            /* [1] tokens added */
    size_t mean;              /* [H,S] a */
    size_t second_moment;     /* [H,S] a^2 */
    size_t entropy;           /* [H] -sum_s a ln a */
    size_t effective_sources; /* [H] exp(entropy of the token) */
    size_t lookback;          /* [H] sum_s a_s (S-1-s); null source left out, rest renormalised */
    size_t oldest_mass;     /* [H] a of the first source that is not null, renormalised likewise */
    size_t newest_mass;     /* [H] a of the last source, renormalised likewise */
    size_t top1;            /* [H] max_s a */
    size_t head_divergence; /* [1] H(mean_h a) - mean_h H(a) */
    size_t contribution;    /* [H,S] a_s |v_s slice| / sum_j a_j |v_j slice| */
    size_t signed_contribution; /* [H,S] <a_s v_s, mix> / <mix, mix>, per slice */
    size_t site_contribution;   /* [S] sqrt(sum_h (a_s |v_s slice|)^2), normalised over s */
    size_t source_rms;          /* [S] sqrt(mean_d v_s^2) */
    size_t head_js;             /* [H,H] Jensen-Shannon divergence of heads; pairs only */
    size_t source_cos;          /* [S,S] cosine of sources over the full width; pairs only */
    size_t total;
} routing_layout;

/* `pairs`: with head_js and source_cos. */
routing_layout routing_layout_of(size_t heads, size_t sources, bool null_source, bool pairs);

/* Adds one token's weights `a` [H,S] to the rows that need nothing else: tokens, mean,
 * second_moment, entropy, effective_sources, lookback, oldest_mass, newest_mass, top1,
 * head_divergence and, where the layout has it, head_js. `scratch`: [2*H*S] floats. The lookback,
 * oldest and newest rows of a site whose only source is null are NaN. */
void routing_sums_add_weights(const routing_layout *layout, const float *a, double *sums,
                              float *scratch);

/* Adds one token's geometry: slice norms `norm` [S,H] (|v_s slice|), `dot` [S,H] = <v_s, mix> per
 * slice, `mix_square` [H] = <mix, mix> per slice, `rms` [S]. */
void routing_sums_add_geometry(const routing_layout *layout, const float *a, const float *norm,
                               const float *dot, const float *mix_square, const float *rms,
                               double *sums);

#ifdef __cplusplus
}
#endif
#endif
