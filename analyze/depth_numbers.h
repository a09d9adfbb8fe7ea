/* depth_numbers.h - the arithmetic behind the statistics of depth: quantiles, fits, inequality. */
#ifndef FATHOM_DEPTH_NUMBERS_H
#define FATHOM_DEPTH_NUMBERS_H

#include <stddef.h>

/* Quantiles at `at` [count], rising within 0..1, of x [n], which is put in another order: exact,
 * between two values linear in rank (Hyndman and Fan's type 7, the default of numpy and R). All NaN
 * where n is 0 or an x is NaN. */
void quantiles(float *x, size_t n, const double *at, size_t count, double *out);

/* Standard deviation, divisor n, of x [n] about their mean. */
double spread(const float *x, size_t n);

/* Least squares of y [n] on x [n]. NaN slope where x has fewer than two values. */
typedef struct fitted_line {
    double slope, intercept;
    double residual;  /* root mean square of y - intercept - slope * x */
    double explained; /* R^2, 1 - residual^2 / variance of y */
} fitted_line;
fitted_line fit_line(const double *x, const double *y, size_t n);

/* How unequal g [n] are; NaN where n is 0. */
double variation(const double *g, size_t n); /* population standard deviation / mean */
double gini(const double *g, size_t n);      /* sum_ij |g_i - g_j| / (2 n^2 mean) */
double max_to_min(const double *g, size_t n);

#endif
