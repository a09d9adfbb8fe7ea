/* bootstrap.h - uncertainty of any statistic that is a function of weighted means over sequences.
 *
 *     if (merge_windows(start, length, sequences, unit, &units, st)) return FAILED;
 *     bootstrap *b;
 *     if (bootstrap_create(&(bootstrap_options){.sequences = sequences, .weight = tokens,
 *                          .unit = unit, .units = units, .resamples = 1000, .seed = 1,
 *                          .level = 0.95}, &b, st)) return FAILED;
 *     bootstrap_means(b, entropy, heads, NULL, heads, draws, st);  // [draws, heads]
 *     ... any function of each draw's means, written over them ...
 *     bootstrap_intervals(b, draws, heads, intervals);
 *     bootstrap_free(b);
 *
 * What is resampled is the unit: a sequence, or overlapping windows together. Draw 0 is the data
 * themselves, draws 1 to `resamples` each take `units` units with replacement. The draws depend on
 * the seed and the number of units alone, so all statistics of a run, and paired statistics of two
 * runs, see the same ones. A derived statistic is computed from each draw's means anew: its bias
 * and spread come out of the draws like those of a mean.
 */
#ifndef FATHOM_BOOTSTRAP_H
#define FATHOM_BOOTSTRAP_H

#include "runtime/base/status.h"

#include <stdint.h>

enum { BOOTSTRAP_UNITS_MIN = 8 }; /* with fewer units there is no interval */

typedef struct bootstrap bootstrap;

typedef struct bootstrap_options {
    size_t sequences;
    const double *weight; /* [sequences] tokens; a sequence of weight 0 takes no part */
    const size_t *unit;   /* [sequences] below `units` */
    size_t units;
    size_t resamples; /* at least 2 */
    uint64_t seed;
    double level; /* of the intervals: 0.95 */
} bootstrap_options;

typedef struct interval {
    double value, low, high; /* low and high are NaN with fewer than BOOTSTRAP_UNITS_MIN units */
} interval;

/* Numbers the units: windows [start, start + length) of one stream that overlap, also through
 * others, share one; a window whose start is negative is its own. unit [sequences] below *units,
 * numbered along the stream, the single ones last. Fails only when memory does. */
int merge_windows(const int64_t *start, const int32_t *length, size_t sequences, size_t *unit,
                  size_t *units, status *st) MUST_USE;

/* Units without weight do not count. Fails where no sequence has weight, and when memory does. */
int bootstrap_create(const bootstrap_options *options, bootstrap **out, status *st) MUST_USE;
void bootstrap_free(bootstrap *b);                 /* NULL allowed */
size_t bootstrap_units(const bootstrap *b);        /* n: units with weight */
size_t bootstrap_draws(const bootstrap *b);        /* 1 + resamples */
double bootstrap_weight_total(const bootstrap *b); /* sum over sequences */

/* Weighted means of `cells` numbers of each sequence, for every draw: draws [1 + resamples, cells].
 * Sequence i's numbers are row[i * stride + cell[0 .. cells-1]]; `cell` NULL: the first ones. NaN
 * in a sequence that has weight makes that cell NaN. */
int bootstrap_means(const bootstrap *b, const double *row, size_t stride, const size_t *cell,
                    size_t cells, double *draws, status *st) MUST_USE;

/* out [cells], from draws [1 + resamples, cells]. With theta = draw 0 and n units:
 *     theta - bias +- t * sd * sqrt(n / (n - 1))
 * bias = mean of the resamples - theta, sd = their standard deviation (divisor resamples - 1), t
 * the Student quantile at `level` with n - 1 degrees of freedom; the root makes up for the
 * bootstrap's spread of a mean having divisor n. Plain percentiles cover far too rarely with few
 * units. */
void bootstrap_intervals(const bootstrap *b, const double *draws, size_t cells, interval *out);

/* t with P(|T| < t) = level, 0 < level < 1, for `freedom` >= 1 degrees of freedom: the finite
 * series of the distribution (Abramowitz and Stegun 26.7.3, 26.7.4), inverted by bisection. */
double student_t(double level, size_t freedom);

/* The two-sided probability of what an interval of bootstrap_intervals says against 0: P(|T| >= t)
 * with t = its middle over its standard error. NaN without an interval. */
double bootstrap_significance(const bootstrap *b, const interval *of);

#endif
