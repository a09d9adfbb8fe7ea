/* Rank agreement against values worked out by hand, and the slices of a query in log space. */
#include "analyze/query_slices.h"
#include "analyze/rank_agreement.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static void agrees(const double *x, const double *y, size_t n, double spearman, double kendall) {
    double scratch[32];
    const rank_agreement r = rank_agreement_of(x, y, n, scratch);
    if (!(fabs(r.spearman - spearman) < 1e-12 && fabs(r.kendall - kendall) < 1e-12))
        fail_msg("%.15g, %.15g; expected %.15g, %.15g", r.spearman, r.kendall, spearman, kendall);
}

static void orders(void **state) {
    (void)state;
    const double up[] = {1, 2, 3, 4, 5}, cubes[] = {1, 8, 27, 64, 125}, down[] = {5, 4, 3, 2, 1};
    const double mixed[] = {2, 1, 4, 3, 5};
    agrees(up, cubes, 5, 1, 1);
    agrees(up, down, 5, -1, -1);
    agrees(up, mixed, 5, 0.8, 0.6); /* 1 - 6 * 4 / (5 * 24); (8 - 2) / 10 */
}

/* x ranks 1, 2.5, 2.5, 4; y ranks 1.5, 1.5, 3, 4. Pairs that differ in both: 4, all concordant; in
 * x 5, in y 5. */
static void ties_take_mid_ranks(void **state) {
    (void)state;
    const double x[] = {1, 2, 2, 3}, y[] = {7, 7, 8, 9}, same[] = {1, 1, 1, 1};
    agrees(x, y, 4, 3.75 / 4.5, 4.0 / 5.0);
    double scratch[8];
    assert_true(isnan(rank_agreement_of(x, same, 4, scratch).spearman));
    assert_true(isnan(rank_agreement_of(x, same, 4, scratch).kendall));
    const double hole[] = {1, NAN, 2, 3};
    assert_true(isnan(rank_agreement_of(x, hole, 4, scratch).spearman));
}

/* Perfect in the data, noisy in the resamples: an interval ends at 1, where it is the value, and
 * says less where the items are few. */
static void intervals_stay_within_1(void **state) {
    (void)state;
    enum { ITEMS = 5, UNITS = 8, DRAWS = 101 };
    static double score[UNITS][ITEMS], loss[UNITS][ITEMS], x[DRAWS * ITEMS], y[DRAWS * ITEMS];
    const double weight[UNITS] = {1, 1, 1, 1, 1, 1, 1, 1};
    const size_t unit[UNITS] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (size_t u = 0; u < UNITS; u++)
        for (size_t i = 0; i < ITEMS; i++) {
            score[u][i] = (double)i;
            loss[u][i] = (double)i + 9 * sin((double)(u * u * 5 + i * 7)) * (u % 2 ? 1 : -1);
        }
    for (size_t i = 0; i < ITEMS; i++) { /* the mean over units is the rank itself */
        double off = 0;
        for (size_t u = 0; u < UNITS; u++)
            off += (loss[u][i] - (double)i) / UNITS;
        for (size_t u = 0; u < UNITS; u++)
            loss[u][i] -= off;
    }
    status st;
    bootstrap *b;
    interval rho, tau;
    const bootstrap_options options = {.sequences = UNITS,
                                       .weight = weight,
                                       .unit = unit,
                                       .units = UNITS,
                                       .resamples = DRAWS - 1,
                                       .seed = 1,
                                       .level = 0.95};
    assert_int_equal(bootstrap_create(&options, &b, &st), DONE);
    assert_int_equal(bootstrap_means(b, score[0], ITEMS, NULL, ITEMS, x, &st), DONE);
    for (int sign = 1; sign >= -1; sign -= 2) {
        assert_int_equal(bootstrap_means(b, loss[0], ITEMS, NULL, ITEMS, y, &st), DONE);
        for (size_t i = 0; i < DRAWS * ITEMS; i++)
            y[i] *= sign;
        assert_int_equal(rank_agreement_intervals(b, x, y, ITEMS, &rho, &tau, &st), DONE);
        assert_true(rho.value == sign && tau.value == sign);
        assert_true(sign > 0 ? rho.high == 1 && tau.high == 1 : rho.low == -1 && tau.low == -1);
        assert_true(sign > 0 ? rho.low < 0.9 && tau.low < 0.9 : rho.high > -0.9 && tau.high > -0.9);
        assert_true(rho.low >= -1 && rho.high <= 1 && tau.low >= -1 && tau.high <= 1);
    }
    bootstrap_free(b);
}

/* The published two-sided 5 % table; beyond nine items the t approximation. */
static void thresholds(void **state) {
    (void)state;
    static const double want[] = {1, 0.886, 0.786, 0.738, 0.7};
    for (size_t n = 5; n <= 9; n++)
        assert_true(fabs(rank_agreement_threshold(n) - want[n - 5]) < 5e-4);
    for (size_t n = 0; n < 5; n++)
        assert_true(isnan(rank_agreement_threshold(n)));
    assert_true(fabs(rank_agreement_threshold(28) - 0.375) < 2e-3);
}

/* Slices that agree up to a constant: matched 0, raw is the floor. */
static void agreeing_slices(void **state) {
    (void)state;
    const double base[] = {0.3, -1.2, 800, 799}; /* a softmax in plain numbers would overflow */
    double l[4 * 4], scratch[8], out[3];
    for (size_t j = 0; j < 4; j++)
        for (size_t s = 0; s < 4; s++)
            l[j * 4 + s] = base[s] + 5.0 * (double)j;
    query_slices_token(l, 4, 4, scratch, out);
    assert_true(fabs(out[2]) < 1e-9 && fabs(out[0] - out[1]) < 1e-9 && out[1] > 0.01);
    l[3] += 2;
    query_slices_token(l, 4, 4, scratch, out);
    assert_true(out[2] > 0.01);
}

/* Two slices that cancel: the whole is even, KL(softmax(+-1, 0) to 1/2). */
static void cancelling_slices(void **state) {
    (void)state;
    const double l[] = {1, 0, -1, 0};
    double scratch[4], out[3];
    const double p = 1 / (1 + exp(-1)), p2 = 1 / (1 + exp(-2));
    query_slices_token(l, 2, 2, scratch, out);
    assert_true(fabs(out[0] - (log(2) + p * log(p) + (1 - p) * log(1 - p))) < 1e-12);
    assert_true(fabs(out[1]) < 1e-12);
    assert_true(fabs(out[2] - (log(2) + p2 * log(p2) + (1 - p2) * log(1 - p2))) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders),
        cmocka_unit_test(ties_take_mid_ranks),
        cmocka_unit_test(intervals_stay_within_1),
        cmocka_unit_test(thresholds),
        cmocka_unit_test(agreeing_slices),
        cmocka_unit_test(cancelling_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
