/* rank_agreement.h - how well one score ranks what another measures.
 *
 *     rank_agreement r;
 *     rank_agreement_of(x, y, count, &r);
 *
 * Spearman's rho: the correlation of mid-ranks (ties share the mean of their ranks). Kendall's
 * tau-b: (concordant - discordant) / sqrt((pairs - ties in x) (pairs - ties in y)).
 */
#ifndef FATHOM_RANK_AGREEMENT_H
#define FATHOM_RANK_AGREEMENT_H

#include "analyze/bootstrap.h"

typedef struct rank_agreement {
    double spearman, kendall; /* NaN: fewer than 2 items, a side without two different values, NaN
                                 among the numbers */
} rank_agreement;

/* x, y [count]. `scratch` [2 * count]. */
rank_agreement rank_agreement_of(const double *x, const double *y, size_t count, double *scratch);

/* With intervals: x, y [bootstrap_draws, count], both sides of each draw recomputed. They cover the
 * choice of text, not of the items ranked. Had in Fisher's z = atanh(r), so that they stay within
 * -1 .. 1; full agreement, whose z is infinite, counts as half way to the next value that `count`
 * items without ties can have, and an interval always reaches the value. */
int rank_agreement_intervals(const bootstrap *b, const double *x, const double *y, size_t count,
                             interval *spearman, interval *kendall, status *st) MUST_USE;

/* |rho| below which `count` items are compatible with no agreement at all, two-sided 5 %: up to 9
 * items from all their orders (0.738 for 8), from there on from t = rho sqrt((n - 2) / (1 -
 * rho^2)). NaN below 5 items, of which no order is so rare. */
double rank_agreement_threshold(size_t count);

#endif
