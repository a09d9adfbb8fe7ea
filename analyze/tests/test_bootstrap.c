/* Intervals: quantiles, units and draws are what the documentation says, and they cover. */
#include "analyze/bootstrap.h"
#include "runtime/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%.17g, expected %.17g", found, expected);
}

/* Published tables of the distribution. */
static void test_student(void **state) {
    (void)state;
    static const struct {
        double level;
        size_t freedom;
        double t;
    } known[] = {{.95, 1, 12.706204736},   {.95, 2, 4.302652730},  {.95, 3, 3.182446305},
                 {.95, 7, 2.364624252},    {.95, 15, 2.131449546}, {.95, 30, 2.042272456},
                 {.95, 100, 1.983971519},  {.99, 5, 4.032142984},  {.5, 1, 1},
                 {.95, 1000, 1.962339081}, {.999, 4, 8.610301581}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        near(student_t(known[i].level, known[i].freedom), known[i].t, 1e-6);
    near(student_t(.95, 1000000), 1.959963985, 1e-5); /* the normal distribution's */
}

/* The published first values of splitmix64 for this seed. */
static void test_random(void **state) {
    (void)state;
    assert_true(random_at(1234567, 0) == UINT64_C(6457827717110365317));
    assert_true(random_at(1234567, 2) == UINT64_C(9817491932198370423));
    assert_true(random_at(1234567, 1) == UINT64_C(3203168211198807973));
}

static void test_units(void **state) {
    (void)state;
    status st;
    /* [0, 10) and [5, 15) overlap, so do [5, 15) and [14, 24), and [15, 17) lies within that. */
    const int64_t start[] = {100, 5, -1, 0, 15, -1, 14, 24, 20};
    const int32_t length[] = {10, 10, 10, 10, 2, 10, 10, 5, 1};
    size_t unit[9], units;
    assert_int_equal(merge_windows(start, length, 9, unit, &units, &st), DONE);
    assert_int_equal(units, 5);
    assert_int_equal(unit[3], unit[1]);
    assert_int_equal(unit[1], unit[6]);
    assert_int_equal(unit[6], unit[4]);
    assert_int_equal(unit[4], unit[8]);     /* [20, 21) begins after [15, 17), within [14, 24) */
    assert_int_not_equal(unit[7], unit[6]); /* begins where the last one ends */
    assert_int_not_equal(unit[0], unit[6]);
    assert_int_not_equal(unit[2], unit[5]);
}

/* Nine sequences in eight units; the expected numbers come from another program that follows the
 * documented formulas. */
static const double small_x[9] = {1, 2, 4, 3, 5.5, .5, 7, 2.5, 6};
static const double small_weight[9] = {10, 20, 10, 30, 10, 10, 20, 10, 10};
static const size_t small_unit[9] = {0, 0, 1, 2, 3, 4, 5, 6, 7};

static bootstrap *small(size_t sequences, size_t units, const double *weight, uint64_t seed) {
    bootstrap *b;
    status st;
    const bootstrap_options options = {.sequences = sequences,
                                       .weight = weight,
                                       .unit = small_unit,
                                       .units = units,
                                       .resamples = 100,
                                       .seed = seed,
                                       .level = 0.95};
    if (bootstrap_create(&options, &b, &st))
        fail_msg("%s", st.text);
    return b;
}

static void test_interval(void **state) {
    (void)state;
    status st;
    bootstrap *b = small(9, 8, small_weight, 7);
    assert_int_equal(bootstrap_units(b), 8);
    assert_int_equal(bootstrap_draws(b), 101);
    near(bootstrap_weight_total(b), 130, 0);
    double draws[101];
    interval x;
    assert_int_equal(bootstrap_means(b, small_x, 1, NULL, 1, draws, &st), DONE);
    near(draws[1], 3.4166666666666665, 1e-14);
    near(draws[100], 3.2083333333333335, 1e-14);
    bootstrap_intervals(b, draws, 1, &x);
    near(x.value, 3.576923076923077, 1e-14);
    near(x.low, 1.4438250935212498, 1e-10);
    near(x.high, 5.651598118973167, 1e-10);
    for (size_t d = 0; d < 101; d++) /* a derived statistic: the square of the mean */
        draws[d] *= draws[d];
    bootstrap_intervals(b, draws, 1, &x);
    near(x.value, 12.794378698224854, 1e-13);
    near(x.low, -4.7771902395920005, 1e-9);
    near(x.high, 28.57479931902224, 1e-9);
    bootstrap_free(b);
}

/* Cells taken by index from wide rows, with more of them than one tile, are what each alone is. */
static void test_cells(void **state) {
    (void)state;
    enum { WIDE = 700 };
    status st;
    bootstrap *b = small(9, 8, small_weight, 3);
    double *row = calloc(9 * WIDE, sizeof *row), *draws = calloc(101 * WIDE, sizeof *draws);
    size_t cell[WIDE];
    for (size_t c = 0; c < WIDE; c++) {
        cell[c] = WIDE - 1 - c;
        for (size_t i = 0; i < 9; i++)
            row[i * WIDE + c] = small_x[i] * (double)(c + 1);
    }
    row[4 * WIDE + 10] = NAN;
    assert_int_equal(bootstrap_means(b, row, WIDE, cell, WIDE, draws, &st), DONE);
    double one[101];
    assert_int_equal(bootstrap_means(b, small_x, 1, NULL, 1, one, &st), DONE);
    for (size_t d = 0; d < 101; d++)
        for (size_t c = 0; c < WIDE; c++)
            if (cell[c] == 10)
                assert_true(isnan(draws[d * WIDE + c]));
            else
                near(draws[d * WIDE + c] / (double)(cell[c] + 1), one[d], 1e-13);
    free(row);
    free(draws);
    bootstrap_free(b);
}

/* The same seed gives the same bits; another gives others; what has no weight takes no part. */
static void test_reproducible(void **state) {
    (void)state;
    status st;
    double with_nothing[9], x[9], draws[4][101];
    memcpy(with_nothing, small_weight, sizeof x);
    memcpy(x, small_x, sizeof x);
    with_nothing[8] = 0;
    x[8] = NAN;
    bootstrap *b[4] = {small(9, 8, small_weight, 7), small(9, 8, small_weight, 7),
                       small(9, 8, small_weight, 8), small(9, 8, with_nothing, 7)};
    for (int i = 0; i < 4; i++)
        assert_int_equal(bootstrap_means(b[i], i == 3 ? x : small_x, 1, NULL, 1, draws[i], &st),
                         DONE);
    assert_memory_equal(draws[0], draws[1], sizeof draws[0]);
    assert_memory_not_equal(draws[0], draws[2], sizeof draws[0]);
    assert_int_equal(bootstrap_units(b[3]), 7);
    near(draws[3][0], (1 * 10 + 2 * 20 + 40 + 90 + 55 + 5 + 140 + 25) / 120.0, 1e-14);
    interval few;
    bootstrap_intervals(b[3], draws[3], 1, &few); /* seven units: a value without an interval */
    near(few.value, draws[3][0], 0);
    assert_true(isnan(few.low) && isnan(few.high));
    for (int i = 0; i < 4; i++)
        bootstrap_free(b[i]);
    bootstrap *none;
    const double nothing[9] = {0};
    assert_int_equal(bootstrap_create(&(bootstrap_options){.sequences = 9,
                                                           .weight = nothing,
                                                           .unit = small_unit,
                                                           .units = 8,
                                                           .resamples = 100},
                                      &none, &st),
                     FAILED);
    assert_null(none);
    assert_non_null(strstr(st.text, "no sequence has a token"));
}

static double uniform(uint64_t seed, uint64_t counter) {
    return ((double)(random_at(seed, counter) >> 11) + 0.5) / 9007199254740992.0;
}

/* Share of 95 % intervals of a mean of 16 units that hold the true mean. */
static double coverage(bool exponential, size_t trials) {
    enum { UNITS = 16, RESAMPLES = 400 };
    double x[UNITS], weight[UNITS], draws[1 + RESAMPLES];
    size_t unit[UNITS], hits = 0;
    status st;
    for (size_t i = 0; i < UNITS; i++) {
        unit[i] = i;
        weight[i] = 256;
    }
    for (size_t trial = 0; trial < trials; trial++) {
        bootstrap *b;
        for (size_t i = 0; i < UNITS; i++) {
            double u = uniform(99, 2 * (trial * UNITS + i));
            double angle = 2 * M_PI * uniform(99, 2 * (trial * UNITS + i) + 1);
            x[i] = exponential ? -log(u) - 1 : sqrt(-2 * log(u)) * cos(angle);
        }
        const bootstrap_options options = {.sequences = UNITS,
                                           .weight = weight,
                                           .unit = unit,
                                           .units = UNITS,
                                           .resamples = RESAMPLES,
                                           .seed = trial,
                                           .level = 0.95};
        interval found;
        assert_int_equal(bootstrap_create(&options, &b, &st), DONE);
        assert_int_equal(bootstrap_means(b, x, 1, NULL, 1, draws, &st), DONE);
        bootstrap_intervals(b, draws, 1, &found);
        hits += found.low <= 0 && 0 <= found.high;
        bootstrap_free(b);
    }
    return (double)hits / (double)trials;
}

/* Normal units: the nominal 95 %, within three standard errors of 1000 trials (2.1 %). Exponential
 * units: Student's interval itself covers 91 to 92 % at n = 16, for the skewness. */
static void test_coverage(void **state) {
    (void)state;
    double normal = coverage(false, 1000), skewed = coverage(true, 1000);
    print_message("coverage of 95 %% intervals, n = 16: normal %.3f, exponential %.3f\n", normal,
                  skewed);
    near(normal, 0.95, 0.021);
    near(skewed, 0.92, 0.03);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_student),  cmocka_unit_test(test_random),
        cmocka_unit_test(test_units),    cmocka_unit_test(test_interval),
        cmocka_unit_test(test_cells),    cmocka_unit_test(test_reproducible),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
